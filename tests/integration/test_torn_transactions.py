"""Every combination of parts in which brokers can tear a transaction, on each service: nothing is lost or doubled.

A transaction's parts are its offset, its changelog, and each output partition by itself. In each row a service is
stopped between TxnOffsetCommit and EndTxn, some parts get a COMMIT marker, the service is killed, and the coordinator
aborts the others when the successor initialises. The successor must complete what is torn, without help.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from shared.events import catalogue
from shared.events.catalogue import PARTITIONS
from shared.events.effects import EVERY_ACCOUNT, Subscription, Subscriptions, encode_subscriptions
from shared.events.partitions import partition_for
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.kafka.brokers import Brokers
from shared.kafka.cluster import Target
from shared.kafka.idempotent import IdempotentWriter
from shared.kafka.reader import group_offsets, stable_offsets
from tests.harness import Service, cluster, eventually, settled
from tests.outbox import World, world_over
from tests.proof import assert_exactly_once, send_raw, verdict
from tests.torn import OFFSETS, commit_parts, holding, open_transaction, wait_held

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

IDLE_S = 120.0  # a service may have to be started again first
PAYMENTS = 3  # of each debtor in a round
FIRST, SECOND = 1, 2
"""Creditors live this many partitions after their debtor, so that a ledger transaction has two partitions of legs."""


@dataclass(frozen=True)
class Torn:
    """A service whose transactions are torn.

    Attributes:
        service: its name.
        topic: its input.
        outputs: what its transaction writes to, the changelog first: topics, and how many partitions further on.
    """

    service: str
    topic: str
    outputs: tuple[tuple[str, int], ...]

    def targets(self, partition: int) -> list[Target]:
        """What a transaction over an input partition writes to, the changelog first."""
        return [(topic, (partition + further) % PARTITIONS) for topic, further in self.outputs]

    def combinations(self) -> list[tuple[bool, ...]]:
        """Which parts are committed: the offset, then `targets`."""
        return list(itertools.product((False, True), repeat=1 + len(self.outputs)))


SERVICES = {
    "ingest": Torn(
        "ingest",
        catalogue.PAYMENTS_RAW,
        (
            (catalogue.PAYMENTS_IDENTITIES, 0),
            (catalogue.PAYMENTS_ACCEPTED, 0),
            (catalogue.PAYMENTS_DEDUPLICATED, 0),
            (catalogue.PAYMENTS_DEAD_LETTER, 0),
        ),
    ),
    "transform": Torn(
        "transform",
        catalogue.PAYMENTS_ACCEPTED,
        ((catalogue.TRANSFORM_PROGRESS, 0), (catalogue.LEDGER_TRANSFERS, 0)),
    ),
    "ledger": Torn(
        "ledger",
        catalogue.LEDGER_TRANSFERS,
        (
            (catalogue.LEDGER_BALANCES, 0),
            (catalogue.LEDGER_POSTINGS, 0),
            (catalogue.LEDGER_TRANSFERS, FIRST),
            (catalogue.LEDGER_TRANSFERS, SECOND),
            (catalogue.EFFECTS_REQUESTS, 0),
        ),
    ),
    "outbox": Torn(
        "outbox",
        catalogue.EFFECTS_REQUESTS,
        (
            (catalogue.EFFECTS_WAITING, 0),
            (catalogue.EFFECTS_RESULTS, 0),
            (catalogue.EFFECTS_DEAD_LETTER, 0),
        ),
    ),
}

ROUNDS = [(name, at) for name, torn in SERVICES.items() for at in range(0, len(torn.combinations()), PARTITIONS)]


def account(prefix: str, partition: int) -> str:
    """A client account that lives on a partition."""
    return next(name for name in (f"{prefix}-{n}" for n in itertools.count()) if partition_for(name) == partition)


DEBTORS = [account("debtor", partition) for partition in range(PARTITIONS)]
CREDITORS = [account("creditor", partition) for partition in range(PARTITIONS)]


class Pipeline:
    """All services over a cluster; one of them at a time is held and torn."""

    def __init__(self, world: World) -> None:
        self.brokers = world.bootstrap_servers
        self._world = world
        self._rounds = 0
        self._running: dict[str, Service] = {}

    def make(self, name: str) -> Service:
        """A service, not started, under the one instance that it has here."""
        if name == "outbox":
            return self._world.outbox(OUTBOX_FILE_DIRECTORY=str(self._world.directory / "effects"))
        return Service(name, self.brokers, self._world.directory)

    def start(self, *names: str) -> None:
        """Start services, each with a log of its own."""
        for name in names:
            self._running[name] = self.make(name).start()
        for name in names:
            self._running[name].wait_ready()

    def stop(self) -> None:
        for service in self._running.values():
            service.process.terminate()

    async def fund(self) -> None:
        """Give the debtors money and subscribe everybody to receipts, one of which is always refused."""
        refused = self._world.receiver.url.replace("/hook", "/nowhere")
        both = tuple(Subscription("receipt", destination) for destination in ("file:receipts", refused))
        async with IdempotentWriter(self.brokers) as writer:
            value = encode_subscriptions(Subscriptions(both))
            await writer.write(catalogue.REFERENCE_SUBSCRIPTIONS, 0, EVERY_ACCOUNT.encode(), value)
            await writer.flush()
        self.start(*SERVICES)
        await send_raw(
            self.brokers,
            (payment(f"fund-{number}", f"cash@{number}", DEBTORS[number], 10**12) for number in range(PARTITIONS)),
        )
        assert_exactly_once(verdict(self.brokers))

    async def pay(self) -> None:
        """Payments on every partition, a repeat and a bad record on each."""
        self._rounds += 1
        async with IdempotentWriter(self.brokers) as writer:
            for number, debtor in enumerate(DEBTORS):
                values = [
                    payment(f"{self._rounds}-{n}", debtor, CREDITORS[(number + further) % PARTITIONS], 100 + n)
                    for n, further in zip(range(PAYMENTS), itertools.cycle((FIRST, SECOND)), strict=False)
                ]
                for value in (*values, values[0]):
                    await writer.write(catalogue.PAYMENTS_RAW, number, debtor.encode(), value)
                await writer.write(catalogue.PAYMENTS_RAW, number, None, b"no payment %d" % self._rounds)
            await writer.flush()

    @property
    def services(self) -> list[Service]:
        """Those that were started last, by name."""
        return list(self._running.values())

    async def tear(
        self,
        torn: Torn,
        rows: Collection[tuple[bool, ...]],
        before_successor: Callable[[], Awaitable[None]] | None = None,
    ) -> Service:
        """Hold a service in a transaction over each partition, commit the parts of each row, and kill it.

        Args:
            torn: the service.
            rows: the parts to commit, by partition.
            before_successor: what happens before the successor is started.

        Returns:
            The successor, ready.
        """
        self._running.pop(torn.service).process.terminate()
        await self.pay()
        for name in itertools.takewhile(lambda name: name != torn.service, SERVICES):
            await eventually(partial(self._idle, SERVICES[name]), f"{name} idle", IDLE_S)
        ends = await stable_offsets(self.brokers, [torn.topic])
        # At least the last record is in the transaction that is held; a marker may be the last offset
        held = holding(self.make(torn.service), {partition: end - 1 for (_, partition), end in ends.items()})
        held.start()
        try:
            wait_held(held, torn.topic, range(PARTITIONS))
            async with Brokers(self.brokers) as brokers:
                for partition, row in enumerate(rows):
                    await self._tear(brokers, torn, partition, row)
        finally:
            held.process.kill()
        if before_successor is not None:
            await before_successor()
        self.start(torn.service)
        return self._running[torn.service]

    async def _tear(self, brokers: Brokers, torn: Torn, partition: int, row: tuple[bool, ...]) -> None:
        transaction = await open_transaction(brokers, f"{torn.service}-{torn.topic}-{partition}")
        [offsets] = [target for target in transaction.partitions if target[0] == OFFSETS]
        targets = [offsets, *torn.targets(partition)]
        assert set(targets) == set(transaction.partitions)
        await commit_parts(brokers, transaction, [target for target, on in zip(targets, row, strict=True) if on])

    async def _idle(self, upstream: Torn) -> bool:
        """Whether a service has committed all of its input; its last offset may be a marker's."""
        if not await settled(self.brokers, [upstream.topic]):
            return False
        stable = await stable_offsets(self.brokers, [upstream.topic])
        committed = await group_offsets(self.brokers, upstream.service, upstream.topic)
        return all(committed.get(partition, 0) >= end - 1 for (_, partition), end in stable.items())


def payment(payment_id: str, debtor: str, creditor: str, amount_minor: int) -> bytes:
    return encode_instruction(
        Payment(
            payment_id=payment_id,
            debtor=debtor,
            creditor=creditor,
            amount_minor=amount_minor,
            currency="CZK",
            schema_version=SCHEMA_VERSION,
            value_date="2026-01-05",
        )
    )


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    directory = tmp_path_factory.mktemp("torn")
    with cluster(directory / "kafka") as kafka, world_over(kafka.bootstrap_servers, directory / "world") as world:
        made = Pipeline(world)
        try:
            asyncio.run(made.fund())
            yield made
        finally:
            made.stop()


def described(torn: Torn, row: tuple[bool, ...]) -> str:
    names = ["offsets", *(f"{topic}+{further}" if further else topic for topic, further in torn.outputs)]
    return ", ".join(name for name, on in zip(names, row, strict=True) if on) or "nothing"


@pytest.mark.parametrize(("name", "at"), ROUNDS)
async def test_a_torn_transaction_is_completed(pipeline: Pipeline, name: str, at: int) -> None:
    torn = SERVICES[name]
    rows = torn.combinations()[at : at + PARTITIONS]
    successor = await pipeline.tear(torn, rows)

    completed = {line["partition"]: line for line in successor.log() if line["event"] == "torn transaction completed"}
    result = verdict(pipeline.brokers)
    print(f"\n{'service':<10} {'committed by the brokers':<100} outcome")
    for partition, row in enumerate(rows):
        outcome = "torn, completed" if partition in completed else "whole"
        print(f"{name:<10} {described(torn, row):<100} {outcome}, {result['verdict']}")
    assert set(completed) == {partition for partition, row in enumerate(rows) if any(row) and not all(row)}
    assert successor.metric("once_torn_transactions_total") == len(completed)
    assert_exactly_once(result)
