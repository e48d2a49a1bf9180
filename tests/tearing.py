"""All services over a cluster, with one held in its transactions, which are torn."""

import itertools
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from deploy.drills.sinks.receiver import Faults, Mode
from deploy.drills.tearing import OFFSETS, commit_parts, holding, is_held, open_transaction
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.clients import BY_OPERATOR
from shared.events.effects import EVERY_ACCOUNT, Subscription, Subscriptions, encode_subscriptions
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.kafka.admin.groups import PIPELINE, wait_drained
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Target
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics, stable_offsets
from tests.harness import Service, wait_until
from tests.outbox import World
from tests.partitions import PARTITIONS, partition_for
from tests.proof import assert_exactly_once, send_raw, verdict

DRAINED_S = 120.0  # a service may have to be started again first
PAYMENTS = 3  # of each debtor in a round
FIRST, SECOND = 1, 2
"""Creditors live this many partitions after their debtor, so that a ledger transaction has two partitions of legs."""


@dataclass(frozen=True)
class Torn:
    """A service whose transactions are torn.

    Attributes:
        service: its name.
        topic: its input.
        outputs: of its transaction, the changelog first: topics, and distances from the input partition.
    """

    service: str
    topic: str
    outputs: tuple[tuple[str, int], ...]

    def targets(self, partition: int) -> list[Target]:
        """The partitions that a transaction over an input partition writes to, the changelog first."""
        return [(topic, (partition + further) % PARTITIONS) for topic, further in self.outputs]

    def committed(self, rows: Collection[tuple[bool, ...]]) -> set[Target]:
        """The partitions that rows name, each for an input partition."""
        return {
            target
            for partition, row in enumerate(rows)
            for target, on in zip(self.targets(partition), row[1:], strict=True)
            if on
        }

    def offsets(self, rows: Collection[tuple[bool, ...]]) -> bool:
        """Whether any row commits the offsets, which are in one partition."""
        return any(row[0] for row in rows)

    def fates(self, rows: Collection[tuple[bool, ...]]) -> list[tuple[bool, ...]]:
        """Which parts of each input partition are committed in the end."""
        if self.service == "outbox":
            return list(rows)
        committed, offsets = self.committed(rows), self.offsets(rows)
        return [
            (offsets, *(target in committed for target in self.targets(partition))) for partition in range(PARTITIONS)
        ]

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

CHANGELOGS = {torn.outputs[0][0] for torn in SERVICES.values()}


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
        """A service with its only instance, not started."""
        if name == "outbox":
            return self._world.outbox(OUTBOX_FILE_DIRECTORY=str(self._world.directory / "effects"))
        return Service(name, self.brokers, self._world.directory)

    def start(self, *names: str) -> None:
        """Start services, each with a log of its own."""
        for name in names:
            self._running[name] = self.make(name).start()
        for name in names:
            self._running[name].wait_ready()

    def stop(self, *names: str) -> None:
        """Stop these services, or all of them."""
        for name in names or self._running:
            self._running[name].process.terminate()

    def metric(self, name: str, metric: str) -> float:
        """The sum over a metric's series of a service."""
        return self._running[name].metric(metric)

    async def records(self, topics: Collection[str]) -> dict[str, list[Record]]:
        """The committed records of topics."""
        found: dict[str, list[Record]] = {topic: [] for topic in topics}
        await read_topics(self.brokers, list(found), lambda topic, _, records: found[topic].extend(records))
        return found

    async def fund(self) -> None:
        """Fund the debtors, and subscribe all accounts to two receipts, one of which is always refused."""
        receiver = self._world.receiver
        receiver.fail(Faults(Mode.STATUS, status=410))
        both = tuple(Subscription("receipt", destination) for destination in ("file:receipts", receiver.url))
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
        """Send payments on every partition, with a repeat and a bad record on each."""
        self._rounds += 1
        async with IdempotentWriter(self.brokers) as writer:
            for number, debtor in enumerate(DEBTORS):
                values = [
                    payment(f"{self._rounds}-{n}", debtor, CREDITORS[(number + further) % PARTITIONS], 100 + n)
                    for n, further in zip(range(PAYMENTS), itertools.cycle((FIRST, SECOND)), strict=False)
                ]
                for value in (*values, values[0]):
                    await writer.write(catalogue.PAYMENTS_RAW, number, debtor.encode(), value, BY_OPERATOR)
                await writer.write(catalogue.PAYMENTS_RAW, number, None, b"no payment %d" % self._rounds)
            await writer.flush()

    @property
    def services(self) -> list[Service]:
        """The services started last, by name."""
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
            rows: the parts to commit, by partition. A service with one transaction over all partitions commits what any
                row names.
            before_successor: called before the successor is started.

        Returns:
            The successor, ready.
        """
        self._running.pop(torn.service).process.terminate()
        await self.pay()
        upstream = PIPELINE[: list(SERVICES).index(torn.service)]
        if upstream:
            await wait_drained(self.brokers, deadline_s=DRAINED_S, pipeline=upstream)
        ends = await stable_offsets(self.brokers, [torn.topic])
        # At least the last record is in the transaction that is held; a marker may be the last offset
        held = holding(self.make(torn.service), {partition: end - 1 for (_, partition), end in ends.items()})
        held.start()
        try:
            wait_until(lambda: is_held(held, torn.topic, range(PARTITIONS)), f"{torn.service} held")
            async with Brokers(self.brokers) as brokers:
                if torn.service == "outbox":
                    for partition, row in enumerate(rows):
                        wanted = [target for target, on in zip(torn.targets(partition), row[1:], strict=True) if on]
                        await _tear(brokers, f"outbox-{torn.topic}-{partition}", wanted, offsets=row[0])
                else:
                    await _tear(brokers, f"{torn.service}-0", torn.committed(rows), offsets=torn.offsets(rows))
        finally:
            held.process.kill()
        if before_successor is not None:
            await before_successor()
        self.start(torn.service)
        return self._running[torn.service]


async def _tear(brokers: Brokers, transactional_id: str, wanted: Collection[Target], *, offsets: bool) -> None:
    transaction = await open_transaction(brokers, transactional_id)
    chosen = [target for target in transaction.partitions if target in wanted or (offsets and target[0] == OFFSETS)]
    await commit_parts(brokers, transaction, chosen)


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
