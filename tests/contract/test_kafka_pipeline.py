"""Draining, traces and outcomes against real brokers, with a transactional producer in the services' place."""

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from shared.eos.crash import CrashPoints
from shared.eos.records import Output
from shared.events import catalogue
from shared.events.headers import DETAIL, ORIGIN, REASON, SOURCE, Coordinates, Headers
from shared.events.partitions import partition_for
from shared.events.payments import Repeat, encode_repeat
from shared.events.postings import CREDIT, DEBIT, Decline, Entry, LedgerEvent, Posting, encode_ledger_event
from shared.events.transfers import CreditLeg, Transfer, encode_transfer
from shared.kafka.drain import PIPELINE, Lag, wait_drained
from shared.kafka.errors import DrainTimeoutError, KafkaUnavailableError
from shared.kafka.idempotent import IdempotentWriter
from shared.kafka.outcome import RecordNotFoundError, State, outcome
from shared.kafka.producer import TransactionalProducer
from shared.kafka.reader import end_offsets, stable_offsets
from shared.kafka.trace import Hop, Transaction, trace
from tests.harness import eventually

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

RAW, ACCEPTED = catalogue.PAYMENTS_RAW, catalogue.PAYMENTS_ACCEPTED
TRANSFERS, POSTINGS = catalogue.LEDGER_TRANSFERS, catalogue.LEDGER_POSTINGS
DEBTOR, CREDITOR = "alice", "dora"
HOME, AWAY = partition_for(DEBTOR), partition_for(CREDITOR)


@pytest_asyncio.fixture
async def producer(brokers: str) -> AsyncIterator[TransactionalProducer]:
    """A transactional producer in a service's place."""
    made = TransactionalProducer(brokers, f"pipeline-{uuid.uuid4()}", 10_000, CrashPoints("", lambda _: None))
    try:
        await made.init(30)
        yield made
    finally:
        await made.discard()


async def send_raw(brokers: str, payment_id: str, **fields: object) -> Coordinates:
    value = {"schema_version": 2, "type": "payment", "payment_id": payment_id, "debtor": DEBTOR, **fields}
    async with IdempotentWriter(brokers) as writer:
        at = await writer.send(RAW, HOME, DEBTOR.encode(), msgspec.json.encode(value))
    return Coordinates(RAW, HOME, at.offset)


class Pipeline:
    """Writes what the services would, each step in a transaction of its own."""

    def __init__(self, brokers: str, producer: TransactionalProducer) -> None:
        self._brokers = brokers
        self._producer = producer

    async def write(
        self,
        topic: str,
        value: bytes,
        origin: Coordinates,
        *,
        partition: int = HOME,
        commit: bool = True,
        **extra: bytes,
    ) -> None:
        headers: Headers = ((ORIGIN, origin.encode()), (SOURCE, origin.encode()), *extra)
        await self.begin([Output(topic, partition, b"key", value, headers)])
        await self.end(topic, commit=commit)

    async def begin(self, outputs: list[Output]) -> None:
        await self._producer.begin()
        self._producer.append(outputs, time.time_ns() // 1_000_000)
        await self._producer.flush()

    async def end(self, topic: str, *, commit: bool) -> None:
        await (self._producer.commit() if commit else self._producer.abort())
        await eventually(lambda: settled(self._brokers, topic), "markers written")

    async def advance(self) -> None:
        """Commit every group's offsets at the end of its input, in a transaction as the services do."""
        for group, topic in PIPELINE:
            ends = await stable_offsets(self._brokers, [topic])
            if not any(ends.values()):
                continue
            await self._producer.begin()
            await self._producer.send_offsets(group, {target: end for target, end in ends.items() if end})
            await self._producer.commit()


async def settled(brokers: str, topic: str) -> bool:
    return await stable_offsets(brokers, [topic]) == await end_offsets(brokers, [topic])


def posting(leg: str) -> Posting:
    partition = HOME if leg == DEBIT else AWAY
    sign = -1 if leg == DEBIT else 1
    entries = (
        Entry(DEBTOR if leg == DEBIT else CREDITOR, "EUR", sign * 100),
        Entry(f"in-transit@{partition}", "EUR", -sign * 100),
    )
    return Posting("p", leg, DEBTOR, CREDITOR, entries, "2026-11-02")


def event(made: LedgerEvent) -> bytes:
    return encode_ledger_event(made)


@pytest.fixture
def pipeline(brokers: str, producer: TransactionalProducer) -> Pipeline:
    return Pipeline(brokers, producer)


async def state_of(brokers: str, raw: Coordinates) -> State:
    return (await outcome(brokers, raw.partition, raw.offset, deadline_s=20)).state


def test_the_two_accounts_live_on_two_partitions() -> None:
    assert HOME != AWAY


# Outcomes


async def test_an_outcome_follows_a_payment_until_it_is_completed(brokers: str, pipeline: Pipeline) -> None:
    other = await send_raw(brokers, "other")
    raw = await send_raw(brokers, f"way-{uuid.uuid4()}")
    later = Coordinates(RAW, raw.partition, raw.offset * 1000)  # its name begins like this one's
    assert await state_of(brokers, raw) is State.RECEIVED
    await pipeline.write(ACCEPTED, b"{}", raw, commit=False)
    assert await state_of(brokers, raw) is State.RECEIVED
    await pipeline.write(ACCEPTED, b"{}", other)
    await pipeline.write(ACCEPTED, b"{}", later)
    assert await state_of(brokers, raw) is State.RECEIVED
    await pipeline.write(ACCEPTED, b"{}", raw)
    assert await state_of(brokers, raw) is State.ACCEPTED
    await pipeline.write(POSTINGS, event(posting(DEBIT)), raw, commit=False)
    assert await state_of(brokers, raw) is State.ACCEPTED
    await pipeline.write(POSTINGS, event(posting(DEBIT)), raw)
    assert await state_of(brokers, raw) is State.POSTED
    await pipeline.write(POSTINGS, event(posting(CREDIT)), raw, partition=AWAY)
    done = await outcome(brokers, raw.partition, raw.offset, deadline_s=20)
    assert done.state is State.COMPLETED
    assert (done.at.topic, done.at.partition) == (POSTINGS, AWAY)
    assert await state_of(brokers, other) is State.ACCEPTED


async def test_outcomes_that_end_early_say_why(brokers: str, pipeline: Pipeline) -> None:
    repeat, bad, declined = [await send_raw(brokers, f"early-{n}") for n in range(3)]
    await pipeline.write(
        catalogue.PAYMENTS_DEDUPLICATED, encode_repeat(Repeat("early-0", DEBTOR, "payments.raw:0:1")), repeat
    )
    letter: Headers = ((REASON, b"same_account"), (DETAIL, b"name two accounts"))
    await pipeline.write(catalogue.PAYMENTS_DEAD_LETTER, b"\xff", bad, extra=letter)
    await pipeline.write(ACCEPTED, b"{}", declined)
    await pipeline.write(POSTINGS, event(Decline("early-2", DEBTOR, "insufficient_funds", "2026-11-02")), declined)
    found = [await outcome(brokers, raw.partition, raw.offset, deadline_s=20) for raw in (repeat, bad, declined)]
    assert [(one.state, one.reason, one.detail) for one in found] == [
        (State.DEDUPLICATED, None, "payments.raw:0:1"),
        (State.DEAD_LETTERED, "same_account", "name two accounts"),
        (State.DECLINED, "insufficient_funds", None),
    ]


@pytest.mark.parametrize(("partition", "offset"), [(HOME, 1_000_000), (HOME, -1), (17, 0)])
async def test_no_record_has_no_outcome(brokers: str, partition: int, offset: int) -> None:
    with pytest.raises(RecordNotFoundError):
        await outcome(brokers, partition, offset, deadline_s=20)


async def test_an_outcome_that_is_not_found_in_time_is_an_error(brokers: str) -> None:
    raw = await send_raw(brokers, "late")
    with pytest.raises(KafkaUnavailableError, match=r"within 0\.001 s"):
        await outcome(brokers, raw.partition, raw.offset, deadline_s=0.001)


# Traces


async def made_way(brokers: str, pipeline: Pipeline, payment_id: str) -> Coordinates:
    raw = await send_raw(brokers, payment_id)
    transfer = Transfer(payment_id, DEBTOR, CREDITOR, 100, "EUR", 100, "EUR", "2026-11-02")
    leg = CreditLeg(payment_id, DEBTOR, CREDITOR, 100, "EUR", "2026-11-02")
    await pipeline.write(ACCEPTED, b"{}", raw, commit=False)
    await pipeline.write(ACCEPTED, b"{}", raw)
    await pipeline.write(TRANSFERS, encode_transfer(transfer), raw)
    headers: Headers = ((ORIGIN, raw.encode()), (SOURCE, b"ledger.transfers:0:0"))
    debit = Output(POSTINGS, HOME, DEBTOR.encode(), event(posting(DEBIT)), headers)
    credit = Output(TRANSFERS, AWAY, CREDITOR.encode(), encode_transfer(leg), headers)
    await pipeline.begin([debit, credit])
    await pipeline.end(POSTINGS, commit=True)
    await pipeline.write(POSTINGS, event(posting(CREDIT)), raw, partition=AWAY)
    return raw


async def test_a_trace_shows_every_hop_with_its_producer_and_transaction(
    brokers: str, pipeline: Pipeline, producer: TransactionalProducer
) -> None:
    payment_id = f"trace-{uuid.uuid4()}"
    raw = await made_way(brokers, pipeline, payment_id)
    other = await send_raw(brokers, f"{payment_id}-other")
    await pipeline.write(ACCEPTED, b"{}", other)
    [way] = await trace(brokers, payment_id=payment_id)
    assert way.origin == str(raw)
    hops = {(hop.what, hop.transaction): hop for hop in way.hops}
    committed = Transaction.COMMITTED
    assert set(hops) == {
        ("raw", Transaction.NONE),
        ("accepted", Transaction.ABORTED),
        ("accepted", committed),
        ("transfer", committed),
        ("debit posting", committed),
        ("credit leg", committed),
        ("credit posting", committed),
    }
    assert len(way.hops) == len(hops)
    assert way.hops[0].what == "raw"
    assert (way.hops[0].partition, way.hops[0].offset, way.hops[0].key) == (HOME, raw.offset, DEBTOR)
    for hop in way.hops[1:]:
        assert hop.producer_id == producer.epoch[0]
        assert hop.source is not None
        assert hop.marker_offset is not None
        assert hop.marker_offset > hop.offset
        assert hop.marker_timestamp_ms is not None
    aborted, kept = hops["accepted", Transaction.ABORTED], hops["accepted", committed]
    assert aborted.marker_offset is not None
    assert aborted.offset < aborted.marker_offset < kept.offset
    assert hops["credit leg", committed].partition == AWAY


async def test_a_trace_shows_a_transaction_that_is_open(brokers: str, pipeline: Pipeline) -> None:
    payment_id = f"open-{uuid.uuid4()}"
    raw = await send_raw(brokers, payment_id)
    await pipeline.begin([Output(ACCEPTED, HOME, b"k", b"{}", ((ORIGIN, raw.encode()),))])
    [way] = await trace(brokers, payment_id=payment_id, debtor=DEBTOR)
    await pipeline.end(ACCEPTED, commit=True)

    def only(hops: tuple[Hop, ...]) -> Hop:
        [hop] = [hop for hop in hops if hop.topic == ACCEPTED]
        return hop

    assert (only(way.hops).transaction, only(way.hops).marker_offset) == (Transaction.OPEN, None)
    [way] = await trace(brokers, payment_id=payment_id, debtor=DEBTOR)
    assert only(way.hops).transaction is Transaction.COMMITTED


async def test_a_trace_gives_one_way_for_each_raw_record_and_knows_older_schema_versions(
    brokers: str, pipeline: Pipeline
) -> None:
    payment_id = f"twice-{uuid.uuid4()}"
    first = await send_raw(brokers, payment_id)
    second = await send_raw(brokers, payment_id, debtor=None, account_from=DEBTOR, schema_version=1)
    await pipeline.write(ACCEPTED, b"{}", first)
    repeat = encode_repeat(Repeat(payment_id, DEBTOR, str(first)))
    await pipeline.write(catalogue.PAYMENTS_DEDUPLICATED, repeat, second)
    ways = {way.origin: [hop.what for hop in way.hops] for way in await trace(brokers, payment_id=payment_id)}
    assert ways == {str(first): ["raw", "accepted"], str(second): ["raw", f"repeat of {first}"]}
    assert len(await trace(brokers, payment_id=payment_id, debtor=DEBTOR)) == 2
    assert await trace(brokers, payment_id=payment_id, debtor=CREDITOR) == ()
    assert await trace(brokers, payment_id="unknown") == ()


def once(brokers: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "deploy.cli.main", *arguments, "--bootstrap-servers", brokers]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_the_command_prints_the_way(brokers: str, pipeline: Pipeline) -> None:
    payment_id = f"command-{uuid.uuid4()}"
    raw = await made_way(brokers, pipeline, payment_id)
    shown = await asyncio.to_thread(once, brokers, "trace", payment_id)
    assert shown.returncode == 0, shown.stderr
    assert str(raw) in shown.stdout
    for word in ("debit posting", "credit leg", "aborted", "committed", POSTINGS):
        assert word in shown.stdout
    as_json = json.loads((await asyncio.to_thread(once, brokers, "trace", payment_id, "--json")).stdout)
    assert [hop["what"] for hop in as_json["ways"][0]["hops"]].count("accepted") == 2
    missing = await asyncio.to_thread(once, brokers, "trace", "unknown")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert "no payment unknown" in missing.stderr


async def test_the_command_says_in_one_line_that_no_cluster_answers() -> None:
    failed = await asyncio.to_thread(once, "127.0.0.1:1", "trace", "any")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.count("\n") == 1
    assert "once up" in failed.stderr


# Draining


async def lagging(brokers: str) -> list[Lag]:
    lags: list[Lag] = []

    def note(seen: list[Lag]) -> None:
        lags[:] = seen

    with pytest.raises(DrainTimeoutError):
        await wait_drained(brokers, deadline_s=0.3, on_progress=note, poll_s=0.05)
    return lags


async def test_drained_means_no_committed_record_left_and_no_open_transaction(brokers: str, pipeline: Pipeline) -> None:
    await send_raw(brokers, "drain")
    await pipeline.advance()
    await wait_drained(brokers, deadline_s=20)

    raw = await send_raw(brokers, "drain-more")
    assert [(lag.group, lag.topic, lag.partition, lag.committed) for lag in await lagging(brokers)] == [
        ("ingest", RAW, HOME, raw.offset)
    ]
    await pipeline.advance()
    # Markers and aborted records lie above the committed offset, and are nothing to wait for
    await pipeline.write(ACCEPTED, b"{}", raw, commit=False)
    await wait_drained(brokers, deadline_s=20)

    await pipeline.begin([Output(TRANSFERS, AWAY, b"k", b"{}", ())])
    [lag] = await lagging(brokers)
    assert (lag.group, lag.topic, lag.partition) == ("ledger", TRANSFERS, AWAY)
    assert lag.stable < lag.end
    assert "an open transaction" in str(lag)
    await pipeline.end(TRANSFERS, commit=True)
    [lag] = await lagging(brokers)
    assert lag.stable == lag.end
    with pytest.raises(DrainTimeoutError, match=rf"ledger on ledger\.transfers:{AWAY} \(committed"):
        await wait_drained(brokers, deadline_s=0.1)


async def test_drained_takes_two_looks_with_the_same_offsets(brokers: str, pipeline: Pipeline) -> None:
    await pipeline.advance()
    looks: list[int] = []
    await wait_drained(brokers, deadline_s=20, on_progress=lambda lags: looks.append(len(lags)))
    assert looks == [0, 0]
