"""Faults of the flow: bad records, lag, slow restores, members that join and leave."""

import asyncio
import time

import msgspec

from deploy.drills.admin import free_restores, slow_restores
from shared.events import catalogue
from tests.drills.alerts.fault import Fault
from tests.drills.site import Site, Written
from tests.harness import Service, wait_until
from tests.payments import payments

LATE_S = 20.0
MEMBERS = 3
FILLER_RECORDS = 160
FILLER_BYTES = 60_000
RESTORE_BYTES_PER_S = 200_000


class BadRecords(Fault):
    """Payments without an amount, written past the gateway, which would have refused them."""

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        fields = [msgspec.json.decode(value) for value in payments("drill-bad", 10)]
        site.send(
            [msgspec.json.encode({name: kept[name] for name in kept.keys() - {"amount_minor"}}) for kept in fields]
        )

    def heal(self, site: Site) -> None:
        """Nothing to heal: the records stay dead letters."""


class StoppedUnderLoad(Fault):
    """A service gets SIGSTOP while payments come in, and continues when healed.

    Args:
        service: which one.
    """

    def __init__(self, service: str) -> None:
        self._service = service

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        site.component(self._service).pause()
        site.load(100)

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        site.resume(self._service)
        site.stop_load()


class LateWork(Fault):
    """A service gets SIGSTOP, payments come in, and it continues when they are old.

    Args:
        service: which one.
    """

    def __init__(self, service: str) -> None:
        self._service = service

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        site.component(self._service).pause()
        site.pay(60)
        begun_s = time.monotonic()
        wait_until(lambda: time.monotonic() - begun_s > LATE_S, "they are old")
        site.resume(self._service)

    def heal(self, site: Site) -> None:
        """Resume the service, if `inject` failed before."""
        site.resume(self._service)


class SlowRestore(Fault):
    """ingest is started on a changelog of some megabytes, and the brokers hold its reader back by a quota.

    The added records of the changelog delete an entry that never existed.
    """

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        filler = (("filler", bytes(FILLER_BYTES)),)
        site.write(catalogue.PAYMENTS_IDENTITIES, 0, [Written(b"identity/0", None, filler)] * FILLER_RECORDS)
        ingest = site.component("ingest")
        ingest.release()
        ingest.process.terminate()
        asyncio.run(slow_restores(site.kafka, RESTORE_BYTES_PER_S))
        ingest.start()
        remaining = 'max(once_restore_remaining_offsets{job="ingest", partition="0"})'
        wait_until(lambda: (site.value(remaining) or 0) > 0, "ingest is seen to restore")

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        asyncio.run(free_restores(site.kafka))
        site.bring_back("ingest")


class CopiedRecord(Fault):
    """A committed record of payments.accepted is written once more.

    transform sees the same after a torn transaction whose input ingest processed again.

    Args:
        partition: of payments.accepted.
    """

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        site.pay(1, partition=self._partition)
        site.prove()  # the record to be copied was processed
        site.copy_accepted(self._partition)

    def heal(self, site: Site) -> None:
        """Nothing to heal: transform ignores the copy."""


class ComingAndGoing(Fault):
    """Further instances of a service join its group and leave it again, one after the other.

    Args:
        service: which one.
    """

    def __init__(self, service: str) -> None:
        self._service = service

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        for number in range(MEMBERS):
            before = self._rebalances(site)
            member = Service(self._service, site.brokers, site.directory, instance=f"drill-{number}").start()
            try:
                member.wait_ready()
            finally:
                member.process.terminate()
            # It leaves when its session times out; an instance that joins before would merge two rebalances into one
            wait_until(lambda before=before: self._rebalances(site) >= before + 2, "it came and went")  # type: ignore[misc]

    def heal(self, site: Site) -> None:
        """Nothing to heal: the instances have left."""

    def _rebalances(self, site: Site) -> float:
        return site.value(f'sum(kafka_consumer_rebalance_total{{job="{self._service}"}})') or 0.0
