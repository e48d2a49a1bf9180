"""A round's requests to Redis, and the keys it leaves when Redis stops answering."""

from pathlib import Path

import pytest

from services.outbox.claims import Claims, ClaimSession
from services.outbox.domain import Call, Done, Job, Later, Policy, after_call, after_claim, not_called, resume, wanted
from services.outbox.marks import Status
from services.outbox.outcomes import Delivered
from shared.events.effects import EffectState, decode_waiting, encode_waiting
from tests.redis import client_at, entered, owner, running_redis
from tests.sinks.effects import effect

pytestmark = pytest.mark.timeout(60)

SHORT_S = 0.3
NOW_MS = 1_700_000_000_000
POLICY = Policy(1000, 60_000, 600_000, frozenset())


def mail(number: int) -> Job:
    request = effect(number, "mailto:alice@example.org")
    return Job(request, b"effects.requests:3:1", b"payments.raw:3:1", number, takes_keys=False, first_ms=NOW_MS)


async def calls_of(claims: Claims, jobs: list[Job]) -> list[Call]:
    """Claim all jobs, each of which may be called."""
    answers = await claims.claim([wanted(job, POLICY) for job in jobs])
    decisions = [after_claim(job, claim, POLICY, NOW_MS) for job, claim in zip(jobs, answers, strict=True)]
    calls = [decision for decision in decisions if isinstance(decision, Call)]
    assert len(calls) == len(jobs), decisions
    return calls


async def test_a_begun_call_that_was_not_made_before_redis_fell_silent_is_not_in_doubt(tmp_path: Path) -> None:
    jobs = [mail(number) for number in range(3)]
    with running_redis(tmp_path) as server:
        client = client_at(server.url)
        first = await entered(owner(client, 1))
        calls = await calls_of(first, jobs)
        session = ClaimSession(first)
        assert await session.begin(jobs[0].effect_id) is None
        assert await session.begin(jobs[1].effect_id) is None
        first._timeout_s = SHORT_S
        server.pause()
        # Redis executes it late, after it resumes
        refusal = await session.begin(jobs[2].effect_id)
        assert refusal is not None
        assert session.distrusted is not None
        sent = after_call(calls[0].job, Delivered(), POLICY, NOW_MS, 0.0)
        unsent = [
            not_called(job, call, Status.NEW, NOW_MS, refusal) for job, call in zip(jobs[1:], calls[1:], strict=True)
        ]
        stored = await session.mark([sent, *unsent])
        server.resume()

        assert stored[0] == sent
        assert isinstance(sent, Done)
        assert sent.result.state == EffectState.SENT
        waiting = [decision.waiting() for decision in stored[1:] if isinstance(decision, Later)]
        assert len(waiting) == 2
        successor = await entered(owner(client, 2))
        again = [resume(decode_waiting(encode_waiting(item)), takes_keys=False) for item in waiting]
        for call in await calls_of(successor, again):
            assert not call.resend
            assert call.job.attempts == 1
        await client.aclose()


async def test_a_decision_that_redis_accepted_is_stored_unchanged(tmp_path: Path) -> None:
    jobs = [mail(1)]
    with running_redis(tmp_path) as server:
        client = client_at(server.url)
        first = await entered(owner(client, 1))
        [call] = await calls_of(first, jobs)
        session = ClaimSession(first)
        await session.begin(jobs[0].effect_id)
        later = not_called(jobs[0], call, Status.NEW, NOW_MS, "stopping")
        assert await session.mark([later]) == [later]
        await client.aclose()
