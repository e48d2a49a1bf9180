"""B: the services under storms, replays and records that are refused."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import islice, pairwise
from typing import Final

import msgspec

from deploy.drills.clients.raw import committed_count, records_since
from deploy.drills.drill import TARGETS, Needs, drill
from deploy.drills.faults.configs import TopicConfig
from deploy.drills.faults.offsets import Rewind
from deploy.drills.judge import commit_times, mark, now_ms, verified
from deploy.drills.producers import producer, put
from deploy.drills.service import Service
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually
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

STORM: Final = 6
"""Instances that come and go."""


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
    """Further instances of the ledger join its group under load. Every one to three seconds, one of them leaves: by
    SIGTERM, or by SIGKILL, which its group notices by its session. The table has what the ledger committed from one
    departure to the next, and the longest time without a commit.
    """
    rows = list[dict[str, str | int | float | None]]()
    async with flowing(stage, per_s=40):
        members = [
            Service("ledger", stage.bootstrap_servers, stage.directory, f"storm-{number}") for number in range(STORM)
        ]
        for member in members:
            stage.resources.callback(member.process.kill)
            member.start()  # all at once: to start takes longer than to join
        await _until_joined(stage, members[0].process.name)
        since = await mark(stage, [LEDGER_BALANCES])
        departures_ms = [since.at_ms]
        for number, member in enumerate(members):
            name = member.process.name
            await _until_joined(stage, name)
            stay_s = stage.random.uniform(1, 3)
            await asyncio.sleep(stay_s)  # the storm's own pace
            if number % 2:
                member.kill()
            else:
                await asyncio.to_thread(member.process.terminate)
            how = "SIGKILL" if number % 2 else "SIGTERM"
            stage.evidence(f"{name} joined and left", f"{how} after {stay_s:.1f} s")
            rows.append({"member": name, "left by": how})
            departures_ms.append(now_ms())
        commits = await commit_times(stage, since)
    turns = [commits_within(commits, begun_ms, left_ms) for begun_ms, left_ms in pairwise(departures_ms)]
    table = [row | turn for row, turn in zip(rows, turns, strict=True)]
    stage.journal.tables["members that came and went"] = table
    counts = [turn["commits"] for turn in turns]
    stage.expect_that("commits of the ledger until each departure", counts, "at least 1", holds=all(counts))
    await verified(stage, at_least=stage.journal.records)


def commits_within(commits: Sequence[int], begun_ms: int, left_ms: int) -> dict[str, str | int | float | None]:
    """Return the columns of a member's time: its seconds, the commits, and the longest time without one. Pure."""
    within = [at_ms for at_ms in commits if begun_ms < at_ms <= left_ms]
    longest_ms = max(later - earlier for earlier, later in pairwise([begun_ms, *within, left_ms]))
    return {
        "s": round((left_ms - begun_ms) / 1000, 1),
        "commits": len(within),
        "longest s without a commit": round(longest_ms / 1000, 1),
    }


async def _until_joined(stage: Stage, client_id: str) -> None:
    async def joined() -> bool:
        async with Brokers(stage.access) as brokers:
            view = await brokers.view([])
            return client_id in {one.client_id for one in await Groups(brokers).members("ledger", view.brokers)}

    await eventually(joined, f"{client_id} joined", 60)
