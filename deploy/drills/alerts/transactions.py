"""Faults of transactions: left open, hanging, aborted again and again, of unknown outcome, fenced."""

from typing import Final

from deploy.drills.admin import move_leader
from deploy.drills.alerts.site import Site
from deploy.drills.faults.configs import TopicConfig
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.hanging import leave_hanging, refuse_markers, unverified
from deploy.drills.waiting import until
from deploy.txn.abort import carry_out, plan_hanging
from shared.eos import crash
from shared.eos.crash import NO_CRASHES
from shared.events.catalogue import LEDGER_POSTINGS
from shared.kafka.admin.transactions import look_twice
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Target
from shared.kafka.runtime.producer import TransactionalProducer

TIMEOUT_MS: Final = 10_000
_STOPPED_S: Final = 60.0
_ABORTED_S: Final = 30.0


class StoppedInTransaction:
    """A service gets SIGSTOP between its records' acknowledgement and its offsets, and continues when healed.

    Args:
        service: which one.
        partition: of the input that gets a payment.
    """

    def __init__(self, service: str, partition: int) -> None:
        self._service = service
        self._partition = partition

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        return await _stop_inside(site, self._service, self._partition)

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        site.bring_back(self._service)


class SecondProducer:
    """Another producer initialises the transactional.id of a running service, which then has work to do.

    Args:
        transactional_id: whose.
        partition: of the payments' debtors.
    """

    def __init__(self, transactional_id: str, partition: int) -> None:
        self._transactional_id = transactional_id
        self._partition = partition

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        producer = TransactionalProducer(site.bootstrap_servers, self._transactional_id, TIMEOUT_MS, NO_CRASHES)
        try:
            await producer.init(30)
            epoch = producer.epoch[1]
        finally:
            await producer.discard()
        if epoch == 0:
            raise NoEvidenceError(f"no producer had {self._transactional_id}")
        await site.pay(10, partition=self._partition)
        return f"the second producer has epoch {epoch}"

    async def heal(self, site: Site) -> None:
        """Nothing to heal: the fenced instance rejoins, and fences in turn."""


class HangingTransaction:
    """A batch is taken into a transaction that no coordinator knows, while the brokers do not verify (KIP-890).

    Args:
        target: the partition that it hangs on; the pipeline must not read it.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        async with unverified(site.kafka):
            producer_id, epoch = await leave_hanging(site.bootstrap_servers, self._target, b"hangs")
        return f"a batch of producer {producer_id}, epoch {epoch}, is acknowledged"

    async def heal(self, site: Site) -> None:
        """Find hanging transactions and abort them, as `once txn find-hanging` and `once txn abort` do."""
        topics = [self._target[0]]
        async with Brokers(site.access) as brokers:
            _, suspicion = await look_twice(brokers, topics)
            for hung in suspicion.hanging:
                plan = await plan_hanging(brokers, hung.target, hung.start_offset, topics)
                if plan is not None:
                    await carry_out(brokers, plan, deadline_s=_ABORTED_S)


class RefusedMarker:
    """A service is killed inside a transaction, one partition of which refuses its coordinator's marker.

    Args:
        service: which one.
        output: a topic that it writes to.
        partition: of it, and of the payments' debtors.
    """

    def __init__(self, service: str, output: str, partition: int) -> None:
        self._service = service
        self._target = (output, partition)
        self._state: Target | None = None

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        await _stop_inside(site, self._service, self._target[1])
        self._state = await refuse_markers(site.bootstrap_servers, f"{self._service}-0", self._target)
        site.kill(self._service)
        return f"{self._target[0]} [{self._target[1]}] has a marker of a newer coordinator"

    async def heal(self, site: Site) -> None:
        """Move the leadership of the __transaction_state partition, as the runbook says."""
        if self._state is not None:
            parts = site.view().partitions
            led = next(part for part in parts if (part.topic, part.partition) == self._state)
            other_first = sorted(led.replicas, key=lambda node_id: node_id == led.leader)
            await move_leader(site.kafka, self._state, other_first)
        site.bring_back(self._service)
        await site.ready(self._service)


class RefusedPostings:
    """The brokers take no posting any more: ledger.postings takes only the smallest records, under load."""

    def __init__(self) -> None:
        self._config = TopicConfig(LEDGER_POSTINGS, "max.message.bytes", "200")

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        evidence = await self._config.inject(site)
        await site.load(20)
        return evidence

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        try:
            await site.stop_load()
        finally:
            await self._config.heal(site)


async def _stop_inside(site: Site, service: str, partition: int) -> str:
    """Let a service stop by SIGSTOP inside a transaction, and return the evidence."""
    await site.restart(service, CRASH_POINT=f"{crash.AFTER_SEND}=stop:1")
    await site.pay(1, partition=partition)
    await until(lambda: site.suspended(service), f"{service} stopped inside its transaction", _STOPPED_S)
    return f"process {site.pid(service)} of {service} is stopped inside its transaction"
