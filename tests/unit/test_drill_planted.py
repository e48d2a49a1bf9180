"""Drills with their act replaced: the steps judge what is planted, and only what is right passes.

Each drill's own steps run, so its expectations are those of the catalogue. No broker is needed: what acts on brokers
returns a planted result.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.drills.catalogue import fencing, identities, programs, semantics
from deploy.drills.catalogue import transactions as all_or_nothing
from deploy.drills.clients.job import Job
from deploy.drills.drill import Anomaly, Journal, Verdict
from deploy.drills.hops import OURS, Hops
from deploy.drills.stage import Stage
from tests.unit.planted_drills import BY_ROW, act, bare, verdict


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return bare(tmp_path)


# Hops: B1, B2, B7, B14, E3, E5 judge by what went through


class Planted(Hops):
    """Hops with a planted output."""

    def __init__(self, stage: Stage, output: Sequence[bytes], passed: int, written: int) -> None:
        super().__init__(stage, Job("brokers", "in", "out", "log", "group", 1, 1), None)  # type: ignore[arg-type]
        self.written = written
        self._planted = list(output)
        self._passed = passed

    async def output(self, *, committed: bool = True) -> list[bytes]:  # noqa: ARG002 # as of Hops
        return self._planted

    async def passed(self) -> int:
        return self._passed

    async def until_done(self, within_s: float = 60.0) -> None: ...


ALL = [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("output", "passed", "passes"),
    [
        (ALL, 3, True),
        (ALL[::-1], 3, True),
        ([*ALL, b"1"], 3, False),
        (ALL[:2], 3, False),
        (ALL, 2, False),
        ([], 0, False),
    ],
)
async def test_an_output_that_is_not_exactly_once_is_no_pass(
    stage: Stage, output: list[bytes], passed: int, passes: bool
) -> None:
    await Planted(stage, output, passed, 3).expect_exactly_once()
    for row in ("B1", "B2", "B7", "B14"):
        assert (verdict(BY_ROW[row], stage) is Verdict.AS_EXPECTED) == passes


LOST, REPEATED = ALL[:2], [*ALL, b"0"]


@pytest.mark.parametrize(
    ("ours", "naive", "passes"),
    [
        (ALL, [*LOST, b"0"], True),
        (ALL, ALL, False),
        (ALL, LOST, False),
        (ALL, REPEATED, False),
        (LOST, [*LOST, b"0"], False),
        (REPEATED, [*LOST, b"0"], False),
    ],
)
async def test_e5_passes_only_if_the_naive_hop_loses_and_repeats_and_the_runtime_does_neither(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, ours: list[bytes], naive: list[bytes], passes: bool
) -> None:
    async def crash_twice(stage: Stage, program: str, _commits_by: str) -> Hops:
        return Planted(stage, ours if program == OURS else naive, 3, 3)

    monkeypatch.setattr(all_or_nothing, "_crash_twice", crash_twice)
    await all_or_nothing.auto_commit.steps(stage)
    assert (verdict(all_or_nothing.auto_commit, stage) is Verdict.AS_EXPECTED) == passes


OPEN = {Anomaly.OPEN_TRANSACTION_LEFT: ["left"], Anomaly.LSO_STALL: ["in:0"]}
CLOSED: dict[Anomaly, list[str]] = {Anomaly.OPEN_TRANSACTION_LEFT: [], Anomaly.LSO_STALL: []}


@pytest.mark.parametrize(
    ("ours", "naive", "passes"),
    [
        (CLOSED, OPEN, True),
        (OPEN, OPEN, False),
        (CLOSED, CLOSED, False),
        (CLOSED, OPEN | {Anomaly.LSO_STALL: []}, False),
    ],
)
async def test_e3_passes_only_if_a_random_id_alone_leaves_its_transaction_open(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    ours: dict[Anomaly, list[str]],
    naive: dict[Anomaly, list[str]],
    passes: bool,
) -> None:
    left = iter((ours, naive))

    async def next_left(*_: object) -> dict[Anomaly, list[str]]:
        return next(left)

    monkeypatch.setattr(identities, "_crash", act((Planted(stage, ALL, 3, 3), 0)))
    monkeypatch.setattr(identities, "_left_open", next_left)
    monkeypatch.setattr(identities, "until_settled", act(1.0))
    await identities.random_transactional_id.steps(stage)
    assert (verdict(identities.random_transactional_id, stage) is Verdict.AS_EXPECTED) == passes


BOTH = {"application 1": 2, "application 2": 2}


@pytest.mark.parametrize(
    ("ours", "shared", "passes"),
    [({}, BOTH, True), (BOTH, BOTH, False), ({}, {}, False), ({}, {"application 1": 2}, False)],
)
async def test_e4_passes_only_if_two_applications_with_one_id_fence_each_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, ours: dict[str, int], shared: dict[str, int], passes: bool
) -> None:
    async def run_two(_stage: Stage, program: str, *, turns: int) -> dict[str, int]:
        assert bool(turns) == (program != OURS)
        return ours if program == OURS else shared

    monkeypatch.setattr(identities, "_run_two", run_two)
    await identities.shared_transactional_id.steps(stage)
    assert (verdict(identities.shared_transactional_id, stage) is Verdict.AS_EXPECTED) == passes


async def test_e4_fails_if_the_access_rules_let_a_service_use_the_ids_of_another_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_two(_stage: Stage, program: str, *, turns: int) -> dict[str, int]:
        return BOTH if turns else {}

    monkeypatch.setattr(identities, "_run_two", run_two)
    monkeypatch.setattr(identities, "allows", lambda *_: True)
    await identities.shared_transactional_id.steps(stage)
    assert verdict(identities.shared_transactional_id, stage) is Verdict.NOT_AS_EXPECTED


# B20, E1 and E9: the same fault under several settings

WRITTEN = [b"%d" % number for number in range(semantics.RECORDS)]
ONCE, MORE, FEWER = (WRITTEN, WRITTEN), (WRITTEN, [*WRITTEN, WRITTEN[0]]), (WRITTEN, WRITTEN[: semantics.FAULTY - 1])


@pytest.mark.parametrize(
    ("outcomes", "passes"),
    [
        ((FEWER, MORE, ONCE), True),
        ((ONCE, MORE, ONCE), False),
        ((FEWER, ONCE, ONCE), False),
        ((FEWER, MORE, MORE), False),
        ((FEWER, MORE, FEWER), False),
        ((MORE, FEWER, ONCE), False),
        ((FEWER, MORE, ([], [])), False),
    ],
)
async def test_e1_passes_only_with_a_loss_a_duplicate_and_neither(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, outcomes: Sequence[object], passes: bool
) -> None:
    by_settings = dict(zip((one.promise for one in semantics.CLIENTS), outcomes, strict=True))

    async def sent_under(_stage: Stage, settings: semantics.Settings) -> Any:
        return by_settings[settings.promise]

    monkeypatch.setattr(semantics, "sent_under", sent_under)
    await semantics.three_semantics.steps(stage)
    assert (verdict(semantics.three_semantics, stage) is Verdict.AS_EXPECTED) == passes


@pytest.mark.parametrize(
    ("outcomes", "passes"),
    [
        ((LOST, REPEATED, ALL), True),
        ((ALL, REPEATED, ALL), False),
        ((LOST, ALL, ALL), False),
        ((LOST, REPEATED, LOST), False),
        ((LOST, REPEATED, REPEATED), False),
        ((REPEATED, LOST, ALL), False),
    ],
)
async def test_b20_passes_only_with_a_loss_repeats_and_neither(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, outcomes: Sequence[list[bytes]], passes: bool
) -> None:
    results = {one: (values, ALL) for one, values in zip(programs.SEMANTICS, outcomes, strict=True)}
    monkeypatch.setattr(programs, "_crash", act(results))
    drill = programs.three_semantics_one_crash
    await drill.steps(stage)
    assert (verdict(drill, stage) is Verdict.AS_EXPECTED) == passes


FIVE = [b"0", b"1", b"2", b"3", b"4"]
LATE = [b"0", b"2", b"3", b"4", b"1"]
REFUSED = ["offset 0", "CorruptRecordException", *["OutOfOrderSequenceNumber"] * 3]
TAKEN = ["offset 0", "CorruptRecordException", "offset 1", "offset 2", "offset 3"]


@pytest.mark.parametrize(
    ("protected", "control", "passes"),
    [
        ((FIVE, REFUSED, FIVE), (FIVE, TAKEN, LATE), True),
        ((FIVE, REFUSED, LATE), (FIVE, TAKEN, LATE), False),
        ((FIVE, TAKEN, FIVE), (FIVE, TAKEN, LATE), False),
        ((FIVE, REFUSED, FIVE), (FIVE, TAKEN, FIVE), False),
        ((FIVE, REFUSED, FIVE[:4]), (FIVE, TAKEN, LATE), False),
    ],
)
async def test_e9_passes_only_if_order_is_lost_without_idempotence_alone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, protected: object, control: object, passes: bool
) -> None:
    async def pipelined(_stage: Stage, *, idempotent: bool) -> Any:
        return protected if idempotent else control

    monkeypatch.setattr(semantics, "pipelined", pipelined)
    await semantics.pipelined_batch_fails.steps(stage)
    assert (verdict(semantics.pipelined_batch_fails, stage) is Verdict.AS_EXPECTED) == passes


async def test_b4_passes_only_if_the_group_takes_the_offsets_of_a_zombie_without_a_membership(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = fencing.zombie_under_another_id
    monkeypatch.setattr(fencing, "until_settled", act(0.0))
    for ours, stock, passes in (([b"0"], REPEATED, True), ([b"0", b"0"], REPEATED, False), ([b"0"], ALL, False)):
        stage.journal = Journal()
        stage.expect("answer to the zombie's offsets", "refused", "refused")
        monkeypatch.setattr(fencing, "_work_as_a_zombie", act(ours))
        monkeypatch.setattr(fencing, "_wake_a_zombie", act((Planted(stage, stock, 3, 3), None, [""])))
        await drill.steps(stage)
        assert (verdict(drill, stage) is Verdict.AS_EXPECTED) == passes
