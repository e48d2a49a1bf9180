"""B and E: brokers that die, by role, and what successor coordinators hold."""

from collections.abc import Awaitable, Callable
from typing import Final

from deploy.drills.clients.raw import log_of, values_of
from deploy.drills.drill import LOCAL, SECURE, Needs, drill
from deploy.drills.faults.processes import TakeAway
from deploy.drills.hops import until_settled
from deploy.drills.judge import mark, now_ms, progress, verified
from deploy.drills.producers import producer, put
from deploy.drills.stage import Stage, until
from deploy.drills.target import NoSuchRoleError
from deploy.drills.workload import flowing
from deploy.local.kafka.broker_config import SESSION_TIMEOUT_MS
from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_ACCEPTED
from shared.kafka.admin.transactions import describe
from shared.kafka.client.batches import Marker
from shared.kafka.client.brokers import Brokers

QUORUM_S: Final = 3.0
"""controller.quorum.fetch.timeout.ms, 2 s, and a backoff of at most controller.quorum.election.backoff.max.ms, 1 s."""
WORK_S: Final = 3.0
"""Allowed for loading a coordinator's log, the clients' backoff and the work that has waited, on idle cores."""
WORK_FACTOR: Final = 10
"""The same on busy cores, as a multiple of the time between commits without a fault."""


async def failover_bound_s(stage: Stage, broker: str, usual_s: float) -> float:
    """Return the seconds within which commits must resume when a broker dies, by the brokers' settings.

    It is fenced after broker.session.timeout.ms. If it was the controller, the others elect one first, which then
    counts that time from its election.

    Args:
        usual_s: to the next commit without a fault.
    """
    quorum_s = QUORUM_S if broker == await stage.target.controller() else 0.0
    return round(SESSION_TIMEOUT_MS / 1000 + quorum_s + max(WORK_S, WORK_FACTOR * usual_s), 1)


@drill(
    "B15",
    "broker-killed-by-role",
    "Whichever role a killed broker had, commits resume within a bound that the settings imply, without an anomaly",
    needs=Needs.SERVICES,
    targets=[LOCAL, SECURE],
    tags=["brokers"],
    within_s=300.0,
    reading=["docs/adr/0014-torn-transactions.md"],
)
async def broker_killed_by_role(stage: Stage) -> None:
    """Under load, kill the leader of a partition of ledger.postings, then the ledger's transaction coordinator, its
    group coordinator, and the controller. Each stays away until the ledger has committed records that were made after
    the kill. The table has the seconds to that commit, and the bound.
    """
    target = stage.target
    topics = [PAYMENTS_ACCEPTED, LEDGER_TRANSFERS, LEDGER_POSTINGS]
    roles: list[tuple[str, Callable[[], Awaitable[str]], int | None]] = [
        ("partition leader", lambda: target.leader(LEDGER_POSTINGS, 0), 0),
        ("transaction coordinator", lambda: target.transaction_coordinator("ledger-0"), None),
        ("group coordinator", lambda: target.group_coordinator("ledger"), None),
        ("controller", target.controller, None),
    ]
    rows = stage.journal.tables["seconds to the next commit, by role"] = []
    async with flowing(stage, per_s=40):
        for role, find, partition in roles:
            broker = await find()
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
    targets=[LOCAL, SECURE],
    tags=["brokers", "transactions"],
    within_s=180.0,
    quick=True,
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
    [away] = [f"broker-{node_id}" for node_id in part.replicas if node_id != part.leader]
    [coordinator] = [f"broker-{node.node_id}" for node in target.stack.kafka.nodes if node.node_id not in part.replicas]
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
                stage.expect("state of the transaction", await _state(stage, successor, name), "CompleteCommit")
    log = await log_of(stage.access, topic)
    stage.expect("markers in the log", [batch.marker for batch in log if batch.is_control], [Marker.COMMIT])
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


async def _state(stage: Stage, coordinator: str, transactional_id: str) -> str:
    """Return the state of the id's transaction, as its coordinator describes it."""
    async with Brokers(stage.access) as brokers:
        await brokers.view([])
        [found] = await describe(brokers, int(coordinator.removeprefix("broker-")), [transactional_id])
    return found.state
