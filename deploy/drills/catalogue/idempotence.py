"""A: the idempotent producer: what it writes, sends again, and refuses."""

import asyncio
from collections.abc import Iterable
from typing import Final

from deploy.drills.clients.raw import (
    CACHED_BATCHES,
    OUT_OF_ORDER,
    Answer,
    Numbered,
    RawProducer,
    log_of,
    values_of,
)
from deploy.drills.clients.stock import stock_producer
from deploy.drills.clients.tools import PRODUCER_PERFORMANCE, Ended, kafka_tool, module
from deploy.drills.deliveries import duplicates
from deploy.drills.drill import LOCAL, SECURE, Anomaly, drill
from deploy.drills.faults.processes import Pause
from deploy.drills.faults.requests import OnRequests
from deploy.drills.figures import RETRIES, Figures
from deploy.drills.proxy.rules import Drop, Part, Rule
from deploy.drills.replicas import replica_log
from deploy.drills.stage import Stage
from deploy.drills.target import node_id
from deploy.drills.waiting import until
from shared.kafka.client.batches import Batch
from shared.kafka.client.idempotent import IdempotentWriter
from shared.settings import EXIT_CONFIG

JAVA_REFUSALS: Final = {
    "acks=1": "Must set acks to all in order to use the idempotent producer",
    "retries=0": "Must set retries to non-zero when using the idempotent producer",
    "max.in.flight.requests.per.connection=6": "must be set to at most 5",
}
"""The Java client's errors, by setting."""
ONE_RECORD: Final = ("--num-records", "1", "--record-size", "10", "--throughput", "-1")
LOST_S: Final = 4.0
"""Request timeout of a raw client whose answers are lost."""


@drill(
    "A1",
    "normal-flow",
    "A batch carries producer id, epoch and sequence, and is acknowledged when all in-sync replicas have it",
    targets=[LOCAL, SECURE],
    tags=["idempotence"],
    reading=["KIP-98"],
)
async def normal_flow(stage: Stage) -> None:
    """Write five batches, then a sixth while one follower is paused. The leader and the other follower have it, and the
    leader answers a later batch with acks=1. Yet the sixth is not acknowledged while the paused follower is in sync and
    lacks it. In the end the log files of all three brokers have the same batches.
    """
    topic, target = await stage.topic(), stage.target
    leader = await target.leader(topic)
    follower, other = await target.other_brokers(leader)
    values = [b"payment-%d" % number for number in range(6)]
    async with IdempotentWriter(stage.access, client_id=stage.name) as writer, RawProducer(stage.access) as raw:
        for value in values[:-1]:
            await writer.send(topic, 0, None, value)
        async with stage.fault(Pause(follower)):
            sending = asyncio.ensure_future(writer.send(topic, 0, None, values[-1]))
            await until(
                lambda: all(len(replica_log(target, broker, topic)) == len(values) for broker in (leader, other)),
                "the leader and one follower have the batch",
            )
            stage.expect(
                "answer to the next batch, acks=1", await raw.produce(topic, [b"later"], acks=1), Answer("", 6)
            )
            early = sending.done() and node_id(follower) in next(
                one.isr for one in target.view().partitions if one.topic == topic
            )
            stage.expect("sixth acknowledged while an in-sync follower lacks it", early, expected=False)
        stage.expect("offset of the sixth record", (await sending).offset, 5)
    log = await log_of(stage.access, topic)
    stage.journal.records = len(log)
    [producer, *more] = sorted({(batch.producer_id, batch.producer_epoch) for batch in log[:-1]})
    stage.expect_that(
        "producer id and epoch in the log", producer, "one, assigned", holds=producer >= (0, 0) and not more
    )
    stage.expect("sequences in the log", [batch.base_sequence for batch in log], [*range(6), -1])
    for broker in (leader, follower, other):
        stage.expect(f"log of {broker}", headers(replica_log(target, broker, topic)), headers(log))
    stage.anomaly(Anomaly.DUPLICATE, duplicates(await values_of(stage.access, topic)))


def headers(batches: Iterable[Batch]) -> list[str]:
    """Return what brokers recognise batches by."""
    return [f"{one.producer_id}/{one.producer_epoch}/{one.base_sequence}@{one.base_offset}" for one in batches]


@drill(
    "A2",
    "lost-acknowledgement",
    "A batch whose acknowledgement is lost is sent again and stored once",
    tags=["requests", "idempotence"],
    quick=True,
    reading=["KIP-98"],
)
async def lost_acknowledgement(stage: Stage) -> None:
    """Lose the broker's answer to a Produce request. After its request timeout the client sends the same batch again,
    with the same sequence, and the broker answers with the offset at which it is stored already. The caller sees no
    error; the retry is counted. E1 has the same fault without idempotence.
    """
    topic, proxy, figures = await stage.topic(), await stage.proxy(), Figures()
    async with IdempotentWriter(proxy.bootstrap_servers, client_id=stage.name, request_timeout_s=8.0) as writer:
        first = await writer.send(topic, 0, None, b"before")
        rule = Rule(api="Produce", client_id=stage.name, action=Drop(Part.ANSWER))
        async with stage.fault(OnRequests(proxy, rule, "answer to Produce lost")) as lost:
            sending = asyncio.ensure_future(writer.send(topic, 0, None, b"payment"))
            stage.evidence(lost.name, await lost.acted())
            metadata = await sending
    stage.expect("offset in the second answer", metadata.offset, first.offset + 1)
    stage.expect("records counted as retried", figures.grown(RETRIES), 1)
    stage.expect("requests of the two records", proxy.counts(stage.name)["Produce"], 3)
    values = await values_of(stage.bootstrap_servers, topic)
    stage.journal.records = len(values)
    stage.expect("copies of the record", values.count(b"payment"), 1)
    stage.anomaly(Anomaly.DUPLICATE, duplicates(values))
    sequences = [batch.base_sequence for batch in await log_of(stage.bootstrap_servers, topic)]
    stage.expect("sequences in the log", sequences, [0, 1])


@drill(
    "A5",
    "six-in-flight",
    "With at most five requests in flight a resent batch is recognised; the sixth puts the first beyond the cache",
    control=[Anomaly.DUPLICATE],
    tags=["requests", "idempotence"],
    reading=["KIP-98", "KIP-679"],
)
async def six_in_flight(stage: Stage) -> None:
    """A raw client has five requests in flight, then six, and the answers to all of them are lost. It sends the first
    one again. Of five, the broker recognises it. Of six, it remembers only the last five, and refuses the first as out
    of order although it is stored. The client goes on under a new producer id, and everything is stored twice. Clients
    refuse such a setting (A11).
    """
    stage.step("protection: five in flight")
    values, answers = await resent_pipeline(stage, CACHED_BATCHES)
    stage.expect("answers to the batches sent again", answers, [f"offset {n}" for n in range(CACHED_BATCHES)])
    stage.expect("duplicates of five in flight", len(duplicates(values)), 0)
    stage.step("control: six in flight")
    values, answers = await resent_pipeline(stage, CACHED_BATCHES + 1)
    stage.expect("answer to the first batch sent again", answers[0], OUT_OF_ORDER)
    stage.anomaly(Anomaly.DUPLICATE, duplicates(values))


async def resent_pipeline(stage: Stage, in_flight: int) -> tuple[list[bytes], list[str]]:
    """Lose the answers to so many batches in flight, and send them again; return the log's values and the answers."""
    topic, proxy = await stage.topic(), await stage.proxy()
    batches = [Numbered(b"payment-%d" % sequence, sequence) for sequence in range(in_flight)]
    async with RawProducer(proxy.bootstrap_servers, client_id=topic, request_timeout_s=LOST_S) as raw:
        identity = await raw.init()
        rule = Rule(api="Produce", client_id=topic, action=Drop(Part.ANSWER))
        async with stage.fault(OnRequests(proxy, rule, f"answers to {in_flight} requests lost")) as lost:
            unanswered = await raw.pipeline(topic, batches, identity)
            stage.evidence(lost.name, await lost.acted())
        stage.expect("batches without an answer", sum(answer.offset < 0 for answer in unanswered), in_flight)
        stored = await values_of(stage.bootstrap_servers, topic)
        stage.expect("batches that are stored nevertheless", len(stored), in_flight)
        answers = []
        for number, one in enumerate(batches):
            answers.append(await raw.produce(topic, [one.value], identity, one.sequence))
            if answers[-1].error:
                stage.step("the client continues under a new producer id")
                identity = await raw.init()
                again = [Numbered(later.value, place) for place, later in enumerate(batches[number:])]
                answers += await raw.pipeline(topic, again, identity)
                break
    values = await values_of(stage.bootstrap_servers, topic)
    stage.journal.records += len(values)
    return values, [str(answer) for answer in answers]


@drill(
    "A11",
    "unsafe-settings-refused",
    "Settings under which idempotence does not hold are refused at the start, with a clear error",
    tags=["settings", "idempotence"],
    reading=["KIP-98", "KIP-679", "docs/settings.md"],
)
async def unsafe_settings_refused(stage: Stage) -> None:
    """Start the Java client's performance test with idempotence and acks=1, then with retries=0, and with six requests
    in flight. Start aiokafka with acks=1. Each names the setting and writes nothing. This project's services have no
    such settings: a service that finds one in its environment names it, and ends with exit code 78.
    """
    topic = await stage.topic()
    for setting, message in JAVA_REFUSALS.items():
        properties = f"bootstrap.servers={stage.bootstrap_servers}", "enable.idempotence=true", setting
        ended = await kafka_tool(PRODUCER_PERFORMANCE, "--topic", topic, *ONE_RECORD, "--command-property", *properties)
        expect_refusal(stage, f"Java client, {setting}", ended, 1, message)
    refusal = ""
    try:
        async with stock_producer(stage.bootstrap_servers, enable_idempotence=True, acks=1) as producer:
            await producer.send_and_wait(topic, b"payment")
    except ValueError as error:
        refusal = str(error)
    stage.expect("aiokafka, acks=1", refusal, "acks=1 not supported if enable_idempotence=True")
    stage.expect("records written", len(await values_of(stage.bootstrap_servers, topic)), 0)
    variables = {"ONCE_PRODUCER_ACKS": "1", "ONCE_PRODUCER_RETRIES": "0"}
    ended = await module("services.ingest", ONCE_BOOTSTRAP_SERVERS=stage.bootstrap_servers, **variables)
    for variable in variables:
        expect_refusal(stage, f"ingest, {variable}", ended, EXIT_CONFIG, f"{variable} is not a setting")


def expect_refusal(stage: Stage, what: str, ended: Ended, exit_code: int, message: str) -> None:
    """Note the exit code of a program, and the line of its output with the message."""
    stage.expect(f"{what}: exit code", ended.exit_code, exit_code)
    lines = [line for line in ended.output.splitlines() if message in line]
    stage.expect_that(what, (lines or [ended.output])[0], message, holds=bool(lines))
