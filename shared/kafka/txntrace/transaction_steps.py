"""The ten steps of a transaction (KIP-98, "Data Flow"), and the evidence for each. Pure.

A trace consists of lines: messages on the wire, the coordinator's log records, and batches in the partitions' logs.

Invariant: each line has the number of its step. A step counts as seen only when every place that must show it does, all
with the same producer id and epoch.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final

import msgspec

from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, Status
from shared.kafka.txntrace.frames import BATCHES, NO_ERROR, UNDECODED


class Step(IntEnum):
    """The ten steps, and NONE for other messages of a client."""

    NONE = 0
    FIND_COORDINATOR = 1
    INIT_PRODUCER_ID = 2
    BEGIN = 3
    ADD_PARTITIONS_TO_TXN = 4
    PRODUCE = 5
    ADD_OFFSETS_TO_TXN = 6
    TXN_OFFSET_COMMIT = 7
    END_TXN = 8
    WRITE_TXN_MARKERS = 9
    FINAL = 10


NAMES: Final[dict[Step, str]] = {
    Step.FIND_COORDINATOR: "FindCoordinator",
    Step.INIT_PRODUCER_ID: "InitProducerId",
    Step.BEGIN: "begin",
    Step.ADD_PARTITIONS_TO_TXN: "AddPartitionsToTxn",
    Step.PRODUCE: "Produce",
    Step.ADD_OFFSETS_TO_TXN: "AddOffsetsToTxn",
    Step.TXN_OFFSET_COMMIT: "TxnOffsetCommit",
    Step.END_TXN: "EndTxn",
    Step.WRITE_TXN_MARKERS: "WriteTxnMarkers",
    Step.FINAL: "final COMMIT or ABORT",
}
"""Names of the steps; one that a client requests has its API's name."""

_ASKED: Final = (
    Step.FIND_COORDINATOR,
    Step.INIT_PRODUCER_ID,
    Step.ADD_PARTITIONS_TO_TXN,
    Step.PRODUCE,
    Step.ADD_OFFSETS_TO_TXN,
    Step.TXN_OFFSET_COMMIT,
    Step.END_TXN,
)


class Source(StrEnum):
    """The place where a line was read."""

    CLIENT = "client"
    WIRE = "wire"
    STATE_LOG = "state log"
    PARTITION_LOG = "partition log"


_PLACES: Final = {
    Source.CLIENT: "by the client",
    Source.WIRE: "on the wire",
    Source.STATE_LOG: "in the state log",
    Source.PARTITION_LOG: "in the log",
}

REQUEST, RESPONSE = "request", "response"
BEGIN: Final = "begin"
RECORDS: Final = "records"
COMMIT, ABORT = "COMMIT", "ABORT"
PARTITIONS: Final = "partitions"
"""Terms in lines; on the wire `what` is the API and REQUEST or RESPONSE."""


class Line(msgspec.Struct, frozen=True):
    """One line of a trace.

    Attributes:
        what: on the wire `InitProducerId request` and the like; the state's name in the state log; in a partition's
            log RECORDS for a data batch, COMMIT or ABORT for a marker.
        at_ms: milliseconds since 1970 UTC; of a log, by the broker's clock and in whole milliseconds.
        where: the broker's address, or the record's coordinates, `topic:partition:offset`.
        partition: of a batch or marker, `topic:partition`.
        fields: further fields.
    """

    step: Step
    source: Source
    what: str
    at_ms: float
    where: str = ""
    partition: str = ""
    producer_id: int | None = None
    producer_epoch: int | None = None
    fields: dict[str, Any] = {}


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Sort lines by time.

    A broker's times are whole milliseconds, and a data batch has the time that its producer gave it. So a line of a log
    is never placed before the first request of its own step, which caused it. A data batch comes after the request that
    carried it, a marker after EndTxn.
    """
    known = list(lines)
    causes: dict[tuple[Step, str], float] = {}
    for line in known:
        if line.source is Source.WIRE:
            for partition in ("", *line.fields.get(BATCHES, ())):
                causes[line.step, partition] = min(line.at_ms, causes.get((line.step, partition), line.at_ms))

    def cause(line: Line) -> float:
        step = Step.END_TXN if line.step in {Step.WRITE_TXN_MARKERS, Step.FINAL} else line.step
        return causes.get((step, line.partition), causes.get((step, ""), line.at_ms))

    def place(line: Line) -> tuple[float, bool, Step, str]:
        in_log = line.source in {Source.STATE_LOG, Source.PARTITION_LOG}
        return max(line.at_ms, cause(line)) if in_log else line.at_ms, in_log, line.step, line.partition

    return sorted(known, key=place)


def clock_difference_ms(lines: Iterable[Line]) -> float:
    """Return the minimum difference between a broker's clock and the client's, in milliseconds; 0 when none shows.

    A state is written between the request for it and the response, so its time should lie between them.
    """
    known = list(lines)
    difference = 0.0
    for step in (Step.INIT_PRODUCER_ID, Step.ADD_PARTITIONS_TO_TXN, Step.ADD_OFFSETS_TO_TXN, Step.END_TXN):
        wire = [line.at_ms for line in known if line.step is step and line.source is Source.WIRE]
        states = [line.at_ms for line in known if line.step is step and line.source is Source.STATE_LOG]
        for at_ms in states if wire else ():
            difference = max(difference, min(wire) - 1 - at_ms, at_ms - max(wire))  # a broker truncates to milliseconds
    return difference


def faults(lines: Sequence[Line], *, commit: bool) -> list[str]:
    """Return what a trace of a whole transaction lacks, each with its step; empty when all ten steps were seen.

    Args:
        lines: in any order.
        commit: whether the transaction was to commit; else it was to abort.
    """
    return [*_missing(lines, commit=commit), *_disagreeing(lines)]


def unmarked(lines: Iterable[Line]) -> list[str]:
    """Return the partitions without a marker of an ended transaction, each as a sentence.

    Args:
        lines: of a transaction that was observed from outside: states and markers.
    """
    known = list(lines)
    marked = {line.partition for line in known if line.step is Step.WRITE_TXN_MARKERS}
    ended = {partition for line in known if line.step is Step.END_TXN for partition in line.fields[PARTITIONS]}
    step = Step.WRITE_TXN_MARKERS
    where = _PLACES[Source.PARTITION_LOG]
    return [f"step {step} {NAMES[step]}: no marker {where} of {partition}" for partition in sorted(ended - marked)]


_Evidence = tuple[Step, Source, str, str]
"""Step, source, `what`, and the partition of a line from a partition's log."""


def _missing(lines: Sequence[Line], *, commit: bool) -> Iterator[str]:
    seen = {_evidence(line) for line in lines if not _refused(line)}
    wanted = list(_wanted(lines, commit=commit))
    for evidence in wanted:
        if evidence not in seen:
            step, source, what, partition = evidence
            where = f"{_PLACES[source]} of {partition}" if partition else _PLACES[source]
            yield f"step {step} {NAMES[step]}: no {what} {where}"
    expected = {step for step, *_ in wanted}
    steps_seen = {step for step, *_ in seen}
    for step in NAMES:
        if step not in expected and step not in steps_seen:
            yield f"step {step} {NAMES[step]}: nothing shows it"


def _wanted(lines: Sequence[Line], *, commit: bool) -> Iterator[_Evidence]:
    """Yield the evidence that a whole transaction leaves: both sides on the wire, states, batches, markers."""
    for step in _ASKED:
        yield step, Source.WIRE, f"{NAMES[step]} {REQUEST}", ""
        yield step, Source.WIRE, f"{NAMES[step]} {RESPONSE}", ""
    yield Step.BEGIN, Source.CLIENT, BEGIN, ""
    for step, status in (
        (Step.INIT_PRODUCER_ID, Status.EMPTY),
        (Step.ADD_PARTITIONS_TO_TXN, Status.ONGOING),
        (Step.ADD_OFFSETS_TO_TXN, Status.ONGOING),
        (Step.END_TXN, Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT),
        (Step.FINAL, Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT),
    ):
        yield step, Source.STATE_LOG, str(status), ""
    # Partitions from the client's requests and from the coordinator's log: neither may omit one
    for partition in sorted({partition for line in lines for partition in line.fields.get(PARTITIONS, ())}):
        yield step_of_records(partition), Source.PARTITION_LOG, RECORDS, partition
        yield Step.WRITE_TXN_MARKERS, Source.PARTITION_LOG, COMMIT if commit else ABORT, partition


def step_of_records(partition: str) -> Step:
    """Return the step that wrote a data batch: offsets are records too, in a topic of their own."""
    return Step.TXN_OFFSET_COMMIT if partition.startswith(f"{OFFSETS_TOPIC}:") else Step.PRODUCE


def _evidence(line: Line) -> _Evidence:
    return line.step, line.source, line.what, line.partition


def _refused(line: Line) -> bool:
    """Whether a message could not be decoded, or is a response with an error."""
    if UNDECODED in line.fields:
        return True
    if line.source is not Source.WIRE or not line.what.endswith(RESPONSE):
        return False
    errors = [*line.fields.get("errors", {}).values(), *([line.fields["error"]] if "error" in line.fields else [])]
    return not errors or any(error != NO_ERROR for error in errors)


def _disagreeing(lines: Sequence[Line]) -> Iterator[str]:
    given = [
        (line.producer_id, line.producer_epoch)
        for line in lines
        if line.source is Source.WIRE and line.step is Step.INIT_PRODUCER_ID and line.producer_id is not None
    ]
    # Version 2 of the protocol ends a transaction under the next epoch, which EndTxn returns (KIP-890)
    returned = {
        (line.producer_id, line.producer_epoch)
        for line in lines
        if line.source is Source.WIRE and line.step is Step.END_TXN and line.what.endswith(RESPONSE)
    }
    for line in lines if given else ():
        found = line.producer_id, line.producer_epoch
        if line.producer_id is not None and found != given[-1] and found not in returned:
            yield (
                f"step {line.step} {NAMES[line.step]}: {line.what} {_PLACES[line.source]} has producer {found[0]} "
                f"epoch {found[1]}, but {NAMES[Step.INIT_PRODUCER_ID]} gave {given[-1][0]} epoch {given[-1][1]}"
            )
