"""The file of API keys: valid and invalid content, authentication, reloads, and that no key is shown."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from deploy.cli.keys import keys
from deploy.security.files import CLIENT_KEY_PREFIX, replace
from shared.events.clients import CLIENT_PATTERN, Scope, SubmittedBy
from shared.http import keyfile
from shared.http.keyfile import READS_MAX, KeyFile
from shared.http.keys import (
    DEFAULT_SCOPES,
    FILE_BYTES_MAX,
    KEYS_MAX,
    KEYS_PER_CLIENT_MAX,
    Key,
    KeyRefusedError,
    Keys,
    KeysError,
    Principal,
    key_of,
    parse,
    parse_time,
    time_text,
)
from tests.harness import eventually
from tests.keys import line_of

clients = st.from_regex(CLIENT_PATTERN, fullmatch=True)
scopes = st.frozensets(st.sampled_from(Scope), min_size=1)
times = st.none() | st.integers(0, 4_000_000_000).map(lambda seconds: seconds * 1000)
entries = st.builds(Key, clients, st.binary(min_size=32, max_size=32), scopes, times)
DIGEST = "ab" * 32
NOW_MS = 1_800_000_000_000


def authenticate(keys: Keys, key: str, now_ms: int = NOW_MS) -> Principal | str:
    """Return the principal, or the reason of the refusal."""
    try:
        return keys.authenticate([f"Bearer {key}"], now_ms)
    except KeyRefusedError as error:
        return error.reason


@given(st.lists(entries, min_size=1, max_size=8, unique_by=(lambda key: key.client, lambda key: key.digest[:8])))
def test_a_line_is_read_as_it_was_written(written: list[Key]) -> None:
    content = "\n".join(f"# {key.client}\n\n  {key.line}\r" for key in written)
    assert list(parse(content.encode())) == written


@given(st.dictionaries(st.text("abc", min_size=1), clients, min_size=1, max_size=6), st.text("abcd", min_size=1))
def test_each_key_is_its_clients_and_any_other_key_is_unknown(owners: dict[str, str], other: str) -> None:
    found = parse("\n".join(line_of(client, key) for key, client in owners.items()).encode())
    assert found.clients == set(owners.values())
    for key, client in owners.items():
        principal = Principal(client, sha256(key.encode()).hexdigest()[:16], DEFAULT_SCOPES)
        assert authenticate(found, key) == principal
    if other not in owners:
        assert authenticate(found, other) == "key_unknown"


def test_a_line_of_the_former_form_has_the_default_scopes_and_no_expiry() -> None:
    [key] = parse(f"shop:{DIGEST}".encode())
    assert key == Key("shop", bytes.fromhex(DIGEST), frozenset({Scope.PAYMENTS_WRITE, Scope.READ}), None)
    assert key.id == "ab" * 8


def test_a_digest_is_read_in_either_case() -> None:
    line = key_of("shop", "key").line
    digest = line.split()[0].removeprefix("shop:")
    assert list(parse(line.encode())) == list(parse(line.replace(digest, digest.upper()).encode()))


def test_half_a_digest_admits_no_key() -> None:
    digest = sha256(b"key").hexdigest()
    assert authenticate(parse(f"shop:{digest[:16]}{DIGEST[16:]}".encode()), "key") == "key_unknown"


def test_a_key_is_refused_from_its_expiry_on() -> None:
    keys = parse(f"{line_of('shop', 'key')} expires=2027-01-01T00:00:00Z".encode())
    expiry_ms = parse_time("2027-01-01T00:00:00Z")
    assert time_text(expiry_ms) == "2027-01-01T00:00:00Z"
    assert isinstance(authenticate(keys, "key", expiry_ms - 1), Principal)
    with pytest.raises(KeyRefusedError, match="2027-01-01T00:00:00Z") as refused:
        keys.authenticate(["Bearer key"], expiry_ms)
    assert refused.value.reason == "key_expired"
    assert refused.value.principal is not None
    assert (keys.next_expiry_ms(expiry_ms - 1), keys.next_expiry_ms(expiry_ms)) == (expiry_ms, None)


@pytest.mark.parametrize("given", [frozenset({Scope.HOUSE, Scope.READ}), frozenset({Scope.READ})])
def test_a_principal_submits_for_the_house_with_that_scope_only(given: frozenset[Scope]) -> None:
    principal = Principal("shop", "ab" * 8, given)
    assert principal.submitted_by == SubmittedBy("shop", "ab" * 8, Scope.HOUSE in given)


ONE_TOO_MANY = [f"shop:{n << 200:064x}" for n in range(1, KEYS_PER_CLIENT_MAX + 2)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 keys"),
        (b"# nobody\n\n", "0 keys"),
        (b"shop:" + DIGEST.encode() + b"\nonce_Secret", "line 2 is no"),
        (b"shop:" + DIGEST[1:].encode(), "line 1 is no"),
        (b"shop:" + DIGEST.encode() + b"0", "line 1 is no"),
        (b"a shop:" + DIGEST.encode(), "line 1 is no"),
        (b"shop:" + DIGEST.encode() + b" once_Secret", "line 1: after the digest"),
        (b"shop:" + DIGEST.encode() + b" scopes=read scopes=read", "line 1: after the digest"),
        (b"shop:" + DIGEST.encode() + b" owner=me", "line 1: after the digest"),
        (b"shop:" + DIGEST.encode() + b" scopes=read,once_Secret", "line 1 has a scope that does not exist"),
        (b"shop:" + DIGEST.encode() + b" scopes=", "line 1 has a scope that does not exist"),
        (b"shop:" + DIGEST.encode() + b" expires=2027-01-01", "line 1: write the expiry as"),
        (b"shop:" + DIGEST.encode() + b" expires=2027-02-30T00:00:00Z", "line 1: write the expiry as"),
        (b"shop:" + DIGEST.encode() + b"\nkiosk:" + DIGEST.encode(), "line 2 has the key of line 1"),
        ("\n".join(ONE_TOO_MANY).encode(), "line 9 is key 9 of shop"),
        ("\n".join(f"c{n}:{n << 200:064x}" for n in range(KEYS_MAX + 1)).encode(), "10001 keys"),
        (b"shop:\xff" + DIGEST.encode(), "no UTF-8"),
        (b"#" * (FILE_BYTES_MAX + 1), "bytes"),
    ],
)
def test_an_invalid_list_of_keys_is_refused_and_not_shown(content: bytes, says: str) -> None:
    with pytest.raises(KeysError, match=says) as caught:
        parse(content)
    assert "Secret" not in str(caught.value)
    assert DIGEST[:32] not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.binary())
def test_any_bytes_are_keys_or_refused(content: bytes) -> None:
    with suppress(KeysError):
        assert len(parse(content)) > 0


def read(outcome: str) -> float:
    return REGISTRY.get_sample_value("once_api_keys_read_total", {"outcome": outcome}) or 0.0


def put(path: Path, text: str) -> None:
    """Replace the file atomically: a reader would find a partly written file invalid."""
    replace(path, text.encode())


class Watched:
    """A watched file and the keys that the watch passed on."""

    def __init__(self, path: Path) -> None:
        self.file = KeyFile(str(path), "ONCE_GATEWAY_API_KEYS_FILE")
        self.used: list[Keys] = []
        self.watching = asyncio.create_task(self.file.watch(self.used.append))

    async def passes(self, count: int) -> None:
        """Wait until the watch has passed keys on so often."""

        async def passed() -> bool:
            assert not self.watching.done()
            return len(self.used) == count

        await eventually(passed, f"{count} changes")

    async def ends(self) -> str:
        """Wait until the watch fails, and return its message."""
        with pytest.raises(KeysError) as ended:
            await asyncio.wait_for(self.watching, 5)
        return str(ended.value)


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(keyfile, "LOOK_S", 0.01)
    path = tmp_path / "keys"
    path.write_text(line_of("shop", "first"))
    found = Watched(path)
    yield found
    found.watching.cancel()
    await asyncio.wait([found.watching])


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return the log entries of refused files."""
    return [vars(line) for line in caplog.records if line.getMessage() == "api keys refused"]


async def test_a_changed_file_is_loaded(watched: Watched, tmp_path: Path) -> None:
    taken = read("taken")
    put(tmp_path / "keys", f"{line_of('shop', 'first')}\n{line_of('shop', 'second')}")
    await watched.passes(1)
    assert all(isinstance(authenticate(watched.used[-1], key), Principal) for key in ("first", "second"))
    put(tmp_path / "keys", line_of("shop", "second"))
    await watched.passes(2)
    assert authenticate(watched.used[-1], "first") == "key_unknown"
    assert isinstance(authenticate(watched.used[-1], "second"), Principal)
    assert read("taken") == taken + 2


async def test_a_file_whose_mode_alone_changed_is_read_again(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "keys").chmod(0o640)
    await watched.passes(1)


@pytest.mark.parametrize("content", [None, "once_a-key-that-was-pasted", ""])
async def test_a_file_that_stays_missing_or_invalid_ends_the_watch(
    watched: Watched, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    refused = read("refused")
    if content is None:
        (tmp_path / "keys").unlink()
    else:
        put(tmp_path / "keys", content)
    assert "ONCE_GATEWAY_API_KEYS_FILE" in await watched.ends()
    assert [line["reads_left"] for line in refusals(caplog)] == [2, 1, 0]
    assert read("refused") == refused + READS_MAX
    assert watched.used == []
    assert "pasted" not in caplog.text + str([vars(line) for line in caplog.records])


async def test_a_file_that_is_unreadable_for_a_moment_does_not_end_the_watch(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    readable, tries = watched.file._read, 0

    def unreadable() -> Keys:
        nonlocal tries
        tries += 1
        if tries < READS_MAX:
            raise KeysError("cannot be read (Too many open files)") from OSError(errno.EMFILE, "Too many open files")
        return readable()

    monkeypatch.setattr(watched.file, "_read", unreadable)
    put(tmp_path / "keys", line_of("shop", "second"))
    await watched.passes(1)
    assert isinstance(authenticate(watched.used[-1], "second"), Principal)
    assert len(refusals(caplog)) == READS_MAX - 1
    tries = 0
    put(tmp_path / "keys", line_of("shop", "third"))  # the failures before do not count any more
    await watched.passes(2)


async def test_the_next_expiry_is_exported(watched: Watched, tmp_path: Path) -> None:
    def exported() -> float | None:
        return REGISTRY.get_sample_value("once_api_key_expires_timestamp_seconds")

    assert exported() is None
    put(tmp_path / "keys", f"{line_of('shop', 'first')} expires=2107-01-01T00:00:00Z")
    await watched.passes(1)
    assert exported() == parse_time("2107-01-01T00:00:00Z") / 1000


def test_a_made_key_belongs_to_its_line() -> None:
    plain, as_json = (CliRunner().invoke(keys, ["new", "shop", *words]) for words in ((), ("--json",)))
    shown = dict(line.split(maxsplit=1) for line in plain.stdout.splitlines())
    made = json.loads(as_json.stdout)
    for key, line in ((shown["key"], shown["line"]), (made["key"], made["line"])):
        assert key.startswith(CLIENT_KEY_PREFIX)
        assert len(key) >= 43 + len(CLIENT_KEY_PREFIX)
        assert isinstance(authenticate(parse(line.encode()), key), Principal)
    assert shown["key"] != made["key"]


def test_a_client_with_an_invalid_name_gets_no_key() -> None:
    result = CliRunner().invoke(keys, ["new", "a:b"])
    assert result.exit_code == 2
    assert "letters, digits" in result.output
