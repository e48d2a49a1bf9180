"""A: batches whose sequence does not follow: older than the broker remembers, or behind a gap."""

import asyncio
import urllib.request
from collections.abc import Awaitable
from typing import Final

from deploy.drills.clients.raw import (
    CACHED_BATCHES,
    OUT_OF_ORDER,
    Answer,
    Identity,
    RawProducer,
    log_of,
    values_of,
)
from deploy.drills.clients.runtime import copying, output_of, until_written
from deploy.drills.deliveries import duplicates
from deploy.drills.drill import Anomaly, Needs, drill
from deploy.drills.faults.requests import OnRequests
from deploy.drills.figures import Figures, figure
from deploy.drills.proxy.proxy import Proxy
from deploy.drills.proxy.rules import Acknowledge, Hold, Part, RepeatLate, Rule
from deploy.drills.run import started
from deploy.drills.stage import Stage
from deploy.drills.target import node_id
from shared.kafka.admin.transactions import describe
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.runtime.outgoing import BATCH_BYTES

ERRORS: Final = "kafka_producer_record_error_total"


@drill(
    "A3",
    "duplicate-beyond-the-cache",
    "A late copy that is older than the five cached batches is refused and never appended",
    needs=Needs.OWN,
    tags=["requests", "idempotence"],
    within_s=120.0,
    reading=["KIP-98", "docs/adr/0019-transaction-protocol.md"],
)
async def duplicate_beyond_the_cache(stage: Stage) -> None:
    """Hold a copy of a Produce request until four, and until five further batches were written. The broker remembers
    five batches of a producer: it answers the first copy with the stored offset and refuses the second, where older
    texts say DUPLICATE_SEQUENCE. Then the runtime's own request becomes such a duplicate, because its sequences were
    used meanwhile: it aborts the transaction and does the work again.
    """
    stage.step("starting a broker of its own, with metrics")
    running = started(stage.directory, (), brokers=1, broker_metrics=True)
    stage.target = await stage.resources.enter_async_context(running)
    proxy, figures = await stage.proxy(), Figures()
    refused_before = await asyncio.to_thread(refusals, stage)
    for later, error, offset in ((CACHED_BATCHES - 1, "", 0), (CACHED_BATCHES, OUT_OF_ORDER, -1)):
        topic = await stage.topic()
        async with IdempotentWriter(proxy.bootstrap_servers, client_id=topic) as writer:
            rule = Rule(api="Produce", client_id=topic, action=RepeatLate())
            async with stage.fault(OnRequests(proxy, rule, f"copy {later} batches late")) as late:
                for number in range(later + 1):
                    await writer.send(topic, 0, None, b"payment-%d" % number)
                stage.evidence(late.name, await late.acted())
                [answer] = await late.released()
        stage.expect(
            f"answer to the copy behind {later} further batches", Answer.of(answer, topic), Answer(error, offset)
        )
        values = await values_of(stage.bootstrap_servers, topic)
        stage.journal.records += len(values)
        stage.expect("records in the log", len(values), later + 1)
        stage.anomaly(Anomaly.DUPLICATE, duplicates(values))
    await refused_in_the_runtime(stage, proxy)
    stage.expect("records counted as failed", figures.grown(ERRORS, error=OUT_OF_ORDER), 1)
    rate = figure("kafka_producer_record_error_rate")
    stage.expect_that("record-error-rate", f"{rate:.3f} per second", "above 0", holds=rate > 0)
    refused = await asyncio.to_thread(refusals, stage) - refused_before
    stage.expect("growth of the broker's ErrorsPerSec, Produce, OUT_OF_ORDER_SEQUENCE_NUMBER", refused, 2)


def refusals(stage: Stage) -> float:
    """Return how many Produce errors of this kind the target's only broker has counted (ErrorsPerSec)."""
    [port] = stage.target.stack.kafka.metrics_ports
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    name = "kafka_network_requestmetrics_errors_total{"
    found = [line for line in lines if line.startswith(name) and "OUT_OF_ORDER" in line and '"Produce"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


async def refused_in_the_runtime(stage: Stage, proxy: Proxy) -> None:
    """Hold a Produce request of the runtime until six batches under its identity were written; it must go on."""
    source, sink = await stage.topic(), await stage.topic()
    rule = Rule(api="Produce", client_id=f"{stage.name}-0", topic=sink, action=Hold(Part.REQUEST))
    fault = stage.fault(OnRequests(proxy, rule, "runtime's Produce request held"))
    service = copying(stage, proxy.bootstrap_servers, source, sink)
    async with IdempotentWriter(stage.access) as writer, fault as held, service:
        await writer.send(source, 0, None, b"payment")
        stage.evidence(held.name, await held.acted())
        identity = await identity_of(stage, f"{stage.name}-0")
        stage.step(f"six batches are written under the runtime's producer id {identity.producer_id}")
        async with RawProducer(stage.access) as raw:
            for number in range(CACHED_BATCHES + 1):
                answer = await raw.produce(sink, [b"foreign"], identity, number, transactional_id=f"{stage.name}-0")
                stage.expect(f"answer to the batch of sequence {number}", answer.error, "")
        [refusal] = await held.released()
        stage.expect("answer to the runtime", Answer.of(refusal, sink), Answer(OUT_OF_ORDER, -1))
        await until_written(stage, sink, 1)
    await expect_outputs(stage, sink, [output_of(b"payment", 0)])


async def expect_outputs(stage: Stage, sink: str, expected: list[bytes]) -> None:
    """Check the committed records of a runtime that has stopped."""
    values = await values_of(stage.access, sink)
    stage.journal.records += len(values)
    stage.expect("committed outputs of the runtime", len(values), len(expected))
    stage.expect("each output is the expected one", values == expected, expected=True)
    stage.anomaly(Anomaly.DUPLICATE, duplicates(values))


async def identity_of(stage: Stage, transactional_id: str) -> Identity:
    """Return a producer's id and epoch, as its transaction's coordinator has them."""
    async with Brokers(stage.access) as brokers:
        await brokers.view([])
        broker = await stage.target.transaction_coordinator(transactional_id)
        [found] = await describe(brokers, node_id(broker), [transactional_id])
    return Identity(found.producer_id, found.producer_epoch)


@drill(
    "A4",
    "missing-batch",
    "A sequence higher than expected is refused, and neither the writer nor the runtime ends by it",
    tags=["requests", "idempotence"],
    reading=["KIP-98", "docs/adr/0019-transaction-protocol.md"],
)
async def missing_batch(stage: Stage) -> None:
    """A raw client leaves out a sequence: the broker refuses the batch, and the log's end stays. Then the proxy
    acknowledges a batch that no broker gets, so the next one of the same producer follows a gap. The idempotent writer
    reports that one as not written, and takes it again under a new producer id. The runtime aborts, and then does the
    work again.
    """
    topic, proxy, figures = await stage.topic(), await stage.proxy(), Figures()
    async with RawProducer(stage.bootstrap_servers) as raw:
        identity = await raw.init()
        answers = [await raw.produce(topic, [b"%d" % sequence], identity, sequence) for sequence in (0, 2, 1, 2)]
    stage.expect(
        "answers to the sequences 0, 2, 1, 2",
        [str(answer) for answer in answers],
        ["offset 0", OUT_OF_ORDER, "offset 1", "offset 2"],
    )
    stage.expect("records in the log", await values_of(stage.bootstrap_servers, topic), [b"0", b"1", b"2"])
    await missing_in_the_writer(stage, proxy)
    await missing_in_the_runtime(stage, proxy)
    stage.expect("records counted as failed", figures.grown(ERRORS, error=OUT_OF_ORDER), 2)


async def missing_in_the_writer(stage: Stage, proxy: Proxy) -> None:
    """Lose a batch that was acknowledged; the writer must take the next record again, and write it once."""
    topic = await stage.topic()
    rule = Rule(api="Produce", client_id=topic, first=2, action=Acknowledge())
    fault = stage.fault(OnRequests(proxy, rule, "batch acknowledged and lost"))
    async with IdempotentWriter(proxy.bootstrap_servers, client_id=topic) as writer, fault as lost:
        for value in (b"first", b"lost by the broker"):
            await writer.send(topic, 0, None, value)
        stage.evidence(lost.name, await lost.acted())
        with_error = await refused(writer.send(topic, 0, None, b"third"))
        stage.expect_that("error of the third record", with_error, OUT_OF_ORDER, holds=OUT_OF_ORDER in with_error)
        stage.expect("error when it is sent again", await refused(writer.send(topic, 0, None, b"third")), "")
    log = await log_of(stage.bootstrap_servers, topic)
    values = await values_of(stage.bootstrap_servers, topic)
    stage.journal.records += len(values)
    stage.expect("records in the log", values, [b"first", b"third"])
    stage.expect("sequences in the log", [batch.base_sequence for batch in log], [0, 0])
    stage.expect("producer ids in the log", len({batch.producer_id for batch in log}), 2)
    stage.anomaly(Anomaly.DUPLICATE, duplicates(values))


async def refused(sending: Awaitable[object]) -> str:
    """Return the error of a record that the writer reports as not written; empty without one."""
    try:
        await sending
    except KafkaUnavailableError as error:
        return str(error)
    return ""


async def missing_in_the_runtime(stage: Stage, proxy: Proxy) -> None:
    """Lose the second of a transaction's three batches for a partition; the third one is refused."""
    source, sink = await stage.topic(), await stage.topic()
    transactional_id = f"{stage.name}-0"
    rule = Rule(api="Produce", client_id=transactional_id, topic=sink, first=2, action=Acknowledge())
    size = BATCH_BYTES * 2 // 3  # a batch of its own for each record
    fault = stage.fault(OnRequests(proxy, rule, "runtime's batch acknowledged and lost"))
    service = copying(stage, proxy.bootstrap_servers, source, sink, count=3, size=size)
    async with IdempotentWriter(stage.access) as writer, fault as lost, service:
        await writer.send(source, 0, None, b"payment")
        stage.evidence(lost.name, await lost.acted())
        await until_written(stage, sink, 3)
    await expect_outputs(stage, sink, [output_of(b"payment", number, size) for number in range(3)])
