"""A secure stack: the outbox authenticates to Redis, reports a refusal in one line, and stops calls without rights.

Users are changed as in docs/redis-access.md: by their file and ACL LOAD."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.drills.faults.redis import info
from deploy.drills.prometheus import Prometheus
from deploy.drills.sinks.processes import MailboxProcess, ReceiverProcess
from deploy.drills.sinks.receiver import Faults, Mode
from deploy.local.redis.server import write_users
from deploy.local.supervisor.stack import Stack
from deploy.security.files import replace
from deploy.security.redis_users import EXPORTER, OUTBOX, USERS, acl_file, digest
from shared.events.effects import EffectState
from tests.harness import Service, wait_until
from tests.outbox import World, assert_i11
from tests.partitions import PARTITIONS
from tests.redis_secured import Secured
from tests.tiers import full, mostly_full

pytestmark = [pytest.mark.timeout(420)]  # the first test starts a secure stack

EFFECTS = 200
SLOW_S = 0.02


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Brokers, Redis and monitoring without services: the tests start the outbox."""
    with Stack(
        tmp_path_factory.mktemp("secure"), services=(), brokers=1, heap_mb=256, monitoring=True, secure=True
    ) as made:
        yield made


@pytest.fixture(scope="module")
def running(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("outbox")
    key_file = directory / "webhook.key"
    key_file.write_text("k" * 64)
    with (
        ReceiverProcess(directory / "receiver", key_file) as receiver,
        MailboxProcess(directory / "mailbox") as mailbox,
    ):
        made = World(stack.kafka.bootstrap_servers, directory, stack.redis, receiver, mailbox, stack.access)
        yield made
        made.stop()


@pytest.fixture(scope="module")
def secured(stack: Stack) -> Secured:
    assert stack.kafka.authority is not None
    return Secured(stack.redis, stack.kafka.authority)


@pytest.fixture(scope="module")
def outbox(running: World, secured: Secured) -> Service:
    """One instance for the whole module, which no test may stop."""
    return running.outbox(**secured.settings, OUTBOX_CALLS_MAX="4").start().wait_ready()


def load(secured: Secured, text: str) -> None:
    """Load another ACL file into Redis, as the operator does."""
    write_users(secured.redis.directory, text)
    secured.ask("operator", "ACL", "LOAD")


def with_passwords(secured: Secured, *of_outbox: str) -> str:
    """Return the ACL file with these passwords for the outbox."""
    passwords = {user.name: [secured.redis.password_file(user).read_text()] for user in USERS}
    return acl_file({name: list(map(digest, each)) for name, each in (passwords | {OUTBOX.name: [*of_outbox]}).items()})


@pytest.mark.parametrize(
    ("wrong", "named"),
    mostly_full(
        [
            ({"REDIS_URL": "redis://outbox:secret@127.0.0.1:1/0"}, "ONCE_REDIS_URL has a user or"),
            ({"REDIS_PASSWORD_FILE": "{missing}"}, "ONCE_REDIS_PASSWORD_FILE: {missing} cannot be"),
            ({"REDIS_PASSWORD_FILE": "{public}"}, "every user of this machine can read {public}"),
            REFUSED := ({"REDIS_PASSWORD_FILE": "{wrong}"}, "refuses the outbox: invalid username-password pair"),
            ({"REDIS_USERNAME": EXPORTER.name, "REDIS_PASSWORD_FILE": "{exporter}"}, "evalsha"),
            ({"REDIS_URL": "{plain}"}, "it speaks TLS there"),
        ],
        [REFUSED],
    ),
)
def test_a_refusal_of_redis_ends_the_start_with_78(
    running: World, secured: Secured, tmp_path: Path, wrong: dict[str, str], named: str
) -> None:
    known = {
        "missing": str(tmp_path / "missing"),
        "public": str(tmp_path / "public"),
        "wrong": str(tmp_path / "wrong"),
        "exporter": str(secured.redis.password_file(EXPORTER)),
        "plain": secured.redis.url.replace("rediss", "redis"),
    }
    replace(tmp_path / "wrong", b"secret")
    replace(tmp_path / "public", b"secret")
    (tmp_path / "public").chmod(0o644)
    given = {name: value.format(**known) for name, value in wrong.items()}
    service = running.outbox("refused", **{**secured.settings, **given}).start()
    assert service.wait_exit(60) == 78
    (line,) = [line for line in service.log() if line["event"] == "settings refused"]
    assert named.format(**known) in str(line["reason"])
    assert "\n" not in str(line["reason"])
    assert "secret" not in service.process.log_path.read_text()


def up(stack: Stack) -> float:
    """Return redis_up in Prometheus, or 0 without a sample."""
    assert stack.monitoring is not None
    return sum(value for _, value in Prometheus(stack.monitoring.url).query("redis_up"))


@full
async def test_the_outbox_works_and_its_redis_is_monitored(
    stack: Stack, running: World, outbox: Service, secured: Secured
) -> None:
    assert stack.redis.url.startswith("rediss://")
    requests = await running.request(20, running.receiver.url)
    states = assert_i11(requests, await running.settled(requests), running.webhook_effects())
    assert states == {EffectState.SENT: 20}
    assert outbox.metric("once_redis_trusted") == 1
    stack.wait_ready()
    wait_until(lambda: up(stack) == 1, "Redis is up for Prometheus", 20)
    # The operator flushes Redis, as in the demo
    rebuilt = outbox.metric("once_redis_rebuilt_total")
    stack.redis.flush()
    wait_until(lambda: outbox.metric("once_redis_rebuilt_total") >= rebuilt + 6, "Redis is rebuilt")
    assert {user.name for user in USERS} == {path.name for path in (secured.redis.directory / "passwords").iterdir()}


def reported(outbox: Service) -> bool:
    """Return whether /readyz reports the refusal."""
    reasons = " ".join(outbox.not_ready_reasons().values())
    return any(
        said in reasons for said in ("no permissions", "No permissions", "can't run this command", "invalid username")
    )


def refused_calls(secured: Secured) -> int:
    """Return how many of the outbox's calls Redis has refused, before a script or within it."""
    counts = info(secured.redis, "commandstats").get("cmdstat_evalsha", "")
    found = dict(count.split("=") for count in counts.split(",") if count)
    return int(found.get("rejected_calls", 0)) + int(found.get("failed_calls", 0))


@full
async def test_a_withdrawn_right_stops_calls_and_loses_nothing(
    running: World, outbox: Service, secured: Secured
) -> None:
    running.receiver.fail(Faults(Mode.SLOW, delay_s=SLOW_S))
    before, pid = running.receiver.counts().distinct, outbox.process.pid
    requests = await running.request(EFFECTS, running.receiver.url)
    wait_until(lambda: running.receiver.counts().distinct >= before + EFFECTS * 0.2, "effects are being made")
    users = with_passwords(secured, secured.redis.password_file(OUTBOX).read_text())
    assert " +hmget " in users
    load(secured, users.replace(" +hmget ", " "))
    try:
        wait_until(lambda: not outbox.ready and outbox.metric("once_redis_trusted") == 0, "calls have stopped", 20)
        wait_until(lambda: reported(outbox), "the reason is reported", 20)
        called = running.receiver.counts().calls
        more = await running.request(10, running.receiver.url)
        asked = refused_calls(secured)
        wait_until(lambda: refused_calls(secured) >= asked + 2 * PARTITIONS, "Redis has refused each partition again")
        assert reported(outbox)
        assert running.receiver.counts().calls == called
    finally:
        load(secured, users)
    requests += more
    states = assert_i11(requests, await running.settled(requests), running.webhook_effects())
    assert states == {EffectState.SENT: EFFECTS + 10}
    wait_until(lambda: outbox.ready, "it is ready again")
    assert outbox.process.pid == pid, "the outbox was restarted"


@full
async def test_a_password_is_changed_while_effects_are_made(running: World, outbox: Service, secured: Secured) -> None:
    running.receiver.fail(Faults(Mode.SLOW, delay_s=SLOW_S))
    before, pid, path = running.receiver.counts().distinct, outbox.process.pid, secured.redis.password_file(OUTBOX)
    old, new = path.read_text(), "the-new-one"
    requests = await running.request(EFFECTS, running.receiver.url)
    wait_until(lambda: running.receiver.counts().distinct >= before + EFFECTS * 0.2, "effects are being made")
    load(secured, with_passwords(secured, old, new))
    replace(path, new.encode())
    load(secured, with_passwords(secured, new))
    states = assert_i11(requests, await running.settled(requests), running.webhook_effects())
    assert states == {EffectState.SENT: EFFECTS}
    wait_until(lambda: outbox.ready and outbox.metric("once_redis_trusted") == 1, "it is ready")
    assert outbox.process.pid == pid, "the outbox was restarted"
