"""The view at work: pages in from Faust, transactions out to the database.

Invariant: a partition is read from the database's position, whatever the group's offsets are. Pages of all partitions
that come while one transaction is written make the next one. If a page is missing, another instance has written, or the
tables were emptied, the positions are read again and the partitions begin there. So nothing that Faust or the group
does can lose a record or process one twice.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Final, cast

from faust import StreamT
from mode import CrashingSupervisor

from services.balances.projection.domain import Page, Plan, Position, plan
from services.balances.projection.lag import Behind, Ends, lags, seconds
from services.balances.projection.progress import PartitionFreshness
from services.balances.projection.store import OvertakenError, Reach, Store
from services.balances.projection.transport import Member, PageConsumer, ViewApp, Whole
from services.balances.projection.writing import Writing
from shared.eos.crash import TAKING_OVER
from shared.eos.errors import FatalError, FencedError
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.codec import InternalInputError
from shared.events.headers import oldest_origin_time_ms
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.runtime.partition_metrics import report_repeats, tell_latency
from shared.kafka.runtime.process import until_first_ends
from shared.kafka.runtime.scope import now_ms
from shared.telemetry import catalogue, metrics
from shared.telemetry.instruments import ReadGauge, at_zero, counter, histogram
from shared.telemetry.server import Health

PAGES_MAX: Final = 4  # that wait for the database; with more, Faust waits
RECORDS_MAX: Final = 4000  # no further page joins a transaction that has as many
KAFKA_PAUSE_S: Final = 1.0
LOOK_S: Final = 1.0
STOP_S: Final = 8.0

REMOVED: Final = ("Heartbeat", "UnknownMemberId")
"""Request and error of a member that the group has removed. It is fenced as well: others have its partitions."""
ASSIGNMENT: Final = "assignment"
KAFKA: Final = "kafka"

OVERTAKEN, GAP, EMPTIED = "overtaken", "gap", "emptied"  # causes to start over
HOP: Final = "view"  # among the hops of the end-to-end latency

TRANSACTION = histogram(catalogue.VIEW_TRANSACTION)
TRANSACTION_RECORDS = histogram(catalogue.VIEW_TRANSACTION_RECORDS)
BEHIND = ReadGauge(catalogue.VIEW_BEHIND)
BEGUN_ANEW = counter(catalogue.VIEW_BEGUN_ANEW)
at_zero(BEGUN_ANEW, [OVERTAKEN, GAP, EMPTIED])
at_zero(metrics.SOURCE_REPEATS, [LEDGER_POSTINGS])

metrics.FENCED.labels(*REMOVED)

log = logging.getLogger(__name__)


class View:
    """A member of the group `balances` and its database.

    Args:
        store: opened here.
        made_from: identity of the topic, as of `lag.topic_identity`; a view of another one is rebuilt.
        reach: called with the name of each crash point that is passed.
    """

    def __init__(self, member: Member, store: Store, ends: Ends, made_from: str, health: Health, reach: Reach) -> None:
        self._store = store
        self._ends = ends
        self._made_from = made_from
        self._health = health
        self._reach = reach
        self._writing = Writing(health, store.abort)
        self._pages: asyncio.Queue[Page | None] = asyncio.Queue(PAGES_MAX)
        self._owned: frozenset[int] = frozenset()
        self._positions: dict[int, Position] = {}
        self._everywhere: dict[int, Position] = {}
        self._behind = Behind()
        self._moved = asyncio.Condition()
        self._removed = asyncio.Event()
        self._app = ViewApp(member, self)
        topic = self._app.topic(LEDGER_POSTINGS, schema=Whole(), internal=False)
        self._app.agent(topic, name="follow", supervisor_strategy=CrashingSupervisor)(self._follow)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set.

        Raises:
            EosError: why it cannot go on.
            ForeignDatabaseError: the tables are not this view's.
            LostRecordsError: the view does not fit the topic.
        """
        shown = [
            BEHIND.add(lambda: seconds(self._fresh())),
            metrics.RECORDS_LAG.add(lambda: lags(self._fresh(), self._positions)),
        ]
        try:
            await until_first_ends(stop.wait(), self._work())
        finally:
            for hide in shown:
                hide()
            await self._end()

    async def _work(self) -> None:
        await self._open()
        await until_first_ends(self._consume(), self._stay(), self._write_on(), self._look_on())

    async def _open(self) -> None:
        dropped = await self._writing.call(partial(self._store.open, self._made_from), timeout_s=None)
        if dropped is not None:
            log.warning("the view is rebuilt from the topic", extra={"reason": dropped})

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(STOP_S):
                await self._app.stop()
        except TimeoutError:
            log.warning("Faust does not stop", extra={"seconds": STOP_S})
        await self._writing.end()

    async def freshness(self) -> Sequence[PartitionFreshness]:
        """As `progress.Progress`."""
        return self._fresh()

    async def reached(self, partition: int, offset: int, timeout_s: float) -> bool:
        """As `progress.Progress`. Another instance's partition counts within a second."""

        def there() -> bool:
            position = self._known().get(partition)
            return position is not None and position.next_offset > offset

        try:
            async with asyncio.timeout(timeout_s), self._moved:
                await self._moved.wait_for(there)
        except TimeoutError:
            return there()
        return True

    def assigned(self, partitions: frozenset[int]) -> None:
        """Take over these partitions. Waiting pages are dropped: the partitions begin where the database is."""
        log.info("partitions assigned", extra={"topic": LEDGER_POSTINGS, "partitions": sorted(partitions)})
        metrics.REBALANCES.inc()
        metrics.ASSIGNED_PARTITIONS.set(len(partitions))
        self._owned = partitions
        self._begin_anew()

    def revoked(self) -> None:
        self._health.missing(ASSIGNMENT, "partitions are being assigned")

    def removed(self) -> None:
        self._removed.set()

    def next_offset(self, partition: int) -> int | None:
        position = self._positions.get(partition)
        return None if position is None else position.next_offset

    def _begin_anew(self) -> None:
        while not self._pages.empty():
            self._pages.get_nowait()
        self._pages.put_nowait(None)

    async def _follow(self, stream: StreamT[Page]) -> None:
        """Faust's agent: pass pages on. That acknowledges them; the transport asks for the offset to commit."""
        async for page in stream:
            await self._pages.put(page)

    async def _consume(self) -> None:
        await self._app.start()
        await self._app.wait_until_stopped()
        raise FatalError(f"Faust ended: {self._app.crash_reason!r}")

    async def _stay(self) -> None:
        await self._removed.wait()
        metrics.FENCED.labels(*REMOVED).inc()
        raise FencedError("the group removed this member: another one has its partitions")

    async def _write_on(self) -> None:
        while True:
            pages = await self._next_pages()
            if pages is None:
                await self._take_over()
                continue
            try:
                made = await self._writing.call(partial(self._write, pages, self._positions))
            except OvertakenError as error:
                log.warning("overtaken", extra={"reason": str(error)})
                BEGUN_ANEW.labels(OVERTAKEN).inc()
                await self._take_over()
                continue
            except InternalInputError as error:
                raise FatalError(str(error)) from error
            await self._written(made)

    async def _next_pages(self) -> list[Page] | None:
        """All waiting pages; None when the partitions have to begin again."""
        page = await self._pages.get()
        pages = []
        records = 0
        while page is not None:
            pages.append(page)
            records += len(page.records)
            if records >= RECORDS_MAX or self._pages.empty():
                return pages
            page = self._pages.get_nowait()
        return None

    def _write(self, pages: list[Page], positions: dict[int, Position]) -> Plan:
        """Runs in the writer's thread."""
        begun = time.perf_counter()
        made = plan([page for page in pages if page.partition in positions], positions)
        if made.moves:
            self._store.write(made)
            if made.reads:
                TRANSACTION.observe(time.perf_counter() - begun)
        return made

    async def _written(self, made: Plan) -> None:
        self._positions.update((partition, move.after) for partition, move in made.moves.items())
        if made.reads:
            metrics.RECORDS_CONSUMED.labels(LEDGER_POSTINGS).inc(len(made.reads))
            TRANSACTION_RECORDS.observe(len(made.reads))
            tell_latency(oldest_origin_time_ms(read.headers for read in made.reads), HOP)
        for partition, repeats in made.repeats.items():
            report_repeats(LEDGER_POSTINGS, partition, repeats)
        async with self._moved:
            self._moved.notify_all()
        if made.gaps:
            log.info("pages lost on their way are read again", extra={"partitions": sorted(made.gaps)})
            BEGUN_ANEW.labels(GAP).inc()
            await self._take_over()

    async def _take_over(self) -> None:
        """Begin the partitions where the database is."""
        positions = await self._writing.call(self._store.positions)
        self._reach(TAKING_OVER)
        owned = {partition: positions[partition] for partition in self._owned}
        while True:
            try:
                await self._ends.check(owned)
                break
            except KafkaUnavailableError as error:
                self._health.missing(KAFKA, str(error))
                await asyncio.sleep(KAFKA_PAUSE_S)
        self._positions = owned
        self._everywhere = positions
        consumer = cast("PageConsumer", self._app.consumer)
        await consumer.begin({partition: position.next_offset for partition, position in owned.items()})
        self._health.met(ASSIGNMENT)
        log.info("partitions taken over", extra={"offsets": {p: at.next_offset for p, at in sorted(owned.items())}})

    async def _look_on(self) -> None:
        """Once a second, compare the topic's ends with the database."""
        while True:
            asked_ms = _monotonic_ms()
            try:
                stable = await self._ends.stable()
            except KafkaUnavailableError as error:
                self._health.missing(KAFKA, str(error))
            else:
                self._health.met(KAFKA)
                self._everywhere = await self._writing.call(self._store.positions)
                self._behind.look(stable, self._known(), asked_ms)
                self._notice_emptied()
            async with self._moved:
                self._moved.notify_all()
            await asyncio.sleep(LOOK_S)

    def _notice_emptied(self) -> None:
        if any(self._everywhere[number].next_offset < at.next_offset for number, at in self._positions.items()):
            log.warning("the tables were emptied: they are made again from the topic")
            BEGUN_ANEW.labels(EMPTIED).inc()
            self._begin_anew()

    def _known(self) -> dict[int, Position]:
        """Every partition's position: its own as they are, the others' as of the last look."""
        return self._everywhere | self._positions

    def _fresh(self) -> list[PartitionFreshness]:
        return self._behind.freshness(self._known(), _monotonic_ms(), now_ms())


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
