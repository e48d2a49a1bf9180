"""The outbox's connection to Redis: its settings, and the errors for wrong ones."""

import asyncio
from pathlib import Path

import pytest

from deploy.security.certificates import open_authority
from services.outbox.address import Address, Node, address_of
from services.outbox.connection import FileCredentials, redis_access
from shared.settings import OutboxSettings, SettingsError, load

SENTINELS = (Node("a", 26379), Node("b", 7), Node("::1", 8))
SECRET = "wordsthatarenotsaid" * 2


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def settings(**variables: str) -> OutboxSettings:
    given = {"BOOTSTRAP_SERVERS": "127.0.0.1:1", "REDIS_URL": "redis://127.0.0.1:6379/0", **variables}
    return load(OutboxSettings, {f"ONCE_{name}": value for name, value in given.items()})


def tls(directory: Path) -> dict[str, str]:
    authority = open_authority(directory / "authority")
    identity = authority.identity("outbox")
    return {"TLS_CA_FILE": str(authority.ca_file), "TLS_IDENTITY_FILE": str(identity)}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://127.0.0.1:6380/0", Address((Node("127.0.0.1", 6380),), 0, tls=False)),
        ("redis://redis", Address((Node("redis", 6379),), 0, tls=False)),
        ("rediss://redis.example.org/3", Address((Node("redis.example.org", 6379),), 3, tls=True)),
        ("rediss://[::1]:7000/", Address((Node("::1", 7000),), 0, tls=True)),
        (
            "redis+sentinel://a,b:7,[::1]:8/m-1",
            Address(SENTINELS, 0, tls=False, master="m-1"),
        ),
        ("rediss+sentinel://a/primary/2", Address((Node("a", 26379),), 2, tls=True, master="primary")),
    ],
)
def test_an_address_is_read_from_the_url(url: str, address: Address) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "", "redis", "127.0.0.1:6379", "http://redis/0", "unix:///redis.sock", "redis:///0", "redis://redis:port/0",
        "redis://redis:99999/0", "redis://redis/zero", "redis://redis/0/1", "redis://redis/²",
        "rediss://redis/0?ssl_cert_reqs=none", "redis://redis/0#part", "redis://[::1/0", "redis://redis?db=1",
        "redis://a,b/0", "redis+sentinel://a", "redis+sentinel://a/", "redis+sentinel://a//0", "redis+sentinel://a,/m",
        "redis+sentinel://a/m/zero", "redis+sentinel://a/m?x", "sentinel://a/m",
    ],
)  # fmt: skip
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^ONCE_REDIS_URL is no URL such as redis://.*: correct it$"):
        address_of(url)


@pytest.mark.parametrize("user", [f":{SECRET}@", f"outbox:{SECRET}@", f"{SECRET}@", "@"])
def test_a_secret_in_the_url_is_refused_and_not_shown(user: str) -> None:
    with pytest.raises(
        ValueError, match=r"ONCE_REDIS_URL has a user or a password: .*ONCE_REDIS_PASSWORD_FILE"
    ) as caught:
        address_of(f"rediss://{user}redis:6379/0")
    assert SECRET not in str(caught.value)


def test_a_redis_without_users_needs_only_a_url() -> None:
    assert redis_access(settings()) == (address_of("redis://127.0.0.1:6379/0"), None, None, None)


async def test_a_password_is_read_from_the_file_for_each_connection(password: Path) -> None:
    access = redis_access(settings(REDIS_USERNAME="outbox", REDIS_PASSWORD_FILE=str(password)))
    assert isinstance(access.credentials, FileCredentials)
    assert await access.credentials.get_credentials_async() == ("outbox", SECRET)
    await asyncio.to_thread(password.write_text, "another\n")
    assert await access.credentials.get_credentials_async() == ("outbox", "another")


def test_tls_trusts_the_authority_that_is_set_and_no_other(tmp_path: Path, password: Path) -> None:
    given = {"REDIS_USERNAME": "outbox", "REDIS_PASSWORD_FILE": str(password), **tls(tmp_path)}
    access = redis_access(settings(REDIS_URL="rediss://redis:6379/0", **given))
    assert access.tls is not None
    assert access.tls.check_hostname
    assert len(access.tls.get_ca_certs()) == 1
    assert redis_access(settings(**given)).tls is None, "these files may be Kafka's alone"


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o444, 0o666])
def test_a_password_that_everybody_can_read_is_refused(password: Path, mode: int) -> None:
    password.chmod(mode)
    with pytest.raises(
        ValueError, match=rf"^ONCE_REDIS_PASSWORD_FILE: every user of this machine can read {password}: .*chmod o= "
    ):
        redis_access(settings(REDIS_USERNAME="outbox", REDIS_PASSWORD_FILE=str(password)))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_its_owner_and_its_group_may_read_it(password: Path, mode: int) -> None:
    password.chmod(mode)
    assert redis_access(settings(REDIS_USERNAME="outbox", REDIS_PASSWORD_FILE=str(password))).credentials is not None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"REDIS_USERNAME": "outbox"}, "ONCE_REDIS_USERNAME and ONCE_REDIS_PASSWORD_FILE belong together"),
        ({"REDIS_PASSWORD_FILE": "{password}"}, "ONCE_REDIS_USERNAME and ONCE_REDIS_PASSWORD_FILE belong together"),
        ({"REDIS_USERNAME": "outbox", "REDIS_PASSWORD_FILE": "{missing}"}, "{missing} cannot be read"),
        ({"REDIS_USERNAME": "outbox", "REDIS_PASSWORD_FILE": "{folder}"}, "{folder} cannot be read"),
        ({"REDIS_USERNAME": "outbox", "REDIS_PASSWORD_FILE": "{empty}"}, "the first line of {empty} is empty"),
        ({"REDIS_URL": "rediss://redis/0"}, "set ONCE_TLS_CA_FILE and ONCE_TLS_IDENTITY_FILE as well"),
        ({"REDIS_URL": "rediss+sentinel://a/m"}, "set ONCE_TLS_CA_FILE and ONCE_TLS_IDENTITY_FILE as well"),
        (
            {
                "REDIS_URL": "redis+sentinel://[::1],a/m",
                "REDIS_USERNAME": "outbox",
                "REDIS_PASSWORD_FILE": "{password}",
            },
            "leads to a: the password would cross the network in clear text",
        ),
        (
            {"REDIS_URL": "redis+sentinel://a/m", "REDIS_SENTINEL_USERNAME": "outbox"},
            "ONCE_REDIS_SENTINEL_USERNAME and ONCE_REDIS_SENTINEL_PASSWORD_FILE belong together",
        ),
        (
            {"REDIS_SENTINEL_USERNAME": "outbox", "REDIS_SENTINEL_PASSWORD_FILE": "{password}"},
            "ONCE_REDIS_URL names no sentinels",
        ),
        (
            {"REDIS_URL": "redis://redis/0", "REDIS_USERNAME": "outbox", "REDIS_PASSWORD_FILE": "{password}"},
            "would cross the network in clear text; use rediss://",
        ),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, password: Path, variables: dict[str, str], message: str) -> None:
    (tmp_path / "folder").mkdir(mode=0o700)
    (tmp_path / "empty").touch(mode=0o600)
    paths = {name: str(tmp_path / name) for name in ("missing", "folder", "empty")} | {"password": str(password)}
    with pytest.raises(ValueError, match=r".") as caught:
        redis_access(settings(**{name: value.format(**paths) for name, value in variables.items()}))
    assert message.format(**paths) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = tls(tmp_path) | {"TLS_IDENTITY_FILE": str(tmp_path / "missing")}
    with pytest.raises(SettingsError, match=r"ONCE_TLS_IDENTITY_FILE is .*missing, which cannot be read"):
        redis_access(settings(REDIS_URL="rediss://redis/0", **files))
