"""The outbox and a Redis that refuses it: one line at start; later it waits and loses nothing."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
from redis.asyncio import Redis

from deploy.local.redis.server import write_users
from deploy.security.certificates import open_authority
from deploy.security.files import replace
from deploy.security.redis_users import OUTBOX
from services.outbox.address import address_of
from services.outbox.claims import Claims, DistrustedError
from services.outbox.connection import FileCredentials, RedisAccess, connect
from services.outbox.marks import Claim, Status
from services.outbox.rights import check_access
from shared.eos.errors import UnsafeSettingsError
from tests.harness import eventually
from tests.redis import TIMEOUT_S, claim_one, entered, mark_one, owner, running_redis, sent
from tests.redis_secured import Secured, context, secured_redis, users_text

AWAY_TIMEOUT_S = 0.3


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_redis(Path(tmp_path_factory.mktemp("redis"))) as made:
        yield made


@pytest.fixture
def changed(secured: Secured) -> Iterator[Secured]:
    """The same Redis; the outbox's rights and passwords are restored afterwards."""
    yield secured
    write_users(secured.redis.directory, users_text(secured.redis.directory))
    secured.administer("ACL", "LOAD")


@asynccontextmanager
async def connected(access: RedisAccess) -> AsyncIterator[Redis]:
    client = connect(access, TIMEOUT_S)
    try:
        yield client
    finally:
        await client.aclose()


async def refusal(access: RedisAccess, timeout_s: float = TIMEOUT_S) -> str:
    """Return the outbox's error when it starts with this connection, or an empty string."""
    said = ""
    async with connected(access) as client:
        try:
            await check_access(client, access, timeout_s)
        except UnsafeSettingsError as error:
            said = str(error)
    assert "\n" not in said
    return said


async def test_a_redis_that_knows_the_outbox_lets_it_in(secured: Secured) -> None:
    assert await refusal(secured.access()) == ""
    assert secured.administer("EVAL", "return tostring(redis.call('DBSIZE'))", "0") == "0", "the check left keys"


async def test_a_wrong_password_an_unknown_user_and_none(secured: Secured, tmp_path: Path) -> None:
    access, wrong = secured.access(), tmp_path / "wrong"
    replace(wrong, b"not it")
    known = str(secured.redis.password_file(OUTBOX))
    for credentials in (FileCredentials(OUTBOX.name, str(wrong)), FileCredentials("stranger", known), None):
        said = await refusal(access._replace(credentials=credentials))
        assert f"Redis at {access.address} refuses the outbox" in said
        assert "set ONCE_REDIS_USERNAME and ONCE_REDIS_PASSWORD_FILE" in said
        assert "not it" not in said


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (["-evalsha"], "no permissions to run the 'evalsha' command"),
        (["-script|load"], "no permissions to run the 'script|load' command"),
        (["-hget", "-pexpire"], "call HGET, PEXPIRE on its keys"),
        (["-info"], "no permissions to run the 'info' command"),
        (["-scan", "-object|encoding"], "call OBJECT, SCAN on its keys"),
        (["resetkeys", "~other:*"], "permissions to access"),
        (["resetkeys", "%R~once:*"], "permissions to access"),
    ],
)
async def test_a_missing_right_is_named(changed: Secured, rules: list[str], named: str) -> None:
    changed.administer("SCRIPT", "FLUSH")
    changed.administer("ACL", "SETUSER", OUTBOX.name, *rules)
    said = await refusal(changed.access())
    assert named in said
    assert "docs/redis-access.md" in said


async def test_certificates_that_are_refused(secured: Secured, tmp_path: Path) -> None:
    access, stranger = secured.access(), open_authority(tmp_path / "stranger")
    stranger.identity("outbox")
    said = await refusal(access._replace(tls=context(stranger, trusted=secured.authority)))
    assert "refuses the outbox's certificate" in said
    assert "ONCE_TLS_IDENTITY_FILE" in said
    assert "refuses the outbox's certificate" in await refusal(access._replace(tls=context(secured.authority, None)))
    said = await refusal(access._replace(tls=context(secured.authority, trusted=stranger)))
    assert "its certificate is refused, self-signed certificate" in said
    assert "ONCE_TLS_CA_FILE" in said
    elsewhere = access.address._replace(nodes=(access.address.nodes[0]._replace(host="127.1"),))
    assert "its certificate is refused, Hostname mismatch" in await refusal(access._replace(address=elsewhere))


async def test_tls_and_plain_text_are_distinguished(secured: Secured, tmp_path: Path) -> None:
    access = secured.access()
    assert "it speaks TLS there" in await refusal(access._replace(tls=None))
    with running_redis(tmp_path / "plain") as plain:
        there = access._replace(address=address_of(plain.url))
        assert "it does not speak TLS there" in await refusal(there)


async def test_a_lost_tls_alert_is_asked_for_again(secured: Secured, tmp_path: Path) -> None:
    """The connection may be reset before the alert is read."""
    stranger = open_authority(tmp_path / "stranger")
    stranger.identity("outbox")
    lost = context(stranger, trusted=secured.authority)
    access = secured.access()._replace(tls=lost)
    async with connected(RedisAccess(access.address)) as reset:  # its connection is reset: the port wants TLS
        with pytest.raises(UnsafeSettingsError, match="refuses the outbox's certificate"):
            await check_access(reset, access, TIMEOUT_S)


async def test_an_unreachable_or_silent_redis_is_not_a_refusal(tmp_path: Path) -> None:
    with secured_redis(tmp_path) as made:
        made.redis.pause()
        assert await refusal(made.access(), AWAY_TIMEOUT_S) == ""
        made.redis.resume()
        made.redis.kill()
        for tls in (made.access().tls, None):
            assert await refusal(made.access()._replace(tls=tls), AWAY_TIMEOUT_S) == ""


async def test_a_replica_and_full_memory_are_not_refusals(tmp_path: Path) -> None:
    with running_redis(tmp_path / "first") as first, running_redis(tmp_path / "second", replica_of=first) as second:
        assert await refusal(RedisAccess(address_of(second.url))) == ""
        first.command("CONFIG", "SET", "maxmemory", "1")
        assert await refusal(RedisAccess(address_of(first.url))) == ""


@pytest.mark.parametrize("rules", [("-evalsha",), ("-hmget",), ("-get",), ("resetkeys",), ("off",)])
async def test_a_right_that_vanishes_stops_the_owner_and_loses_nothing(
    changed: Secured, rules: tuple[str, ...]
) -> None:
    changed.redis.flush()
    async with connected(changed.access()) as client:
        claims = await entered(owner(client, 1))
        assert await claim_one(claims, 1) == Claim(Status.NEW)
        await mark_one(claims, 1, sent())
        assert await claim_one(claims, 2) == Claim(Status.NEW)
        await changed.change("ACL", "SETUSER", OUTBOX.name, *rules)
        await changed.change("CLIENT", "KILL", "USER", OUTBOX.name)  # open connections keep their rights
        for ask in (lambda: mark_one(claims, 2, sent()), lambda: claim_one(claims, 3)):
            with pytest.raises(
                DistrustedError, match=r"NoPermissionError|The user executing|ACL failure|AuthenticationError"
            ):
                await ask()
        await asyncio.to_thread(write_users, changed.redis.directory, users_text(changed.redis.directory))
        await changed.change("ACL", "LOAD")
        successor = await admitted(client, 2)
        assert successor._incarnation == claims._incarnation, "the incarnation changed"
        assert (await claim_one(successor, 1)).status is Status.KNOWN
        assert (await claim_one(successor, 2)).status is Status.HELD
        assert await claim_one(successor, 3) == Claim(Status.NEW)


async def admitted(client: Redis, epoch: int) -> Claims:
    """Enter as an owner once Redis allows it: ACL LOAD may end connections after its answer."""
    entered_as: list[Claims] = []

    async def enters() -> bool:
        claims = owner(client, epoch)
        with suppress(DistrustedError):
            await claims.enter()
            entered_as.append(claims)
        return bool(entered_as)

    await eventually(enters, "Redis lets the owner in")
    return entered_as[0]


async def by_setuser(secured: Secured, passwords: list[str]) -> None:
    """Set the outbox's passwords and keep its connections."""
    await secured.change("ACL", "SETUSER", OUTBOX.name, "resetpass", *(f">{password}" for password in passwords))


async def by_file(secured: Secured, passwords: list[str]) -> None:
    """Set the outbox's passwords and end its connections."""
    before = await secured.change("CLIENT", "LIST")
    text = users_text(secured.redis.directory, {OUTBOX.name: passwords})
    await asyncio.to_thread(write_users, secured.redis.directory, text)
    await asyncio.to_thread(secured.ask, "operator", "ACL", "LOAD")
    await secured.change("CLIENT", "KILL", "USER", OUTBOX.name)  # versions later than 7.0 keep them

    async def closed() -> bool:
        ids = set(re.findall(r"^id=(\d+) .*user=outbox", before, re.MULTILINE))
        return not ids & set(re.findall(r"^id=(\d+) ", await secured.change("CLIENT", "LIST"), re.MULTILINE))

    await eventually(closed, "connections are closed")


@pytest.mark.parametrize("set_passwords", [by_setuser, by_file])
async def test_a_password_is_changed_without_a_stop(
    changed: Secured, tmp_path: Path, set_passwords: Callable[[Secured, list[str]], Awaitable[None]]
) -> None:
    """Add the new password, replace the file, reconnect, remove the old password: no request fails."""
    changed.redis.flush()
    old, path = changed.redis.password_file(OUTBOX).read_text(), tmp_path / "password"
    replace(path, old.encode())
    access = changed.access()._replace(credentials=FileCredentials(OUTBOX.name, str(path)))
    numbers = count(1)
    async with connected(access) as client:
        claims = await entered(owner(client, 1))

        async def claims_next() -> None:
            assert await claim_one(claims, next(numbers)) == Claim(Status.NEW)

        await set_passwords(changed, [old, "the-new-one"])
        await claims_next()
        await asyncio.to_thread(replace, path, b"the-new-one")
        await claims_next()
        await set_passwords(changed, ["the-new-one"])
        await claims_next()
        assert "refuses the outbox" in await refusal(changed.access()), "the old password still works"
        assert await changed.change("CLIENT", "KILL", "USER", OUTBOX.name) == "1"
        await claims_next()
        # The next connection reports a world-readable file without its content
        path.chmod(0o644)
        await changed.change("CLIENT", "KILL", "USER", OUTBOX.name)
        with pytest.raises(
            DistrustedError, match="AuthenticationError: ONCE_REDIS_PASSWORD_FILE: every user of this machine can read"
        ):
            await claim_one(claims, next(numbers))
