"""`once txn trace` against real brokers: requests, the coordinator's log and the partitions' logs."""

import asyncio
import json
import time

import pytest
from click.testing import CliRunner

from deploy.local.kafka.cluster import LocalKafka
from deploy.txn.trace import trace_command
from shared.eos.errors import FatalError
from shared.eos.records import Output, Record
from shared.events import catalogue
from shared.kafka.admin import scratch, transaction_state
from shared.kafka.admin.transaction_state import (
    STATE_TOPIC,
    Status,
    decode_key,
    decode_value,
    find_coordinator,
    last_states,
    newest_transaction,
    state_partition,
)
from shared.kafka.client.batches import pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster
from shared.kafka.client.reader import end_offsets, group_offsets
from shared.kafka.protocol.codec import encode
from shared.kafka.txntrace import transaction_trace, wire
from shared.kafka.txntrace.transaction_steps import NAMES, RECORDS, Line, Source, Step, faults
from shared.kafka.txntrace.transaction_trace import PARTITIONS, Trace, trace_newest, trace_own
from tests.contract.helpers import producing
from tests.harness import eventually, settled

pytestmark = pytest.mark.timeout(120)

TOPIC = catalogue.PAYMENTS_DEDUPLICATED
CLOCK_MS = 2  # one machine has one clock


@pytest.fixture(scope="module")
def kafka(scratch: LocalKafka) -> LocalKafka:
    return scratch


def of(trace: Trace, source: Source, what: str = "") -> list[Line]:
    return [line for line in trace.lines if line.source is source and what in line.what]


async def gone(brokers: str, name: str) -> bool:
    async with Cluster(brokers) as cluster:
        return name not in await scratch.existing_topics(cluster)


@pytest.mark.parametrize("commit", [True, False])
async def test_all_ten_steps_are_seen_and_agree(kafka: LocalKafka, commit: bool) -> None:
    brokers = kafka.bootstrap_servers
    client = vars(wire)["AIOKafkaConnection"]
    before = dict(vars(client))
    trace = await trace_own(brokers, commit=commit)
    assert dict(vars(client)) == before
    assert trace.faults == ()
    assert trace.clock_difference_ms < CLOCK_MS
    assert {line.step for line in trace.lines} == set(Step)

    # The producer_id and producer_epoch agree in all sources; the end raises the epoch
    producers = {
        (line.source, line.producer_id, line.producer_epoch) for line in trace.lines if line.producer_id is not None
    }
    given = of(trace, Source.WIRE, "InitProducerId response")[-1]  # a new coordinator may still be loading
    places = (Source.WIRE, Source.STATE_LOG, Source.PARTITION_LOG)
    assert given.producer_epoch is not None
    epochs = (given.producer_epoch, given.producer_epoch + 1)
    assert producers == {(source, given.producer_id, epoch) for source in places for epoch in epochs}

    # The coordinator leads the partition that the transactional.id's hash gives
    found = [line for line in of(trace, Source.WIRE, "response") if line.step is Step.FIND_COORDINATOR]
    async with Cluster(brokers) as cluster:
        target = await state_partition(cluster, trace.transactional_id)
        leaders = cluster.by_leader([target])
        assert await find_coordinator(cluster, trace.transactional_id) == trace.coordinator
    assert leaders == {trace.coordinator: [target]}
    assert found[-1].fields["node_id"] == trace.coordinator

    check_end(trace, commit=commit)
    await eventually(lambda: gone(brokers, trace.transactional_id), "the scratch topic gone")
    assert not await group_offsets(brokers, trace.transactional_id, trace.transactional_id)


def check_end(trace: Trace, *, commit: bool) -> None:
    """Fail unless the logs have the offsets and markers of the responses."""
    prepared, completed = (
        (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT) if commit else (Status.PREPARE_ABORT, Status.COMPLETE_ABORT)
    )
    states = of(trace, Source.STATE_LOG)
    assert [line.what for line in states] == [Status.EMPTY, Status.ONGOING, Status.ONGOING, prepared, completed]
    assert trace.status is completed
    offsets: dict[str, int] = {}
    for line in of(trace, Source.WIRE, "Produce response"):
        offsets |= line.fields["base_offsets"]
    data = {f"{trace.transactional_id}:{number}" for number in range(PARTITIONS)}
    assert set(offsets) == data
    batches = {line.where for line in of(trace, Source.PARTITION_LOG, RECORDS) if line.step is Step.PRODUCE}
    assert batches == {f"{partition}:{offset}" for partition, offset in offsets.items()}
    markers = [line for line in of(trace, Source.PARTITION_LOG) if line.step is Step.WRITE_TXN_MARKERS]
    assert {line.what for line in markers} == {"COMMIT" if commit else "ABORT"}
    assert {line.partition for line in markers} == set(states[3].fields["partitions"])
    assert {line.partition for line in markers} > data
    assert of(trace, Source.WIRE, "EndTxn request")[-1].fields["result"] == markers[0].what


async def test_a_step_that_is_removed_from_a_real_trace_is_named(kafka: LocalKafka) -> None:
    trace = await trace_own(kafka.bootstrap_servers, commit=True)
    for step, name in NAMES.items():
        left = [line for line in trace.lines if line.step is not step]
        assert any(fault.startswith(f"step {step} {name}: ") for fault in faults(left, commit=True)), name


async def test_a_running_producers_newest_transaction_is_found_from_the_logs(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = kafka.bootstrap_servers
    monkeypatch.setattr(transaction_state, "_WINDOW_RECORDS", 1)  # the begin is found further back
    async with producing(brokers) as producer:
        for commit in (True, False, True):
            await producer.begin()
            begun = producer.epoch
            producer.append([Output(TOPIC, number, None, b"v", ()) for number in (1, 4)], 1_700_000_000_000)
            await producer.flush()
            opened = await trace_newest(brokers, producer.transactional_id)
            assert opened is not None
            assert (opened.status, {line.what for line in opened.lines}) == (Status.ONGOING, {Status.ONGOING})
            await (producer.commit() if commit else producer.abort())
            await eventually(lambda: settled(brokers, [TOPIC]), "markers written")
            trace = await settled_trace(brokers, producer.transactional_id)
            ended = "Commit" if commit else "Abort"
            assert [line.what for line in of(trace, Source.STATE_LOG)] == [
                "Ongoing",
                f"Prepare{ended}",
                f"Complete{ended}",
            ]
            ends = await end_offsets(brokers, [TOPIC])
            markers = of(trace, Source.PARTITION_LOG)
            assert {line.where for line in markers} == {f"{TOPIC}:{n}:{ends[TOPIC, n] - 1}" for n in (1, 4)}
            assert {line.what for line in markers} == {ended.upper()}
            assert {(line.producer_id, line.producer_epoch) for line in trace.lines} == {begun, producer.epoch}
            assert trace.faults == ()


async def test_markers_are_distinguished_while_the_producer_continues(kafka: LocalKafka) -> None:
    brokers = kafka.bootstrap_servers
    seen: set[str] = set()
    async with producing(brokers) as producer:

        async def produce() -> None:
            while True:
                await producer.begin()
                producer.append([Output(TOPIC, 2, None, b"v", ())], time.time_ns() // 1_000_000)
                await producer.flush()
                await producer.commit()

        async def look() -> bool:
            trace = await trace_newest(brokers, producer.transactional_id)
            if trace is not None and trace.status is Status.COMPLETE_COMMIT:
                assert trace.faults == ()
                begun, prepared, marker, completed = trace.lines
                assert begun.at_ms <= prepared.at_ms <= marker.at_ms <= completed.at_ms
                assert marker.source is Source.PARTITION_LOG
                seen.add(marker.where)
            return len(seen) >= 5

        under_way = asyncio.create_task(produce())
        try:
            await eventually(look, "five transactions, each with its own marker")
        finally:
            under_way.cancel()
            await asyncio.wait([under_way])


async def settled_trace(brokers: str, transactional_id: str) -> Trace:
    """Return the trace once the coordinator has recorded that all markers are written."""
    found: list[Trace] = []

    async def complete() -> bool:
        trace = await trace_newest(brokers, transactional_id)
        assert trace is not None
        found[:] = [trace]
        return trace.status in transaction_state.COMPLETED

    await eventually(complete, "the transaction complete")
    return found[0]


async def test_an_unknown_transactional_id_has_no_trace(kafka: LocalKafka) -> None:
    assert await trace_newest(kafka.bootstrap_servers, "unknown") is None


async def test_a_finished_trace_is_shown_without_its_deleted_topic(kafka: LocalKafka) -> None:
    brokers = kafka.bootstrap_servers
    own = await trace_own(brokers, commit=True)
    await eventually(lambda: gone(brokers, own.transactional_id), "the scratch topic gone")
    trace = await trace_newest(brokers, own.transactional_id)
    assert trace is not None
    assert [line.partition.partition(":")[0] for line in of(trace, Source.PARTITION_LOG)] == ["__consumer_offsets"]
    assert len(trace.faults) == PARTITIONS


async def test_the_topic_is_deleted_after_a_failure(kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    async def fail(_brokers: str, name: str, *_: object, **__: object) -> None:
        made.append(name)
        assert not await gone(kafka.bootstrap_servers, name)
        raise FatalError("the transaction failed")

    monkeypatch.setattr(transaction_trace, "_transact", fail)
    client = vars(wire)["AIOKafkaConnection"]
    before = dict(vars(client))
    with pytest.raises(FatalError):
        await trace_own(kafka.bootstrap_servers, commit=True)
    assert dict(vars(client)) == before
    await eventually(lambda: gone(kafka.bootstrap_servers, made[0]), "the scratch topic gone")


async def test_real_states_match_kafkas_definition(kafka: LocalKafka) -> None:
    trace = await trace_own(kafka.bootstrap_servers, commit=True)
    checked = 0
    async with Cluster(kafka.bootstrap_servers) as cluster:
        target = await state_partition(cluster, trace.transactional_id)
        states = await last_states(cluster, target, trace.transactional_id)
        assert [state.state.status for state in newest_transaction(states)][-1] is Status.COMPLETE_COMMIT
        positions = await cluster.offsets([target], EARLIEST)
        async for page in pages(cluster, positions, ends=await cluster.offsets([target], LATEST), committed=False):
            for batch in page.batches:
                for record in batch.records(target):
                    check_bytes(record)
                    checked += 1
    assert checked >= len(of(trace, Source.STATE_LOG))


def check_bytes(record: Record) -> None:
    """Fail unless decoding and encoding by Kafka's definition gives the record's bytes."""
    assert record.topic == STATE_TOPIC
    key, value = record.key or b"", record.value or b""
    assert key[2:] == encode("TransactionLogKey", 0, {"TransactionalId": decode_key(key)})
    state = decode_value(value)
    topics = sorted({topic for topic, _ in state.partitions})
    fields: dict[str, object] = {
        "ProducerId": state.producer_id,
        "ProducerEpoch": state.producer_epoch,
        "TransactionTimeoutMs": state.timeout_ms,
        "TransactionStatus": list(Status).index(state.status),
        "TransactionLastUpdateTimestampMs": state.last_update_ms,
        "TransactionStartTimestampMs": state.start_ms,
        "TransactionPartitions": None  # of an empty transaction; of a complete one the list is empty
        if state.status is Status.EMPTY
        else [{"Topic": topic, "PartitionIds": [n for t, n in state.partitions if t == topic]} for topic in topics],
    }
    tags = {
        "PreviousProducerId": (state.previous_producer_id, -1),
        "NextProducerId": (state.next_producer_id, -1),
        "ClientTransactionVersion": (state.client_version, 0),
        "NextProducerEpoch": (state.next_producer_epoch, -1),
    }
    fields |= {name: given for name, (given, default) in tags.items() if given != default}
    encoded = encode("TransactionLogValue", state.version, fields)
    if len(state.partitions) > 1:  # they are in any order
        assert sorted(value[2:]) == sorted(encoded)
    else:
        assert value[2:] == encoded


async def test_the_command_shows_the_trace(kafka: LocalKafka) -> None:
    arguments = ["--abort", "--json", "--bootstrap-servers", kafka.bootstrap_servers]
    result = await asyncio.to_thread(CliRunner().invoke, trace_command, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["complete"], found["status"]) == (True, "CompleteAbort")
    assert {line["step"] for line in found["lines"]} == set(range(11))
