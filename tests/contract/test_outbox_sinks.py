"""Guarantees of every sink against a real destination: one suite for webhook, e-mail and file."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.outbox.outcomes import Delivered, Refused, Retriable, Unknown
from shared.events.effects import Channel
from tests.sinks.effects import effect
from tests.sinks.rigs import SHORT_S, Rig, Trouble, rig_of


@pytest_asyncio.fixture(params=list(Channel))
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    """Every sink, one at a time."""
    async with rig_of(request.param, tmp_path) as made:
        yield made


@pytest_asyncio.fixture(params=[Channel.WEBHOOK, Channel.EMAIL])
async def answering(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    """Every sink whose answer can be lost."""
    async with rig_of(request.param, tmp_path) as made:
        assert made.answers
        yield made


async def test_an_accepted_effect_is_delivered_once(rig: Rig) -> None:
    request = effect(1, rig.destination)
    assert isinstance(await rig.sink.deliver(request), Delivered)
    assert rig.effects() == [request.effect_id]


async def test_a_refused_effect_is_not_made_and_says_why(rig: Rig) -> None:
    await rig.fail(Trouble.REFUSE)
    outcome = await rig.sink.deliver(effect(1, rig.destination))
    assert isinstance(outcome, Refused)
    assert outcome.detail
    assert rig.effects() == []
    await rig.heal()
    other = effect(2, rig.destination)
    assert isinstance(await rig.sink.deliver(other), Delivered)
    assert rig.effects() == [other.effect_id]


async def test_a_deferred_effect_is_not_made_and_can_be_retried(rig: Rig) -> None:
    await rig.fail(Trouble.PUT_OFF)
    request = effect(1, rig.destination)
    outcome = await rig.sink.deliver(request)
    assert isinstance(outcome, Retriable)
    assert outcome.detail
    assert rig.effects() == []
    await rig.heal()
    assert isinstance(await rig.sink.deliver(request), Delivered)
    assert rig.effects() == [request.effect_id]


async def test_a_lost_answer_leaves_a_doubt_that_only_keys_resolve(answering: Rig) -> None:
    await answering.fail(Trouble.LOSE_ANSWER)
    request = effect(1, answering.destination)
    assert isinstance(await answering.sink.deliver(request), Unknown)
    assert answering.effects() == [request.effect_id]
    await answering.heal()
    assert isinstance(await answering.sink.deliver(request), Delivered)
    assert answering.effects() == [request.effect_id] * (1 if answering.sink.takes_keys else 2)


@pytest.mark.parametrize("channel", [Channel.WEBHOOK, Channel.EMAIL])
async def test_a_late_answer_leaves_a_doubt_and_the_call_is_bounded(channel: Channel, tmp_path: Path) -> None:
    async with rig_of(channel, tmp_path, SHORT_S) as rig:
        await rig.fail(Trouble.ANSWER_LATE)
        started_s = time.monotonic()
        assert isinstance(await rig.sink.deliver(effect(1, rig.destination)), Unknown)
        assert time.monotonic() - started_s < 2 * SHORT_S


async def test_a_second_call_makes_a_second_effect_only_without_keys(rig: Rig) -> None:
    request = effect(1, rig.destination)
    for _ in range(2):
        assert isinstance(await rig.sink.deliver(request), Delivered)
    assert rig.effects() == [request.effect_id] * (1 if rig.sink.takes_keys else 2)


async def test_concurrent_calls_are_all_made(rig: Rig) -> None:
    requests = [effect(number, rig.destination) for number in range(60)]
    outcomes = await asyncio.gather(*(rig.sink.deliver(request) for request in requests))
    assert {type(outcome) for outcome in outcomes} == {Delivered}
    assert sorted(rig.effects()) == [request.effect_id for request in requests]


@pytest.mark.parametrize("channel", [Channel.WEBHOOK, Channel.FILE])
async def test_two_instances_with_keys_make_one_effect(channel: Channel, tmp_path: Path) -> None:
    async with rig_of(channel, tmp_path) as rig, rig.second() as second:
        assert rig.sink.takes_keys
        requests = [effect(number, rig.destination) for number in range(40)]
        calls = [sink.deliver(request) for request in requests for sink in (rig.sink, second)]
        assert {type(outcome) for outcome in await asyncio.gather(*calls)} == {Delivered}
        assert sorted(rig.effects()) == [request.effect_id for request in requests]


async def test_an_unreachable_destination_can_be_retried(rig: Rig) -> None:
    await rig.vanish()
    outcome = await rig.sink.deliver(effect(1, rig.destination))
    assert isinstance(outcome, Retriable)
    assert outcome.detail
    assert outcome.retry_after_s is None
