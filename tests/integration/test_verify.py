"""`once load` and `once verify` on real brokers and services: no data, pass, effects, traffic, planted errors."""

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import free_ports
from deploy.verification import verify_cluster
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.clients import OWNER_UNNAMED
from shared.events.effects import (
    TRUST_PREFIX,
    EffectRequest,
    EffectResult,
    Subscription,
    Subscriptions,
    Trust,
    decode_request,
    encode_result,
    encode_subscriptions,
    encode_trust,
)
from shared.events.headers import SOURCE, Coordinates, header
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.events.postings import DEBIT, Posting, decode_ledger_event
from shared.kafka.admin.groups import PIPELINE, wait_drained
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, group_offsets, read_topics, stable_offsets
from tests import harness
from tests.commands import once
from tests.harness import eventually, services
from tests.payments import payments
from tests.proof import send_raw

SERVICES = ("ingest", "transform", "ledger")

BANK_FILE = """\
"trans_id";"account_id";"date";"type";"operation";"amount";"balance";"k_symbol";"bank";"account"
1;11;930101;"PRIJEM";"VKLAD";700.00;700.00;"";;
2;22;930101;"PRIJEM";"VKLAD";900.05;900.00;"";;

3;11;930102;"VYDAJ";"VYBER";200.00;1500.00;"";;
4;11;930102;"PRIJEM";"PREVOD Z UCTU";1000.00;1700.00;"DUCHOD";"YZ";17972155
no transaction at all
5;22;930103;"VYDAJ";"VYBER";14.60;885.40;"SLUZBY";;
"""
"""Two accounts: the second day of 11 is not in the bank's order, and the amounts of 22 are rounded."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalKafka]:
    """Brokers for one test: its planted error stays."""
    with harness.cluster(tmp_path / "kafka") as kafka:
        yield kafka


def process(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `once` as an operator would, where its errors are the subject."""
    command = [sys.executable, "-m", "deploy.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def verdict(bootstrap_servers: str, exit_code: int, *arguments: str) -> dict[str, Any]:
    done = once("verify", "--json", *arguments, "--bootstrap-servers", bootstrap_servers)
    assert done.exit_code == exit_code, (done.output, done.exception)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def loaded(bootstrap_servers: str, path: Path, *arguments: str) -> dict[str, Any]:
    done = once("load", path, "--json", "--client", OWNER_UNNAMED, *arguments, "--bootstrap-servers", bootstrap_servers)
    assert done.exit_code == 0, (done.output, done.exception)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def read(bootstrap_servers: str, topic: str) -> list[Record]:
    found: list[Record] = []
    asyncio.run(read_topics(bootstrap_servers, [topic], lambda _topic, _partition, records: found.extend(records)))
    return found


def debits(bootstrap_servers: str) -> list[Record]:
    """Read all debit postings."""
    found = []
    for record in read(bootstrap_servers, catalogue.LEDGER_POSTINGS):
        event = decode_ledger_event(record.value or b"")
        if isinstance(event, Posting) and event.leg == DEBIT:
            found.append(record)
    return found


async def write_again(bootstrap_servers: str, record: Record) -> Coordinates:
    """Write a copy of a record and return its coordinates."""
    async with IdempotentWriter(bootstrap_servers) as writer:
        at = await writer.send(record.topic, record.partition, record.key, record.value, record.headers)
    return Coordinates(at.topic, at.partition, at.offset)


@pytest.mark.timeout(300)
def test_verdict_from_empty_to_planted(cluster: LocalKafka, tmp_path: Path) -> None:
    brokers = cluster.bootstrap_servers
    assert verdict(brokers, 3)["verdict"] == "no_data"

    load_both_files(brokers, tmp_path)
    with services(brokers, tmp_path, *SERVICES):
        result = verdict(brokers, 0)
        assert loaded(brokers, tmp_path / "bank.csv")["expected_balances"] == 0
        again = verdict(brokers, 0)
    assert (result["records_in"], result["accepted"], result["dead_lettered"]) == (6 + 43, 5 + 40, 1 + 2)
    assert (result["deduplicated"], result["postings"], result["declines"]) == (1, 2 * 45, 0)
    assert (result["accounts"], result["accounts_exact"], result["accounts_within_rounding"]) == (2, 1, 1)
    assert {name: found["result"] for name, found in result["invariants"].items()} == {
        **{f"I{number}": "pass" for number in range(1, 10)},
        "I11": "no_data",
    }
    assert (again["records_in"], again["deduplicated"], again["postings"]) == (49 + 6, 1 + 5, 90)

    check_effects(brokers, tmp_path)
    check_concurrent_changes(brokers)
    check_unprocessed_record(brokers)
    check_planted_errors(brokers, tmp_path)


def load_both_files(brokers: str, directory: Path) -> None:
    """Load a bank's plain file, and compressed JSON lines with invalid payments."""
    bank = directory / "bank.csv"
    bank.write_text(BANK_FILE)
    result = loaded(brokers, bank)
    assert (result["format"], result["records"], result["unmapped"], result["empty_lines"]) == ("pkdd99", 6, 1, 1)
    assert (result["accounts_opened"], result["expected_balances"]) == (2, 2)

    values = list(payments("line", 40))
    lines = [*values, values[0], b"\xff\x00 no payment", b" {} "]
    packed = directory / "lines.jsonl.gz"
    packed.write_bytes(gzip.compress(b"\n".join([*lines[:5], b"", *lines[5:]])))
    result = loaded(brokers, packed, "--rate", "100")
    assert (result["format"], result["records"], result["empty_lines"]) == ("jsonl", 43, 1)
    assert result["seconds"] > 0.3, "faster than the requested rate"
    raw = [record.value for record in read(brokers, catalogue.PAYMENTS_RAW)]
    assert sorted(value for value in raw if value in lines) == sorted(lines)
    assert b"no transaction at all" in raw


def check_effects(brokers: str, directory: Path) -> None:
    """Check an effect that was subscribed to, and its duplicate in the file."""
    with services(brokers, directory, *SERVICES):
        asyncio.run(pay_subscribed(brokers))
    [request] = read(brokers, catalogue.EFFECTS_REQUESTS)
    effect = decode_request(request.value or b"")
    assert isinstance(effect, EffectRequest)
    written = asyncio.run(write_result(brokers, request, effect))
    sinks = directory / "sinks"
    sinks.mkdir()
    line = json.dumps({"effect_id": effect.effect_id}) + "\n"
    (sinks / "receipts.jsonl").write_text(line)
    result = verdict(brokers, 0, "--file-sinks", str(sinks))
    assert result["invariants"]["I11"] == {"result": "pass", "checked": 1, "violations": 0}
    assert (result["effects_requested"], result["effects_delivered"], result["effects_duplicated"]) == (1, 1, 0)

    (sinks / "receipts.jsonl").write_text(line + line)
    twice = verdict(brokers, 1, "--file-sinks", str(sinks))
    assert (twice["effects_delivered"], twice["effects_duplicated"]) == (1, 1)
    assert [(found["kind"], found["where"]) for found in twice["violations"]] == [
        ("effect_duplicated", "file:receipts:2")
    ]
    (sinks / "receipts.jsonl").unlink()
    absent = verdict(brokers, 1, "--file-sinks", str(sinks))
    assert [(found["kind"], found["where"]) for found in absent["violations"]] == [("effect_not_at_sink", str(written))]
    assert verdict(brokers, 0)["effects_delivered"] == 1, "without the files, the results must count"


async def pay_subscribed(brokers: str) -> None:
    """Subscribe an account to receipts, and wait until a payment of it is booked."""
    subscribed = encode_subscriptions(Subscriptions((Subscription("receipt", "file:receipts"),)))
    async with IdempotentWriter(brokers) as writer:
        await writer.send(catalogue.REFERENCE_SUBSCRIPTIONS, 0, b"22", subscribed)
    accepted = 0

    async def booked() -> bool:
        nonlocal accepted
        accepted += 1  # the ledger may follow the subscriptions later than the first payment
        payment = Payment(f"subscribed-{accepted}", "22", "cash@0", 1, "CZK", SCHEMA_VERSION)
        await send_raw(brokers, [encode_instruction(payment)])
        await wait_drained(brokers, deadline_s=60, pipeline=[one for one in PIPELINE if one[0] != "outbox"])
        return bool(sum((await end_offsets(brokers, [catalogue.EFFECTS_REQUESTS])).values()))

    await eventually(booked, "a receipt is requested")


async def write_result(brokers: str, request: Record, effect: EffectRequest) -> Coordinates:
    """Write a request's result and its offset as consumed; return the request's coordinates."""
    key, partition = effect.effect_id.encode(), request.partition
    result = encode_result(EffectResult(effect.effect_id, "sent", 1, 1))
    async with IdempotentWriter(brokers) as writer:
        await writer.send(catalogue.EFFECTS_RESULTS, partition, key, result, request.headers)
    await set_group_offsets(brokers, "outbox", catalogue.EFFECTS_REQUESTS, {partition: request.offset + 1})
    return Coordinates(request.topic, request.partition, request.offset)


def check_concurrent_changes(brokers: str) -> None:
    """Check that offsets past markers are ignored, and that new records cause another reading until the deadline."""
    assert verify_meanwhile(brokers, pass_markers, times=1) == ("pass", True, 1)
    assert verify_meanwhile(brokers, take_over, times=5) == ("pass", True, 6)
    assert verify_meanwhile(brokers, take_over, times=9, deadline_s=0) == ("fail", False, 3)


async def pass_markers(brokers: str) -> None:
    """Commit a group's offsets past the last markers."""
    ends = {at: end for (_, at), end in (await stable_offsets(brokers, [catalogue.LEDGER_TRANSFERS])).items() if end}
    committed = await group_offsets(brokers, "ledger", catalogue.LEDGER_TRANSFERS)
    assert any(committed[partition] < end for partition, end in ends.items()), "there are no markers to pass"
    await set_group_offsets(brokers, "ledger", catalogue.LEDGER_TRANSFERS, ends)


async def take_over(brokers: str) -> None:
    """Write the record of an outbox that takes over a partition."""
    async with IdempotentWriter(brokers) as writer:
        await writer.send(catalogue.EFFECTS_WAITING, 0, TRUST_PREFIX + b"redis", encode_trust(Trust("an incarnation")))


def verify_meanwhile(
    brokers: str, happens: Callable[[str], Coroutine[Any, Any, None]], *, times: int, deadline_s: float = 120
) -> tuple[str, bool, int]:
    """Verify while `happens` runs in each of the first `times` readings; return verdict, at_rest and readings."""
    happened, notes = 0, list[str]()

    def progress(_passed: int, _total: int) -> None:
        nonlocal happened
        if happened == len(notes) and happened < times:  # once in each reading, which waits for it
            happened += 1
            happening = threading.Thread(target=lambda: asyncio.run(happens(brokers)))
            happening.start()
            happening.join()

    found = asyncio.run(verify_cluster(brokers, deadline_s=deadline_s, on_progress=progress, on_note=notes.append))
    return found.verdict, found.at_rest, len(notes) + 1


def check_unprocessed_record(brokers: str) -> None:
    """Check that a record that no service processes is reported, with a wait and without."""
    asyncio.run(send_raw(brokers, payments("late", 1)))
    waited = once("verify", "--json", "--timeout", "1", "--bootstrap-servers", brokers)
    result = json.loads(waited.stdout)
    assert (waited.exit_code, result["verdict"], result["at_rest"]) == (1, "fail", False)
    assert "ingest on payments.raw" in waited.stderr
    late = [record for record in read(brokers, catalogue.PAYMENTS_RAW) if b'"late-0"' in (record.value or b"")]
    where = f"{catalogue.PAYMENTS_RAW}:{late[0].partition}:{late[0].offset}"
    now = verdict(brokers, 1, "--no-wait")
    assert [(found["kind"], found["where"]) for found in now["violations"]] == [("no_outcome", where)]


def check_planted_errors(brokers: str, directory: Path) -> None:
    """Check that a debit posted twice is found although the services continue without an error."""
    debit = debits(brokers)[0]
    copied = asyncio.run(write_again(brokers, debit))
    with services(brokers, directory, *SERVICES):
        result = verdict(brokers, 1)
        shown = once("verify", "--bootstrap-servers", brokers)
    assert (result["verdict"], result["duplicated"], result["lost"], result["torn"]) == ("fail", 1, 0, 0)
    found = {(violation["kind"], violation["where"]) for violation in result["violations"]}
    assert ("duplicate_debit", str(copied)) in found
    assert {kind for kind, _ in found} == {"duplicate_debit", "balance_differs", "in_transit"}
    assert header(debit.headers, SOURCE) is not None
    assert shown.exit_code == 1
    assert f"I3 duplicate_debit {copied}" in shown.stdout
    assert shown.stdout.rstrip().endswith("verdict: fail")


@pytest.mark.parametrize("command", ["verify", "load"])
def test_an_unreachable_cluster_is_reported(command: str, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b"{}\n")
    files = [file] if command == "load" else []
    done = process(command, *files, "--bootstrap-servers", f"127.0.0.1:{free_ports(1)[0]}")
    assert done.returncode == 1
    assert not done.stdout
    assert "once up" in done.stderr
    assert "Traceback" not in done.stderr


def test_invalid_files_are_reported(tmp_path: Path) -> None:
    at = ["--bootstrap-servers", f"127.0.0.1:{free_ports(1)[0]}"]
    missing = once("load", tmp_path / "none.csv", *at)
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "none.csv" in missing.stderr
    other = tmp_path / "other.csv"
    other.write_bytes(b"a;b\n")
    refused = once("load", other, *at)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "header is none of the PKDD'99" in refused.stderr
