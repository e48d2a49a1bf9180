"""Faults of the rules themselves."""

import os
import signal
from pathlib import Path

from deploy.local.supervisor.monitoring import RULES
from tests.drills.alerts.fault import Fault
from tests.drills.site import Site
from tests.harness import wait_until

_FILE = "thresholds.yml"


class ThresholdLeftOut(Fault):
    """Prometheus reloads a thresholds.yml without one threshold. The other rules stay.

    Args:
        name: the threshold's.
    """

    def __init__(self, name: str) -> None:
        self._series = f"once:threshold:{name}"
        self._usual: tuple[Path, str] | None = None

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        config = site.stack.directory / "data" / "prometheus" / "prometheus.yml"
        usual = config.read_text()
        assert str(RULES) in usual
        files = [path for path in sorted(RULES.parent.glob(RULES.name)) if path.name != _FILE]
        copy = site.directory / _FILE
        copy.write_text(self._without((RULES.parent / _FILE).read_text()))
        listed = "\n  - ".join(f'"{path}"' for path in (*files, copy))
        self._usual = (config, usual)
        config.write_text(usual.replace(f'"{RULES}"', listed))
        _reload(site)
        wait_until(lambda: site.value(self._series) is None, "the threshold is gone")

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        if self._usual is not None:
            config, usual = self._usual
            config.write_text(usual)
            _reload(site)
            wait_until(lambda: site.value(self._series) is not None, "the threshold is back")

    def _without(self, text: str) -> str:
        before, found, after = text.partition(f"      - record: {self._series}\n")
        assert found
        return before + after.partition("\n")[2]  # its expression


def _reload(site: Site) -> None:
    pid = site.component("prometheus").process.pid
    assert pid is not None
    os.kill(pid, signal.SIGHUP)
