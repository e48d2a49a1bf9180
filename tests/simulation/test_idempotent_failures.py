"""The idempotent writer's report of a failure: its kind and cause, to each caller as a separate error."""

import asyncio

import pytest

from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.client.errors import DeniedError, KafkaUnavailableError
from shared.kafka.client.idempotent import IdempotentWriter
from tests.contract.helpers import committed
from tests.simulation.cluster import SESSION_S
from tests.simulation.errors import INVALID_RECORD, NOT_ENOUGH_REPLICAS, TOPIC_AUTHORIZATION_FAILED
from tests.simulation.world import SERVERS, World, history

RAW = (PAYMENTS_RAW, 0)


def refuse(world: World, code: int) -> None:
    """Refuse the next batch."""
    world.cluster.partitions[RAW].refuses.append(code)


def test_a_denial_is_raised_in_each_sender() -> None:
    async def main(world: World) -> None:
        refuse(world, TOPIC_AUTHORIZATION_FAILED)
        async with IdempotentWriter(SERVERS) as writer:
            one, other = await asyncio.gather(
                *(writer.send(*RAW, b"k", b"v") for _ in range(2)), return_exceptions=True
            )
        assert isinstance(one, DeniedError)
        assert isinstance(other, DeniedError)
        assert one is not other
        assert one.__cause__ is other.__cause__
        assert f"writing to {PAYMENTS_RAW} (TopicAuthorizationFailedError)" in str(one)

    history(main)


def test_a_denial_is_raised_in_a_flush_once() -> None:
    async def main(world: World) -> None:
        refuse(world, TOPIC_AUTHORIZATION_FAILED)
        async with IdempotentWriter(SERVERS) as writer:
            await writer.write(*RAW, b"k", b"v")
            with pytest.raises(DeniedError) as refused:
                await writer.flush()
            assert str(refused.value.__cause__) == str(refused.value)
            await writer.flush()

    history(main)


def test_credentials_that_became_unusable_are_a_denial_to_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = DeniedError("ONCE_TLS_IDENTITY_FILE is gone.pem, which cannot be read")

    async def unusable(*_: object) -> None:
        raise gone

    async def main(world: World) -> None:
        async with IdempotentWriter(SERVERS) as writer:
            refuse(world, TOPIC_AUTHORIZATION_FAILED)
            with pytest.raises(DeniedError):
                await writer.send(*RAW, b"k", b"v")
            monkeypatch.setattr("shared.kafka.client.idempotent.start", unusable)
            with pytest.raises(DeniedError, match=r"gone\.pem") as refused:  # a new producer is needed
                await writer.send(*RAW, b"k", b"v")
            assert refused.value.__cause__ is gone

    history(main)


def test_another_refusal_is_not_a_denial() -> None:
    async def main(world: World) -> None:
        refuse(world, INVALID_RECORD)
        async with IdempotentWriter(SERVERS) as writer:
            with pytest.raises(KafkaUnavailableError, match="nothing of it was written") as refused:
                await writer.send(*RAW, b"k", b"v")
            assert type(refused.value) is KafkaUnavailableError
            await writer.send(*RAW, b"k", b"v")

    history(main)


def test_a_batch_that_found_no_leader_leaves_no_gap_in_the_sequence() -> None:
    async def main(world: World) -> None:
        partition = world.cluster.partitions[RAW]
        leader = partition.leader
        async with IdempotentWriter(SERVERS, request_timeout_s=2.0) as writer:
            await writer.send(*RAW, b"k", b"first")
            partition.in_sync = {leader}
            world.kill(leader)
            await asyncio.sleep(SESSION_S + 1)
            with pytest.raises(KafkaUnavailableError, match="did not acknowledge"):
                await writer.send(*RAW, b"k", b"lost")
            await asyncio.sleep(2)
            partition.in_sync = set(partition.replicas)
            world.start(leader)
            await asyncio.sleep(1)
            await writer.send(*RAW, b"k", b"later")
        assert await committed(SERVERS, *RAW) == [b"first", b"later"]

    history(main)


def test_no_record_joins_a_batch_whose_failure_was_reported() -> None:
    async def main(world: World) -> None:
        partition = world.cluster.partitions[RAW]
        partition.refuses = [NOT_ENOUGH_REPLICAS] * 1000
        async with IdempotentWriter(SERVERS, request_timeout_s=2.0) as writer:
            await writer.write(*RAW, b"k", b"under way")
            await asyncio.sleep(0.1)
            await writer.write(*RAW, b"k", b"waiting")
            await asyncio.sleep(3)
            with pytest.raises(KafkaUnavailableError, match="did not acknowledge"):
                await writer.flush()
            await writer.write(*RAW, b"k", b"later")
            partition.refuses = []
            await writer.flush()
        assert (await committed(SERVERS, *RAW))[-1:] == [b"later"]

    history(main)
