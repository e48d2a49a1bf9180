"""Faults of the flow: bad records, lag, slow restores, members that join and leave."""

import asyncio
from itertools import islice
from typing import Any, Final

import msgspec

from deploy.drills.admin import free_restores, slow_restores
from deploy.drills.alerts.site import Site, Written, covered
from deploy.drills.faults.processes import Pause
from deploy.drills.service import Service
from deploy.drills.waiting import until
from shared.events import catalogue

BAD: Final = 10
LATE_S: Final = 20.0
MEMBERS: Final = 3
FILLER_RECORDS: Final = 160
FILLER_BYTES: Final = 60_000
RESTORE_BYTES_PER_S: Final = 200_000
_SEEN_S: Final = 60.0


class BadRecords:
    """Payments without an amount, written past the gateway, which would have refused them."""

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        await site.send([_without_amount(value) for value in islice(covered(), BAD)])
        return f"{BAD} records without an amount are acknowledged"

    async def heal(self, site: Site) -> None:
        """Nothing to heal: the records stay dead letters."""


class StoppedUnderLoad:
    """A component gets SIGSTOP while payments flow, and continues when healed.

    Args:
        component: which one.
    """

    def __init__(self, component: str) -> None:
        self._component = component
        self._pause = Pause(component)

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        await site.load(100)
        return await self._pause.inject(site)

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        if self._component in site.taken:
            site.bring_back(self._component)
        await site.stop_load()  # before services must be ready: they have enough to catch up with


class LateWork:
    """A service gets SIGSTOP, payments come in, and it continues when they are old.

    Args:
        service: which one.
    """

    def __init__(self, service: str) -> None:
        self._pause = Pause(service)

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        paused = await self._pause.inject(site)
        await site.pay(60)
        await asyncio.sleep(LATE_S)  # the fault is that they grow old
        await self._pause.heal(site)
        return f"{paused} for {LATE_S:.0f} s"

    async def heal(self, site: Site) -> None:
        """Resume the service, if `inject` failed before."""
        await self._pause.heal(site)


class SlowRestore:
    """ingest is started on a changelog of some megabytes, and the brokers hold its reader back by a quota.

    The added records of the changelog delete an entry that never existed.
    """

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        filler = (("filler", bytes(FILLER_BYTES)),)
        records = [Written(b"identity/0", None, filler)] * FILLER_RECORDS
        await site.write(catalogue.PAYMENTS_IDENTITIES, 0, records)
        await asyncio.to_thread(site.stop, "ingest")
        await slow_restores(site.kafka, RESTORE_BYTES_PER_S)
        site.bring_back("ingest")
        remaining = 'max(once_restore_remaining_offsets{job="ingest", partition="0"})'
        await until(lambda: (site.value(remaining) or 0) > 0, "ingest is seen to restore", _SEEN_S)
        return f"{site.value(remaining) or 0:.0f} offsets of partition 0 remain to be restored"

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        await free_restores(site.kafka)
        await site.heal()


class CopiedRecord:
    """A committed record of payments.accepted is written once more.

    transform sees the same after a torn transaction whose input ingest processed again.

    Args:
        partition: of payments.accepted.
    """

    def __init__(self, partition: int) -> None:
        self._partition = partition

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        await site.pay(1, partition=self._partition)
        await site.prove()  # the record to be copied was processed
        return f"the copy is {await site.copy_accepted(self._partition)}"

    async def heal(self, site: Site) -> None:
        """Nothing to heal: transform ignores the copy."""


class ComingAndGoing:
    """Further instances of a service join its group and leave it again, one after the other.

    Args:
        service: which one.
    """

    def __init__(self, service: str) -> None:
        self._service = service

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        begun = self._rebalances(site)
        for number in range(MEMBERS):
            await self._come_and_go(site, f"drill-{number}")
        return f"{self._rebalances(site) - begun:.0f} rebalances"

    async def heal(self, site: Site) -> None:
        """Nothing to heal: the instances have left."""

    async def _come_and_go(self, site: Site, instance: str) -> None:
        before = self._rebalances(site)
        member = Service(self._service, site.bootstrap_servers, site.files, instance=instance).start()
        try:
            # It is ready without partitions as well, until the present instance has revoked some
            await until(lambda: member.ready and self._rebalances(site) > before, f"{member.name} came", _SEEN_S)
        finally:
            await asyncio.to_thread(member.process.terminate)
        # An instance that joins before the other's leaving is seen would merge two rebalances into one
        await until(lambda: self._rebalances(site) > before + 1, f"{member.name} went", _SEEN_S)

    def _rebalances(self, site: Site) -> float:
        return site.value(f'sum(kafka_consumer_rebalance_total{{job="{self._service}"}})') or 0.0


def _without_amount(value: bytes) -> bytes:
    fields: dict[str, Any] = msgspec.json.decode(value)
    del fields["amount_minor"]
    return msgspec.json.encode(fields)
