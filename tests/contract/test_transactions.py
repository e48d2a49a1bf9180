"""Transactions as the cluster reports them, and aborts by an operator, against real brokers and Kafka's tool."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from deploy.cli.txn import txn
from deploy.drills.clients.tools import admin_tool
from deploy.drills.hanging import leave_hanging, unverified
from deploy.local.kafka.cluster import LocalKafka
from shared.eos.open_transactions import Suspicion, Target, holders
from shared.eos.records import Output
from shared.events import catalogue
from shared.kafka.admin.transactions import look, producers_of
from shared.kafka.admin.txn_abort import AbortFailedError, wait_ended
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import end_offsets, stable_offsets
from tests.contract.helpers import TRANSACTIONAL, here, producing, values_since, whole
from tests.harness import eventually
from tests.open_transaction import abandon
from tests.tiers import mostly_full

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]

TOPIC, OTHER = TRANSACTIONAL
TRANSFORM, ACCEPTED = "transform", catalogue.PAYMENTS_ACCEPTED
ANSWER_S = 2.0
KAFKA_TOOL = "org.apache.kafka.tools.TransactionsCommand"


@pytest_asyncio.fixture
async def asked(brokers: str) -> AsyncIterator[Brokers]:
    """Connections to every broker."""
    async with Brokers(brokers, answer_s=ANSWER_S) as opened:
        yield opened


async def command(brokers: str, *words: str, code: int = 0) -> Result:
    """Run `once txn` in a thread: it has its own event loop."""
    words = (*words, "--bootstrap-servers", brokers)
    result = await asyncio.to_thread(CliRunner().invoke, txn, list(words))
    assert result.exit_code == code, (result.output, result.exception)
    return result


async def command_json(brokers: str, *words: str, code: int = 0) -> Any:
    return json.loads((await command(brokers, *words, "--json", code=code)).stdout)


def cells(text: str) -> list[str]:
    """Return the cells of the first row that Kafka's tool printed."""
    return text.splitlines()[1].split()


async def moved_past(brokers: str, target: Target, offset: int) -> bool:
    return (await stable_offsets(brokers, [target[0]]))[target] > offset


async def test_a_killed_producers_open_transaction_has_an_age_and_holds_the_last_stable_offset(
    own_kafka: LocalKafka, brokers: str, asked: Brokers, tmp_path: Path
) -> None:
    name, targets = f"left-{uuid.uuid4()}", [(TOPIC, 1), (OTHER, 2)]
    ends = await here(brokers, TOPIC)
    begun_ms = time.time_ns() // 1_000_000
    abandon(brokers, tmp_path, name, targets)
    seen = await whole(asked)
    [known] = [one for one in seen.transactions if one.transactional_id == name]
    assert (known.state, known.timeout_ms, set(known.partitions)) == ("Ongoing", 60_000, set(targets))
    assert begun_ms - 1000 <= seen.at_ms - known.age_s(seen.at_ms) * 1000 <= seen.at_ms
    assert seen.offsets[TOPIC, 1].stable == ends[TOPIC, 1]
    assert seen.offsets[TOPIC, 1].end == ends[TOPIC, 1] + 1
    held = {holder.open.target: holder for holder in holders(seen)}
    for target in targets:
        assert (held[target].transactional_id, held[target].held) == (name, 1)
        assert held[target].open.start_offset == held[target].stable
        [producer] = [one for one in seen.producers[target] if one.producer_id == known.producer_id]
        assert (producer.producer_epoch, producer.last_sequence) == (known.producer_epoch, 0)
        assert producer.last_timestamp_ms == 1_700_000_000_000
    assert Suspicion().after(seen).after(await whole(asked)) == Suspicion()

    theirs = cells(await admin_tool(own_kafka, KAFKA_TOOL, "describe", "--transactional-id", name))
    ours = (known.coordinator, name, known.producer_id, known.producer_epoch, known.state, 60_000, known.start_ms)
    assert theirs[:7] == list(map(str, ours))
    assert set(theirs[8].split(",")) == {f"{topic}-{partition}" for topic, partition in targets}
    [row] = [row for row in (await command_json(brokers, "list"))["transactions"] if row["transactional_id"] == name]
    assert row["state"] == "Ongoing"
    assert {hold["partition"]: hold["held"] for hold in row["holds"]} == {f"{TOPIC}:1": 1, f"{OTHER}:2": 1}
    assert row["service"] is None, "a service has this transactional.id"
    table = (await command(brokers, "list")).stdout
    assert [line for line in table.splitlines() if line.startswith(name) and f"{TOPIC}:1 by 1" in line]

    result = await command(brokers, "abort", name, "--yes")
    assert f"the last stable offset moved from {ends[TOPIC, 1]} to" in result.stdout
    assert "its open transaction is aborted" in result.stderr
    assert await moved_past(brokers, (TOPIC, 1), ends[TOPIC, 1])
    assert await values_since(brokers, ends, 1) == []
    await command(brokers, "abort", name, "--yes", code=3)

    async with producing(brokers, name) as successor:
        await successor.begin()
        successor.append([Output(TOPIC, 1, b"key", b"later", ())], 0)
        await successor.flush()
        await successor.commit()
        assert successor.epoch[0] == known.producer_id
        assert successor.epoch[1] > known.producer_epoch
    await eventually(lambda: _visible(brokers, ends, b"later"), "the successor's record")


async def _visible(brokers: str, since: dict[Target, int], value: bytes) -> bool:
    return value in await values_since(brokers, since, 1)


@pytest.mark.usefixtures("own_kafka")
async def test_a_transaction_of_the_coordinator_is_not_ended_by_a_marker_on_one_partition(
    brokers: str, asked: Brokers, tmp_path: Path
) -> None:
    name = f"whole-{uuid.uuid4()}"
    start = (await end_offsets(brokers, [OTHER]))[OTHER, 0]
    abandon(brokers, tmp_path, name, [(OTHER, 0)])
    place = ("--topic", OTHER, "--partition", "0", "--start-offset")
    refused = await command(brokers, "abort", *place, str(start), "--yes", code=1)
    assert f"once txn abort {name}" in refused.stderr
    nothing = await command(brokers, "abort", *place, str(start + 1), "--yes", code=3)
    assert "nothing is open" in nothing.stderr
    assert any(one.start_offset == start for one in await producers_of(asked, (OTHER, 0)))
    [opened] = [holder.open for holder in holders(await whole(asked)) if holder.open.target == (OTHER, 0)]
    with pytest.raises(AbortFailedError, match=f"{OTHER}:0 from offset {start}"):
        await wait_ended(asked, [opened], deadline_s=0.2)
    await command(brokers, "abort", name, "--yes")
    assert await wait_ended(asked, [opened], deadline_s=0.2)


def answered(brokers: str, answer: bytes, *words: str) -> tuple[int, str]:
    """Run `once txn` on a terminal with this answer and return its exit code and stderr."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "deploy.cli.main", "txn", *words, "--bootstrap-servers", brokers]
    try:
        os.write(ours, answer)
        done = subprocess.run(argv, stdin=theirs, capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, done.stderr


@pytest.mark.usefixtures("own_kafka")
async def test_an_abort_explains_its_consequences_and_needs_confirmation(
    brokers: str, asked: Brokers, tmp_path: Path
) -> None:
    name = f"{TRANSFORM}-blue"
    abandon(brokers, tmp_path, name, [(OTHER, 5)])
    code, text = await asyncio.to_thread(answered, brokers, b"n\n", "abort", name)
    assert (code, text.splitlines()[-1].replace(" ", "")) == (1, "Abortit?[y/N]:Error:nothingwasdone")
    for part in (
        f"{OTHER}:5",
        f"{TRANSFORM}, instance blue",
        "without input partitions",
        "dropped",
        "fenced",
        "Left alone",
    ):
        assert part in text
    [known] = [one for one in (await whole(asked)).transactions if one.transactional_id == name]
    assert known.is_open
    code, _ = await asyncio.to_thread(answered, brokers, b"y\n", "abort", name)
    assert code == 0
    [known] = [one for one in (await whole(asked)).transactions if one.transactional_id == name]
    assert not known.is_open


@pytest.mark.parametrize("after_abort", mostly_full([False, True], {False}))
async def test_a_hanging_transaction_is_found_as_by_kafkas_tool_and_aborted(
    own_kafka: LocalKafka, brokers: str, asked: Brokers, after_abort: bool
) -> None:
    target = (TOPIC, 3)
    before = await here(brokers, TOPIC)
    async with unverified(own_kafka):
        producer_id, epoch = await leave_hanging(brokers, target, b"hangs", after_abort=after_abort)
    seen = await whole(asked)
    suspicion = Suspicion().after(seen).after(await whole(asked))
    [one] = suspicion.hanging
    assert (one.target, one.producer_id, one.producer_epoch) == (target, producer_id, epoch)
    assert seen.offsets[target].stable == one.start_offset
    found = await command_json(brokers, "find-hanging", code=1)
    assert [(hung["partition"], hung["start_offset"]) for hung in found["hanging"]] == [(3, one.start_offset)]
    assert found["late"] == found["unanswered"] == []
    text = (await command(brokers, "find-hanging", code=1)).stdout
    place = ["--topic", TOPIC, "--partition", "3", "--start-offset", str(one.start_offset)]
    assert f"once txn abort {' '.join(place)}" in text
    theirs = await admin_tool(own_kafka, KAFKA_TOOL, "find-hanging", "--topic", TOPIC, "--partition", "3")
    *place_and_producer, coordinator_epoch, start_offset = cells(theirs)[:6]
    assert place_and_producer == [TOPIC, "3", str(producer_id), str(epoch)]
    assert start_offset == str(one.start_offset)
    assert (int(coordinator_epoch) >= 0) == after_abort, "each election of the coordinator's partition increments it"
    [row] = [row for row in (await command_json(brokers, "list"))["transactions"] if row["state"] == "Hanging"]
    assert (row["producer_id"], row["holds"][0]["held"]) == (producer_id, 1)

    result = await command(brokers, "abort", *place, "--yes")
    assert f"moved from {one.start_offset} to" in result.stdout
    assert await moved_past(brokers, target, one.start_offset)
    assert await values_since(brokers, before, 3) == []
    assert (await command_json(brokers, "find-hanging"))["hanging"] == []
    assert suspicion.after(await whole(asked)) == Suspicion()


async def test_missing_topics_and_partitions_are_named(asked: Brokers) -> None:
    seen = await look(asked, [TOPIC, "no.such.topic"])
    assert seen.unanswered == ("topic no.such.topic does not exist",)
    assert (TOPIC, 0) in seen.offsets
    for target in (("no.such.topic", 0), (TOPIC, 99)):
        with pytest.raises(LookupError, match=f"no partition {target[0]}:{target[1]}"):
            await producers_of(asked, target)


async def test_no_broker_answers() -> None:
    async with Brokers("127.0.0.1:1,127.0.0.1:2") as unreachable:
        with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:2 .*once up"):
            await look(unreachable, TRANSACTIONAL)
