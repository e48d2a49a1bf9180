"""Cuts of real brokers: last stable offsets, committed offsets, and no wait for open transactions."""

import asyncio
import time

import pytest

from deploy.cut import offsets_uncovered, take_cut
from shared.eos.records import Output
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, group_offsets, stable_offsets
from spark.manifest import INPUTS, LANDED_TOPICS, check_follows, decode, encode
from tests.contract.steps import HOME, POSTINGS, RAW, Pipeline, send_raw

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]


async def test_an_idle_cut_is_settled_and_the_next_one_follows_it(brokers: str, pipeline: Pipeline) -> None:
    await send_raw(brokers, "cut-1")
    await pipeline.advance()
    first = await take_cut(brokers, None, now_ms=5, settle_s=0.1, deadline_s=30)
    assert first.settled
    assert decode(encode(first)) == first
    assert {
        (topic, number): offsets.end for topic in LANDED_TOPICS for number, offsets in first.topics[topic].items()
    } == (await stable_offsets(brokers, LANDED_TOPICS))
    assert all(offsets.stable for ranges in first.topics.values() for offsets in ranges.values())
    for group, topic in INPUTS.items():
        committed = await group_offsets(brokers, group, topic)
        assert first.groups[group] == {number: committed.get(number) for number in range(6)}
    assert any(first.groups["ingest"].values())
    assert first.topic_ids.keys() == set(LANDED_TOPICS)
    assert len(set(first.topic_ids.values())) == len(LANDED_TOPICS)
    assert all(offsets.leader_epoch >= 0 for ranges in first.topics.values() for offsets in ranges.values())

    await send_raw(brokers, "cut-2")
    second = await take_cut(brokers, first, now_ms=6, settle_s=0.1, deadline_s=30)
    check_follows(second, first)
    assert second.topic_ids == first.topic_ids
    offsets, before = second.topics[RAW][HOME], first.topics[RAW][HOME]
    assert (offsets.start, offsets.end - offsets.start) == (before.end, 1)
    async with Cluster(brokers) as cluster:
        assert second.cluster_id == first.cluster_id == await cluster.cluster_id() != ""


async def test_an_open_transaction_is_left_out_and_not_waited_for(brokers: str, pipeline: Pipeline) -> None:
    stable = (await stable_offsets(brokers, [POSTINGS]))[POSTINGS, HOME]
    await pipeline.begin([Output(POSTINGS, HOME, b"k", b"{}", ())])
    begun = time.monotonic()
    during = await take_cut(brokers, None, now_ms=5, settle_s=0.05, deadline_s=0.5)
    assert time.monotonic() - begun < 10
    assert not during.settled
    offsets = during.topics[POSTINGS][HOME]
    assert (offsets.end, offsets.high, offsets.stable) == (stable, stable + 1, False)

    await pipeline.end(POSTINGS, commit=True)
    after = await take_cut(brokers, during, now_ms=6, settle_s=0.05, deadline_s=30)
    assert after.settled
    assert (after.topics[POSTINGS][HOME].start, after.topics[POSTINGS][HOME].end) == (stable, stable + 2)


async def test_markers_and_aborted_records_cover_their_offsets(brokers: str, pipeline: Pipeline) -> None:
    first = (await end_offsets(brokers, [POSTINGS]))[POSTINGS, HOME]
    for commit in (True, False):
        await pipeline.begin([Output(POSTINGS, HOME, b"k", b"{}", ())] * 2)
        await pipeline.end(POSTINGS, commit=commit)
    end = (await end_offsets(brokers, [POSTINGS]))[POSTINGS, HOME]
    assert end - first == 6
    assert await offsets_uncovered(brokers, POSTINGS, HOME, first, end) == 0
    assert await offsets_uncovered(brokers, POSTINGS, HOME, first + 1, end - 1) == 0


async def test_a_cut_under_traffic_is_unsettled(brokers: str) -> None:
    done = asyncio.Event()

    async def traffic() -> None:
        async with IdempotentWriter(brokers) as writer:
            while not done.is_set():
                await writer.send(RAW, HOME, None, b"{}")

    before = await end_offsets(brokers, [RAW])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(traffic())
        taken = await take_cut(brokers, None, now_ms=5, settle_s=0.3, deadline_s=1.0)
        done.set()
    assert not taken.settled
    assert taken.topics[RAW][HOME].end > before[RAW, HOME]


async def test_no_cut_without_a_cluster() -> None:
    with pytest.raises(KafkaUnavailableError):
        await take_cut("127.0.0.1:1", None, now_ms=5)
