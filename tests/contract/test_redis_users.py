"""Rights of the users of a secured Redis: every command of the server, tried as each user."""

import re
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from deploy.drills.faults.redis import info
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.redis.server import Login, RedisCommandError, command
from deploy.local.supervisor.component import http_ready
from deploy.local.supervisor.monitoring import RedisExporter
from deploy.security.redis_users import EXPORTER, OPERATOR, OUTBOX, USERS, RedisUser
from services.outbox import rebuild, scripts
from services.outbox.connection import connect
from services.outbox.rights import ACCESS
from tests.harness import wait_until
from tests.redis import PARTITION, REBUILD_KEY, TIMEOUT_S, claim_one, entered, mark_one, owner, sent
from tests.redis_secured import ADMINISTRATOR, Secured, secured_redis

UNRESTRICTED = {"auth", "hello", "quit", "reset"}
"""Redis allows these to every connection."""
OTHER_KEY = f"other:{{{PARTITION}}}:key"
KEY_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "del": (),
    "get": (),
    "hdel": ("field",),
    "hget": ("field",),
    "hgetall": (),
    "hlen": (),
    "hmget": ("field",),
    "hset": ("field", "value"),
    "pexpire": ("1000",),
    "pexpireat": ("99999999999999",),
    "set": ("value",),
}


class Tried(NamedTuple):
    """The commands that a user may call, and those refused."""

    user: str
    allowed: set[str]
    refused: set[str]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_redis(Path(tmp_path_factory.mktemp("redis"))) as made:
        yield made


@pytest_asyncio.fixture
async def clients(secured: Secured) -> AsyncIterator[dict[str, Redis]]:
    made = {name: connect(secured.access(name), TIMEOUT_S) for name in (*(user.name for user in USERS), ADMINISTRATOR)}
    for client in made.values():
        client.response_callbacks.clear()  # unparsed answers
    yield made
    for client in made.values():
        await client.aclose()


async def called(client: Redis, *words: Any) -> Any:
    return await client.execute_command(*words)  # type: ignore[no-untyped-call] # the client types no such call


async def every_command(client: Redis) -> dict[str, int]:
    """Return the server's commands and subcommands, named as in ACL rules, with their minimum word counts."""
    found: dict[str, int] = {}
    for name, arity, *_, subcommands in await called(client, "COMMAND"):
        found |= {sub.decode(): abs(least) for sub, least, *_ in subcommands} or {name.decode(): abs(arity)}
    return found


async def refused(client: Redis, *words: Any) -> bool:
    """Return whether the user has no right to this command or its keys: Redis checks this before other errors.

    No user may call DEBUG and MODULE: the server's settings do not allow them.
    """
    try:
        await called(client, *words)
    except ResponseError as error:
        return re.search("no permissions|command not allowed", str(error), re.IGNORECASE) is not None
    return False


async def tried(user: RedisUser, client: Redis, known: Mapping[str, int]) -> Tried:
    """Call every command that the user has no right to, with enough words to reach the check of rights."""
    refusals = set()
    for name, words in known.items():
        if name not in user.commands and name not in UNRESTRICTED:
            first = name.split("|")
            if await refused(client, *first, *("1" for _ in range(words - len(first)))):
                refusals.add(name)
    return Tried(user.name, set(known) - refusals - UNRESTRICTED, refusals)


async def test_each_user_may_call_only_its_commands(clients: dict[str, Redis]) -> None:
    known = await every_command(clients[ADMINISTRATOR])
    assert len(known) > 300
    assert {"flushall", "config|set", "config|get", "keys", "debug", "acl|setuser", "shutdown", "eval"} <= set(known)
    for user in USERS:
        found = await tried(user, clients[user.name], known)
        print(f"\n{found.user}: refused {len(found.refused)} of {len(known)}; may {', '.join(sorted(found.allowed))}")
        assert found.allowed == set(user.commands)


async def test_the_outbox_has_access_only_to_its_keys(clients: dict[str, Redis]) -> None:
    client = clients[OUTBOX.name]
    for name, further in KEY_COMMANDS.items():
        assert not await refused(client, name, REBUILD_KEY, *further), name
        assert await refused(client, name, OTHER_KEY, *further), name
        await called(client, "DEL", REBUILD_KEY)
    read = await client.script_load("return redis.call('GET', KEYS[1])")
    assert await refused(client, "EVALSHA", read, 1, OTHER_KEY)
    # Scripts have only their caller's rights, for declared keys and others
    for text in (f"return redis.call('GET', '{OTHER_KEY}')", "return redis.call('KEYS', '*')"):
        with pytest.raises(ResponseError, match=r"NOPERM|The user executing the script can't|ACL failure"):
            await client.evalsha(await client.script_load(text), 0)


async def test_the_outbox_may_make_all_its_calls(secured: Secured) -> None:
    client = connect(secured.access(), TIMEOUT_S)
    claims = await entered(owner(client, 1))
    await claims.check()
    await claim_one(claims, 1)
    await mark_one(claims, 1, sent())
    await claim_one(claims, 2)
    await mark_one(claims, 2, None)
    await claims.rebuild([(f"{3:032x}", sent())])
    await client.aclose()


def test_the_outbox_may_call_exactly_the_commands_of_its_scripts() -> None:
    texts = [str(text) for module in (scripts, rebuild) for name, text in vars(module).items() if name.isupper()]
    called = set().union(*(commands(r"redis\.call\(\s*", text) for text in texts))
    assert called | {"evalsha", "script|load"} == set(OUTBOX.commands)
    # The check at start covers all of them
    assert commands(r"try\(", ACCESS) == called


def commands(before: str, text: str) -> set[str]:
    """The commands in a script, as ACL rules name them."""
    found = re.findall(before + r"'(\w+)'(?:, '(ENCODING)')?", text)
    return {"|".join(filter(None, words)).lower() for words in found}


def test_the_operator_may_supervise_and_flush(secured: Secured) -> None:
    assert secured.redis.answers()
    assert info(secured.redis, "server")["run_id"]
    secured.administer("SET", OTHER_KEY, "value")
    secured.redis.flush()
    assert "db0" not in info(secured.redis, "keyspace")
    with pytest.raises(RedisCommandError, match="no permissions"):
        secured.redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")


def test_a_client_without_a_user_or_a_certificate_is_refused(secured: Secured) -> None:
    port = secured.redis.port
    with pytest.raises(RedisCommandError, match="PING"):
        command(port, "PING")
    wrong = secured.redis.directory / "wrong"
    wrong.write_text("not it")
    for name in (OPERATOR.name, EXPORTER.name, "default"):
        with pytest.raises(RedisCommandError, match="PING: invalid username-password"):
            command(port, "PING", login=Login(name, wrong, secured.authority.tls()))


def test_secrets_are_readable_only_by_their_owner(secured: Secured) -> None:
    directory = secured.redis.directory
    files = [directory / "users.acl", *(secured.redis.password_file(user) for user in USERS)]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    kept = {path: path.read_text() for path in files[1:]}
    assert len(set(kept.values())) == len(USERS)
    assert not any(text in files[0].read_text() + (directory / "redis.conf").read_text() for text in kept.values())


def test_the_exporter_reads_metrics_and_is_refused_no_command(secured: Secured, tmp_path: Path) -> None:
    before = info(secured.redis, "errorstats").get("errorstat_NOPERM")
    (port,) = free_ports(1)
    exporter = RedisExporter(port, secured.redis, tmp_path, tmp_path)
    exporter.prepare()
    assert (tmp_path / "redis-exporter.json").stat().st_mode & 0o777 == 0o600
    exporter.component.process.start()
    try:
        wait_until(lambda: http_ready(port, path="/health"), "the exporter serves", 10)
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert figures["redis_up"] == "1"
        assert {"redis_memory_used_bytes", "redis_memory_max_bytes", "redis_evicted_keys_total"} <= set(figures)
    finally:
        exporter.component.process.kill()
    assert info(secured.redis, "errorstats").get("errorstat_NOPERM") == before, "a command was refused"
