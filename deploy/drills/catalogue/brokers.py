"""B and E: brokers that die, by role, and what successor coordinators hold."""

import asyncio
from typing import Final

import msgspec

from deploy.checkers.verdict import FAIL
from deploy.drills.clients.raw import log_of, values_of
from deploy.drills.drill import TARGETS, Anomaly, Needs, drill
from deploy.drills.faults.configs import TopicConfig
from deploy.drills.faults.processes import TakeAway
from deploy.drills.hops import until_settled
from deploy.drills.judge import mark, next_commits, now_ms, progress, verified
from deploy.drills.producers import producer, put
from deploy.drills.recovery import failover_bound_s, roles
from deploy.drills.run import started
from deploy.drills.service import Service
from deploy.drills.stage import Stage
from deploy.drills.target import NoSuchRoleError, broker_name, node_id
from deploy.drills.tearing import commit_parts, holding, is_held, open_transaction
from deploy.drills.waiting import eventually, until
from deploy.drills.workload import flowing, pay
from deploy.repairs.run import Repair
from shared.events.catalogue import (
    LEDGER_BALANCES,
    LEDGER_POSTINGS,
    LEDGER_TRANSFERS,
    PAYMENTS_ACCEPTED,
    PAYMENTS_IDENTITIES,
)
from shared.kafka.admin.groups import PIPELINE, wait_drained
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.admin.transaction_state import STATE_TOPIC
from shared.kafka.admin.transactions import describe, error_of
from shared.kafka.client.batches import Marker
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.reader import stable_offsets
from shared.kafka.client.requests import Request


@drill(
    "B15",
    "broker-killed-by-role",
    "Whichever role a killed broker had, commits resume within a bound that the settings imply, without an anomaly",
    needs=Needs.SERVICES,
    targets=TARGETS,
    tags=["brokers"],
    within_s=300.0,
    reading=["docs/adr/0014-torn-transactions.md"],
)
async def broker_killed_by_role(stage: Stage) -> None:
    """Under load, kill the leader of a partition of ledger.postings, then the ledger's transaction coordinator, its
    group coordinator, and the controller. Each stays away until the ledger has committed records that were made after
    the kill. The table has the seconds to that commit, and the bound.
    """
    topics = [PAYMENTS_ACCEPTED, LEDGER_TRANSFERS, LEDGER_POSTINGS]
    rows = stage.journal.tables["seconds to the next commit, by role"] = []
    async with flowing(stage, per_s=40):
        for role, find in roles(stage).items():
            broker = await find()
            partition = 0 if broker == await stage.target.leader(LEDGER_POSTINGS, 0) else None
            since = await mark(stage, topics)
            usual_s = await progress(stage, since, since.at_ms, LEDGER_POSTINGS, partition)
            bound_s = await failover_bound_s(stage, broker, usual_s)
            stage.step(f"{broker} is the {role}; {usual_s} s to the next commit without a fault")
            since = await mark(stage, topics)
            async with stage.fault(TakeAway(broker)):
                seconds = await progress(stage, since, now_ms(), LEDGER_POSTINGS, partition)
                rows.append(
                    {"role": role, "broker": broker, "without a fault": usual_s, "seconds": seconds, "bound": bound_s}
                )
            stage.expect_that(
                f"{role} killed: seconds to the next commit", seconds, f"at most {bound_s}", holds=seconds <= bound_s
            )
    await verified(stage, at_least=stage.journal.records)


RECORDS: Final = 10


@drill(
    "E7",
    "coordinator-dies-after-prepare-commit",
    "A commit whose coordinator died after PrepareCommit is rolled forward by the next one: visible exactly once",
    targets=TARGETS,
    tags=["brokers", "transactions"],
    within_s=300.0,
    reading=["KIP-98", "docs/upstream.md"],
)
async def coordinator_dies_after_prepare_commit(stage: Stage) -> None:
    """The two replicas of a topic are not on the coordinator's broker, and one of them dies: with min.insync.replicas=2
    the topic takes no marker. EndTxn(COMMIT) is answered all the same, and the transaction is in PrepareCommit: nothing
    is visible. Then the coordinator dies. When the replica is back, the new coordinator finds PrepareCommit in its log
    and writes the marker.
    """
    target, topic = stage.target, await stage.topic(replicas=2, min_insync_replicas="2")
    [part] = [part for part in target.view().partitions if part.topic == topic]
    [away] = [broker_name(replica) for replica in part.replicas if replica != part.leader]
    [coordinator] = [broker for broker in target.brokers if node_id(broker) not in part.replicas]
    name = await _coordinated_by(stage, coordinator)
    values = [f"payment-{number}".encode() for number in range(RECORDS)]
    async with producer(stage, name, timeout_ms=60_000) as producing:
        await producing.init(30)
        await producing.begin()
        await put(producing, topic, *values)
        async with stage.fault(TakeAway(away)):
            await until(lambda: len(_in_sync(stage, topic)) == 1, f"{topic} has one replica in sync")
            await producing.commit()
            stage.step(f"EndTxn(COMMIT) was answered by {coordinator}")
            stage.expect("state of the transaction", await _state(stage, coordinator, name), "PrepareCommit")
            stage.expect("records that readers see", await values_of(stage.access, topic), [])
            async with stage.fault(TakeAway(coordinator)):
                stage.step(f"start {away} again")
                target.bring_back(away)
                await until_settled(stage, topic, 60.0)
                successor = await target.transaction_coordinator(name)
                stage.expect_that("coordinator now", successor, f"not {coordinator}", holds=successor != coordinator)
                stage.expect("records that readers see", await values_of(stage.access, topic), values)
                # Readers see the marker first; the coordinator noted its end up to 31 s later
                await eventually(
                    lambda: _is_in(stage, successor, name, "CompleteCommit"), "all markers are written", 90.0
                )
    log = await log_of(stage.access, topic)
    # A marker whose answer is lost is written again, and readers take the second one for nothing
    markers = {batch.marker for batch in log if batch.is_control}
    stage.expect("kinds of markers in the log", markers, {Marker.COMMIT})
    stage.journal.records = RECORDS


async def _coordinated_by(stage: Stage, coordinator: str) -> str:
    """Return a transactional.id that a broker coordinates."""
    for number in range(100):
        name = f"{stage.name}-{number}"
        if await stage.target.transaction_coordinator(name) == coordinator:
            return name
    raise NoSuchRoleError(f"{coordinator} coordinates none of 100 transactional.ids")


def _in_sync(stage: Stage, topic: str) -> tuple[int, ...]:
    [part] = [part for part in stage.target.view().partitions if part.topic == topic]
    return part.isr


async def _is_in(stage: Stage, coordinator: str, transactional_id: str, state: str) -> bool:
    return await _state(stage, coordinator, transactional_id) == state


async def _state(stage: Stage, coordinator: str, transactional_id: str) -> str:
    """Return the state of the id's transaction, as its coordinator describes it."""
    async with Brokers(stage.access) as brokers:
        await brokers.view([])
        [found] = await describe(brokers, node_id(coordinator), [transactional_id])
    return found.state


@drill(
    "E6",
    "transaction-log-under-min-isr",
    "While the transaction log has too few replicas in sync, no transaction begins or ends, and nothing is lost",
    needs=Needs.SERVICES,
    targets=TARGETS,
    tags=["brokers", "configuration"],
    within_s=240.0,
    reading=["docs/runbooks/PartitionsUnderMinIsr.md", "docs/adr/0004-unknown-outcomes.md"],
)
async def transaction_log_under_min_isr(stage: Stage) -> None:
    """Under load, __transaction_state gets min.insync.replicas=3, and a broker that is not the controller is taken
    away. No coordinator can append a state: a new producer is refused, and no transaction begins or ends, while
    payments still come in. When the broker is back the services go on by themselves.
    """
    target = stage.target
    away = (await target.other_brokers(await target.controller()))[0]
    short = stage.fault(TopicConfig(STATE_TOPIC, "min.insync.replicas", "3"))
    async with flowing(stage, per_s=40) as load, short, stage.fault(TakeAway(away)):
        await until(lambda: _in_sync_max(stage, STATE_TOPIC) == 2, f"{STATE_TOPIC} has two replicas in sync")
        refused_ms = now_ms()
        since = await mark(stage, [PAYMENTS_IDENTITIES, LEDGER_BALANCES])
        stage.expect("answer to InitProducerId", await _init_error(stage), "CoordinatorNotAvailableError")
        sent = load.sent
        await until(lambda: load.sent >= sent + 200, "further payments come in")
        stage.expect("commits meanwhile", await next_commits(stage, since, refused_ms), {})
        stage.step(f"start {away} again")
        back_ms = now_ms()
        target.bring_back(away)
        seconds = await progress(stage, since, back_ms, LEDGER_BALANCES, within_s=120.0)
        stage.step(f"{seconds} s after the broker was started the ledger committed again")
    await verified(stage, at_least=stage.journal.records)


def _in_sync_max(stage: Stage, topic: str) -> int:
    return max(len(part.isr) for part in stage.target.view().partitions if part.topic == topic)


async def _init_error(stage: Stage) -> str:
    """Return the coordinator's answer to InitProducerId of a new transactional.id: an error by Kafka's name.

    A newly elected coordinator refuses every request until it has read its log. Brokers may still name the former
    coordinator shortly after the election.
    """
    name = f"{stage.name}-new"
    values = {"TransactionalId": name, "TransactionTimeoutMs": 60_000, "ProducerId": -1, "ProducerEpoch": -1}
    error = ""
    async with Brokers(stage.access) as brokers:
        await brokers.view([])

        async def is_answered() -> bool:
            nonlocal error
            coordinator = node_id(await stage.target.transaction_coordinator(name))
            error = error_of((await brokers.ask(coordinator, Request("InitProducerId", 4, values)))["ErrorCode"])
            return error not in {"CoordinatorLoadInProgressError", "NotCoordinatorError"}

        await eventually(is_answered, f"the coordinator of {name} has read its log")
    return error


TORN_PAYMENTS: Final = 60
OPERATOR: Final = "drill"
STAGES: Final = ("ingest", "transform", "ledger", "outbox")


@drill(
    "E12",
    "torn-transaction",
    "A torn transaction is completed by its new owner; what none completed is named, and `once repair` writes it",
    needs=Needs.OWN,
    control=[Anomaly.LOSS, Anomaly.TORN],
    tags=["processes", "transactions"],
    within_s=600.0,
    reading=["docs/upstream.md", "docs/adr/0014-torn-transactions.md", "docs/repair.md"],
)
async def torn_transaction(stage: Stage) -> None:
    """The ledger is held between its offsets and EndTxn, and is killed. Some partitions of its transaction get a COMMIT
    marker past its coordinator, which aborts the others: so did brokers of which two of three had died. The new owner
    finds one COMMIT and completes the transaction. Control: the same again, but an operator sets the group's offsets
    by hand, so that no owner completes it. `once verify` names what is missing, and `once repair` writes exactly that.
    """
    stage.target = await stage.resources.enter_async_context(started(stage.directory, STAGES))
    await pay(stage, TORN_PAYMENTS)
    await verified(stage, at_least=TORN_PAYMENTS)
    stage.step("with protection: the new owner decides by the markers")
    await _tear(stage)
    await verified(stage, at_least=2 * TORN_PAYMENTS)
    completed = _logged(stage, "torn transaction completed")
    stage.expect_that("torn transactions completed, by partition", len(completed), "at least 1", holds=bool(completed))
    stage.step("control: an operator sets the offsets before the new owner starts")
    await _tear(stage, skipped=True)
    missing = await verified(stage, at_least=3 * TORN_PAYMENTS, expected=FAIL)
    report = await Repair(stage.access, OPERATOR, dry_run=False, deadline_s=120.0, on_note=stage.step).run()
    records = sum(sum(scope.records.values()) for scope in report.scopes)
    stage.journal.tables["what `once repair` wrote"] = [
        {
            "service": one.service,
            "partition": one.partition,
            "inputs": len(one.inputs),
            "records": sum(one.records.values()),
        }
        for one in report.scopes
    ]
    stage.expect_that("records written by `once repair`", records, "at least 1", holds=records > 0)
    stage.expect_that("postings without their legs", missing.torn, "at least 1", holds=missing.torn > 0)
    stage.expect("left by `once repair`", [one.kind for one in report.left] + report.failed, [])
    await verified(stage, at_least=3 * TORN_PAYMENTS)


async def _tear(stage: Stage, *, skipped: bool = False) -> None:
    """Hold the ledger in a transaction over new payments, commit its postings only, kill it, and start a new owner.

    Args:
        skipped: whether the group's offsets are set to the end of the input before the new owner starts.
    """
    target = stage.target
    await asyncio.to_thread(target.stop, "ledger")
    await pay(stage, TORN_PAYMENTS)
    await wait_drained(stage.access, deadline_s=90, pipeline=PIPELINE[:2])
    stable = await stable_offsets(stage.access, [LEDGER_TRANSFERS])
    ends = {partition: end for (_, partition), end in stable.items()}
    with_input = {partition: end - 1 for partition, end in ends.items() if end}  # the last offset may be a marker
    held = holding(Service("ledger", stage.bootstrap_servers, stage.directory), with_input)
    stage.resources.callback(held.process.kill)
    held.start()
    await until(lambda: is_held(held, LEDGER_TRANSFERS, with_input), "the ledger is held in its transaction", 60)
    async with Brokers(stage.access) as brokers:
        transaction = await open_transaction(brokers, "ledger-0")
        parts = [part for part in transaction.partitions if part[0] == LEDGER_POSTINGS]
        await commit_parts(brokers, transaction, parts)
    held.kill()
    others = len(transaction.partitions) - len(parts)
    stage.evidence(
        "transaction torn", f"COMMIT on {len(parts)} partitions of {LEDGER_POSTINGS}, and on {others} others none"
    )
    if skipped:
        await set_group_offsets(stage.access, "ledger", LEDGER_TRANSFERS, ends)
        stage.evidence("offsets set by hand", f"group ledger is at the end of {LEDGER_TRANSFERS}")
    target.bring_back("ledger")
    await target.ready("ledger")


def _logged(stage: Stage, event: str) -> list[dict[str, object]]:
    """Return what the supervised ledger has logged of an event."""
    lines = stage.target.component("ledger").process.log_path.read_text().splitlines()
    return [
        line
        for line in map(msgspec.json.decode, (one for one in lines if one.startswith("{")))
        if line["event"] == event
    ]
