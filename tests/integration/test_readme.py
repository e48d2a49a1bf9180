"""The commands of README.md, run in order on a local stack in a separate directory.

The tests read the commands from the page, so that no command is untested. `make` targets are looked up, not run: they
are the whole test run and the demonstration.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path

import click
import pytest

from deploy.cli.demo import SHOWN
from deploy.cli.main import COMMANDS, once
from deploy.drills.few_rows import for_few_rows
from deploy.local.supervisor import state
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.postings import Posting, decode_ledger_event
from shared.kafka.admin.groups import wait_drained
from shared.kafka.client.reader import read_topics
from tests.harness import ROOT
from tests.tiers import full

pytestmark = pytest.mark.timeout(930)

README = (ROOT / "README.md").read_text()
ONCE = ".venv/bin/once"
PROGRAMS = {ONCE, "curl", "make"}
COMMAND_S = 900.0


def code_blocks(text: str) -> list[list[str]]:
    """Return the indented and fenced code blocks of a page as lines."""
    blocks: list[list[str]] = []
    fenced = inside = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced, inside = not fenced, False
        elif fenced or line.startswith("    "):
            if not inside:
                blocks.append([])
            blocks[-1].append(line if fenced else line.removeprefix("    "))
            inside = True
        else:
            inside = False
    return blocks


def split(text: str) -> list[str] | None:
    """Split a command into words; None if it continues on the next line."""
    try:
        return None if text.endswith("\\") else shlex.split(text.replace("\\\n", " "))
    except ValueError:
        return None


def commands_of(block: list[str]) -> list[list[str]]:
    """Return the commands of a block as words."""
    found: list[list[str]] = []
    text = ""
    for line in block:
        text = f"{text}\n{line}" if text else line
        words = split(text)
        if words is not None:
            found.append(words)
            text = ""
    assert not text, f"a command does not end: {text}"
    return found


BLOCKS = code_blocks(README)
OUTPUTS = [block for block in BLOCKS if block[0].split()[0] == "verdict"]
FIGURES = [line for block in BLOCKS if block[0].startswith("kafka_") for line in block]
ALL_COMMANDS = [
    words for block in BLOCKS if block not in OUTPUTS and block[0] not in FIGURES for words in commands_of(block)
]
RUN = [words for words in ALL_COMMANDS if words[0] != "make"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of the stack of `once up`, which is stopped at the end."""
    chosen = tmp_path_factory.mktemp("readme")
    yield chosen
    if state.running(chosen) is not None:
        run(chosen, [ONCE, "down"])


def run(directory: Path, words: list[str]) -> str:
    """Run a command from the project's root, as a reader does, and return its stdout."""
    program = [sys.executable, "-m", "deploy.cli.main"] if words[0] == ONCE else [words[0]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCE_")}
    done = subprocess.run(
        [*program, *words[1:]],
        cwd=ROOT,
        env=environment | {"ONCE_DIR": str(directory)} | for_few_rows(directory.with_name(f"{directory.name}-spark")),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def addresses(directory: Path) -> dict[str, str]:
    """Return the addresses in `once status`, and the key of the client local, by their names on the page."""
    status = json.loads(run(directory, [ONCE, "status", "--json"]))
    found = {f"${part['name'].upper()}": part["endpoint"] for part in status["components"]}
    return found | {"$(cat .once/data/local.key)": Path(status["local_key_file"]).read_text()}


async def booked(directory: Path, payment_id: str) -> list[str]:
    """Return the booked legs of a payment once the pipeline has drained."""
    current = state.running(directory)
    assert current is not None
    legs: list[str] = []

    def take(_topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            event = decode_ledger_event(record.value or b"")
            if isinstance(event, Posting) and event.payment_id == payment_id:
                legs.append(event.leg)

    assert current.tls is None
    await wait_drained(current.bootstrap_servers, deadline_s=60)
    await read_topics(current.bootstrap_servers, [LEDGER_POSTINGS], take)
    return sorted(legs)


def check_curl(directory: Path, words: list[str], answer: str) -> None:
    """Check the gateway's answer and the booked payment, the service's metrics, or the view's answer."""
    if "/api/payments/" in words[-1]:
        [payment] = json.loads(answer)["payments"]
        assert (payment["payment_id"], payment["status"]) == ("P-1", "completed")
        return
    if "/api/accounts/" in words[-1]:
        [balance] = json.loads(answer)["balances"]
        assert (balance["currency"], balance["balance_minor"]) == ("EUR", "-1250")
        return
    if "-d" not in words:
        assert len(FIGURES) == 5
        for line in FIGURES:
            series = line.rpartition(" ")[0]
            assert f"\n{series} " in answer
        return
    payment = json.loads(words[words.index("-d") + 1])
    assert json.loads(answer).get("payment_id") == payment["payment_id"], answer
    assert asyncio.run(booked(directory, payment["payment_id"])) == ["credit", "debit"]


def check_clients(directory: Path, words: list[str], answer: str) -> None:
    """Check that the client gets a key, and that it and the client local are recorded."""
    expected = {
        "add": ("key     once_", "key id"),
        "keys": ("accounts:write,payments:write,read",),
        "log": ("client_added", "shop", "key_used", "local"),
        "revoke": ("revoked",),
    }
    contains(*expected[words[2]])(directory, words, answer)


def check_txn(directory: Path, words: list[str], answer: str) -> None:
    """Check that the ledger's transactions are listed, or all steps of one traced."""
    expected = "all ten steps were seen" if words[2] == "trace" else "ledger-0"
    contains(expected)(directory, words, answer)


def check_down(directory: Path, _words: list[str], _answer: str) -> None:
    """Check that the stack has stopped."""
    assert state.running(directory) is None


def contains(*texts: str) -> Callable[[Path, list[str], str], None]:
    """Make a check that the output contains these texts."""

    def check(_directory: Path, _words: list[str], answer: str) -> None:
        assert [text for text in texts if text not in answer] == []

    return check


CHECKS: dict[str, Callable[[Path, list[str], str], None]] = {
    "up": contains("kafka", "redis", "gateway", "ingest", "transform", "ledger", "outbox", "balances", "prometheus"),
    "status": contains("broker-0", "gateway", "ledger", "outbox"),
    "verify": contains("28,205", "56,410", "681", "458", "verdict: pass"),
    "trace": contains("payments.raw", "payments.accepted", "ledger.transfers", "ledger.postings"),
    "curl": check_curl,
    "txn": check_txn,
    "drill": contains("A2", "lost-acknowledgement"),
    "clients": check_clients,
    "reconcile": contains("records in", "CZK", "verdict: clean"),
    "sql": contains("P-1", "-1250", "balance_minor"),
    "down": check_down,
}
"""Checks of commands beyond their exit code."""


def test_each_block_is_commands_or_known_output() -> None:
    assert {words[0] for words in ALL_COMMANDS} == PROGRAMS
    labels = [label for block in OUTPUTS for line in block for label in re.split(r"\s{2,}", line)[0].split(", ")]
    named = {name for label in labels for name in SHOWN if label in {name, name.removesuffix("_minor")}}
    assert len(labels) == len(named) > 0


@pytest.mark.parametrize("words", RUN, ids=[" ".join(words[:3]) for words in RUN])
@full
def test_a_command_does_what_it_says(directory: Path, words: list[str]) -> None:
    if words[0] == ONCE:
        answer, name = run(directory, words), words[1]
    else:
        assert shutil.which(words[0]), f"{words[0]} is not installed"
        known = addresses(directory)
        filled = [reduce(lambda text, name: text.replace(name, known[name]), known, word) for word in words]
        answer, name = run(directory, filled), words[0]
    if name in CHECKS:
        CHECKS[name](directory, words, answer)


def test_each_make_target_exists() -> None:
    asked = {words[1] for words in ALL_COMMANDS if words[0] == "make"} | set(re.findall(r"`make ([a-z]+)`", README))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert asked
    assert asked - targets == set()


def test_each_command_named_in_the_text_exists() -> None:
    named = [shlex.split(text) for text in re.findall(r"`(?:\.venv/bin/)?once ([^`\n]+)`", README)]
    assert named
    for words in named:
        group: click.Command = once
        for word in words:
            context = click.Context(group)
            if word.startswith("--"):
                assert any(word in parameter.opts for parameter in group.get_params(context)), words
            elif not isinstance(group, click.Group):
                assert any(not isinstance(one, click.Option) or not one.is_flag for one in group.params), words
            else:
                found = group.get_command(context, word)
                assert found is not None, words
                group = found
    assert {words[0] for words in named if not words[0].startswith("--")} <= set(COMMANDS)


def test_each_file_it_links_to_exists() -> None:
    linked = [target for target in re.findall(r"\]\(([^)]+)\)", README) if "://" not in target]
    assert linked
    assert [target for target in linked if not (ROOT / target).exists()] == []
