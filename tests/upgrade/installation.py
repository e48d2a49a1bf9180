"""An installation whose ingest, transform and ledger are of one version at a time."""

import json
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Final

from deploy.txn.listing import HANGING
from shared.eos.open_transactions import OPEN_STATES
from shared.kafka.admin.groups import Groups
from shared.kafka.client.brokers import Brokers
from tests.commands import once
from tests.harness import Service, wait_until
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import assert_exactly_once, send_raw, verdict
from tests.upgrade.previous import previous, unpack

NAMES: Final = ("ingest", "transform", "ledger")
OPEN: Final = OPEN_STATES | {HANGING}
"""States of `once txn list` with which the previous version must not be started."""
OPEN_S: Final = 60.0
"""Longer than the timeout of a transaction, and what brokers take to notice."""


class Version(Enum):
    """A version of the services."""

    PREVIOUS = "previous"
    PRESENT = "present"

    @property
    def other(self) -> "Version":
        return Version.PRESENT if self is Version.PREVIOUS else Version.PREVIOUS


class Installation:
    """Brokers, and services of either version.

    Args:
        brokers: where the cluster listens.
        directory: for logs and the previous version.

    Attributes:
        running: the services that were started last, by name.
    """

    def __init__(self, brokers: str, directory: Path) -> None:
        self.brokers = brokers
        self.running: dict[str, Service] = {}
        self._directory = directory
        self._root = unpack(directory / "previous")
        self._sent = 0

    def make(self, version: Version, name: str, **settings: str) -> Service:
        """Return an instance that is not started; `settings` are further variables, ONCE_ prefix left out."""
        service = Service(name, self.brokers, self._directory, **settings)
        return previous(service, self._root) if version is Version.PREVIOUS else service

    def start(self, version: Version, names: Iterable[str] = NAMES, **doomed: str) -> None:
        """Start services, and wait until each has all partitions.

        Args:
            version: of the services.
            names: which; all of them by default.
            doomed: crash points, by service.
        """
        points = {name: {"CRASH_POINT": doomed[name]} if name in doomed else {} for name in names}
        started = {name: self.make(version, name, **points[name]).start() for name in points}
        self.running |= started
        for service in started.values():
            service.wait_ready()
        # An instance is ready without partitions while earlier members' sessions last
        wait_until(lambda: all(map(owns_all, started.values())), "every service has all partitions")

    def stop(self) -> None:
        """Stop all services by SIGTERM; each must end by itself."""
        for service in self.running.values():
            service.process.request_stop()
        assert [service.wait_exit(20) for service in self.running.values()] == [0] * len(NAMES)

    def kill(self) -> None:
        """Kill all services by SIGKILL."""
        for service in self.running.values():
            service.process.kill()

    async def pay(self, count: int) -> None:
        """Send payments on all partitions."""
        self._sent += 1
        await send_raw(self.brokers, payments(f"upgrade-{self._sent}", count))

    def verify(self) -> int:
        """Check that everything was processed exactly once; return the number of payments accepted so far."""
        result = verdict(self.brokers)
        assert_exactly_once(result)
        accepted: int = result["accepted"]
        return accepted

    def open_ids(self) -> set[str] | None:
        """The transactional.ids that `once txn list` shows as open; None where brokers did not answer."""
        listed = json.loads(once("txn", "list", "--json", "--bootstrap-servers", self.brokers).stdout)
        if listed["unanswered"]:
            return None
        return {str(row["transactional_id"]) for row in listed["transactions"] if row["state"] in OPEN}

    def wait_closed(self) -> None:
        """Wait until no transaction is open, as a roll back demands."""
        wait_until(lambda: self.open_ids() == set(), "no transaction is open", OPEN_S)

    async def members(self) -> dict[str, set[str]]:
        """The ids of each group's members by the newer protocol; none in a classic group."""
        async with Brokers(self.brokers) as brokers:
            alive = (await brokers.view([])).brokers
            groups = Groups(brokers)
            return {name: {one.member_id for one in await groups.members(name, alive)} for name in NAMES}


def owns_all(service: Service) -> bool:
    """Whether an instance has all partitions."""
    return service.metric("kafka_consumer_assigned_partitions") == PARTITIONS
