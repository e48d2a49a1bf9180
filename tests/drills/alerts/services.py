"""Faults of processes: stopped, killed, or restarting in a loop."""

from tests.drills.alerts.fault import Fault
from tests.drills.site import Site
from tests.harness import wait_until

KILLS = 3


class Stopped(Fault):
    """A process gets SIGSTOP: supervision sees it running and does not restart it.

    Args:
        name: its component.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        site.component(self._name).pause()
        wait_until(lambda: site.suspended(self._name), f"{self._name} stopped")

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        site.resume(self._name)


class TakenAway(Fault):
    """A process is killed, and not restarted.

    Args:
        name: its component.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        site.take_away(self._name)

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        site.bring_back(self._name)


class Restarting(Fault):
    """A service is killed as soon as Prometheus has seen that it runs again.

    Args:
        name: its component, and its job.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        for _ in range(KILLS):
            before = self._started_s(site)
            assert before is not None, f"{self._name} is not scraped"
            site.component(self._name).kill()
            wait_until(lambda before=before: self._started_s(site) not in {None, before}, "seen again")  # type: ignore[misc]

    def heal(self, site: Site) -> None:
        """Nothing to heal: it runs again."""

    def _started_s(self, site: Site) -> float | None:
        return site.value(f'process_start_time_seconds{{job="{self._name}"}}')
