"""B: transactions are all or nothing, wherever a process dies."""

import signal
from typing import Final, NamedTuple

from deploy.drills.clients.raw import values_of
from deploy.drills.drill import Anomaly, drill
from deploy.drills.faults.requests import OnRequests
from deploy.drills.hops import OURS, RECORDS, Hops, errors_in, note_anomalies, until_settled
from deploy.drills.producers import producer, put
from deploy.drills.proxy.rules import Drop, Hold, Part, Rule
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually, until
from deploy.local.process import ManagedProcess
from shared.eos import crash
from shared.kafka.client.reader import group_offsets
from shared.kafka.runtime.transaction_requests import GroupMember


@drill(
    "B1",
    "crash-before-offsets",
    "After a crash between output and offset commit the output is invisible, and its input is processed again, once",
    tags=["processes", "transactions"],
    within_s=150,
    reading=["KIP-98"],
)
async def crash_before_offsets(stage: Stage) -> None:
    """Lose the request that adds the group's offsets to a transaction, and kill the process. Its records are in the
    log and its offsets are not. The process starts again, aborts what it left, and processes the same input.
    """
    hops = await Hops.prepared(stage)
    hop = hops.start()
    await hops.write()
    await hops.until_done()
    rule = Rule(api="AddOffsetsToTxn", transactional_id=hops.job.transactional_id, action=Drop(Part.REQUEST))
    async with stage.fault(OnRequests(await stage.proxy(), rule, "AddOffsetsToTxn lost")) as lost:
        await hops.write()
        stage.evidence(lost.name, await lost.acted())
        hops.kill(hop)
    stage.expect("records in the log", len(await hops.output(committed=False)), 2 * RECORDS)
    stage.expect("records that readers see", len(await hops.output()), RECORDS)
    stage.expect("records consumed", await hops.passed(), RECORDS)
    stage.step("start the process again")
    hop.start()
    await hops.until_done()
    stage.expect("records in the log", len(await hops.output(committed=False)), 3 * RECORDS)
    await hops.expect_exactly_once()


class Step(NamedTuple):
    """A step of the protocol, and where a process dies in it.

    Attributes:
        api: of the request that is held while its process dies; empty for a step without one.
        part: the request itself, or its answer.
        crash_point: where the process kills itself, in a step without a request.
        is_at_start: whether the process takes it once, before its first transaction.
        is_committed: whether the transaction was decided by then.
    """

    number: int
    name: str
    api: str = ""
    part: Part = Part.REQUEST
    crash_point: str = ""
    is_at_start: bool = False
    is_committed: bool = False


STEPS: Final = (
    Step(1, "FindCoordinator", "FindCoordinator", is_at_start=True),
    Step(2, "InitProducerId", "InitProducerId", is_at_start=True),
    Step(3, "begin", crash_point=crash.BEFORE_SEND),
    Step(4, "AddPartitionsToTxn", "AddPartitionsToTxn"),
    Step(5, "Produce", "Produce"),
    Step(6, "AddOffsetsToTxn", "AddOffsetsToTxn"),
    Step(7, "TxnOffsetCommit", "TxnOffsetCommit"),
    Step(8, "EndTxn", "EndTxn"),
    Step(9, "WriteTxnMarkers", "EndTxn", Part.ANSWER, is_committed=True),
    Step(10, "final COMMIT", crash_point=crash.END_TXN_ACKNOWLEDGED, is_committed=True),
)
"""As in `once txn trace`. The coordinator writes the markers by itself, with or without the client."""


@drill(
    "B7",
    "crash-at-each-step",
    "Wherever in the protocol a process dies, its transaction is visible as a whole or not at all",
    tags=["processes", "requests", "transactions"],
    within_s=300,
    reading=["KIP-98", "docs/adr/0004-unknown-outcomes.md"],
)
async def crash_at_each_step(stage: Stage) -> None:
    """For each of the ten steps, kill a process that is in it: its request is held on the way, and delivered when the
    process has been started again and has done its work. What a step has no request for is a crash point of the
    process. After each crash readers see all records of the transaction or none, and at the end each once.
    """
    hops = await Hops.prepared(stage)
    hop = hops.start()
    rows: list[dict[str, str | int | float | None]] = []
    for step in STEPS:
        await hops.until_done()
        before = len(await hops.output())
        if step.crash_point:
            answer = ""
            await _crash_itself(stage, hops, hop, step)
            seen = await _seen(stage, hops, step, before)
            hop.start()
        else:
            rule = Rule(api=step.api, transactional_id=hops.job.transactional_id, action=Hold(step.part))
            held = OnRequests(await stage.proxy(), rule, f"step {step.number}: {step.api} held")
            async with stage.fault(held):
                if step.is_at_start:
                    hop.kill()
                    hop.start()
                await hops.write()
                stage.evidence(held.name, await held.acted())
                hops.kill(hop)
                seen = await _seen(stage, hops, step, before)
                hop.start()
                await hops.until_done()
                answer = ", ".join(errors_in(await held.released()))
        stage.expect(f"step {step.number}, {step.name}: records that readers see", seen, RECORDS * step.is_committed)
        rows.append({"step": step.number, "name": step.name, "visible after the crash": seen, "late answer": answer})
    await hops.write()
    await hops.until_done()
    stage.journal.tables["crash at each step"] = rows
    await hops.expect_exactly_once()


async def _crash_itself(stage: Stage, hops: Hops, hop: ManagedProcess, step: Step) -> None:
    """Start the process again with a crash point, and wait until it dies there."""
    hop.kill()
    hop.env["ONCE_CRASH_POINT"] = f"{step.crash_point}=kill:1"
    hop.start()
    await hops.write()
    await until(lambda: not hop.running, f"{hop.name} dies at {step.crash_point}", 60)
    stage.expect(f"step {step.number}, {step.name}: exit code of the process", hop.returncode, -signal.SIGKILL)
    stage.evidence(f"step {step.number}: {step.name}", f"{hop.name} killed itself at {step.crash_point}")
    del hop.env["ONCE_CRASH_POINT"]


async def _seen(stage: Stage, hops: Hops, step: Step, before: int) -> int:
    """Return how many new records readers see once the markers are written; without a decision there are none."""
    if step.is_committed:
        await until_settled(stage, hops.job.sink)
    return len(await hops.output()) - before


@drill(
    "B5",
    "many-partitions",
    "A transaction over many partitions and topics is visible in all of them or in none, offsets included",
    tags=["transactions"],
    reading=["KIP-98"],
)
async def many_partitions(stage: Stage) -> None:
    """Write a record to each of three partitions of two topics, and commit offsets, in one transaction: one that is
    committed, one that is aborted, and one whose producer is gone before the end. While a transaction is open readers
    see nothing of it. After its end they see all of it or nothing, and the group's offset agrees.
    """
    topics = [await stage.topic(3) for _ in range(2)]
    targets = [(topic, partition) for topic in topics for partition in range(3)]
    rows: list[dict[str, str | int | float | None]] = []

    async def visible() -> int:
        values = [value for topic in topics for value in await values_of(stage.access, topic, None)]
        return values.count(end.encode())

    for number, end in enumerate(("commit", "abort", "producer gone")):
        async with producer(stage, stage.name) as writing:
            await writing.init(30)
            await writing.begin()
            for topic, partition in targets:
                await put(writing, topic, end.encode(), partition=partition)
            await writing.send_offsets(GroupMember(stage.name), {targets[0]: number + 1})
            before = await visible()
            if end == "commit":
                await writing.commit()
            elif end == "abort":
                await writing.abort()
        async with producer(stage, stage.name) as successor:
            await successor.init(30)
        for topic in topics:
            await until_settled(stage, topic)
        after = await visible()
        offset = (await group_offsets(stage.bootstrap_servers, stage.name, topics[0])).get(0, 0)
        stage.expect(
            f"{end}: partitions with a visible record before the end, and after it",
            (before, after),
            (0, len(targets) if end == "commit" else 0),
        )
        stage.expect(f"{end}: committed offset", offset, 1)
        rows.append({"end": end, "visible before": before, "visible after": after, "committed offset": offset})
    stage.journal.records = 3 * len(targets)
    stage.journal.tables["partitions of two topics"] = rows


@drill(
    "E5",
    "auto-commit",
    "With enable.auto.commit a crash loses records or repeats them; the runtime's offsets are in its transactions",
    control=[Anomaly.LOSS, Anomaly.DUPLICATE],
    tags=["naive", "processes"],
    within_s=150,
    reading=["KIP-98"],
)
async def auto_commit(stage: Stage) -> None:
    """Kill a hop twice: before its output is written, and before its offsets are committed. The project's runtime has
    both in one transaction, so nothing is lost or repeated. The control commits offsets in the background: the first
    crash comes after its offsets were committed, and loses records; the second one after its output, and repeats them.
    """
    protected = await _crash_twice(stage, OURS, "TxnOffsetCommit")
    await protected.expect_exactly_once()
    control = await _crash_twice(stage, "auto_commit", "OffsetCommit")
    note_anomalies(stage, await control.anomalies(), is_control=True)


async def _crash_twice(stage: Stage, program: str, commits_by: str) -> Hops:
    """Kill a hop whose output is not written, and one whose offsets are not committed; return when it has caught up."""
    hops, proxy = await Hops.prepared(stage), await stage.proxy()
    hop = hops.start(program)
    await hops.write()
    await hops.until_done()
    drop = Drop(Part.REQUEST)
    output = Rule(api="Produce", topic=hops.job.sink, action=drop, times_max=None)
    async with stage.fault(OnRequests(proxy, output, f"{program}: output lost")) as lost:
        await hops.write()
        stage.evidence(lost.name, await lost.acted())
        if program != OURS:
            await hops.until_passed()
        hops.kill(hop)
    hop.start()
    await hops.until_passed()
    offsets = Rule(api=commits_by, group=hops.job.group, action=drop, times_max=None)
    async with stage.fault(OnRequests(proxy, offsets, f"{program}: {commits_by} lost")) as lost:
        before = len(await hops.output(committed=False))
        await hops.write()

        async def in_the_log() -> bool:
            return len(await hops.output(committed=False)) == before + RECORDS

        await eventually(in_the_log, "the output is in the log")
        stage.evidence(lost.name, await lost.acted())
        hops.kill(hop)
    hop.start()
    await hops.write()
    await hops.until_passed()
    await until_settled(stage, hops.job.sink)
    return hops
