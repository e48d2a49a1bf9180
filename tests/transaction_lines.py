"""A whole transaction as trace lines, for tests of the code that checks and prints them."""

from typing import Any

from shared.kafka.admin.transaction_state import Status
from shared.kafka.txntrace.transaction_steps import ABORT, BEGIN, COMMIT, NAMES, RECORDS, Line, Source, Step

PRODUCER = 4001
START_MS = 1_700_000_000_000.0
OFFSETS = "__consumer_offsets:5"
DATA = ("once.trace.0:0", "once.trace.0:1")


def wire(step: Step, at_ms: float, asked: dict[str, Any], answer: dict[str, Any]) -> list[Line]:
    """A request and its response, 0.4 ms later."""
    header = {"version": 0, "correlation_id": int(step), "connection": 1, "size_bytes": 40}
    return [
        Line(step, Source.WIRE, f"{NAMES[step]} {what}", START_MS + at, "127.0.0.1:9092", fields=header | fields)
        for what, at, fields in (("request", at_ms, asked), ("response", at_ms + 0.4, answer))
    ]


def state(step: Step, at_ms: int, status: Status, *partitions: str) -> Line:
    """A record of the coordinator's log."""
    return Line(
        step,
        Source.STATE_LOG,
        status,
        START_MS + at_ms,
        f"__transaction_state:4:{at_ms}",
        producer_id=PRODUCER,
        producer_epoch=0,
        fields={"version": 1, "partitions": list(partitions)},
    )


def batch(step: Step, at_ms: int, what: str, partition: str) -> Line:
    """Records or a marker."""
    fields = {"coordinator_epoch": 3} if step is Step.WRITE_TXN_MARKERS else {"last_offset": 0}
    return Line(
        step, Source.PARTITION_LOG, what, START_MS + at_ms, f"{partition}:{at_ms}", partition, PRODUCER, 0, fields
    )


def whole(*, commit: bool = True) -> list[Line]:
    """All ten steps, in order."""
    none = {"error": "NONE"}
    marker = COMMIT if commit else ABORT
    prepared = Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT
    completed = Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT
    asked, given = wire(Step.INIT_PRODUCER_ID, 2.1, {}, none)
    return [
        *wire(Step.FIND_COORDINATOR, 1.1, {"key_type": "TRANSACTION"}, none),
        asked,
        state(Step.INIT_PRODUCER_ID, 2, Status.EMPTY),
        Line(given.step, given.source, given.what, given.at_ms, given.where, "", PRODUCER, 0, given.fields),
        Line(Step.BEGIN, Source.CLIENT, BEGIN, START_MS + 3.1),
        *wire(
            Step.ADD_PARTITIONS_TO_TXN,
            4.1,
            {"partitions": list(DATA)},
            {"errors": dict.fromkeys(DATA, "NONE")},
        ),
        state(Step.ADD_PARTITIONS_TO_TXN, 4, Status.ONGOING, *DATA),
        *wire(Step.PRODUCE, 5.1, {}, {"errors": dict.fromkeys(DATA, "NONE"), "base_offsets": dict.fromkeys(DATA, 0)}),
        *(batch(Step.PRODUCE, 3, RECORDS, partition) for partition in DATA),
        *wire(Step.ADD_OFFSETS_TO_TXN, 6.1, {"group": "g"}, none),
        state(Step.ADD_OFFSETS_TO_TXN, 6, Status.ONGOING, *DATA, OFFSETS),
        *wire(Step.TXN_OFFSET_COMMIT, 7.1, {"offsets": {DATA[0]: 0}}, {"errors": {DATA[0]: "NONE"}}),
        batch(Step.TXN_OFFSET_COMMIT, 7, RECORDS, OFFSETS),
        *wire(Step.END_TXN, 8.1, {"result": marker}, none),
        state(Step.END_TXN, 8, prepared, *DATA, OFFSETS),
        *(batch(Step.WRITE_TXN_MARKERS, 9, marker, partition) for partition in (*DATA, OFFSETS)),
        state(Step.FINAL, 10, completed),
    ]
