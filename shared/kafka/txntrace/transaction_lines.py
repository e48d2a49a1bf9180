"""Lines of a transaction's trace, from decoded frames, records of the state log, and batches. Pure.

Invariant: a line shows only facts from its bytes; payloads never appear.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from shared.kafka.admin.transaction_state import (
    COMPLETED,
    OFFSETS_TOPIC,
    PREPARED,
    StateRecord,
    Status,
)
from shared.kafka.client.batches import Batch, Marker
from shared.kafka.client.cluster import Target
from shared.kafka.protocol.codec import decode_record
from shared.kafka.txntrace.frames import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TRANSACTION,
    TXN_OFFSET_COMMIT,
)
from shared.kafka.txntrace.transaction_steps import (
    ABORT,
    BEGIN,
    COMMIT,
    PARTITIONS,
    RECORDS,
    Line,
    Source,
    Step,
    step_of_records,
)
from shared.kafka.txntrace.wire import Direction, Frame

_STEPS = {
    INIT_PRODUCER_ID: Step.INIT_PRODUCER_ID,
    ADD_PARTITIONS_TO_TXN: Step.ADD_PARTITIONS_TO_TXN,
    PRODUCE: Step.PRODUCE,
    ADD_OFFSETS_TO_TXN: Step.ADD_OFFSETS_TO_TXN,
    TXN_OFFSET_COMMIT: Step.TXN_OFFSET_COMMIT,
    END_TXN: Step.END_TXN,
}


def begun(at_ms: float) -> Line:
    """Return the line of the client's own step, of which no broker hears.

    Args:
        at_ms: milliseconds since 1970 UTC.
    """
    return Line(Step.BEGIN, Source.CLIENT, BEGIN, at_ms)


def from_frames(frames: Iterable[Frame]) -> list[Line]:
    """Return lines for messages on the wire; a response belongs to its request's step."""
    steps: dict[tuple[int, int], Step] = {}
    lines: list[Line] = []
    for frame in frames:
        exchange = frame.connection, frame.correlation_id
        if frame.direction is Direction.REQUEST:
            steps[exchange] = _step(frame)
        lines.append(_from_frame(frame, steps[exchange]))
    return lines


def _step(request: Frame) -> Step:
    if request.api_key != FIND_COORDINATOR:
        return _STEPS.get(request.api_key, Step.NONE)
        # The group's coordinator is looked up in order to send it the offsets
    return Step.FIND_COORDINATOR if request.fields.get("key_type") == TRANSACTION else Step.TXN_OFFSET_COMMIT


def _from_frame(frame: Frame, step: Step) -> Line:
    fields: dict[str, Any] = {
        "version": frame.version,
        "correlation_id": frame.correlation_id,
        "connection": frame.connection,
        "size_bytes": frame.size_bytes,
        **frame.fields,
    }
    producer_id, producer_epoch = fields.pop("producer_id", -1), fields.pop("producer_epoch", -1)
    return Line(
        step,
        Source.WIRE,
        f"{frame.api} {frame.direction}",
        frame.at_ms,
        frame.broker,
        producer_id=None if producer_id < 0 else producer_id,  # an error is answered with -1
        producer_epoch=None if producer_epoch < 0 else producer_epoch,
        fields=fields,
    )


def from_states(states: Sequence[StateRecord], state_partition: Target) -> list[Line]:
    """Return lines for records of the coordinator's log, each under the step that made it.

    Args:
        states: in order.
        state_partition: partition of these records.
    """
    lines: list[Line] = []
    known: frozenset[Target] = frozenset()
    for record in states:
        state = record.state
        partitions = frozenset(state.partitions)
        lines.append(
            Line(
                _step_of_state(state.status, partitions - known),
                Source.STATE_LOG,
                str(state.status),
                record.timestamp_ms,
                f"{_text(state_partition)}:{record.offset}",
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                fields={
                    "version": state.version,
                    "client_version": state.client_version,
                    "timeout_ms": state.timeout_ms,
                    PARTITIONS: [_text(target) for target in state.partitions],
                },
            )
        )
        known = partitions
    return lines


def _step_of_state(status: Status, added: frozenset[Target]) -> Step:
    if status is Status.ONGOING:
        offsets = any(topic == OFFSETS_TOPIC for topic, _ in added)
        return Step.ADD_OFFSETS_TO_TXN if offsets else Step.ADD_PARTITIONS_TO_TXN
    if status in PREPARED:
        return Step.END_TXN
    if status in COMPLETED:
        return Step.FINAL
    return Step.INIT_PRODUCER_ID if status is Status.EMPTY else Step.NONE


def from_batch(batch: Batch, target: Target) -> Line:
    """Return the line of a batch in a partition's log: records, or the marker that WriteTxnMarkers left.

    Args:
        batch: of a transaction.
        target: its partition.

    Raises:
        CorruptBatchError: its checksum is wrong.
        ProtocolDecodeError: it is a marker of an unknown version.
    """
    partition = _text(target)
    fields: dict[str, Any]
    if batch.is_control:
        step, what = Step.WRITE_TXN_MARKERS, COMMIT if batch.marker is Marker.COMMIT else ABORT
        [record] = batch.records(target)
        version, marker = decode_record("EndTxnMarker", record.value or b"")
        fields = {"version": version, "coordinator_epoch": marker["CoordinatorEpoch"]}
    else:
        step, what = step_of_records(partition), RECORDS
        fields = {
            "last_offset": batch.last_offset,
            "base_sequence": batch.base_sequence,
            "size_bytes": len(batch.data),
        }
    return Line(
        step,
        Source.PARTITION_LOG,
        what,
        batch.timestamp_ms,
        f"{partition}:{batch.base_offset}",
        partition,
        batch.producer_id,
        batch.producer_epoch,
        fields,
    )


def _text(target: Target) -> str:
    topic, partition = target
    return f"{topic}:{partition}"
