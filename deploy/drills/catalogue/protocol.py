"""B: a transaction's protocol on the wire and in the coordinator's log, and what the coordinator refuses or forgets."""

import asyncio

from deploy.drills.drill import Needs, drill
from deploy.drills.hops import Hops, errors_in
from deploy.drills.producers import failure_of, producer
from deploy.drills.proxy.rules import Delay, Part, Rule
from deploy.drills.run import started
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually
from shared.kafka.admin.configs import broker_config
from shared.kafka.admin.transaction_state import Status
from shared.kafka.admin.transactions import look
from shared.kafka.client.brokers import Brokers
from shared.kafka.txntrace.transaction_steps import NAMES, Step
from shared.kafka.txntrace.transaction_trace import trace_own
from shared.settings import EXIT_CONFIG

MAXIMUM = "transaction.max.timeout.ms"
EXPIRATION_MS = 4_000
WATCH = Delay(Part.ANSWER, 0.0)
"""Passes requests on, and keeps the brokers' answers."""


@drill(
    "B6",
    "ten-steps",
    "Each of the ten steps of a transaction is on the wire, in the coordinator's log and in the partitions' logs",
    tags=["transactions"],
    reading=["KIP-98", "README.md"],
)
async def ten_steps(stage: Stage) -> None:
    """Make a transaction with the wire tapped, as `once txn trace` does: one that is committed, and one that is
    aborted. Each step is seen in every place that must show it, under one producer id. The table has the committed one.
    """
    for commit in (True, False):
        trace = await trace_own(stage.access, commit=commit)
        what = "commit" if commit else "abort"
        stage.expect(f"{what}: evidence that is missing or contradicts", trace.faults, ())
        steps = sorted({int(line.step) for line in trace.lines if line.step is not Step.NONE})
        stage.expect(f"{what}: steps seen", steps, [int(step) for step in NAMES])
        producers = {line.producer_id for line in trace.lines if line.producer_id is not None}
        stage.expect(f"{what}: producer ids", len(producers), 1)
        ended = Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT
        stage.expect(f"{what}: state in {trace.state_partition.partition(':')[0]}", trace.status, ended)
        stage.journal.records += len(trace.lines)
        if commit:
            stage.journal.tables["a committed transaction"] = [
                {
                    "step": int(line.step),
                    "name": NAMES[line.step],
                    "ms": round(line.at_ms - trace.lines[0].at_ms, 1),
                    "from": line.source.value,
                    "what": line.what,
                    "where": line.where,
                    "producer epoch": line.producer_epoch,
                }
                for line in trace.lines
                if line.step is not Step.NONE
            ]


@drill(
    "B10",
    "timeout-above-maximum",
    "A transaction timeout above the brokers' maximum is refused at start-up, with what to change",
    tags=["settings", "transactions"],
    reading=["KIP-98", "docs/settings.md"],
)
async def timeout_above_maximum(stage: Stage) -> None:
    """Ask the coordinator for a transaction timeout above transaction.max.timeout.ms: it refuses the producer. Start a
    process of the project's runtime with the same setting: it asks the brokers first, names both values, and ends with
    the exit code for a setting that must be changed.
    """
    maximum_ms = int(await broker_config(stage.access, MAXIMUM))
    async with producer(stage, stage.name, timeout_ms=maximum_ms + 1) as refused:
        answer = await failure_of(refused.init(30))
    stage.expect("answer to InitProducerId", answer, "InvalidTransactionTimeout")
    hops = await Hops.prepared(stage, transaction_timeout_ms=maximum_ms + 1)
    hop = hops.start()
    code = await asyncio.to_thread(hop.wait, 60)
    stage.expect("exit code of the process", code, EXIT_CONFIG)
    names = [text for text in (str(maximum_ms + 1), f"{MAXIMUM} of {maximum_ms}") if text in hop.log_tail()]
    stage.expect("values that its log names", names, [str(maximum_ms + 1), f"{MAXIMUM} of {maximum_ms}"])
    stage.journal.records = len(names)


@drill(
    "B14",
    "transactional-id-expired",
    "A producer whose transactional.id has expired while it was idle initialises again, and repeats nothing",
    needs=Needs.OWN,
    tags=["transactions"],
    within_s=180,
    reading=["KIP-360"],
)
async def transactional_id_expired(stage: Stage) -> None:
    """Let a process be idle for longer than transactional.id.expiration.ms, which is 4 s on this cluster instead of
    seven days. The coordinator forgets the id and the producer's epoch. The next transaction is refused with
    INVALID_PRODUCER_ID_MAPPING. The process initialises again and does the work; each record has one output.
    """
    expiry = {
        "transactional.id.expiration.ms": str(EXPIRATION_MS),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    }
    stage.target = await stage.resources.enter_async_context(
        started(stage.directory, (), brokers=1, broker_overrides=expiry)
    )
    hops, proxy = await Hops.prepared(stage), await stage.proxy()
    own = hops.job.transactional_id
    hop = hops.start()
    await hops.write()
    await hops.until_done()
    pid = hop.pid

    async def forgotten() -> bool:
        async with Brokers(stage.access) as brokers:
            seen = await look(brokers, [])
        return own not in {one.transactional_id for one in seen.transactions}

    idle_s = await eventually(forgotten, "the coordinator has forgotten the transactional.id", 60)
    stage.evidence("transactional.id expired", f"no coordinator knows {own} after {idle_s:.1f} s without a transaction")
    watched = proxy.add(Rule(api="AddPartitionsToTxn", transactional_id=own, action=WATCH))
    await hops.write()
    await hops.until_done()
    await watched.done()
    proxy.remove(watched)
    answers = errors_in(act.answer for act in watched.evidence.acts)
    stage.expect_that(
        "answer to the next transaction",
        answers,
        "InvalidProducerIdMapping",
        holds=answers[:1] == ["InvalidProducerIdMapping"],
    )
    stage.expect("the process goes on", hop.pid, pid)
    await hops.expect_exactly_once()
