"""B and E: consume-transform-produce programs of a page each, killed between their steps."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from deploy import PROJECT_ROOT
from deploy.drills.clients.raw import records_since, values_of
from deploy.drills.deliveries import duplicates, losses
from deploy.drills.drill import Anomaly, Needs, drill
from deploy.drills.faults.requests import OnRequests
from deploy.drills.proxy.rules import Drop, Part, Rule
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually
from deploy.drills.workload import flowing
from deploy.local.ports import free_ports
from deploy.local.process import ManagedProcess
from shared.events.catalogue import (
    PAYMENTS_ACCEPTED,
    PAYMENTS_RAW,
    own_topic,
)
from shared.kafka.admin.groups import wait_drained
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import partition_count

RECORDS: Final = 30


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
        found = [record.value or b"" for record in await records_since(stage.access, example.alerts, {})]
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
    for record in await records_since(stage.access, PAYMENTS_ACCEPTED, {}):
        payment = msgspec.json.decode(record.value or b"")
        if payment["type"] == "payment" and "@" not in payment["debtor"]:
            at_ms = payment["received_at_ms"]
            earlier = times.setdefault(payment["debtor"], [])
            if len(earlier) >= 3 and at_ms - earlier[-3] < 60_000:
                alert = {"payment_id": payment["payment_id"], "since_ms": earlier[-3], "at_ms": at_ms}
                due.append(msgspec.json.encode(alert))
            earlier.append(at_ms)
    return due
