"""The evidence for each step of a transaction, and the faults reported without it."""

import random

import msgspec
import pytest

from shared.kafka.admin.transaction_state import Status
from shared.kafka.txntrace.transaction_steps import (
    ABORT,
    NAMES,
    RECORDS,
    Line,
    Source,
    Step,
    clock_difference_ms,
    faults,
    in_order,
    unmarked,
)
from tests.transaction_lines import DATA, OFFSETS, batch, state, whole, wire


@pytest.mark.parametrize("commit", [True, False])
def test_a_complete_transaction_has_no_fault(commit: bool) -> None:
    assert faults(whole(commit=commit), commit=commit) == []


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_ended_the_other_way_has_faults(commit: bool) -> None:
    found = faults(whole(commit=commit), commit=not commit)
    assert {fault.split()[1] for fault in found} == {"8", "9", "10"}


@pytest.mark.parametrize("step", list(NAMES))
def test_a_step_that_is_missing_is_named(step: Step) -> None:
    found = faults([line for line in whole() if line.step is not step], commit=True)
    assert any(fault.startswith(f"step {step} {NAMES[step]}: ") for fault in found)


@pytest.mark.parametrize("place", range(len(whole())))
def test_every_line_is_needed(place: int) -> None:
    lines = whole()
    left_out = lines.pop(place)
    found = faults(lines, commit=True)
    assert [fault.split(":")[0] for fault in found] == [f"step {left_out.step} {NAMES[left_out.step]}"]
    if left_out.source is not Source.CLIENT:
        assert left_out.what in found[0]
        assert left_out.partition in found[0]


def test_an_empty_trace_lacks_all_ten_steps() -> None:
    assert {int(fault.split()[1]) for fault in faults([], commit=True)} == set(range(1, 11))


def changed(place: int, **fields: object) -> list[Line]:
    lines = whole()
    lines[place] = msgspec.structs.replace(lines[place], **fields)
    return lines


def only_response(step: Step) -> int:
    return next(at for at, line in enumerate(whole()) if line.what == f"{NAMES[step]} response")


@pytest.mark.parametrize(
    ("step", "fields"),
    [
        (Step.END_TXN, {"error": "INVALID_TXN_STATE"}),
        (Step.ADD_PARTITIONS_TO_TXN, {"errors": {DATA[0]: "NONE", DATA[1]: "OPERATION_NOT_ATTEMPTED"}}),
        (Step.PRODUCE, {"undecoded": "3 bytes are left"}),
        (Step.ADD_OFFSETS_TO_TXN, {}),
    ],
)
def test_an_answer_counts_only_without_an_error(step: Step, fields: dict[str, object]) -> None:
    found = faults(changed(only_response(step), fields=fields), commit=True)
    assert found == [f"step {step} {NAMES[step]}: no {NAMES[step]} response on the wire"]


def test_a_request_that_succeeds_after_a_refusal_counts() -> None:
    refused = wire(Step.END_TXN, 8.0, {}, {"error": "CONCURRENT_TRANSACTIONS"})
    assert faults([*whole(), *refused], commit=True) == []


@pytest.mark.parametrize("step", [Step.ADD_PARTITIONS_TO_TXN, Step.PRODUCE, Step.WRITE_TXN_MARKERS, Step.FINAL])
@pytest.mark.parametrize("other", [{"producer_id": 4002}, {"producer_epoch": 1}])
def test_another_producer_or_epoch_is_reported(step: Step, other: dict[str, int]) -> None:
    place = next(at for at, line in enumerate(whole()) if line.step is step and line.producer_id is not None)
    [fault] = faults(changed(place, **other), commit=True)
    assert fault.startswith(f"step {step} {NAMES[step]}: ")
    assert "but InitProducerId gave 4001 epoch 0" in fault


def test_lines_are_in_order_of_time_and_cause() -> None:
    lines = whole()
    shuffled = lines[:]
    random.Random(7).shuffle(shuffled)
    ordered = in_order(shuffled)
    assert [line.step for line in ordered] == sorted(line.step for line in lines)
    for step in (Step.INIT_PRODUCER_ID, Step.ADD_PARTITIONS_TO_TXN, Step.PRODUCE, Step.END_TXN):
        of_step = [line for line in ordered if line.step is step]
        assert of_step[0].what == f"{NAMES[step]} request"
        assert of_step[-1].what == f"{NAMES[step]} response"


def test_a_batch_follows_the_request_that_carried_it() -> None:
    requests = [
        line
        for number, partition in enumerate(DATA)
        for line in wire(Step.PRODUCE, 5 + 10 * number, {"batches": {partition: []}}, {"errors": {partition: "NONE"}})
    ]
    batches = [batch(Step.PRODUCE, 3, RECORDS, partition) for partition in reversed(DATA)]
    ordered = in_order([*batches, *requests])
    assert [line.partition or line.what.split()[1] for line in ordered] == [
        *("request", DATA[0], "response"),
        *("request", DATA[1], "response"),
    ]


def test_a_line_with_a_later_log_time_is_later() -> None:
    late = batch(Step.WRITE_TXN_MARKERS, 40, ABORT, OFFSETS)
    assert in_order([late, *whole(commit=False)])[-1] is late


def test_lines_are_ordered_without_wire_lines() -> None:
    ending = state(Step.END_TXN, 8, Status.PREPARE_ABORT, *DATA)
    lines = [state(Step.FINAL, 9, Status.COMPLETE_ABORT), batch(Step.WRITE_TXN_MARKERS, 9, ABORT, DATA[0]), ending]
    assert [line.step for line in in_order(lines)] == [Step.END_TXN, Step.WRITE_TXN_MARKERS, Step.FINAL]
    assert clock_difference_ms(lines) == 0


@pytest.mark.parametrize(("shift_ms", "least_ms"), [(0, 0), (300, 299), (-300, 298)])
def test_a_broker_whose_clock_differs_is_noticed(shift_ms: int, least_ms: float) -> None:
    lines = [
        msgspec.structs.replace(line, at_ms=line.at_ms + shift_ms) if line.source is Source.STATE_LOG else line
        for line in whole()
    ]
    assert least_ms <= clock_difference_ms(lines) <= abs(shift_ms)


def test_partitions_without_a_marker_are_named() -> None:
    lines = [line for line in whole() if line.source in {Source.STATE_LOG, Source.PARTITION_LOG}]
    assert unmarked(lines) == []
    without = [line for line in lines if line.partition != OFFSETS or line.step is not Step.WRITE_TXN_MARKERS]
    assert unmarked(without) == [f"step 9 WriteTxnMarkers: no marker in the log of {OFFSETS}"]
    assert unmarked([line for line in lines if line.step < Step.END_TXN]) == []  # it is open
