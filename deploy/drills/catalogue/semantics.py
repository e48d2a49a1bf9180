"""E: what a producer's settings promise, and what brokers remember of it."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from deploy.drills.clients.raw import Answer, Numbered, RawProducer, values_of
from deploy.drills.clients.runtime import copying, output_of, until_written
from deploy.drills.clients.stock import stock_producer
from deploy.drills.deliveries import duplicates, losses, reorderings
from deploy.drills.drill import Anomaly, Needs, drill
from deploy.drills.faults.requests import OnRequests
from deploy.drills.proxy.rules import Drop, Part, RepeatLate, Rule
from deploy.drills.run import started
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.requests import Request

RECORDS: Final = 40
FAULTY: Final = 11
"""The request that the proxy loses, or whose acknowledgement it loses, from 1."""
FORGETFUL: Final = {"producer.id.expiration.ms": "2000", "producer.id.expiration.check.interval.ms": "200"}


class Settings(NamedTuple):
    """A client's settings, the fault that shows what they promise, and how many duplicates and losses it makes."""

    promise: str
    options: dict[str, Any]
    lost: Part
    expected: tuple[int, int]


CLIENTS: Final = (
    Settings("at most once: acks=0, no retry", {"acks": 0}, Part.REQUEST, (0, RECORDS - FAULTY + 1)),
    Settings("at least once: acks=all, retries", {"acks": "all"}, Part.ANSWER, (1, 0)),
    Settings("exactly once: acks=all, retries, idempotence", {"enable_idempotence": True}, Part.ANSWER, (0, 0)),
)


@drill(
    "E1",
    "three-semantics",
    "A lost request without retry is a loss, a lost acknowledgement without idempotence a duplicate, with it neither",
    control=[Anomaly.LOSS, Anomaly.DUPLICATE],
    tags=["requests", "idempotence"],
    reading=["KIP-98", "docs/glossary.md"],
)
async def three_semantics(stage: Stage) -> None:
    """The stock client sends the same records under three settings. Without acknowledgements, a request is lost on a
    connection that leads nowhere from then on: the client never learns of it. With retries and without idempotence, an
    acknowledgement is lost; then the same with idempotence. The table counts what each client took for written, and
    what the log has.
    """
    rows = stage.journal.tables["what the client's settings promise"] = []
    for settings in CLIENTS:
        acknowledged, found = await sent_under(stage, settings)
        repeated, lost = duplicates(found), losses(acknowledged, found)
        rows.append(
            {
                "settings": settings.promise,
                "lost on the way": settings.lost.value,
                "taken for written": len(acknowledged),
                "in the log": len(found),
                "duplicates": len(repeated),
                "losses": len(lost),
            }
        )
        stage.expect(f"{settings.promise}: records taken for written", len(acknowledged), RECORDS)
        counts = len(repeated), len(lost)
        stage.expect(f"{settings.promise}: duplicates and losses", counts, settings.expected)
        stage.anomaly(Anomaly.LOSS, lost)
        stage.anomaly(Anomaly.DUPLICATE, repeated)


async def sent_under(stage: Stage, settings: Settings) -> tuple[list[bytes], list[bytes]]:
    """Send records one by one under a fault; return what the client took for written, and what the log has."""
    topic, proxy = await stage.topic(), await stage.proxy()
    stage.step(f"client: {settings.promise}")
    values = [b"payment-%d" % number for number in range(RECORDS)]
    acknowledged = []
    action = Drop(settings.lost, closes=settings.lost is Part.ANSWER)
    rule = Rule(api="Produce", client_id=topic, first=FAULTY, action=action)
    options = {"request_timeout_ms": 30_000, **settings.options}
    producing = stock_producer(proxy.bootstrap_servers, client_id=topic, **options)
    async with stage.fault(OnRequests(proxy, rule, f"{settings.lost.value} of a Produce lost")) as fault:
        async with producing as producer:
            for value in values:
                await producer.send_and_wait(topic, value)
                acknowledged.append(value)
        stage.evidence(fault.name, await fault.acted())
    # Without acknowledgements, those before the fault may still be on their way
    await until_written(stage, topic, FAULTY - 1)
    found = await values_of(stage.access, topic)
    stage.journal.records += len(found)
    return acknowledged, found


@drill(
    "E9",
    "pipelined-batch-fails",
    "Of five batches in flight one fails: with idempotence their order is kept, without it is lost",
    control=[Anomaly.REORDERED],
    tags=["idempotence"],
    reading=["KIP-98", "KIP-679"],
)
async def pipelined_batch_fails(stage: Stage) -> None:
    """A raw client has five batches in flight, and a bit of the second one is changed on the way. The broker answers
    CORRUPT_MESSAGE, which clients retry. With idempotence it refuses the three behind it as out of order, so all four
    are sent again in order. Without, it has appended them already, and the second one comes last.
    """
    stage.step("protection: idempotence")
    sent, answers, found = await pipelined(stage, idempotent=True)
    out_of_order = ["OutOfOrderSequenceNumber"] * 3
    stage.expect("answers with idempotence", answers, ["offset 0", "CorruptRecordException", *out_of_order])
    stage.expect("order with idempotence", found, sent)
    stage.expect("records behind later ones, with idempotence", reorderings(sent, found), [])
    stage.step("control: no idempotence")
    sent, answers, found = await pipelined(stage, idempotent=False)
    expected = ["offset 0", "CorruptRecordException", "offset 1", "offset 2", "offset 3"]
    stage.expect("answers without idempotence", answers, expected)
    stage.anomaly(Anomaly.REORDERED, reorderings(sent, found))


async def pipelined(stage: Stage, *, idempotent: bool) -> tuple[list[bytes], list[str], list[bytes]]:
    """Send five batches at once, the second damaged, and then what was refused; return values, answers and the log."""
    topic = await stage.topic()
    values = [b"payment-%d" % number for number in range(5)]
    async with RawProducer(stage.bootstrap_servers, client_id=topic) as raw:
        identity = await raw.init() if idempotent else None
        sequences: Sequence[int] = range(len(values)) if idempotent else [-1] * len(values)
        batches = [Numbered(value, sequence) for value, sequence in zip(values, sequences, strict=True)]
        first = [one._replace(damaged=number == 1) for number, one in enumerate(batches)]
        answers = await raw.pipeline(topic, first, identity)
        stage.evidence("batch damaged on the way", f"the broker answered {answers[1]}")
        refused = [one for one, answer in zip(batches, answers, strict=True) if answer.error]
        again = await raw.pipeline(topic, refused, identity)
        stage.expect("batches refused when they are sent again", sum(bool(answer.error) for answer in again), 0)
    found = await values_of(stage.bootstrap_servers, topic)
    stage.journal.records += len(found)
    return values, [str(answer) for answer in answers], found


@drill(
    "E2",
    "producer-id-expired",
    "A producer that brokers have forgotten goes on; only a request that outlives its producer id is stored twice",
    needs=Needs.OWN,
    control=[Anomaly.DUPLICATE],
    tags=["requests", "idempotence"],
    within_s=180.0,
    reading=["KIP-360", "KIP-854", "KIP-890"],
)
async def producer_id_expired(stage: Stage) -> None:
    """Let the broker forget producers after two seconds instead of a day. The runtime and the idempotent writer are
    idle for longer, and then go on. Older brokers answered UNKNOWN_PRODUCER_ID; this one takes any sequence as a new
    begin. A copy of a request that arrives after the expiry shows the difference: the writer's is stored twice, the
    control, and that of the runtime is refused, because its transaction is over.
    """
    stage.step("starting a broker of its own, which forgets producers after 2 s")
    running = started(stage.directory, (), brokers=1, broker_overrides=FORGETFUL)
    stage.target = await stage.resources.enter_async_context(running)
    stage.step("protection: the runtime")
    answer, found = await idle_runtime(stage)
    stage.expect_that("answer to the runtime's late copy", answer, "an error", holds=bool(answer.error))
    stage.expect("outputs of the runtime", found, [output_of(b"before", 0), output_of(b"after", 0)])
    stage.step("control: a writer without transactions")
    answer, found = await idle_writer(stage)
    stage.expect("answer to the writer's late copy", answer, Answer("", 2))
    stage.expect("records of the writer", list(dict.fromkeys(found)), [b"before", b"after"])
    stage.anomaly(Anomaly.DUPLICATE, duplicates(found))


async def idle_runtime(stage: Stage) -> tuple[Answer, list[bytes]]:
    """Keep a copy of the runtime's request until it was forgotten; return the answer, and the committed outputs."""
    source, sink, proxy = await stage.topic(), await stage.topic(), await stage.proxy()
    rule = Rule(api="Produce", client_id=f"{stage.name}-0", topic=sink, action=RepeatLate())
    fault = stage.fault(OnRequests(proxy, rule, "copy of the runtime's Produce late"))
    service = copying(stage, proxy.bootstrap_servers, source, sink)
    async with IdempotentWriter(stage.access) as writer, fault as late, service:
        await writer.send(source, 0, None, b"before")
        stage.evidence(late.name, await late.acted())
        await until_written(stage, sink, 1)
        await until_forgotten(stage, sink)
        await writer.send(source, 0, None, b"after")
        await until_written(stage, sink, 2)
        await until_forgotten(stage, sink)
        [answer] = await late.released()
    found = await values_of(stage.access, sink)
    stage.journal.records += len(found)
    return Answer.of(answer, sink), found


async def idle_writer(stage: Stage) -> tuple[Answer, list[bytes]]:
    """Keep a copy of the writer's request until it was forgotten; return the answer, and the log's values."""
    topic, proxy = await stage.topic(), await stage.proxy()
    rule = Rule(api="Produce", client_id=topic, action=RepeatLate())
    fault = stage.fault(OnRequests(proxy, rule, "copy of the writer's Produce late"))
    async with IdempotentWriter(proxy.bootstrap_servers, client_id=topic) as writer, fault as late:
        await writer.send(topic, 0, None, b"before")
        stage.evidence(late.name, await late.acted())
        await until_forgotten(stage, topic)
        await writer.send(topic, 0, None, b"after")
        await until_forgotten(stage, topic)
        [answer] = await late.released()
    found = await values_of(stage.access, topic)
    stage.journal.records += len(found)
    return Answer.of(answer, topic), found


async def until_forgotten(stage: Stage, topic: str) -> None:
    """Wait until the leader of a topic of one partition, the only broker, has no producer's state for it."""
    request = Request("DescribeProducers", 0, {"Topics": [{"Name": topic, "PartitionIndexes": [0]}]})

    async def forgotten() -> bool:
        answer = await brokers.ask(0, request)
        return not any(one["ActiveProducers"] for row in answer["Topics"] for one in row["Partitions"])

    async with Brokers(stage.access) as brokers:
        await brokers.view([])
        await eventually(forgotten, f"no producer's state in {topic}")
