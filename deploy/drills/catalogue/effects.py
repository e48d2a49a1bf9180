"""C1 to C3: effects outside of Kafka, and Redis, which has the claims on them."""

import asyncio
import secrets
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from deploy.drills.drill import Anomaly, drill
from deploy.drills.faults.fault import Fault, NoEvidenceError
from deploy.drills.faults.processes import TakeAway
from deploy.drills.faults.redis import ComeBackEmpty, FailOver, Flush, ReplicatedRedis, wait_synced
from deploy.drills.outbox import BRIEF, OutboxSite, judge_effects
from deploy.drills.relay import Relay
from deploy.drills.service import Service
from deploy.drills.sinks.mail_faults import Action, MailFaults
from deploy.drills.sinks.mail_faults import Stage as MailStage
from deploy.drills.sinks.processes import MailboxProcess, ReceiverProcess
from deploy.drills.sinks.receiver import Faults, Mode, What
from deploy.drills.stage import Stage
from deploy.drills.waiting import until
from services.outbox.sinks.channels import SMTP_CONNECTIONS_MAX
from shared.eos import crash
from shared.events.effects import EffectRequest, EffectState

EFFECTS: Final = 60
CALLS_BEFORE_THE_KILL: Final = 15
MAILTO: Final = "mailto:alice@example.org"
_SLOW: Final = Faults(Mode.SLOW, delay_s=0.02)
SENT: Final = EffectState.SENT.value
IN_DOUBT: Final = EffectState.IN_DOUBT.value
_OUTBOX: Final = "services/outbox/README.md"


@asynccontextmanager
async def _site(stage: Stage) -> AsyncIterator[OutboxSite]:
    """Start a webhook receiver and a mail server; instances of the outbox are stopped at the end."""
    key_file = stage.directory / "webhook.key"
    key_file.write_text(secrets.token_hex(32))
    receiver = ReceiverProcess(stage.directory / "receiver", key_file)
    mailbox = MailboxProcess(stage.directory / "mailbox")
    site = OutboxSite(stage.bootstrap_servers, stage.directory, stage.target.stack.redis, receiver, mailbox)
    try:
        await asyncio.gather(asyncio.to_thread(receiver.start), asyncio.to_thread(mailbox.start))
        yield site
    finally:
        await asyncio.to_thread(site.stop)
        receiver.kill()
        mailbox.kill()


async def _outbox(site: OutboxSite, instance: str = "0", **settings: str) -> Service:
    """Start an instance of the outbox, and wait until it is ready."""
    service = site.outbox(instance, **settings).start()
    await until(lambda: service.ready, "the outbox is ready", 60.0)
    return service


async def _seen(
    stage: Stage, site: OutboxSite, requests: Sequence[EffectRequest], protected: str, within_s: float = 40.0
) -> Counter[str]:
    """Wait for the results of requests, and hold them against the sinks' own journals.

    Args:
        protected: names the case in what is noted.

    Returns:
        Number of results by state.
    """
    results = await site.settled(requests, within_s)
    effects = site.webhook_effects() + site.mail_effects()
    judged = judge_effects(requests, results, effects)
    stage.journal.records += len(requests)
    stage.expect(f"{protected}: effects missing", len(judged.missing), 0)
    stage.expect(f"{protected}: effects made although reported as failed", len(judged.denied), 0)
    stage.expect(f"{protected}: effects repeated without a report", len(judged.repeated), 0)
    return judged.states


def _twice(requests: Sequence[EffectRequest], effects: Counter[str]) -> list[str]:
    """Return the effects of these requests that a sink made more than once."""
    return [
        f"effect {one.effect_id}: made {effects[one.effect_id]} times" for one in requests if effects[one.effect_id] > 1
    ]


async def _crash_between_call_and_mark(
    stage: Stage, site: OutboxSite, destination: str, **settings: str
) -> list[EffectRequest]:
    """Kill the outbox right after one of its calls was answered, and start a successor.

    Returns:
        The requests, whose results are due.
    """
    await asyncio.to_thread(site.stop)  # the successor of an earlier crash
    point = f"{crash.AFTER_CALL}=kill:{CALLS_BEFORE_THE_KILL}"
    doomed = await _outbox(site, CRASH_POINT=point, **BRIEF, **settings)
    requests = await site.request(EFFECTS, destination)
    await until(lambda: not doomed.process.running, "the outbox is killed", 30.0)
    if doomed.process.returncode != -signal.SIGKILL:
        raise NoEvidenceError(f"the outbox ended with {doomed.process.returncode}, not by SIGKILL")
    effects = site.webhook_effects() + site.mail_effects()
    made = sum(effects[one.effect_id] > 0 for one in requests)
    known = {one.effect_id for one in requests} & (await site.results()).keys()
    if made <= len(known):
        raise NoEvidenceError(
            f"{made} effects were made, and {len(known)} of them have a result: no call was under way"
        )
    stage.step(
        f"the outbox died after call {CALLS_BEFORE_THE_KILL}: {made} effects made, {len(known)} results committed"
    )
    stage.evidence("SIGKILL between call and mark", f"{made - len(known)} effects made without a committed result")
    await _outbox(site, **BRIEF, **settings)
    return requests


@drill(
    "C1",
    "crash-between-call-and-mark",
    "A crash between a call and its mark repeats no effect: a key absorbs the second call, or the effect is in doubt",
    control=[Anomaly.DUPLICATE],
    tags=["effects", "crash"],
    within_s=120,
    reading=[_OUTBOX, "docs/adr/0008-effects.md"],
)
async def crash_between_call_and_mark(stage: Stage) -> None:
    """Kill the outbox after a destination has done its work and before the outbox has noted it. Its successor calls the
    webhook again under the same key, and the receiver recognises it. A mail server knows no keys, so the successor
    sends no mail again, and reports the effect as in doubt. The control is set to resend what is in doubt.
    """
    async with _site(stage) as site:
        stage.step("a webhook, which takes an idempotency key")
        requests = await _crash_between_call_and_mark(stage, site, site.receiver.url)
        states = await _seen(stage, site, requests, "webhook")
        repeats = site.receiver.counts().by_what.get(What.REPEATED, 0)
        stage.expect("webhook: results", dict(states), {SENT: EFFECTS})
        stage.expect_that("webhook: calls repeated under the same key", repeats, "at least 1", holds=repeats >= 1)
        stage.expect("webhook: effects made twice", _twice(requests, site.webhook_effects()), [])

        stage.step("a mail server, which knows no keys")
        requests = await _crash_between_call_and_mark(stage, site, MAILTO)
        states = await _seen(stage, site, requests, "mail")
        doubts = states[IN_DOUBT]
        stage.expect("mail: sent or in doubt", states[SENT] + doubts, EFFECTS)
        bound = f"1 to {SMTP_CONNECTIONS_MAX}, one for each connection"
        stage.expect_that("mail: in doubt", doubts, bound, holds=1 <= doubts <= SMTP_CONNECTIONS_MAX)
        stage.expect("mail: effects made twice", _twice(requests, site.mail_effects()), [])

        stage.step("control: the same, with ONCE_OUTBOX_IN_DOUBT=receipt=resend")
        requests = await _crash_between_call_and_mark(stage, site, MAILTO, OUTBOX_IN_DOUBT="receipt=resend")
        states = await _seen(stage, site, requests, "resent")
        stage.expect("resent: results", dict(states), {SENT: EFFECTS})
        stage.anomaly(Anomaly.DUPLICATE, _twice(requests, site.mail_effects()))


@drill(
    "C2",
    "lost-answer-of-a-sink",
    "An effect whose answer is lost is made once: a key absorbs the second call, or the effect is in doubt",
    tags=["effects", "requests"],
    reading=[_OUTBOX],
)
async def lost_answer_of_a_sink(stage: Stage) -> None:
    """The destinations do their work and drop the connection before they answer. The outbox calls the webhook again
    under the same key. It does not send a mail again, and reports it as in doubt.
    """
    lost_calls, lost_mails = 10, 2
    async with _site(stage) as site:
        await _outbox(site)
        site.receiver.fail(Faults(Mode.LOST_ANSWER, times=lost_calls))
        site.mailbox.fail(MailFaults(MailStage.ACCEPTED, Action.DROP, times=lost_mails))
        stage.step(f"fault: the next {lost_calls} calls and {lost_mails} mails are taken and not answered")
        calls = await site.request(EFFECTS, site.receiver.url)
        mails = await site.request(EFFECTS, MAILTO)
        called, mailed = await _seen(stage, site, calls, "webhook"), await _seen(stage, site, mails, "mail")
        repeats = site.receiver.counts().by_what.get(What.REPEATED, 0)
        if repeats < lost_calls:
            raise NoEvidenceError(f"{repeats} calls were repeated, fewer than the {lost_calls} lost answers")
        stage.evidence("answers lost", f"{repeats} calls repeated after {lost_calls} lost answers")
        stage.expect("webhook: results", dict(called), {SENT: EFFECTS})
        stage.expect("webhook: effects made twice", _twice(calls, site.webhook_effects()), [])
        expected = {SENT: EFFECTS - lost_mails, IN_DOUBT: lost_mails}
        stage.expect("mail: results", dict(mailed), expected)
        made = site.mail_effects()
        stage.expect("mail: effects made", sum(made[one.effect_id] for one in mails), EFFECTS)
        stage.anomaly(Anomaly.DUPLICATE, [*_twice(calls, site.webhook_effects()), *_twice(mails, made)])


@drill(
    "C3",
    "redis-lost-while-calls-are-under-way",
    "A lost Redis stops all calls until it is rebuilt from effects.results; no effect is made twice",
    tags=["effects", "redis"],
    within_s=120,
    quick=True,
    reading=[_OUTBOX, "docs/redis-access.md"],
)
async def redis_lost(stage: Stage) -> None:
    """Take Redis away: the outbox is not ready and makes no call. Then flush it, kill it, restart it empty, and fail it
    over to a replica that missed the last claims, each while calls are under way. Each time the outbox stops, rebuilds
    Redis from effects.results and goes on; the receiver's own journal has every effect once.
    """
    redis = stage.target.stack.redis
    replica = ReplicatedRedis(stage.directory / "replica", redis)
    stage.resources.callback(replica.kill)
    replica.start()
    await asyncio.to_thread(replica.wait_ready)
    async with _site(stage) as site, Relay(redis.port) as relay:
        url = f"redis://127.0.0.1:{relay.port}/0"
        outbox = await _outbox(site, REDIS_URL=url, OUTBOX_CALLS_MAX="8")
        site.receiver.fail(_SLOW)
        await _no_calls_without_redis(stage, site, outbox)
        for fault in (Flush(), ComeBackEmpty(keep=True), ComeBackEmpty()):
            await _lose_redis(stage, site, outbox, fault)
        await asyncio.to_thread(wait_synced, redis, replica)
        over = FailOver(relay, replica)
        over.lag()
        await _lose_redis(stage, site, outbox, over)


async def _no_calls_without_redis(stage: Stage, site: OutboxSite, outbox: Service) -> None:
    first = await site.request(EFFECTS, site.receiver.url)
    await site.settled(first)
    async with stage.fault(TakeAway("redis")):
        await until(lambda: not outbox.ready, "the outbox is not ready")
        called = site.receiver.counts().calls
        requests = await site.request(EFFECTS, site.receiver.url)
        await until(lambda: "Redis" in " ".join(outbox.not_ready_reasons().values()), "the reason is reported")
        stage.expect("calls without Redis", site.receiver.counts().calls - called, 0)
    states = await _seen(stage, site, requests, "Redis away")
    stage.expect("Redis away: results after it is back", dict(states), {SENT: EFFECTS})


async def _lose_redis(stage: Stage, site: OutboxSite, outbox: Service, fault: Fault) -> None:
    """Lose Redis after a fifth of the calls, and wait until every effect has its result."""
    calls = 4 * EFFECTS
    before, distrusted = site.receiver.counts().distinct, outbox.metric("once_redis_distrusted_total")
    requests = [*await site.request(calls, site.receiver.url), *await site.request(EFFECTS // 3, MAILTO)]
    await until(lambda: site.receiver.counts().distinct >= before + calls / 5, "calls are under way")
    async with stage.fault(fault):
        made = site.receiver.counts().distinct - before
        stage.expect_that(f"{fault.name}: calls left", calls - made, "at least 1", holds=made < calls)
        states = await _seen(stage, site, requests, fault.name)
    noticed = outbox.metric("once_redis_distrusted_total") - distrusted
    stage.expect_that(f"{fault.name}: times that Redis was distrusted", noticed, "at least 1", holds=noticed >= 1)
    stage.expect(f"{fault.name}: results", dict(states), {SENT: len(requests)})
    twice = _twice(requests, site.webhook_effects() + site.mail_effects())
    stage.expect(f"{fault.name}: effects made twice", twice, [])
    stage.anomaly(Anomaly.DUPLICATE, twice)
