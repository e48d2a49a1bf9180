"""The loop in virtual time: no real waiting, the same order every time, and processes that die without a word."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.simulation.loop import EPOCH_S, Process, StuckError, VirtualLoop, virtual_time


def test_time_jumps_to_the_next_timer() -> None:
    really = time.monotonic()
    with virtual_time() as loop:
        loop.run_until_complete(asyncio.sleep(3600))
        clocks = (time.monotonic(), time.time(), time.time_ns() / 1e9)
        assert clocks == pytest.approx((3600, EPOCH_S + 3600, EPOCH_S + 3600))
    assert time.monotonic() - really < 60


def test_who_waits_for_what_is_left_of_a_time_reaches_its_end() -> None:
    async def rounds(length_s: float) -> int:
        begun_s = time.monotonic()
        for number in itertools.count():
            left_s = length_s - (time.monotonic() - begun_s)
            if left_s <= 0 or number == 100:
                return number
            await asyncio.sleep(left_s)  # may be less than what can be added to the time
        raise AssertionError

    chance = random.Random(7)
    with virtual_time() as loop:
        assert max(loop.run_until_complete(rounds(chance.random())) for _ in range(200)) < 5


def test_a_history_without_a_next_event_is_stuck() -> None:
    with virtual_time() as loop, pytest.raises(StuckError):
        loop.run_until_complete(loop.create_future())


def test_sets_of_futures_and_tasks_are_in_the_order_of_their_creation() -> None:
    async def orders() -> list[list[int]]:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(30)]
        tasks = [loop.create_task(asyncio.sleep(0)) for _ in range(30)]
        await asyncio.wait(tasks)
        made: list[Sequence[asyncio.Future[Any]]] = [futures, tasks]
        return [[some.index(one) for one in set(some)] for some in made]

    seen = []
    for _ in range(2):
        with virtual_time() as loop:
            seen.append(loop.run_until_complete(orders()))
    assert seen[0] == seen[1]


async def _beat(beats: list[float], ended: list[str]) -> None:
    try:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(1)
    finally:
        ended.append("ended")


def test_a_killed_process_never_runs_again() -> None:
    beats: list[float] = []
    ended: list[str] = []

    async def history(loop: VirtualLoop) -> None:
        process = Process(loop, "ingest-0")
        process.start(_beat(beats, ended))
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(10)
        assert not ended

    with virtual_time() as loop:
        loop.run_until_complete(history(loop))
    assert beats == pytest.approx([0, 1, 2], abs=1e-6)
    assert ended == ["ended"]  # its last words, after the history


def test_a_paused_process_goes_on_when_it_is_resumed() -> None:
    beats: list[float] = []

    async def history(loop: VirtualLoop) -> None:
        process = Process(loop, "ingest-0")
        process.start(_beat(beats, []))
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(5)
        process.resume()
        await asyncio.sleep(1.1)
        process.kill()

    with virtual_time() as loop:
        loop.run_until_complete(history(loop))
    assert beats == pytest.approx([0, 1, 6.5, 7.5], abs=1e-6)
