"""Claims in a real Redis: one owner at a time, leases, fencing, marks, operators' decisions, expiry."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from deploy.local.redis.server import LocalRedis
from services.outbox.claims import KEYS_PER_CALL_MAX, Claims, DistrustedError
from services.outbox.marks import Claim, Mark, Mode, Status, Wanted
from services.outbox.scripts import UNDER_WAY
from shared.eos.errors import FencedError
from shared.events.effects import EffectState
from tests.redis import (
    BUCKETS,
    LEASE_MS,
    PRODUCER_ID,
    RETENTION_MS,
    TRUST_KEY,
    bucket_key,
    claim_key,
    claim_one,
    client_at,
    effect_id,
    entered,
    entry_of,
    in_doubt,
    keys_without_expiry,
    mark_one,
    now_ms,
    owner,
    running_redis,
    sent,
)

HALF_HOUR_MS = 1_800_000
MODES = pytest.mark.parametrize("mode", list(Mode))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRedis]:
    """One Redis for this module; each test starts with it empty."""
    with running_redis(Path(tmp_path_factory.mktemp("redis"))) as redis:
        yield redis


@pytest_asyncio.fixture
async def client(server: LocalRedis) -> AsyncIterator[Redis]:
    """A client of an empty Redis."""
    redis = client_at(server.url)
    await redis.flushall()
    yield redis
    await redis.aclose()


@pytest_asyncio.fixture
async def first(client: Redis) -> Claims:
    """The owner at epoch 1, entered."""
    return await entered(owner(client, 1))


@MODES
async def test_one_of_two_racing_owners_gets_the_effect(client: Redis, mode: Mode) -> None:
    # Both use the same token, so that only the claim itself separates them
    rivals = [await entered(owner(client, 1)) for _ in range(2)]
    wanted = [[Wanted(effect_id(number), mode) for number in range(50)] for _ in rivals]
    answers = await asyncio.gather(*(rival.claim(items) for rival, items in zip(rivals, wanted, strict=True)))
    assert sorted({claim.status.value for answer in answers for claim in answer}) == ["new", "retaken"]
    assert all({one.status, other.status} == {Status.NEW, Status.RETAKEN} for one, other in zip(*answers, strict=True))


async def test_a_successor_does_not_get_a_leased_effect(first: Claims, client: Redis) -> None:
    assert await claim_one(first, 1) == Claim(Status.NEW)
    successor = await entered(owner(client, 2))
    held = await claim_one(successor, 1)
    assert held.status is Status.HELD
    assert LEASE_MS - 5_000 < held.lease_left_ms <= LEASE_MS
    assert await claim_one(successor, 1, Mode.KEYED) == Claim(Status.RETAKEN)
    assert await claim_one(successor, 1) == Claim(Status.RETAKEN), "its own claim is held"


async def test_a_successor_gets_a_claim_whose_call_was_not_begun_at_once(first: Claims, client: Redis) -> None:
    assert await claim_one(first, 1, begin=False) == Claim(Status.NEW)
    successor = await entered(owner(client, 2))
    assert await claim_one(successor, 1, begin=False) == Claim(Status.NEW)
    # Its owner resumes and must not call
    with pytest.raises(FencedError):
        await first.begin(effect_id(1))
    await successor.begin(effect_id(1))


@MODES
async def test_a_claim_that_was_recorded_as_void_does_not_count(client: Redis, mode: Mode) -> None:
    first = await entered(owner(client, 1))
    await claim_one(first, 1)
    await claim_one(first, 2)
    second = await entered(owner(client, 2))
    noted = Wanted(effect_id(1), mode, void=first.holder)
    another = Wanted(effect_id(2), mode, void=second.holder)
    claims = await second.claim([noted, another])
    assert claims[0] == Claim(Status.NEW)
    # The note does not cover a claim of another holder
    assert claims[1].status is (Status.HELD if mode is Mode.KEYLESS else Status.RETAKEN)
    # The note covers one holder's claim only: the second holder's begun call counts
    await second.begin(effect_id(1))
    third = await entered(owner(client, 3, lease_ms=0))
    again = await third.claim([noted])
    assert again[0].status is (Status.HELD if mode is Mode.KEYLESS else Status.RETAKEN)


async def test_a_resend_under_a_void_claim_is_counted_once(client: Redis) -> None:
    first = await entered(owner(client, 1))
    await claim_one(first, 1, resends=1, new=True)
    second = await entered(owner(client, 2, lease_ms=0))
    await second.claim([Wanted(effect_id(1), Mode.KEYLESS, resends=1, resend_if_new=True, void=first.holder)])
    await second.begin(effect_id(1))
    third = await entered(owner(client, 3))
    assert await claim_one(third, 1) == Claim(Status.RETAKEN, resends=2)


async def test_a_call_is_begun_under_its_own_claim_only(first: Claims) -> None:
    with pytest.raises(DistrustedError, match="gone"):
        await first.begin(effect_id(1))
    await claim_one(first, 1)
    await mark_one(first, 1, sent())
    with pytest.raises(DistrustedError, match="gone"):
        await first.begin(effect_id(1))


async def test_a_retaken_or_reopened_claim_counts_as_begun(client: Redis) -> None:
    first = await entered(owner(client, 1, lease_ms=0))
    await claim_one(first, 1)
    await claim_one(first, 2)
    await mark_one(first, 2, in_doubt(1))
    second = await entered(owner(client, 2, lease_ms=0))
    await claim_one(second, 1, begin=False)
    await claim_one(second, 2, reopen_revision=1, begin=False)
    third = await entered(owner(client, 3))
    assert await claim_one(third, 1) == Claim(Status.RETAKEN)
    assert await claim_one(third, 2) == Claim(Status.RETAKEN)


async def test_a_begun_call_keeps_its_expiry(first: Claims, client: Redis) -> None:
    await claim_one(first, 1)
    assert 0 < await client.pttl(claim_key(1)) <= RETENTION_MS


async def test_an_expired_lease_leaves_a_doubt(client: Redis) -> None:
    first = await entered(owner(client, 1, lease_ms=0))
    assert await claim_one(first, 1) == Claim(Status.NEW)
    successor = await entered(owner(client, 2))
    assert await claim_one(successor, 1) == Claim(Status.RETAKEN)


async def test_a_claim_counts_the_resends_that_its_owners_may_have_made(client: Redis) -> None:
    first = await entered(owner(client, 1, lease_ms=0))
    assert await claim_one(first, 1, again=True) == Claim(Status.NEW)
    assert await claim_one(first, 2, resends=4, new=True) == Claim(Status.NEW)
    second = await entered(owner(client, 2, lease_ms=0))
    assert await claim_one(second, 1, again=True) == Claim(Status.RETAKEN)
    assert await claim_one(second, 2) == Claim(Status.RETAKEN, resends=5)
    third = await entered(owner(client, 3))
    # It was retaken for a resend once, and that was not committed
    assert await claim_one(third, 1, again=True) == Claim(Status.RETAKEN, resends=1)
    # The count in Kafka applies if it is higher
    assert await claim_one(third, 2, resends=7) == Claim(Status.RETAKEN, resends=7)


async def test_an_owner_that_retakes_its_own_claim_counts_the_resends_that_it_names(
    first: Claims, client: Redis
) -> None:
    assert await claim_one(first, 1, again=True) == Claim(Status.NEW)
    for _ in range(3):  # a call that was certainly refused is counted back
        assert await claim_one(first, 1, again=True) == Claim(Status.RETAKEN)
    assert await claim_one(first, 1, resends=2, again=True) == Claim(Status.RETAKEN, resends=2)
    successor = await entered(owner(client, 2, lease_ms=0))
    assert (await claim_one(successor, 1, Mode.KEYED)) == Claim(Status.RETAKEN, resends=3)


async def test_a_reopened_claim_counts_on_from_its_mark(client: Redis) -> None:
    first = await entered(owner(client, 1, lease_ms=0))
    await claim_one(first, 1)
    mark = in_doubt(1)._replace(resends=2)
    await mark_one(first, 1, mark)
    assert await claim_one(first, 1, reopen_revision=1, again=True) == Claim(Status.REOPENED, mark=mark)
    successor = await entered(owner(client, 2))
    assert await claim_one(successor, 1, reopen_revision=1, again=True) == Claim(Status.RETAKEN, resends=3)


async def test_a_held_claim_can_be_taken_when_its_reported_lease_ends(client: Redis) -> None:
    first = await entered(owner(client, 1, lease_ms=2_000))
    await claim_one(first, 1)
    successor = await entered(owner(client, 2))
    asked_s = time.monotonic()
    answers = [await claim_one(successor, 1)]
    while answers[-1].status is Status.HELD and time.monotonic() < asked_s + 5:
        answers.append(await claim_one(successor, 1))
    waited_ms = (time.monotonic() - asked_s) * 1000
    assert answers[-1] == Claim(Status.RETAKEN)
    assert 0 < answers[0].lease_left_ms <= waited_ms + 1
    assert [claim.lease_left_ms for claim in answers] == sorted(
        (claim.lease_left_ms for claim in answers), reverse=True
    )


@MODES
async def test_a_mark_is_known_to_all_owners(first: Claims, client: Redis, mode: Mode) -> None:
    mark = Mark(EffectState.FAILED, sent().at_ms, 400, 2, 1, "refused")
    await claim_one(first, 1, mode)
    await mark_one(first, 1, mark)
    assert await claim_one(first, 1, mode) == Claim(Status.KNOWN, mark=mark)
    successor = await entered(owner(client, 2))
    assert await claim_one(successor, 1, mode) == Claim(Status.KNOWN, mark=mark)


async def test_a_released_effect_is_as_if_never_claimed(first: Claims, client: Redis) -> None:
    await claim_one(first, 1)
    await mark_one(first, 1, None)
    assert await entry_of(client, 1) is None
    assert await claim_one(first, 1) == Claim(Status.NEW)


async def test_marking_twice_is_refused_and_writes_nothing(first: Claims, client: Redis) -> None:
    for number in (1, 2):
        await claim_one(first, number)
    await mark_one(first, 1, sent())
    before = await entry_of(client, 2)
    with pytest.raises(DistrustedError, match="a claim is gone"):
        await first.mark([(effect_id(2), sent()), (effect_id(1), in_doubt())])
    assert await entry_of(client, 2) == before
    with pytest.raises(DistrustedError, match="a claim is gone"):
        await mark_one(first, 3, None)


async def test_an_effect_wanted_twice_in_one_call_is_a_mistake(first: Claims) -> None:
    with pytest.raises(ValueError, match="only once"):
        await first.claim([Wanted(effect_id(1), Mode.KEYED), Wanted(effect_id(1), Mode.KEYLESS)])


async def test_calls_at_once_open_no_more_connections_than_scripts_may_be_under_way(
    first: Claims, client: Redis
) -> None:
    claimed = await asyncio.gather(*(claim_one(first, number) for number in range(40)))
    assert {claim.status for claim in claimed} == {Status.NEW}
    assert len(await client.client_list()) <= UNDER_WAY


async def test_a_previous_owner_is_fenced_in_every_call(first: Claims, client: Redis) -> None:
    await claim_one(first, 1)
    await entered(owner(client, 2))
    before = await entry_of(client, 1)
    refused: list[Callable[[], Awaitable[object]]] = [
        first.check,
        first.enter,
        lambda: first.rebuild([(effect_id(1), sent())]),
        lambda: claim_one(first, 2),
        lambda: mark_one(first, 1, sent()),
        lambda: mark_one(first, 1, None),
    ]
    for ask in refused:
        with pytest.raises(FencedError, match=rf"after {PRODUCER_ID}\.1"):
            await ask()
    assert await entry_of(client, 1) == before
    assert await entry_of(client, 2) is None
    assert await client.hget(TRUST_KEY, "token") == b"%d.2" % PRODUCER_ID


async def test_epochs_are_compared_as_numbers(client: Redis) -> None:
    await entered(owner(client, 10))
    with pytest.raises(FencedError):
        await owner(client, 9).enter()
    assert await owner(client, 11).enter() is not None


async def test_another_producer_id_enters_although_it_is_lower(client: Redis) -> None:
    # A transactional.id that expired gets a new producer_id from a block of its current coordinator
    before = await entered(owner(client, 5))
    await claim_one(before, 1)
    after = await entered(owner(client, 0, producer_id=PRODUCER_ID - 1))
    assert (await claim_one(after, 1)).status is Status.HELD
    with pytest.raises(FencedError):
        await mark_one(before, 1, sent())


@pytest.mark.parametrize(("state", "reason"), [(EffectState.IN_DOUBT, ""), (EffectState.FAILED, "refused")])
async def test_a_decision_reopens_only_the_revision_that_it_names(
    first: Claims, client: Redis, state: EffectState, reason: str
) -> None:
    mark = Mark(state, now_ms(), 9, 3, 0, reason)
    await claim_one(first, 1)
    await mark_one(first, 1, mark)
    for revision in (0, 2, 4):
        assert await claim_one(first, 1, reopen_revision=revision) == Claim(Status.KNOWN, mark=mark)
    assert await claim_one(first, 1, reopen_revision=3) == Claim(Status.REOPENED, mark=mark)
    successor = await entered(owner(client, 2))
    assert (await claim_one(successor, 1, reopen_revision=3)).status is Status.HELD


async def test_no_effect_is_reopened_without_a_decision(first: Claims) -> None:
    mark = in_doubt(0)
    await claim_one(first, 1)
    await mark_one(first, 1, mark)
    assert await claim_one(first, 1) == Claim(Status.KNOWN, mark=mark)


async def test_a_sent_effect_is_not_reopened(first: Claims) -> None:
    mark = sent(2)
    await claim_one(first, 1)
    await mark_one(first, 1, mark)
    assert await claim_one(first, 1, reopen_revision=2) == Claim(Status.KNOWN, mark=mark)


async def test_many_effects_are_answered_in_their_order(first: Claims) -> None:
    numbers = range(2 * KEYS_PER_CALL_MAX + 1)
    known = set(numbers[::3])
    wanted = [Wanted(effect_id(number), Mode.KEYED) for number in numbers]
    await first.claim([item for number, item in enumerate(wanted) if number in known])
    await first.mark([(effect_id(number), sent()) for number in known])
    answers = await first.claim(wanted)
    assert [claim.status is Status.KNOWN for claim in answers] == [number in known for number in numbers]
    assert await first.claim([]) == []


async def test_all_but_the_trust_expires(first: Claims, client: Redis) -> None:
    await first.rebuild([(effect_id(1), sent())])
    for number in (2, 3, 4):
        await claim_one(first, number)
    await mark_one(first, 3, sent())
    await mark_one(first, 4, in_doubt())
    await claim_one(first, 4, reopen_revision=1)
    for key in (bucket_key(1), claim_key(2), bucket_key(3), claim_key(4)):
        assert RETENTION_MS - 60_000 < await client.pttl(key) <= RETENTION_MS
    assert await keys_without_expiry(client) == [TRUST_KEY]


async def test_scripts_that_redis_forgot_are_loaded_again(first: Claims, client: Redis) -> None:
    await claim_one(first, 1)
    await client.script_flush()
    await mark_one(first, 1, sent())
    await client.script_flush()
    assert (await claim_one(first, 1)).status is Status.KNOWN


async def test_a_claim_names_its_holder(first: Claims, client: Redis) -> None:
    await claim_one(first, 1)
    value = await entry_of(client, 1)
    assert isinstance(value, bytes)
    assert re.fullmatch(rb"b\|%d\.1\|\d{13}\|0\|0\|outbox-1" % PRODUCER_ID, value)


async def test_a_bucket_lives_as_long_as_its_last_entry(first: Claims, client: Redis) -> None:
    old = sent()._replace(at_ms=now_ms() - HALF_HOUR_MS)
    for number, mark in ((1, old), (1 + BUCKETS, sent()), (1 + 2 * BUCKETS, old)):  # in one bucket
        await claim_one(first, number)
        await mark_one(first, number, mark)
    assert RETENTION_MS - 60_000 < await client.pttl(bucket_key(1)) <= RETENTION_MS
    assert await client.hlen(bucket_key(1)) == 3


async def test_expired_marks_leave_a_bucket_that_lives_on(first: Claims, client: Redis) -> None:
    expired, kept = range(1, 15), range(15, 17)
    await claim_all(first, [number * BUCKETS for number in range(1, 17)])
    past = sent()._replace(at_ms=now_ms() - RETENTION_MS)
    marks = [(number * BUCKETS, past) for number in expired] + [(number * BUCKETS, sent()) for number in kept]
    await mark_one(first, *marks[-1])  # the bucket itself has not expired
    for number, mark in marks[:-2]:
        await mark_one(first, number, mark)
    assert await client.hlen(bucket_key(0)) == 15, "nothing was to expire yet, so this shows nothing"
    await mark_one(first, *marks[-2])
    assert await client.hlen(bucket_key(0)) == 2
    assert [await entry_of(client, number) is None for number, _ in marks] == [True] * 14 + [False] * 2


async def claim_all(claims: Claims, numbers: list[int]) -> None:
    for number in numbers:
        await claim_one(claims, number)


async def test_a_claim_that_is_reopened_keeps_the_other_marks_of_its_bucket(first: Claims, client: Redis) -> None:
    for number in (1, 1 + BUCKETS):
        await claim_one(first, number)
        await mark_one(first, number, in_doubt(1))
    await claim_one(first, 1, reopen_revision=1)
    assert isinstance(await entry_of(client, 1), bytes)
    assert (await claim_one(first, 1 + BUCKETS)).status is Status.KNOWN


async def test_installations_on_one_redis_do_not_meet(client: Redis) -> None:
    ours = await entered(owner(client, 1))
    theirs = await entered(owner(client, 9, installation="another"))
    await claim_one(ours, 1)
    await mark_one(ours, 1, sent())
    await claim_one(ours, 2)
    assert await claim_one(theirs, 1) == Claim(Status.NEW)
    assert await claim_one(theirs, 2) == Claim(Status.NEW)
    await ours.check()
    await theirs.rebuild([(effect_id(3), sent())])
    assert await claim_one(ours, 3) == Claim(Status.NEW)
