"""The soak's choices, which its seed repeats, and its figures of memory and open files."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from deploy.drills.drill import Needs, described
from deploy.drills.faults.processes import Kill, Pause, TakeAway
from deploy.drills.footprint import Footprint, Growth, Sample, footprint, growths
from deploy.drills.history import Event, Function, History, Type
from deploy.drills.soak import HISTORY, SAMPLES, choose_fault, choose_victim, keep, soak_drill

# Three brokers, by role
TARGET: Any = SimpleNamespace(
    leader=AsyncMock(return_value="broker-0"),
    transaction_coordinator=AsyncMock(return_value="broker-1"),
    group_coordinator=AsyncMock(return_value="broker-2"),
    controller=AsyncMock(return_value="broker-2"),
)


async def chosen(seed: int, count: int = 300) -> list[tuple[str, str]]:
    """Choose victims."""
    chance = random.Random(seed)
    return [await choose_victim(TARGET, chance) for _ in range(count)]


async def test_services_redis_and_brokers_of_every_role_are_chosen() -> None:
    found = await chosen(1)
    assert {component for component, _ in found} == {
        "ingest",
        "transform",
        "ledger",
        "outbox",
        "balances",
        "redis",
        "broker-0",
        "broker-1",
        "broker-2",
    }
    roles = Counter(role.split(" of ")[0] for _, role in found)
    assert {role for role in roles if role.startswith("the ")} == {
        "the leader",
        "the transaction coordinator",
        "the coordinator",
        "the active controller",
    }
    assert await chosen(1) == found
    assert await chosen(2) != found


def test_a_component_that_keeps_its_process_is_only_paused() -> None:
    chance = random.Random(1)
    assert {type(choose_fault("ledger", chance, kills=True)) for _ in range(50)} == {Kill, TakeAway, Pause}
    assert {type(choose_fault("ledger", chance, kills=False)) for _ in range(50)} == {Pause}


def test_a_soak_is_a_drill_with_a_command_of_its_own(tmp_path: Path) -> None:
    one = soak_drill(30, tmp_path)
    assert (one.needs, one.command) == (Needs.OWN, "once drill soak --minutes 30")
    assert one.within_s > 30 * 60
    assert described(one).startswith("Inject random faults")


def test_a_history_and_the_logs_are_kept(tmp_path: Path) -> None:
    (tmp_path / "stack" / "logs").mkdir(parents=True)
    (tmp_path / "stack" / "logs" / "ledger.log").write_text("said")
    history = History([Event(1.0, "writer", Type.INVOKE, Function.COMMIT, transaction=7)])
    target: Any = SimpleNamespace(directory=tmp_path / "stack")
    keep(history, samples("ledger", 80), target, tmp_path / "kept")
    assert msgspec.json.decode((tmp_path / "kept" / HISTORY).read_bytes(), type=History) == history
    kept = msgspec.json.decode((tmp_path / "kept" / SAMPLES).read_bytes(), type=list[Sample])
    assert kept == samples("ledger", 80)
    assert (tmp_path / "kept" / "logs" / "ledger.log").read_text() == "said"


# Memory and open files


GROWING = """
import sys
print(flush=True)
input()
held = bytearray(b"x" * 50_000_000), open(sys.executable), open(sys.executable)
print(flush=True)
input()
"""


def test_a_process_holds_memory_and_files() -> None:
    # One of its own: this process may collect garbage meanwhile
    with subprocess.Popen([sys.executable, "-c", GROWING], stdin=PIPE, stdout=PIPE, bufsize=0) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        found = []
        for _ in range(2):
            child.stdout.readline()
            found.append(footprint(child.pid))
            child.stdin.write(b"\n")
    before, after = found
    assert before is not None
    assert after is not None
    assert after.open_files == before.open_files + 2
    assert after.memory_mb - before.memory_mb == pytest.approx(50, abs=5)


def test_a_process_that_has_ended_holds_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert footprint(pid) is None


def samples(process: str, *memories_mb: float) -> list[Sample]:
    """Samples at 5, 15, 25 s and so on, each with ten open files."""
    return [Sample(5.0 + 10 * number, process, Footprint(mb, 10)) for number, mb in enumerate(memories_mb)]


def test_what_the_last_third_seldom_exceeds_is_compared_with_the_second() -> None:
    first, second = [10.0] * 10, [50.0] * 7 + [100.0] * 3
    found = growths(samples("ledger", *first, *second, 300.0, *[20.0] * 7, 104.0, 105.0), 300)
    assert found == [Growth("ledger", "memory, MB", 100, 105), Growth("ledger", "open files", 10, 10)]
    assert [one.share for one in found] == [pytest.approx(0.05), 0]
    assert all(one.is_bounded for one in found)


def test_files_that_come_and_go_are_no_growth_and_those_that_stay_are() -> None:
    def grew(*counts: int) -> bool:
        found = [Sample(5.0 + 10 * number, "gateway", Footprint(60.0, files)) for number, files in enumerate(counts)]
        return not growths(found, 10.0 * len(counts))[1].is_bounded

    assert not grew(18, 18, 18, 18, 18, 19, 18, 19, 18)
    assert grew(18, 18, 18, 18, 18, 19, 18, 19, 19)


def test_growth_above_the_bound_is_found() -> None:
    [memory, files] = growths(samples("ledger", 1, 1, 1, 100, 100, 100, 106, 106, 106), 90)
    assert (memory.is_bounded, files.is_bounded) == (False, True)


def test_a_process_without_samples_of_a_third_is_left_out() -> None:
    assert growths(samples("ledger", 100, 100, 100, 100), 90) == []
