"""B and E: consume-transform-produce programs under crashes, storms and replays."""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import islice, pairwise
from statistics import median
from typing import Final, NamedTuple

import msgspec

from deploy import PROJECT_ROOT
from deploy.drills.clients.raw import log_of, values_of
from deploy.drills.deliveries import duplicates, losses
from deploy.drills.drill import LOCAL, SECURE, Anomaly, Needs, Series, drill
from deploy.drills.faults.configs import TopicConfig
from deploy.drills.faults.offsets import Rewind
from deploy.drills.faults.requests import OnRequests
from deploy.drills.judge import commit_times, mark, verified
from deploy.drills.producers import producer, put
from deploy.drills.proxy.rules import Drop, Part, Rule
from deploy.drills.service import Service
from deploy.drills.stage import Stage, eventually
from deploy.drills.workload import flowing, pay, payments, send_raw, subscribed
from deploy.local.ports import free_ports
from deploy.local.process import ManagedProcess
from shared.eos.errors import AbortableError
from shared.eos.records import Record
from shared.events.catalogue import (
    EFFECTS_REQUESTS,
    LEDGER_BALANCES,
    LEDGER_POSTINGS,
    LEDGER_TRANSFERS,
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEAD_LETTER,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_RAW,
    own_topic,
)
from shared.events.headers import REASON, header
from shared.kafka.admin.groups import PIPELINE, Groups, wait_drained
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, partition_count, read_topics

RECORDS: Final = 30
STORM: Final = 6
"""Instances that come and go."""


class Semantics(NamedTuple):
    """A program, and the request that is lost when it crashes: the second of its two steps.

    Attributes:
        program: in deploy/drills/clients.
        api: of the request.
        by_topic: whether its output's topic selects it.
    """

    program: str
    api: str
    by_topic: bool = False


SEMANTICS: Final = (
    Semantics("at_most_once", "Produce", by_topic=True),
    Semantics("at_least_once", "OffsetCommit"),
    Semantics("exactly_once", "EndTxn"),
)


@drill(
    "B20",
    "three-semantics-one-crash",
    "Under the same crash, at-most-once loses records, at-least-once repeats them, and exactly-once does neither",
    control=[Anomaly.LOSS, Anomaly.DUPLICATE],
    tags=["processes", "requests"],
    reading=["deploy/drills/clients/at_most_once.py", "deploy/drills/clients/at_least_once.py"],
)
async def three_semantics_one_crash(stage: Stage) -> None:
    """Three programs of a page each copy records from one topic to another. Each dies by SIGKILL between its two
    steps, writing the records and committing the offsets: the request of the second step is lost. Then each is started
    again, and gets further records. The output is compared with the input.
    """
    rows = stage.journal.tables["the same crash, by semantics"] = []
    for semantics in SEMANTICS:
        values, expected = await _crash(stage, semantics)
        lost, repeated = losses(expected, values), duplicates(values)
        name = semantics.program.replace("_", "-")
        rows.append(
            {"semantics": name, "in": len(expected), "out": len(values), "lost": len(lost), "repeated": len(repeated)}
        )
        if semantics.program == "exactly_once":
            stage.expect(f"{name}: records lost", lost, [])
            stage.expect(f"{name}: records repeated", repeated, [])
        else:
            stage.anomaly(Anomaly.LOSS, lost)
            stage.anomaly(Anomaly.DUPLICATE, repeated)
            stage.expect(
                f"{name}: it loses, it repeats",
                (bool(lost), bool(repeated)),
                (semantics.by_topic, not semantics.by_topic),
            )


async def _crash(stage: Stage, semantics: Semantics) -> tuple[list[bytes], list[bytes]]:
    """Run a program through its crash, and return the values of its output and of its input."""
    proxy = await stage.proxy()
    source, sink = await stage.topic(), await stage.topic()
    group = f"{stage.name}-{semantics.program}"
    module = f"deploy.drills.clients.{semantics.program}"
    process = _program(stage, module, {}, proxy.bootstrap_servers, source, sink, group)
    stage.step(f"{semantics.program} copies {RECORDS} records")
    process.start()
    first = await _write(stage, source, "before")
    await _until_out(stage, sink, first)
    rule = Rule(
        api=semantics.api,
        topic=sink if semantics.by_topic else None,
        group=group if semantics.api == "OffsetCommit" else None,
        transactional_id=f"{group}-0" if semantics.api == "EndTxn" else None,
        action=Drop(Part.REQUEST),
    )
    async with stage.fault(OnRequests(proxy, rule, f"{semantics.api} of {semantics.program} lost")) as lost:
        second = await _write(stage, source, "crash")
        stage.evidence(lost.name, await lost.acted())
        process.kill()
        stage.evidence(f"SIGKILL of {semantics.program}", f"it ended by signal {-(process.returncode or 0)}")
    process.start()
    third = await _write(stage, source, "after")
    await _until_out(stage, sink, third)
    process.kill()
    return await values_of(stage.bootstrap_servers, sink), [*first, *second, *third]


async def _write(stage: Stage, topic: str, name: str) -> list[bytes]:
    values = [f"{name}-{number}".encode() for number in range(RECORDS)]
    async with IdempotentWriter(stage.bootstrap_servers) as writer:
        for value in values:
            await writer.write(topic, 0, None, value)
    stage.journal.records += len(values)
    return values


async def _until_out(stage: Stage, sink: str, values: Sequence[bytes]) -> None:
    async def out() -> bool:
        return set(values) <= set(await values_of(stage.bootstrap_servers, sink))

    await eventually(out, f"all of {values[0].decode()} ... {values[-1].decode()} in the output")


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
    targets=[LOCAL, SECURE],
    tags=["offsets"],
    within_s=180.0,
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


SIZES: Final = (1, 10, 100, 1_000, 10_000)
ROUNDS: Final = 12
WARM_UP: Final = 3
RECORD_BYTES: Final = 250
GROWTH_MAX: Final = 3.0
"""How much longer a commit of 10,000 records may take than one of a single record, by their medians."""


@drill(
    "B18",
    "commit-cost-by-size",
    "The commit of 10,000 records takes no longer than that of one",
    targets=[LOCAL, SECURE],
    tags=["transactions", "figures"],
    reading=["KIP-98", "docs/performance.md"],
)
async def commit_cost_by_size(stage: Stage) -> None:
    """Commit transactions of 1 to 10,000 records, all sizes in turn, and time two parts of each: writing the records,
    and EndTxn up to its answer. EndTxn is one request and its markers one for each partition, whatever was written.
    """
    topic = await stage.topic()
    written: dict[int, list[float]] = {size: [] for size in SIZES}
    committed: dict[int, list[float]] = {size: [] for size in SIZES}
    async with producer(stage, f"{stage.name}-0", timeout_ms=60_000) as producing:
        await producing.init(30)
        for number in range(WARM_UP + ROUNDS):
            for size in SIZES:
                await producing.begin()
                begun_s = time.monotonic()
                await put(producing, topic, *[bytes(RECORD_BYTES)] * size)
                flushed_s = time.monotonic()
                await producing.commit()
                if number >= WARM_UP:
                    written[size].append((flushed_s - begun_s) * 1000)
                    committed[size].append((time.monotonic() - flushed_s) * 1000)
    stage.journal.records = (WARM_UP + ROUNDS) * sum(SIZES)
    in_log = await committed_count(stage, topic)
    stage.expect("records committed", in_log, stage.journal.records)
    writes = {size: round(median(times), 2) for size, times in written.items()}
    commits = {size: round(median(times), 2) for size, times in committed.items()}
    stage.journal.tables["a transaction's time by its records, medians"] = [
        {"records": size, "write ms": writes[size], "commit ms": commits[size]} for size in SIZES
    ]
    lines = {
        "write": [(float(size), writes[size]) for size in SIZES],
        "commit": [(float(size), commits[size]) for size in SIZES],
    }
    stage.journal.plots.append(Series("A transaction's time by its size", "records", "ms", lines))
    grown = round(commits[SIZES[-1]] / commits[SIZES[0]], 2)
    stage.expect_that(
        f"commit of {SIZES[-1]} records, by that of one", grown, f"at most {GROWTH_MAX}", holds=grown <= GROWTH_MAX
    )
    stage.expect_that(
        f"writing {SIZES[-1]} records, by commit",
        writes[SIZES[-1]],
        "more",
        holds=writes[SIZES[-1]] > commits[SIZES[-1]],
    )


async def committed_count(stage: Stage, *topics: str) -> int:
    """Return how many records readers see in topics of one partition."""
    logs = [await log_of(stage.access, topic, committed=True) for topic in topics]
    return sum(batch.last_offset - batch.base_offset + 1 for log in logs for batch in log)


LIMIT_BYTES: Final = 600
"""max.message.bytes of payments.accepted: enough for one of the workload's payments with its headers."""


@drill(
    "B19",
    "record-too-large",
    "A record that its topic refuses aborts the whole transaction; ingest then dead-letters it and books the others",
    needs=Needs.SERVICES,
    targets=[LOCAL, SECURE],
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
    stage.expect("records of the transaction that readers see", await committed_count(stage, wide, narrow), 0)
    since = await end_offsets(stage.access, [PAYMENTS_ACCEPTED, PAYMENTS_DEAD_LETTER])
    partitions = await partition_count(stage.access, [PAYMENTS_RAW])
    values = [*islice(payments(stage.name, stage.random.getrandbits(32), partitions, repeated=0, bad=0), 41)]
    large = msgspec.json.encode(msgspec.json.decode(values.pop()) | {"reference": "r" * 400})
    async with stage.fault(TopicConfig(PAYMENTS_ACCEPTED, "max.message.bytes", str(LIMIT_BYTES))):
        stage.journal.records += await send_raw(stage.access, [*values[:20], large, *values[20:]])
        await eventually(lambda: _arrived(stage, since, len(values)), "the other payments accepted", 60)
    letters = await _since(stage, PAYMENTS_DEAD_LETTER, since)
    stage.expect("dead letters that are the large record", [one.value == large for one in letters], [True])
    stage.expect("reason", [header(one.headers, REASON) for one in letters], [b"too_large"])
    await verified(stage, at_least=len(values) + 1)


async def _arrived(stage: Stage, since: dict[tuple[str, int], int], count: int) -> bool:
    return len(await _since(stage, PAYMENTS_ACCEPTED, since)) >= count


async def _since(stage: Stage, topic: str, since: dict[tuple[str, int], int]) -> list[Record]:
    """Return the committed records of a topic behind these offsets."""
    found: list[Record] = []
    await read_topics(stage.access, [topic], lambda _topic, _partition, records: found.extend(records), start=since)
    return found


EXAMPLE, STOCK_EXAMPLE = "examples/velocity.py", "deploy/drills/clients/velocity_stock.py"
ALERTS, RECENT = "velocity.alerts", "velocity.recent"
LOST_REQUESTS: Final = ("Produce", "TxnOffsetCommit", "EndTxn")
"""A program dies once with each of them lost."""


class Example(NamedTuple):
    """A program that writes alerts, as a process.

    Attributes:
        path: of its source.
        alerts: its output.
        group: its consumer group; its transactional.id is `<group>-0`.
    """

    path: str
    alerts: str
    group: str
    process: ManagedProcess


@drill(
    "E11",
    "classic-example-killed",
    "Consume-transform-produce with state is a page on this runtime, and no kill loses or repeats one of its results",
    needs=Needs.SERVICES,
    tags=["processes", "requests"],
    within_s=240.0,
    reading=["docs/own-service.md", EXAMPLE, STOCK_EXAMPLE],
)
async def classic_example_killed(stage: Stage) -> None:
    """Two programs read payments.accepted, and write an alert for each payment that follows three others of its debtor
    within a minute: one on this runtime, one on the stock client. Under load each is killed three times, with its
    Produce, its TxnOffsetCommit and its EndTxn request lost. The alerts are compared with a fold over the input.
    """
    rows = stage.journal.tables["the same program on two clients"] = []
    examples = [await _velocity(stage), await _stock_velocity(stage)]
    async with flowing(stage, per_s=40):
        for example in examples:
            example.process.start()
            for api in LOST_REQUESTS:
                await _lose(stage, example, api)
    for example in examples:
        pipeline = [("ingest", PAYMENTS_RAW), (example.group, PAYMENTS_ACCEPTED)]
        await wait_drained(stage.access, pipeline=pipeline, deadline_s=90)
        example.process.kill()
        expected = await _alerts_due(stage)
        found = [record.value or b"" for record in await _since(stage, example.alerts, {})]
        lines = len((PROJECT_ROOT / example.path).read_text().splitlines())
        rows.append({"program": example.path, "lines": lines, "kills": len(LOST_REQUESTS), "alerts": len(found)})
        stage.expect_that(f"{example.path}: alerts", len(found), "some", holds=len(found) > 0)
        stage.expect(f"{example.path}: alerts lost", losses(expected, found), [])
        stage.expect(f"{example.path}: alerts repeated", duplicates(found), [])
        stage.expect(f"{example.path}: alerts without a cause", losses(found, expected), [])


async def _lose(stage: Stage, example: Example, api: str) -> None:
    """Kill a program that has lost a request, and start it again."""
    rule = Rule(api=api, transactional_id=f"{example.group}-0", action=Drop(Part.REQUEST))
    async with stage.fault(OnRequests(await stage.proxy(), rule, f"{api} of {example.group} lost")) as lost:
        stage.evidence(lost.name, await lost.acted(within_s=60))
        example.process.kill()
        stage.evidence(f"SIGKILL of {example.group}", f"it ended by signal {-(example.process.returncode or 0)}")
    example.process.start()


async def _velocity(stage: Stage) -> Example:
    wanted = [own_topic(ALERTS), own_topic(RECENT, changelog=True)]
    await ensure_topics(stage.access, await partition_count(stage.access, [PAYMENTS_RAW]), topics=wanted)
    proxy = await stage.proxy()
    environment = {"ONCE_BOOTSTRAP_SERVERS": proxy.bootstrap_servers, "ONCE_METRICS_PORT": str(free_ports(1)[0])}
    return Example(EXAMPLE, ALERTS, "velocity", _program(stage, "examples.velocity", environment))


async def _stock_velocity(stage: Stage) -> Example:
    partitions = await partition_count(stage.access, [PAYMENTS_RAW])
    alerts, recent = await stage.topic(partitions), await stage.topic(partitions, cleanup_policy="compact")
    proxy, group = await stage.proxy(), f"{stage.name}-stock"
    words = [proxy.bootstrap_servers, PAYMENTS_ACCEPTED, alerts, recent, group]
    return Example(STOCK_EXAMPLE, alerts, group, _program(stage, "deploy.drills.clients.velocity_stock", {}, *words))


def _program(stage: Stage, module: str, environment: Mapping[str, str], *words: str) -> ManagedProcess:
    """Return a program as a process, not started, that is killed when the drill ends."""
    name = module.rpartition(".")[2]
    argv = [sys.executable, "-m", module, *words]
    process = ManagedProcess(name, argv, environment, stage.directory / f"{name}.log", cwd=PROJECT_ROOT)
    stage.resources.callback(process.kill)
    return process


async def _alerts_due(stage: Stage) -> list[bytes]:
    """Fold the input into the alerts that it causes, with none of the programs' code."""
    times: dict[str, list[int]] = {}
    due: list[bytes] = []
    for record in await _since(stage, PAYMENTS_ACCEPTED, {}):
        payment = msgspec.json.decode(record.value or b"")
        if payment["type"] == "payment" and "@" not in payment["debtor"]:
            at_ms = payment["received_at_ms"]
            earlier = times.setdefault(payment["debtor"], [])
            if len(earlier) >= 3 and at_ms - earlier[-3] < 60_000:
                alert = {"payment_id": payment["payment_id"], "since_ms": earlier[-3], "at_ms": at_ms}
                due.append(msgspec.json.encode(alert))
            earlier.append(at_ms)
    return due


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
    """Further instances of the ledger join its group under load, one after the other. Each stays one to three seconds.
    One leaves by SIGTERM, the next one dies by SIGKILL, which its group notices by its session. The table has the time
    between commits of the ledger.
    """
    rows = stage.journal.tables["members that came and went"] = []
    async with flowing(stage, per_s=40):
        since = await mark(stage, [LEDGER_BALANCES])
        members = [
            Service("ledger", stage.bootstrap_servers, stage.directory, f"storm-{number}") for number in range(STORM)
        ]
        for member in members:
            stage.resources.callback(member.process.kill)
            member.start()  # all at once: to start takes longer than to join
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
            stage.evidence(f"{name} joined and left", f"{how} after {stay_s:.1f} s in the group")
            rows.append({"member": name, "stayed s": round(stay_s, 1), "left by": how})
        commits = await commit_times(stage, since)
    gaps = [(later - earlier) / 1000 for earlier, later in pairwise([since.at_ms, *commits])]
    stage.expect_that("commits of the ledger meanwhile", len(commits), "more than 0", holds=len(commits) > 0)
    stage.step(f"longest time without a commit: {max(gaps, default=0.0):.1f} s")
    await verified(stage, at_least=stage.journal.records)


async def _until_joined(stage: Stage, client_id: str) -> None:
    async def joined() -> bool:
        async with Brokers(stage.access) as brokers:
            view = await brokers.view([])
            return client_id in {one.client_id for one in await Groups(brokers).members("ledger", view.brokers)}

    await eventually(joined, f"{client_id} joined", 60)
