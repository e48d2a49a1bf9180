"""B and E: which records of a transaction a reader sees, and when."""

import asyncio
import inspect

from deploy.drills.clients.raw import log_of, values_of
from deploy.drills.clients.reader import read_to
from deploy.drills.clients.request_reply import answer, ask
from deploy.drills.deliveries import aborted_reads
from deploy.drills.drill import Anomaly, drill
from deploy.drills.hops import Hops, note_anomalies, until_settled
from deploy.drills.judge import now_ms
from deploy.drills.observe import LSO, line
from deploy.drills.producers import producer, put
from deploy.drills.proxy.proxy import Proxy
from deploy.drills.proxy.requests import Request
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually, until
from deploy.txn.listing import Hold, rows
from shared.eos.records import Handler
from shared.kafka.admin.transactions import look_twice
from shared.kafka.client.batches import Marker
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, stable_offsets

TIMEOUT_MS = 8_000
PLAIN = 20


@drill(
    "B9",
    "transaction-left-open",
    "A transaction that is left open withholds what is behind it, is named, and is aborted after its timeout",
    tags=["transactions", "visibility"],
    reading=["KIP-98", "KIP-664", "docs/runbooks/LastStableOffsetStuck.md"],
)
async def transaction_left_open(stage: Stage) -> None:
    """Leave a transaction open: its producer ends without ending it. The last stable offset stays at its first record,
    and the lag of read_committed readers grows. `once txn list` names the transactional.id, and what it holds back.
    After transaction.timeout.ms the coordinator aborts it, and the lag is gone.
    """
    topic, name = await stage.topic(), f"{stage.name}-left"
    async with stage.observing([topic]):
        async with producer(stage, name, timeout_ms=TIMEOUT_MS) as left:
            await left.init(30)
            begun_ms = now_ms()
            await left.begin()
            await put(left, topic, b"never committed")
        stage.step("its producer is gone; write records behind it")
        await _write_behind(stage, topic)
        stage.expect("last stable offset and end while it is open", await _ends(stage, topic), (0, PLAIN + 1))
        stage.expect("records of a read_committed reader", await values_of(stage.bootstrap_servers, topic), [])
        async with Brokers(stage.access) as brokers:
            seen, suspicion = await look_twice(brokers, [topic])
        [row] = [one for one in rows(seen, suspicion, {}, everything=False) if one.transactional_id == name]
        stage.expect("its state in `once txn list`", row.state, "Ongoing")
        stage.expect("what it holds back", row.holds, (Hold(f"{topic}:0", stable=0, held=PLAIN + 1),))
        stage.evidence("transaction left open", f"{name} has been open for {row.age_s or 0:.1f} s")

        async def moved() -> bool:
            return (await _ends(stage, topic))[0] > PLAIN

        await eventually(moved, "the coordinator has aborted the transaction", 60)
        samples, stable = stage.journal.samples, line(LSO, topic)
        await until(lambda: samples[-1].values.get(stable, 0) > PLAIN, "the time line shows the offset that has moved")
    [marker] = [batch for batch in await log_of(stage.bootstrap_servers, topic) if batch.marker is Marker.ABORT]
    seconds, timeout_s = (marker.timestamp_ms - begun_ms) / 1000, TIMEOUT_MS / 1000
    within = f"{timeout_s:.0f} to {timeout_s + 10:.0f} s"
    holds = timeout_s <= seconds <= timeout_s + 10
    stage.expect_that("seconds until the coordinator aborted it", round(seconds, 1), within, holds=holds)
    values = await values_of(stage.bootstrap_servers, topic)
    stage.journal.records = len(values) + 1
    stage.expect("records of a read_committed reader then", values, [b"plain"] * PLAIN)


async def _write_behind(stage: Stage, topic: str) -> None:
    """Write records without a transaction."""
    async with IdempotentWriter(stage.bootstrap_servers) as writer:
        for _ in range(PLAIN):
            await writer.write(topic, 0, None, b"plain")


async def _ends(stage: Stage, topic: str) -> tuple[int, int]:
    """Return a partition's last stable offset and its end."""
    stable = await stable_offsets(stage.bootstrap_servers, [topic])
    return stable[topic, 0], (await end_offsets(stage.bootstrap_servers, [topic]))[topic, 0]


@drill(
    "B11",
    "read-uncommitted-reader",
    "A reader of uncommitted records acts on what was aborted; a read_committed reader does not, nor does the runtime",
    control=[Anomaly.ABORTED_READ],
    tags=["visibility", "naive"],
    reading=["KIP-98"],
)
async def read_uncommitted_reader(stage: Stage) -> None:
    """Abort a transaction between two that are committed, and read the topic with stock aiokafka. With read_committed
    the reader gets the committed records only. With its default it gets all, which is the control. The project's
    runtime then works through the proxy: all of its fetches ask for committed records.
    """
    topic = await stage.topic()
    async with producer(stage, f"{stage.name}-writer") as writing:
        await writing.init(30)
        for value, is_kept in ((b"before", True), (b"aborted", False), (b"after", True)):
            await writing.begin()
            await put(writing, topic, value)
            await (writing.commit() if is_kept else writing.abort())
    await until_settled(stage, topic)
    log = await log_of(stage.bootstrap_servers, topic)
    safe = await read_to(stage.bootstrap_servers, topic, b"after", isolation_level="read_committed")
    found = {Anomaly.ABORTED_READ: aborted_reads(safe, log, (topic, 0))}
    note_anomalies(stage, found, is_control=False)
    stage.expect("records of the read_committed reader", safe, [b"before", b"after"])
    unsafe = await read_to(stage.bootstrap_servers, topic, b"after")
    stage.step(f"the reader with the default isolation level gets {unsafe}")
    found = {Anomaly.ABORTED_READ: aborted_reads(unsafe, log, (topic, 0))}
    note_anomalies(stage, found, is_control=True)
    stage.journal.records = len(safe) + len(unsafe)

    levels: set[int] = set()

    def observe(request: Request) -> None:
        if request.api == "Fetch" and request.client_id.startswith(hops.job.group):
            levels.add(request.values["IsolationLevel"])

    hops = await Hops.prepared(stage)
    proxy = await stage.resources.enter_async_context(Proxy(stage.bootstrap_servers, observe))
    hops.job = hops.job._replace(bootstrap_servers=proxy.bootstrap_servers)
    hops.start()
    await hops.write()
    await hops.until_done()
    stage.expect("isolation levels in the runtime's fetches; 1 is read_committed", levels, {1})


@drill(
    "B12",
    "reader-of-some-topics",
    "A reader of some of a transaction's topics sees its part of it, and no promise is made beyond that",
    tags=["visibility", "transactions"],
    reading=["KIP-98"],
)
async def reader_of_some_topics(stage: Stage) -> None:
    """Commit a transaction with a record in each of two topics. In the second topic an older transaction of another
    producer is open, so its readers wait. A reader of the first topic has its part already: each partition becomes
    visible by its own markers and its own last stable offset. When the older transaction ends, the other part is there.
    """
    first, second = await stage.topic(), await stage.topic()
    async with producer(stage, f"{stage.name}-older") as older, producer(stage, f"{stage.name}-both") as both:
        await older.init(30)
        await older.begin()
        await put(older, second, b"of the older transaction")
        await both.init(30)
        await both.begin()
        await put(both, first, b"transfer")
        await put(both, second, b"transfer")
        for topic in (first, second):
            stage.expect(f"{topic} before the commit", await values_of(stage.bootstrap_servers, topic), [])
        await both.commit()
        await until_settled(stage, first)
        stage.expect("first topic after the commit", await values_of(stage.bootstrap_servers, first), [b"transfer"])
        stage.expect("second topic after the commit", await values_of(stage.bootstrap_servers, second), [])
        stage.step("the older transaction is aborted")
        await older.abort()
    await until_settled(stage, second)
    stage.expect("second topic at the end", await values_of(stage.bootstrap_servers, second), [b"transfer"])
    stage.journal.records = 3


@drill(
    "B13",
    "waits-within-transaction",
    "A client that waits for an answer within the transaction that asks waits until the coordinator aborts it",
    control=[Anomaly.DEADLOCK],
    tags=["naive", "transactions"],
    reading=["KIP-98"],
)
async def waits_within_transaction(stage: Stage) -> None:
    """Ask a service a question over Kafka. A client that commits the question and then waits is answered. One that
    waits within the transaction is not: the question is invisible until the commit, which waits for the answer. In the
    project's runtime a handler is a plain function from a record to its outputs, and has nothing to wait with.
    """
    questions, answers = await stage.topic(), await stage.topic()
    answering = asyncio.ensure_future(answer(stage.bootstrap_servers, questions, answers))
    stage.resources.callback(answering.cancel)
    for within in (False, True):
        question = f"{stage.name}-{within}".encode()
        asking = asyncio.ensure_future(ask(stage.bootstrap_servers, questions, answers, question, within=within))
        found = await _deadlocks(stage, asking, questions)
        note_anomalies(stage, {Anomaly.DEADLOCK: found}, is_control=within)
    stage.journal.records = 2
    waits = inspect.iscoroutinefunction(Handler.process)
    stage.expect("a handler of the runtime can wait", waits, False)


async def _deadlocks(stage: Stage, asking: asyncio.Future[None], questions: str) -> list[str]:
    """Wait for an answer, or for the coordinator's abort of the transaction that asks."""

    async def ended() -> bool:
        log = await log_of(stage.bootstrap_servers, questions)
        return asking.done() or Marker.ABORT in [batch.marker for batch in log]

    seconds = await eventually(ended, "an answer, or the end of the transaction")
    if asking.done():
        asking.result()
        return []
    asking.cancel()
    return [f"no answer in {seconds:.1f} s, then the coordinator aborted the transaction that asks"]


@drill(
    "E8",
    "plain-records-behind-open",
    "Records of a producer without transactions are withheld while a transaction before them is open",
    tags=["visibility", "transactions"],
    reading=["KIP-98"],
)
async def plain_records_behind_open(stage: Stage) -> None:
    """Open a transaction, and write records behind it without one. They are acknowledged at once, and a
    read_uncommitted reader gets them. A read_committed reader gets none until the transaction has ended, and the last
    stable offset with it.
    """
    topic = await stage.topic()
    async with producer(stage, f"{stage.name}-open") as opened:
        await opened.init(30)
        await opened.begin()
        await put(opened, topic, b"in the transaction")
        await _write_behind(stage, topic)
        stage.step("the records without a transaction are acknowledged")
        everything = await values_of(stage.bootstrap_servers, topic, committed=False)
        stage.expect("records of a read_uncommitted reader", len(everything), PLAIN + 1)
        stage.expect("records of a read_committed reader", await values_of(stage.bootstrap_servers, topic), [])
        stage.expect("last stable offset and end", await _ends(stage, topic), (0, PLAIN + 1))
        await opened.commit()
    await until_settled(stage, topic)
    stage.expect("last stable offset and end after the commit", await _ends(stage, topic), (PLAIN + 2, PLAIN + 2))
    values = await values_of(stage.bootstrap_servers, topic)
    stage.journal.records = len(values)
    stage.expect("records of a read_committed reader then", values, [b"in the transaction", *[b"plain"] * PLAIN])
