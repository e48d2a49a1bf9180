"""The commands of docs/own-service.md, in order in one shell: the service is killed in the middle of its work.

Its alerts are compared with a fold over its input that shares no code with it.
"""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import pytest

from deploy.local.supervisor import state
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_ACCEPTED, PAYMENTS_RAW
from shared.kafka.admin.groups import wait_drained
from shared.kafka.client.reader import end_offsets, group_offsets, read_topics
from tests.harness import ROOT, eventually, settled
from tests.tiers import full

pytestmark = pytest.mark.timeout(600)

PAGE = (ROOT / "docs" / "own-service.md").read_text()
SECTION = PAGE.partition("## Run it\n")[2].partition("\n## ")[0]
SHOWN = [line.removeprefix("    ") for line in SECTION.splitlines() if line.startswith("    ")]
COMMANDS = [line for line in SHOWN if not line.startswith("{")]
OUTPUT = [line for line in SHOWN if line.startswith("{")]
PROGRAMS = {".venv/bin/once": f"{sys.executable} -m deploy.cli.main", ".venv/bin/python": sys.executable}
ALERTS = "velocity.alerts"
PAYMENTS = 28_205
KILLS = 3
STEP_S = 90.0
_DONE: Final = "command ended with"


class Shell:
    """The reader's shell, in the project's root."""

    def __init__(self, directory: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCE_")}
        self._log = (directory / "shell.log").open("wb")
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=ROOT,
            env=environment | {"ONCE_DIR": str(directory / "stack")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self.log_path = directory / "shell.log"

    def run(self, command: str) -> list[str]:
        """Run a command of the page, and return the lines of its output."""
        command = re.sub(r"\.venv/bin/\w+", lambda program: PROGRAMS[program[0]], command)
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho {_DONE} $?\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        while not (line := self._bash.stdout.readline()).startswith(_DONE):
            assert line, f"the shell ended:\n{self.log_path.read_text()}"
            lines.append(line.rstrip("\n"))
        assert line.split()[-1] == "0", f"{command}\n{lines}\n{self.log_path.read_text()}"
        return lines

    def end(self) -> None:
        """Kill it, with all that it started and left running."""
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        self._log.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def shell(directory: Path) -> Iterator[Shell]:
    """A shell; it is ended after the test, and the stack is stopped."""
    reader = Shell(directory)
    try:
        yield reader
    finally:
        reader.end()
        if state.running(directory / "stack") is not None:
            words = shlex.split(PROGRAMS[".venv/bin/once"])
            subprocess.run([*words, "down", "--dir", str(directory / "stack")], cwd=ROOT, check=True)


def brokers_of(directory: Path) -> str:
    current = state.running(directory / "stack")
    assert current is not None
    return current.bootstrap_servers


async def processed(brokers: str) -> int:
    """Return how many offsets of its input the service has committed."""
    return sum((await group_offsets(brokers, "velocity", PAYMENTS_ACCEPTED)).values())


async def wait_progress(brokers: str, beyond: int) -> int:
    """Wait until the service has committed offsets beyond this sum, and return the sum."""

    async def progressed() -> bool:
        return await processed(brokers) > beyond

    await eventually(progressed, f"the service is beyond {beyond} offsets", STEP_S)
    return await processed(brokers)


async def wait_all_processed(brokers: str) -> None:
    async def loaded() -> bool:
        return sum((await end_offsets(brokers, [PAYMENTS_RAW])).values()) == PAYMENTS

    await eventually(loaded, "all payments are loaded", STEP_S)
    pipeline = [("ingest", PAYMENTS_RAW), ("velocity", PAYMENTS_ACCEPTED)]
    await wait_drained(brokers, pipeline=pipeline, deadline_s=STEP_S)
    topics = [ALERTS]
    await eventually(lambda: settled(brokers, topics), "no transaction is open", STEP_S)


async def expected(brokers: str) -> dict[int, list[tuple[str, str, int, int]]]:
    """Fold the input: by partition, payment, debtor, and the times of the payment and the third one before it."""
    times: dict[str, list[int]] = defaultdict(list)
    found: dict[int, list[tuple[str, str, int, int]]] = defaultdict(list)

    def take(_topic: str, partition: int, records: list[Record]) -> None:
        for record in records:
            payment = msgspec.json.decode(record.value or b"")
            debtor, at_ms = payment["debtor"], payment["received_at_ms"]
            if payment["type"] == "payment" and "@" not in debtor:
                times[debtor].append(at_ms)
                if len(times[debtor]) > 3 and at_ms - times[debtor][-4] < 60_000:
                    found[partition].append((payment["payment_id"], debtor, at_ms, times[debtor][-4]))

    await read_topics(brokers, [PAYMENTS_ACCEPTED], take)
    return found


async def found(brokers: str) -> dict[int, list[tuple[str, str, int, int]]]:
    """Return the committed alerts in the same form."""
    alerts: dict[int, list[tuple[str, str, int, int]]] = defaultdict(list)

    def take(_topic: str, partition: int, records: list[Record]) -> None:
        for record in records:
            alert = msgspec.json.decode(record.value or b"")
            row = alert["payment_id"], (record.key or b"").decode(), alert["at_ms"], alert["since_ms"]
            alerts[partition].append(row)

    await read_topics(brokers, [ALERTS], take)
    return alerts


@full
def test_no_alert_is_doubled_or_lost_by_the_commands_of_the_page(shell: Shell, directory: Path) -> None:
    for command in COMMANDS:
        if command.startswith("kill -9"):
            brokers, at = brokers_of(directory), 0
            for _ in range(KILLS):
                at = asyncio.run(wait_progress(brokers, at))
                accepted = asyncio.run(end_offsets(brokers, [PAYMENTS_RAW]))
                assert sum(accepted.values()) < PAYMENTS, "everything was loaded before the service was killed"
                shell.run(command)
            asyncio.run(wait_all_processed(brokers))
        elif "topics read" in command:
            check_read(command, shell.run(command))
        elif "down" in command:
            brokers = brokers_of(directory)
            wanted = asyncio.run(expected(brokers))
            assert sum(map(len, wanted.values())) > 1000
            assert asyncio.run(found(brokers)) == wanted
            shell.run(command)
        else:
            shell.run(command.replace("$KAFKA", brokers_of(directory)) if "$KAFKA" in command else command)
    assert state.running(directory / "stack") is None
    assert shell.log_path.read_text().count("Killed") == KILLS  # bash reports an end with one of the next commands


def check_read(command: str, lines: list[str]) -> None:
    lines = [line for line in lines if "payment_id" in line]  # the load in the background ends with a line as well
    if "uniq" in command:
        assert lines == []
        return
    like = [re.sub(r"\d+", "0", line) for line in OUTPUT]
    assert [re.sub(r"\d+", "0", line) for line in lines] == like


def test_the_page_kills_the_service_by_one_command() -> None:
    assert len([command for command in COMMANDS if command.startswith("kill -9 $VELOCITY; ")]) == 1
    assert len(OUTPUT) == 2
