"""A process is ended if its event loop is blocked, but not if it was stopped as a whole."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from shared.telemetry.server import EXIT_STUCK, Watchdog
from tests.harness import ROOT, wait_until

BLOCKS = """
import asyncio, time
from shared.telemetry.server import Watchdog
async def block_loop():
    with Watchdog(check_s=0.02, checks_max=5):
        await asyncio.sleep(0.1)
        time.sleep(60)
asyncio.run(block_loop())
"""

GOES_ON = """
import asyncio
from shared.telemetry.server import Watchdog
async def go_on():
    with Watchdog(check_s=0.05, checks_max=20):
        while True:
            print("on", flush=True)
            await asyncio.sleep(0.01)
asyncio.run(go_on())
"""


def test_a_blocked_loop_ends_the_process_with_its_stack() -> None:
    begun_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKS], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert time.monotonic() - begun_s < 30
    assert ended.returncode == EXIT_STUCK
    assert "the event loop is blocked" in ended.stderr
    assert "in block_loop" in ended.stderr


def test_a_process_that_was_stopped_goes_on(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", GOES_ON], cwd=ROOT, stdout=out)
    try:
        wait_until(lambda: said.stat().st_size > 0, "it runs")
        process.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        wait_until(lambda: time.monotonic() - stopped_s > 3.0, "longer than the loop may be blocked")
        size = said.stat().st_size
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: said.stat().st_size > size + 300 or process.poll() is not None, "a hundred rounds more")
        assert process.poll() is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


async def test_a_busy_loop_that_answers_goes_on() -> None:
    ended: list[bool] = []
    with Watchdog(check_s=0.01, checks_max=100, end=lambda: ended.append(True)):
        for _ in range(30):
            time.sleep(0.05)  # noqa: ASYNC251 # blocked again and again, for less than the bound
            await asyncio.sleep(0)
    assert not ended
