"""Faults of the rules themselves."""

import os
import signal
from pathlib import Path
from typing import Final

from deploy.drills.alerts.site import Site
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.waiting import until
from deploy.local.supervisor.monitoring import RULES

_FILE: Final = "thresholds.yml"
_RELOADED_S: Final = 60.0


class ThresholdLeftOut:
    """Prometheus reloads a thresholds.yml without one threshold. The other rules stay.

    Args:
        name: the threshold's.
    """

    def __init__(self, name: str) -> None:
        self._series = f"once:threshold:{name}"
        self._usual: tuple[Path, str] | None = None

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        config = site.directory / "data" / "prometheus" / "prometheus.yml"
        usual = config.read_text()
        if str(RULES) not in usual:
            raise NoEvidenceError(f"Prometheus does not load {RULES}")
        files = [path for path in sorted(RULES.parent.glob(RULES.name)) if path.name != _FILE]
        copy = site.files / _FILE
        copy.write_text(self._without((RULES.parent / _FILE).read_text()))
        listed = "\n  - ".join(f'"{path}"' for path in (*files, copy))
        self._usual = (config, usual)
        config.write_text(usual.replace(f'"{RULES}"', listed))
        _reload(site)
        await until(lambda: site.value(self._series) is None, f"{self._series} is gone", _RELOADED_S)
        return f"{self._series} has no value"

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        if self._usual is not None:
            config, usual = self._usual
            config.write_text(usual)
            _reload(site)
            await until(lambda: site.value(self._series) is not None, f"{self._series} is back", _RELOADED_S)

    def _without(self, text: str) -> str:
        before, found, after = text.partition(f"      - record: {self._series}\n")
        if not found:
            raise NoEvidenceError(f"{_FILE} has no {self._series}")
        return before + after.partition("\n")[2]  # its expression


def _reload(site: Site) -> None:
    os.kill(site.pid("prometheus"), signal.SIGHUP)
