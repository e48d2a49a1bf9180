"""A: what a new leader, or one that returns, knows of its producers, and what an unclean election loses."""

import asyncio
from typing import Final

from deploy.drills.clients.raw import OUT_OF_ORDER, Answer, Identity, Numbered, RawProducer, log_of, values_of
from deploy.drills.deliveries import duplicates, losses
from deploy.drills.drill import LOCAL, SECURE, Anomaly, drill
from deploy.drills.faults.processes import Kill, TakeAway
from deploy.drills.faults.requests import OnRequests
from deploy.drills.figures import RETRIES, Figures
from deploy.drills.proxy.rules import Drop, Part, Rule
from deploy.drills.replicas import snapshots
from deploy.drills.stage import Stage
from deploy.drills.target import node_id
from deploy.drills.waiting import until
from shared.kafka.client.idempotent import IdempotentWriter

SEGMENT_BYTES: Final = 1024 * 1024
"""The least that brokers take as segment.bytes (KIP-1030)."""


@drill(
    "A8",
    "leader-killed-unacknowledged",
    "A new leader recognises a batch that the old one has stored and not acknowledged",
    tags=["brokers", "idempotence"],
    within_s=240.0,
    quick=True,
    reading=["KIP-98"],
)
async def leader_killed_unacknowledged(stage: Stage) -> None:
    """The leader has a batch, and so have the followers, but its answer is lost. Then the leader is killed. The client
    sends the same batch to the new leader, which knows the producer's sequences from the replicated batches: it answers
    with the offset at which the batch is stored.
    """
    topic, proxy, target, figures = await stage.topic(), await stage.proxy(), stage.target, Figures()
    leader = await target.leader(topic)
    rule = Rule(api="Produce", client_id=stage.name, action=Drop(Part.ANSWER))
    unanswered = stage.fault(OnRequests(proxy, rule, "answer to Produce lost"))
    async with IdempotentWriter(proxy.bootstrap_servers, client_id=stage.name, request_timeout_s=120.0) as writer:
        first = await writer.send(topic, 0, None, b"before")
        async with unanswered as lost:
            sending = asyncio.ensure_future(writer.send(topic, 0, None, b"payment"))
            stage.evidence(lost.name, await lost.acted())
            [answer] = await lost.released()
            stage.expect("answer that was lost", Answer.of(answer, topic), Answer("", first.offset + 1))
            async with stage.fault(TakeAway(leader)):
                metadata = await sending
                new_leader = await target.leader(topic)
        stage.expect_that("leader that answered", new_leader, f"not {leader}", holds=new_leader != leader)
        after = await writer.send(topic, 0, None, b"after")
    stage.expect("offset in the new leader's answer", metadata.offset, first.offset + 1)
    stage.expect("offset of the next record", after.offset, first.offset + 2)
    retried = figures.grown(RETRIES)
    stage.expect_that("records counted as retried", retried, "at least 1", holds=retried >= 1)
    await expect_once(stage, topic, [b"before", b"payment", b"after"])


async def expect_once(stage: Stage, topic: str, expected: list[bytes]) -> None:
    """Check that a topic has these records, each once, from one producer whose sequences have no gap."""
    values = await values_of(stage.access, topic)
    log = await log_of(stage.access, topic)
    stage.journal.records += len(values)
    stage.expect("records in the log", [value[:10] for value in values], [value[:10] for value in expected])
    stage.expect("producer ids in the log", len({batch.producer_id for batch in log}), 1)
    stage.expect("sequences in the log", [batch.base_sequence for batch in log], list(range(len(expected))))
    stage.anomaly(Anomaly.DUPLICATE, duplicates(values))


@drill(
    "A9",
    "leader-restarted",
    "A leader that returns rebuilds its producers' state from a snapshot and the log behind it",
    targets=[LOCAL, SECURE],
    tags=["brokers", "idempotence"],
    within_s=240.0,
    reading=["KIP-98"],
)
async def leader_restarted(stage: Stage) -> None:
    """The topic has one replica, so no other broker can help. When a segment is full, its broker writes a snapshot of
    the producers' state. The early producer wrote before it, the late one behind it; then the broker is killed and
    started again. It recognises the last batch of each, refuses a gap, and takes the next sequence. A snapshot has only
    the last batch of a producer, so it refuses the one before: never more than one copy, but five in flight would not
    be recognised.
    """
    topic, target = await stage.topic(replicas=1, segment_bytes=str(SEGMENT_BYTES)), stage.target
    leader = await target.leader(topic)
    async with RawProducer(stage.access, client_id=stage.name) as raw:
        early, late = await raw.init(), await raw.init()
        await raw.produce(topic, [b"early-0" + bytes(SEGMENT_BYTES * 3 // 4)], early, 0)
        for sequence, padding in enumerate((SEGMENT_BYTES // 2, 0, 0)):  # the first does not fit the segment
            await raw.produce(topic, [b"late-%d" % sequence + bytes(padding)], late, sequence)
    [*_, snapshot] = snapshots(target, leader, topic)
    stage.expect("offset of the last snapshot", snapshot, 1)
    async with stage.fault(Kill(leader)):
        pass
    stage.expect("leader after the restart", await target.leader(topic), leader)
    async with RawProducer(stage.access, client_id=stage.name) as raw:
        for what, identity, sequence, expected in (
            ("early producer's last batch, sent again", early, 0, Answer("", 0)),
            ("late producer's last batch, sent again", late, 2, Answer("", 3)),
            ("late producer's batch before that", late, 1, Answer(OUT_OF_ORDER, -1)),
            ("late producer's batch behind a gap", late, 4, Answer(OUT_OF_ORDER, -1)),
            ("early producer's next batch", early, 1, Answer("", 4)),
            ("late producer's next batch", late, 3, Answer("", 5)),
        ):
            answer = await raw.produce(topic, [b"again-%d" % sequence], identity, sequence)
            stage.expect(f"answer to the {what}", answer, expected)
    log = await log_of(stage.access, topic)
    stage.journal.records = len(log)
    batches = [(batch.producer_id, batch.base_sequence) for batch in log]
    expected_log = [(early, 0), (late, 0), (late, 1), (late, 2), (early, 1), (late, 3)]
    stage.expect(
        "producer ids and sequences in the log",
        batches,
        [(one.producer_id, sequence) for one, sequence in expected_log],
    )
    stage.anomaly(Anomaly.DUPLICATE, duplicates(b"%d/%d" % batch for batch in batches))


@drill(
    "A10",
    "unclean-election",
    "An unclean leader election loses acknowledged records; without it the partition is unavailable, and loses none",
    control=[Anomaly.LOSS],
    tags=["brokers"],
    within_s=400.0,
    reading=["KIP-966", "docs/runbooks/UncleanLeaderElection.md"],
)
async def unclean_election(stage: Stage) -> None:
    """Two topics have their replicas on the same two brokers. The safe one needs both in sync and elects no other
    leader. The unsafe one takes writes with one, and lets a replica lead that was out of sync. One broker is killed,
    records are written, the other is killed and the first comes back. The safe topic has refused those writes. The
    unsafe one has acknowledged them and lost them with their leader: its producer's next sequence is behind a gap.
    """
    target = stage.target
    first, last = await target.other_brokers(await target.controller())
    safe_topic = await stage.topic(on=(first, last), min_insync_replicas="2", unclean_leader_election_enable="false")
    unsafe_topic = await stage.topic(on=(first, last), min_insync_replicas="1", unclean_leader_election_enable="true")
    safe, unsafe = await Writing.begun(stage, safe_topic), await Writing.begun(stage, unsafe_topic)
    async with stage.fault(TakeAway(last)):
        await leads(stage, unsafe_topic, first)
        stage.expect("unsafe topic, one replica in sync", await unsafe.write(3), [f"offset {n}" for n in (1, 2, 3)])
        stage.expect("safe topic, one replica in sync", await safe.write(1), ["NotEnoughReplicasError"])
        async with stage.fault(TakeAway(first)):
            stage.step(f"{last} comes back alone, without those records")
            target.bring_back(last)
            await leads(stage, unsafe_topic, last)
            stage.expect("unsafe topic, next sequence", await unsafe.write(1), [OUT_OF_ORDER])
            [refusal] = await safe.write(1)
            stage.expect_that("safe topic, one broker back", refusal, "refused", holds="offset" not in refusal)
    stage.expect("safe topic, both back", await safe.write(2), ["offset 1", "offset 2"])
    stage.expect("safe topic, records lost", len(await safe.losses()), 0)
    stage.anomaly(Anomaly.LOSS, await unsafe.losses())


class Writing:
    """An idempotent producer of one topic that connects for each record, and what brokers have acknowledged to it."""

    def __init__(self, stage: Stage, topic: str, identity: Identity) -> None:
        self._stage = stage
        self._topic = topic
        self._identity = identity
        self._acknowledged: list[bytes] = []

    @classmethod
    async def begun(cls, stage: Stage, topic: str) -> "Writing":
        """Get a producer id, and write the first record."""
        async with RawProducer(stage.access) as raw:
            writing = cls(stage, topic, await raw.init())
        stage.expect("answer to the first record", await writing.write(1), ["offset 0"])
        return writing

    async def write(self, count: int) -> list[str]:
        """Write records, each under the sequence behind the last acknowledged one, and return the answers."""
        answers = []
        for _ in range(count):
            sequence = len(self._acknowledged)
            value = b"payment-%d" % sequence
            async with RawProducer(self._stage.access) as raw:
                [answer] = await raw.pipeline(self._topic, [Numbered(value, sequence)], self._identity)
            answers.append(str(answer))
            if not answer.error:
                self._acknowledged.append(value)
        return answers

    async def losses(self) -> list[str]:
        """Return the acknowledged records that the topic does not have."""
        self._stage.journal.records += len(self._acknowledged)
        return losses(self._acknowledged, await values_of(self._stage.access, self._topic))


async def leads(stage: Stage, topic: str, broker: str) -> None:
    """Wait until all brokers know that one leads a partition and has its only replica in sync."""
    expected = node_id(broker), (node_id(broker),)

    def known() -> bool:
        partitions = [one for view in stage.target.views() for one in view.partitions if one.topic == topic]
        return {(one.leader, one.isr) for one in partitions} == {expected}

    await until(known, f"{broker} leads {topic}, alone in sync", 120)
