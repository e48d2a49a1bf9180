"""B: zombies, and requests of a zombie, are fenced by two epochs: the producer's and the group member's."""

from collections.abc import Awaitable, Callable
from itertools import product
from typing import Final

from deploy.drills.clients.ends import Client, Ours, Stock
from deploy.drills.clients.raw import FENCED, values_of
from deploy.drills.deliveries import duplicates, losses
from deploy.drills.drill import Anomaly, drill
from deploy.drills.faults.requests import OnRequests
from deploy.drills.hops import OURS, RECORDS, STOCK, Hops, errors_in, note_anomalies, until_settled
from deploy.drills.members import joined
from deploy.drills.producers import failure_of, producer, put
from deploy.drills.proxy.rules import Hold, Part, Rule
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually
from deploy.local.process import ManagedProcess
from shared.kafka.runtime.producer import TransactionalProducer

NO_MEMBER: Final = ("IllegalGenerationError", "UnknownMemberIdError", "FencedMemberEpochError", "StaleMemberEpochError")
"""Answers to offsets of a process that the group has removed."""
_CLIENTS: Final[tuple[type[Ours] | type[Stock], ...]] = (Ours, Stock)
REJOINS = "leaving the group to rejoin"
"""In the log of a runtime that drops its state, and joins again as a new member under a new epoch."""


async def _wake_a_zombie(
    stage: Stage, program: str, *, transaction_timeout_ms: int
) -> tuple[Hops, ManagedProcess, list[str]]:
    """Pause a hop before its offsets are committed until another one has done its work, and wake it.

    Returns:
        The hops, the zombie, and the answer to its offsets.
    """
    hops = await Hops.prepared(stage, transaction_timeout_ms=transaction_timeout_ms)
    zombie = hops.start(program, "zombie")
    await hops.write()
    await hops.until_done()
    own = hops.job._replace(instance="zombie").transactional_id
    rule = Rule(api="TxnOffsetCommit", transactional_id=own, action=Hold(Part.REQUEST))
    async with stage.fault(OnRequests(await stage.proxy(), rule, "the zombie's TxnOffsetCommit held")) as held:
        await hops.write()
        stage.evidence(held.name, await held.acted())
        zombie.pause()
        stage.evidence(f"{zombie.name} paused by SIGSTOP", f"process {zombie.pid} is stopped")
        stage.step("start the successor; it gets the partition when the zombie's session has ended")
        hops.start(program, "successor")
        await hops.until_passed()
        stage.step("wake the zombie, and deliver its offsets")
        zombie.resume()
        answer = errors_in(await held.released())
    return hops, zombie, answer


@drill(
    "B2",
    "zombie-wakes-up",
    "A process that was paused past its session is fenced when it wakes up, and nothing of it becomes visible",
    tags=["processes", "fencing", "transactions"],
    within_s=150,
    quick=True,
    reading=["KIP-447", "docs/adr/0021-transaction-per-instance.md", "docs/adr/0022-membership.md"],
)
async def zombie_wakes_up(stage: Stage) -> None:
    """Pause a process after its records are written, with its offsets on their way. The group removes it, the brokers
    abort its transaction under a new epoch, and another process does the same work. The zombie's offsets arrive and
    are refused. The zombie wakes up, drops its state, and joins as a new member.
    """
    hops, zombie, answer = await _wake_a_zombie(stage, OURS, transaction_timeout_ms=8_000)
    refused = (*FENCED, *NO_MEMBER)
    stage.expect_that("answer to the zombie's offsets", answer, " or ".join(refused), holds=answer[0] in refused)

    async def stopped() -> bool:
        return REJOINS in zombie.log_path.read_text() or not zombie.running

    await eventually(stopped, "the zombie has ended its membership")
    stage.step("write more records: both processes are members now")
    await hops.write()
    await hops.until_done()
    written, visible = await hops.output(committed=False), await hops.output()
    stage.expect("records of the zombie that were never visible", len(written) - len(visible), RECORDS)
    await hops.expect_exactly_once()


@drill(
    "B3",
    "same-transactional-id",
    "Of two producers with one transactional.id, the older one is fenced when it sends, commits or aborts",
    tags=["fencing", "transactions"],
    reading=["KIP-98"],
)
async def same_transactional_id(stage: Stage) -> None:
    """Start a second producer under the transactional.id of one that has a transaction open. Its InitProducerId raises
    the epoch and aborts that transaction. Whatever the older one does next is refused, and it never writes again.
    """
    topic = await stage.topic()
    operations: dict[str, Callable[[TransactionalProducer], Awaitable[None]]] = {
        "send": lambda older: put(older, topic, b"by the fenced producer"),
        "commit": lambda older: older.commit(),
        "abort": lambda older: older.abort(),
    }
    rows: list[dict[str, str | int | float | None]] = []
    for name, operation in operations.items():
        transactional_id = f"{stage.name}-{name}"
        async with producer(stage, transactional_id) as older, producer(stage, transactional_id) as newer:
            await older.init(30)
            await older.begin()
            await put(older, topic, b"of the older producer")
            await newer.init(30)
            stage.step(f"{name}: the older producer has epoch {older.epoch[1]}, the newer one {newer.epoch[1]}")
            answer = await failure_of(operation(older))
            stage.expect_that(f"answer to {name}", answer, " or ".join(FENCED), holds=answer in FENCED)
            again = await failure_of(older.begin())
            stage.expect(f"the older producer after {name}", again, "InvalidTransitionError")
            await newer.begin()
            await put(newer, topic, f"of the newer producer, {name}".encode())
            await newer.commit()
            rows.append({"operation": name, "older epoch": older.epoch[1], "answer": answer})
    stage.journal.tables["what the fenced producer was answered"] = rows
    await until_settled(stage, topic)
    values = await values_of(stage.bootstrap_servers, topic)
    stage.journal.records = len(operations) * 2
    stage.expect("visible records", values, [f"of the newer producer, {name}".encode() for name in operations])


@drill(
    "B8",
    "late-end",
    "The end of a transaction that arrives during a later one does not end that one",
    control=[Anomaly.ABORTED_READ, Anomaly.LOSS],
    tags=["requests", "fencing", "transactions"],
    within_s=120,
    reading=["KIP-890", "docs/adr/0004-unknown-outcomes.md"],
)
async def late_end(stage: Stage) -> None:
    """Hold an EndTxn until its client has given up and has begun another transaction, and deliver it then. The
    project's producer begins that one under a new epoch, so the broker refuses the late request. The control is
    stock aiokafka, which begins it under the same epoch: a late commit makes records visible that the client aborts,
    and a late abort removes records that it commits.
    """
    for kind, commit in product(_CLIENTS, (True, False)):
        topic = await stage.topic(2)
        transactional_id = f"{stage.name}-{kind.__name__}-{commit}"
        async with kind((await stage.proxy()).bootstrap_servers, transactional_id, topic) as client:
            answer = await _end_late(stage, client, transactional_id, commit=commit)
        await until_settled(stage, topic)
        visible = [await values_of(stage.bootstrap_servers, topic, partition) for partition in (0, 1)]
        stage.step(f"{kind.__name__}: readers see {visible}; the late EndTxn was answered {answer}")
        stage.journal.records += 3
        ends = {b"first": commit, b"later": not commit, b"and more": not commit}
        values = [value for part in visible for value in part]
        found = {
            Anomaly.ABORTED_READ: [f"{value!r} in {topic}" for value in values if not ends[value]],
            Anomaly.LOSS: losses([value for value, kept in ends.items() if kept], values),
            Anomaly.DUPLICATE: duplicates(values),
        }
        note_anomalies(stage, found, is_control=kind is Stock)


async def _end_late(stage: Stage, client: Client, transactional_id: str, *, commit: bool) -> list[str]:
    """End a transaction, and begin another one; deliver the first one's EndTxn in it, and end it the other way.

    Returns:
        The answer to the late request.
    """
    what = f"{type(client).__name__}: EndTxn of {'a commit' if commit else 'an abort'} held"
    rule = Rule(api="EndTxn", transactional_id=transactional_id, action=Hold(Part.REQUEST))
    async with stage.fault(OnRequests(await stage.proxy(), rule, what)) as held:
        await client.begin()
        await client.put(0, b"first")
        await client.end(commit=commit)
        stage.evidence(held.name, await held.acted())
        await client.begin()
        await client.put(0, b"later")
        answer = errors_in(await held.released())
        await client.put(1, b"and more")
        await client.end(commit=not commit)
    return answer


@drill(
    "B4",
    "zombie-under-another-id",
    "A zombie under another transactional.id than its successor's is refused by the group, if it names its membership",
    control=[Anomaly.DUPLICATE],
    tags=["processes", "fencing", "naive"],
    within_s=150,
    reading=["KIP-447"],
)
async def zombie_under_another_id(stage: Stage) -> None:
    """Two producers with ids of their own do the same work, because the group gave the partition of a silent member to
    another one. Neither fences the other. The zombie commits its offsets with its member id and epoch, and the group
    refuses them. The control is stock aiokafka, which names no member: the group takes the zombie's offsets, and the
    work is there twice.
    """
    found = {Anomaly.DUPLICATE: duplicates(await _work_as_a_zombie(stage))}
    note_anomalies(stage, found, is_control=False)
    hops, _, answer = await _wake_a_zombie(stage, STOCK, transaction_timeout_ms=60_000)
    stage.step(f"the group answers the zombie's offsets with {answer}")
    await until_settled(stage, hops.job.sink, 60)
    note_anomalies(stage, await hops.anomalies(), is_control=True)


async def _work_as_a_zombie(stage: Stage) -> list[bytes]:
    """Do the work of a partition as two members of a group, the older one silent; return the visible output."""
    source, sink = await stage.topic(), await stage.topic()
    async with (
        producer(stage, f"{stage.name}-zombie") as zombie,
        producer(stage, f"{stage.name}-successor") as successor,
        joined(stage, source, "zombie") as silent,
    ):
        await zombie.init(30)
        await zombie.begin()
        await put(zombie, sink, b"0")
        stage.step("the zombie's output is written, and its member sends no more heartbeats")
        older = silent.identity
        silent.pause()
        async with joined(stage, source, "successor") as member:
            await successor.init(30)
            await successor.begin()
            await put(successor, sink, b"0")
            await successor.send_offsets(member.identity, {(source, 0): 1})
            await successor.commit()
            answer = await failure_of(zombie.send_offsets(older, {(source, 0): 1}))
            stage.expect_that(
                "answer to the zombie's offsets", answer, " or ".join(NO_MEMBER), holds=answer in NO_MEMBER
            )
            await (zombie.abort() if answer else zombie.commit())
    await until_settled(stage, sink)
    return await values_of(stage.bootstrap_servers, sink)
