"""Failing sinks: retries, final failures, doubts and operators' decisions; and settings that the outbox refuses."""

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from click.testing import Result

from deploy.drills.outbox import BRIEF, requests_to
from deploy.drills.sinks.mailbox import Action, MailFaults, Stage
from deploy.drills.sinks.receiver import Delivery, Faults, Mode
from deploy.local.ports import free_ports
from shared.events.effects import EffectFailure, EffectRequest, EffectResult, EffectState
from shared.events.headers import DETAIL, REASON, header
from shared.settings import EXIT_CONFIG
from tests.commands import once
from tests.harness import Service, eventually, wait_until
from tests.outbox import World, assert_i11, world
from tests.tiers import full, mostly_full

pytestmark = [pytest.mark.timeout(240)]  # the first test may have to wait for a whole cluster

MAILTO = "mailto:alice@example.org"
DEADLINE_S = "6"
TOO_LATE_S = 4.0  # after a call's timeout, before the deadline


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("outbox")) as made:
        yield made


@pytest.fixture(scope="module")
def outbox(running: World) -> Service:
    """One instance for all tests: it survives every failure of its sinks."""
    return running.outbox(OUTBOX_RETRY_DEADLINE_S=DEADLINE_S, **BRIEF).start().wait_ready()


@pytest.fixture(autouse=True)
def healthy(running: World) -> Iterator[None]:
    """Heal the sinks after each test."""
    yield
    running.receiver.fail(Faults())
    running.mailbox.fail(MailFaults())


def operate(running: World, *words: str) -> Result:
    """Run a command on the world's brokers."""
    return once(*words, "--bootstrap-servers", running.bootstrap_servers)


def calls_of(running: World, requests: list[EffectRequest]) -> dict[str, list[Delivery]]:
    """Return the receiver's journal by effect."""
    wanted: dict[str, list[Delivery]] = {request.effect_id: [] for request in requests}
    for delivery in running.receiver.deliveries():
        if delivery.key in wanted:
            wanted[delivery.key].append(delivery)
    return wanted


async def revised(running: World, request: EffectRequest, revision: int) -> EffectResult:
    """Wait for a result of at least this revision."""
    identity = request.effect_id

    async def there() -> bool:
        return (await running.results())[identity].revision >= revision

    await eventually(there, f"revision {revision} of {identity}")
    return (await running.results())[identity]


@pytest.mark.parametrize(
    "faults",
    mostly_full(
        [
            FAILING := Faults(Mode.STATUS, status=500, times=10),
            Faults(Mode.STATUS, status=429, retry_after=1, times=1),
            UNANSWERED := Faults(Mode.LOST_ANSWER, times=10),
            Faults(Mode.TIMEOUT, delay_s=TOO_LATE_S, times=3),
            Faults(Mode.SLOW, delay_s=TOO_LATE_S, times=3),
        ],
        [FAILING, UNANSWERED],
    ),
    ids=lambda faults: faults.mode.value + str(faults.status),
)
async def test_a_failed_call_is_retried_with_the_same_key(running: World, outbox: Service, faults: Faults) -> None:
    running.receiver.fail(faults)
    requests = await running.request(20, running.receiver.url)
    states = assert_i11(requests, await running.settled(requests), running.webhook_effects())
    assert states == {EffectState.SENT: 20}
    calls = calls_of(running, requests)
    assert sum(map(len, calls.values())) > 20
    assert all(delivery.signed for deliveries in calls.values() for delivery in deliveries)
    assert all(len({delivery.digest for delivery in deliveries}) == 1 for deliveries in calls.values())
    assert outbox.process.running


async def test_retry_after_is_respected(running: World, outbox: Service) -> None:
    running.receiver.fail(Faults(Mode.STATUS, status=503, retry_after=2, times=1))
    requests = await running.request(1, running.receiver.url)
    await running.settled(requests)
    [first, second] = calls_of(running, requests)[requests[0].effect_id]
    assert second.at_ms - first.at_ms >= 2000


async def test_a_refused_effect_goes_to_the_dead_letters_and_can_be_resent(running: World, outbox: Service) -> None:
    running.receiver.fail(Faults(Mode.STATUS, status=400))
    requests = await running.request(3, running.receiver.url)
    results = await running.settled(requests)
    assert assert_i11(requests, results, running.webhook_effects()) == {EffectState.FAILED: 3}
    of_first = requests[0].effect_id.encode()
    letters = [letter for letter in await running.dead_letters() if of_first in (letter.value or b"")]
    assert [header(letter.headers, REASON) for letter in letters] == [EffectFailure.REFUSED.encode()]
    assert b"400" in (header(letters[0].headers, DETAIL) or b"")

    running.receiver.fail(Faults())
    again, given_up = requests[0], requests[1]
    assert operate(running, "effects", "resolve", again.effect_id, "--resend").exit_code == 0
    assert operate(running, "effects", "resolve", given_up.effect_id, "--abandon").exit_code == 0
    sent = await revised(running, again, 2)
    abandoned = await revised(running, given_up, 2)
    assert (sent.state, sent.resends) == (EffectState.SENT, 0)
    assert (abandoned.state, abandoned.reason) == (EffectState.FAILED, EffectFailure.ABANDONED)
    assert running.webhook_effects()[again.effect_id] == 1
    assert running.webhook_effects()[given_up.effect_id] == 0
    # A second decision would apply to an older revision
    refused = operate(running, "effects", "resolve", again.effect_id, "--resend")
    assert refused.exit_code == 1
    assert "was sent" in refused.stderr


async def test_a_mail_whose_answer_was_lost_is_held_until_an_operator_decides(running: World, outbox: Service) -> None:
    running.mailbox.fail(MailFaults(Stage.ACCEPTED, Action.DROP, times=2))
    requests = await running.request(2, MAILTO, account="doubtful")
    results = await running.settled(requests)
    assert assert_i11(requests, results, running.mail_effects()) == {EffectState.IN_DOUBT: 2}
    listed = json.loads(operate(running, "effects", "list", "--state", "in_doubt", "--json").stdout)
    assert {request.effect_id for request in requests} <= {effect["effect_id"] for effect in listed["effects"]}

    confirmed, resent = requests
    assert operate(running, "effects", "resolve", confirmed.effect_id, "--confirm").exit_code == 0
    assert operate(running, "effects", "resolve", resent.effect_id, "--resend").exit_code == 0
    assert (await revised(running, confirmed, 2)).state == EffectState.SENT
    second = await revised(running, resent, 2)
    assert (second.state, second.resends) == (EffectState.SENT, 1)
    assert running.mail_effects()[confirmed.effect_id] == 1
    assert running.mail_effects()[resent.effect_id] == 2


@pytest.mark.parametrize(
    "faults", [MailFaults(Stage.RCPT, code=451, times=3), MailFaults(Stage.MESSAGE, Action.DROP, times=3)]
)
@full
async def test_a_mail_that_was_not_accepted_is_retried(running: World, outbox: Service, faults: MailFaults) -> None:
    running.mailbox.fail(faults)
    requests = await running.request(8, MAILTO)
    results = await running.settled(requests)
    states = assert_i11(requests, results, running.mail_effects())
    assert states[EffectState.SENT] + states[EffectState.IN_DOUBT] == 8
    # A connection lost after the message looks like a lost answer
    assert states[EffectState.IN_DOUBT] == (0 if faults.do is Action.ANSWER else 3)


async def test_a_dead_destination_delays_no_other_and_its_effects_fail_in_the_end(
    running: World, outbox: Service
) -> None:
    unreachable = f"http://127.0.0.1:{free_ports(1)[0]}/hook"
    hopeless, fine = requests_to(unreachable, 120), requests_to(running.receiver.url, 120)
    await running.write([*hopeless, *fine])
    results, given_up = await running.settled(fine), await running.settled(hopeless)
    assert assert_i11(fine, results, running.webhook_effects()) == {EffectState.SENT: 120}
    assert max(result.at_ms for result in results.values()) < min(result.at_ms for result in given_up.values())
    assert {(r.state, r.reason) for r in given_up.values()} == {("failed", EffectFailure.RETRIES_EXHAUSTED.value)}
    # The breaker limits calls: without it each effect would be called several times. Pauses start at 0.1 s and double,
    # which leaves no time for an eighth call before the deadline
    assert max(result.attempts for result in given_up.values()) < 8
    assert sum(result.attempts for result in given_up.values()) >= 5, "the circuit opens after so many failures"


async def test_order_per_account_is_kept_where_it_is_requested(running: World, outbox: Service) -> None:
    running.receiver.fail(Faults(Mode.STATUS, status=500, times=8))
    requests = await running.request(60, running.receiver.url, ordered=True)
    results = await running.settled(requests)
    assert assert_i11(requests, results, running.webhook_effects()) == {EffectState.SENT: 60}
    place = {request.effect_id: number for number, request in enumerate(requests)}
    account = {request.effect_id: request.account for request in requests}
    seen: dict[str, list[int]] = {}
    for delivery in running.receiver.deliveries():
        if delivery.key in place and delivery.what == "processed":
            seen.setdefault(account[delivery.key], []).append(place[delivery.key])
    assert all(order == sorted(order) for order in seen.values()), seen
    assert sum(map(len, seen.values())) == 60


async def test_a_channel_without_settings_fails_and_says_so(running: World, outbox: Service) -> None:
    requests = await running.request(1, "file:receipts")
    [result] = (await running.settled(requests)).values()
    assert (result.state, result.reason) == (EffectState.FAILED, EffectFailure.REFUSED)
    assert "no settings for file" in result.detail


@full
def test_states_are_counted(outbox: Service) -> None:
    counted: Counter[str] = Counter()
    wait_until(lambda: outbox.metric("once_effects_total") > 0, "effects are counted")
    for name in ("once_effect_calls_total", "once_effect_call_seconds_count", "once_effects_total"):
        counted[name] = int(outbox.metric(name))
    assert counted["once_effect_calls_total"] == counted["once_effect_call_seconds_count"]
    assert counted["once_effects_total"] > 0


@pytest.mark.parametrize(
    ("settings", "named"),
    mostly_full(
        [
            ({"OUTBOX_RETENTION_H": "24"}, "ONCE_OUTBOX_RETENTION_H"),
            LEASE := ({"OUTBOX_LEASE_S": "1"}, "ONCE_OUTBOX_LEASE_S"),
            ({"OUTBOX_IN_DOUBT": "receipt=maybe"}, "ONCE_OUTBOX_IN_DOUBT"),
            ({"WEBHOOK_KEY_FILE": "/nowhere/key"}, "ONCE_WEBHOOK_KEY_FILE"),
            ({"SMTP_STARTTLS": "false", "SMTP_HOST": "mail.example.org"}, "ONCE_SMTP_STARTTLS"),
            ({"REDIS_URL": "nonsense"}, "ONCE_REDIS_URL"),
        ],
        [LEASE],
    ),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsafe_settings_are_refused_by_name(running: World, settings: dict[str, str], named: str) -> None:
    refused = running.outbox("refused", **settings).start()
    assert refused.wait_exit() == EXIT_CONFIG
    assert named in refused.process.log_tail()


def test_a_redis_that_evicts_is_refused(running: World) -> None:
    running.redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        refused = running.outbox("evicting").start()
        assert refused.wait_exit() == EXIT_CONFIG
        assert "noeviction" in refused.process.log_tail()
    finally:
        running.redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
