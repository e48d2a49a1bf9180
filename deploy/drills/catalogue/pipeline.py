"""B: the services under storms, replays and records that are refused."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import islice, pairwise
from typing import Final, NoReturn

import msgspec

from deploy.drills.clients.raw import committed_count, records_since
from deploy.drills.drill import TARGETS, Needs, drill
from deploy.drills.faults.configs import TopicConfig
from deploy.drills.faults.offsets import Rewind
from deploy.drills.judge import commit_times, mark, now_ms, verified
from deploy.drills.producers import producer, put
from deploy.drills.service import Service
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually, until
from deploy.drills.workload import flowing, pay, payments, send_raw, subscribed
from shared.eos.errors import AbortableError
from shared.events.catalogue import (
    EFFECTS_REQUESTS,
    LEDGER_BALANCES,
    LEDGER_POSTINGS,
    LEDGER_TRANSFERS,
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEAD_LETTER,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_RAW,
)
from shared.events.headers import REASON, header
from shared.kafka.admin.groups import PIPELINE, Groups
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.reader import end_offsets, partition_count

STORM: Final = 8
"""Instances that come and go."""
AHEAD: Final = 3
"""Instances that are started before the first one leaves: to start takes longer than from one departure to the next."""
STAY_S: Final = (1.0, 3.0)
LOOK_EVERY_S: Final = 0.2

OUTPUTS: Final = (
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_DEAD_LETTER,
    LEDGER_TRANSFERS,
    LEDGER_POSTINGS,
    EFFECTS_REQUESTS,
)
"""What the services say to each other. Changelogs get records whenever a service starts."""


@drill(
    "B17",
    "consumer-rewound",
    "Groups that are rewound to offset 0 change nothing: no second posting, no second effect",
    needs=Needs.SERVICES,
    targets=TARGETS,
    tags=["offsets"],
    within_s=300.0,
    reading=["docs/adr/0014-torn-transactions.md"],
)
async def consumer_rewound(stage: Stage) -> None:
    """Every account is subscribed to receipts. When some payments are booked, each service is stopped in turn, and its
    group's offsets are set to 0. A service goes on from the offset in its own state, so no output gets another record.
    Further payments are booked as usual.
    """
    async with subscribed(stage):
        await pay(stage, 200)
        before = await verified(stage, at_least=200)
        stage.expect_that("effects", before.effects_delivered, "some", holds=before.effects_delivered > 0)
        ends = await end_offsets(stage.access, OUTPUTS)
        async with AsyncExitStack() as rewound:
            for service, topic in PIPELINE:
                await rewound.enter_async_context(stage.fault(Rewind(service, topic)))
            stage.expect("records written by the replay", _grown(ends, await end_offsets(stage.access, OUTPUTS)), {})
            await pay(stage, 50)
        after = await verified(stage, at_least=250)
    stage.expect("further raw records", after.records_in - before.records_in, 50)
    stage.expect("postings repeated", after.duplicated, 0)
    stage.expect("effects repeated", after.effects_duplicated, 0)


def _grown(before: dict[tuple[str, int], int], after: dict[tuple[str, int], int]) -> dict[str, int]:
    """Return by how many offsets each partition has grown, of those that have."""
    return {
        f"{topic} [{number}]": end - before[topic, number]
        for (topic, number), end in after.items()
        if end != before[topic, number]
    }


LIMIT_BYTES: Final = 600
"""max.message.bytes of payments.accepted: enough for one of the workload's payments with its headers."""


@drill(
    "B19",
    "record-too-large",
    "A record that its topic refuses aborts the whole transaction; ingest then dead-letters it and books the others",
    needs=Needs.SERVICES,
    targets=TARGETS,
    tags=["configuration", "transactions"],
    reading=["docs/runbooks/TransactionsAborting.md"],
)
async def record_too_large(stage: Stage) -> None:
    """A transaction writes a record to one topic, and to another topic one that is too large for it. The broker refuses
    the second one, and the transaction aborts with both. Then payments.accepted gets a low limit, and payments come in,
    one of them above it. ingest aborts the transaction with its batch and processes its records one by one.
    """
    wide, narrow = await stage.topic(), await stage.topic(max_message_bytes="1000")
    refused = ""
    async with producer(stage, f"{stage.name}-0") as producing:
        await producing.init(30)
        await producing.begin()
        await put(producing, wide, b"fits")
        try:
            await put(producing, narrow, bytes(2000))
        except AbortableError as error:
            refused = error.cause
            await producing.abort()
    stage.evidence("a record above max.message.bytes", refused)
    stage.expect("answer to the record", refused, "MessageSizeTooLargeError")
    stage.expect("records of the transaction that readers see", await committed_count(stage.access, wide, narrow), 0)
    since = await end_offsets(stage.access, [PAYMENTS_ACCEPTED, PAYMENTS_DEAD_LETTER])
    partitions = await partition_count(stage.access, [PAYMENTS_RAW])
    values = [*islice(payments(stage.name, stage.random.getrandbits(32), partitions, repeated=0, bad=0), 41)]
    large = msgspec.json.encode(msgspec.json.decode(values.pop()) | {"reference": "r" * 400})
    async with stage.fault(TopicConfig(PAYMENTS_ACCEPTED, "max.message.bytes", str(LIMIT_BYTES))):
        stage.journal.records += await send_raw(stage.access, [*values[:20], large, *values[20:]])
        await eventually(lambda: _arrived(stage, since, len(values)), "the other payments accepted", 60)
    letters = await records_since(stage.access, PAYMENTS_DEAD_LETTER, since)
    stage.expect("dead letters that are the large record", [one.value == large for one in letters], [True])
    stage.expect("reason", [header(one.headers, REASON) for one in letters], [b"too_large"])
    await verified(stage, at_least=len(values) + 1)


async def _arrived(stage: Stage, since: dict[tuple[str, int], int], count: int) -> bool:
    return len(await records_since(stage.access, PAYMENTS_ACCEPTED, since)) >= count


@drill(
    "B16",
    "rebalance-storm",
    "While instances join and leave every one to three seconds, commits go on and nothing is booked twice",
    needs=Needs.SERVICES,
    tags=["groups", "processes"],
    within_s=240.0,
    reading=["docs/adr/0022-membership.md", "docs/runbooks/RebalanceStorm.md"],
)
async def rebalance_storm(stage: Stage) -> None:
    """Three further instances of the ledger join its group under load. Every one to three seconds, one of them leaves:
    by SIGTERM, or by SIGKILL, which its group notices by its session. At each departure another instance is started,
    eight in all. The table has when each one joined and left, in seconds since the first three were started, what the
    ledger committed from one departure to the next, and the longest time without a commit.
    """
    async with flowing(stage, per_s=40), _joins(stage) as joined_ms:
        members = [
            Service("ledger", stage.bootstrap_servers, stage.directory, f"storm-{number}") for number in range(STORM)
        ]
        for member in members:
            stage.resources.callback(member.process.kill)
        begun_ms = now_ms()
        for member in members[:AHEAD]:
            member.start()
        await _until_joined(members[0], joined_ms)
        since = await mark(stage, [LEDGER_BALANCES])
        left_ms = await _come_and_go(stage, members, joined_ms)
        commits = await commit_times(stage, since)
    turns = [commits_within(commits, *turn) for turn in pairwise([since.at_ms, *left_ms.values()])]
    stage.journal.tables["members that came and went"] = [
        {
            "member": name,
            "joined at s": _s(joined_ms[name] - begun_ms),
            "left at s": _s(at_ms - begun_ms),
            "left by": _left_by(number),
            **turn,
        }
        for number, ((name, at_ms), turn) in enumerate(zip(left_ms.items(), turns, strict=True))
    ]
    counts = [turn["commits"] for turn in turns]
    stage.expect_that("commits of the ledger until each departure", counts, "at least 1", holds=all(counts))
    await verified(stage, at_least=stage.journal.records)


async def _come_and_go(stage: Stage, members: Sequence[Service], joined_ms: Mapping[str, int]) -> dict[str, int]:
    """Let members leave one after the other, and start another one at each departure; return when each one left.

    Args:
        members: the first AHEAD of them are started.
        joined_ms: filled in as members join.
    """
    left_ms: dict[str, int] = {}
    for number, member in enumerate(members):
        await _until_joined(member, joined_ms)
        stay_s = stage.random.uniform(*STAY_S)
        await asyncio.sleep(stay_s)  # the storm's own pace
        if _left_by(number) == "SIGKILL":
            member.kill()
        else:
            await asyncio.to_thread(member.process.terminate)
        name = member.process.name
        stage.evidence(f"{name} joined and left", f"{_left_by(number)} after {stay_s:.1f} s")
        left_ms[name] = now_ms()
        for follower in members[number + AHEAD :][:1]:
            follower.start()
    return left_ms


def _left_by(number: int) -> str:
    return "SIGKILL" if number % 2 else "SIGTERM"


@asynccontextmanager
async def _joins(stage: Stage) -> AsyncIterator[dict[str, int]]:
    """Note when each member of the ledger's group is first seen: milliseconds since 1970 UTC, by its client.id."""
    joined_ms: dict[str, int] = {}

    async def look() -> NoReturn:
        async with Brokers(stage.access) as brokers:
            asked = (await brokers.view([])).brokers
            while True:
                for member in await Groups(brokers).members("ledger", asked):
                    joined_ms.setdefault(member.client_id, now_ms())
                await asyncio.sleep(LOOK_EVERY_S)

    looking = asyncio.create_task(look())
    try:
        yield joined_ms
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def _until_joined(member: Service, joined_ms: Mapping[str, int]) -> None:
    name = member.process.name
    await until(lambda: name in joined_ms, f"{name} joined", 60)


def _s(duration_ms: int) -> float:
    return round(duration_ms / 1000, 1)


def commits_within(commits: Sequence[int], begun_ms: int, left_ms: int) -> dict[str, str | int | float | None]:
    """Return the columns of a member's time: its seconds, the commits, and the longest time without one. Pure."""
    within = [at_ms for at_ms in commits if begun_ms < at_ms <= left_ms]
    longest_ms = max(later - earlier for earlier, later in pairwise([begun_ms, *within, left_ms]))
    return {
        "s": _s(left_ms - begun_ms),
        "commits": len(within),
        "longest s without a commit": _s(longest_ms),
    }
