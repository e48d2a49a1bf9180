"""The file of API keys: valid and invalid content, reloads, and that no key is shown."""

import asyncio
import errno
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from deploy.cli.keys import keys
from deploy.security.files import CLIENT_KEY_PREFIX, replace
from services.gateway import keyfile
from services.gateway.access import FILE_BYTES_MAX, KEYS_MAX, Keys, KeysError, is_client, line_of, parse
from services.gateway.keyfile import KeyFile
from tests.harness import eventually

clients = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
DIGEST = "ab" * 32


@given(st.dictionaries(st.text(min_size=1), clients, min_size=1, max_size=8), st.text())
def test_each_key_is_its_clients_and_any_other_key_is_unknown(owners: dict[str, str], other: str) -> None:
    lines: list[str] = []
    kept: dict[str, str] = {}
    for key, client in owners.items():
        if list(kept.values()).count(client) < 2:
            kept[key] = client
            lines += ["# for a test", "", f"  {line_of(client, key)}\r"]
    found = parse("\n".join(lines).encode())
    assert len(found) == len(kept)
    assert found.clients == set(kept.values())
    for key, client in kept.items():
        assert found.client_of(key.encode()) == client
    assert found.client_of(other.encode()) == kept.get(other)


def test_a_digest_is_read_in_either_case() -> None:
    line = line_of("shop", "key").encode()
    assert parse(line).client_of(b"key") == parse(line.replace(line[5:], line[5:].upper())).client_of(b"key") == "shop"


def test_half_a_digest_admits_no_key() -> None:
    digest = sha256(b"key").hexdigest()
    assert parse(f"shop:{digest[:16]}{DIGEST[16:]}".encode()).client_of(b"key") is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 keys"),
        (b"# nobody\n\n", "0 keys"),
        (b"shop:" + DIGEST.encode() + b"\nonce_Secret", "line 2 is no"),
        (b"shop:" + DIGEST[1:].encode(), "line 1 is no"),
        (b"shop:" + DIGEST.encode() + b"0", "line 1 is no"),
        (b"a shop:" + DIGEST.encode(), "line 1 is no"),
        (b"shop:" + DIGEST.encode() + b"\nkiosk:" + DIGEST.encode(), "line 2 has the key of line 1"),
        ("\n".join(f"shop:{n:064x}" for n in (1 << 250, 2 << 250, 3 << 250)).encode(), "line 3 is key 3 of shop"),
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


Changed = Callable[[str, float], Awaitable[None]]


@asynccontextmanager
async def watched(file: KeyFile, used: list[Keys], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Changed]:
    """Watch the file. The yielded function waits for a number of files with an outcome."""
    monkeypatch.setattr(keyfile, "LOOK_S", 0.01)
    watching = asyncio.create_task(file.watch(used.append))

    async def changed(outcome: str, count: float) -> None:
        async def counted() -> bool:
            assert not watching.done()
            return read(outcome) == count

        await eventually(counted, f"{count} files {outcome}")

    try:
        yield changed
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return the log entries of refused files."""
    return [vars(line) for line in caplog.records if line.getMessage() == "api keys refused"]


async def test_a_changed_file_is_loaded_and_an_invalid_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "keys"
    path.write_text(line_of("shop", "first"))
    file = KeyFile(str(path))
    used: list[Keys] = [file.keys]
    taken, refused = read("taken"), read("refused")
    async with watched(file, used, monkeypatch) as changed:
        put(path, f"{line_of('shop', 'first')}\n{line_of('shop', 'second')}")
        await changed("taken", taken + 1)
        assert [used[-1].client_of(key) for key in (b"first", b"second")] == ["shop", "shop"]
        put(path, line_of("shop", "second"))
        await changed("taken", taken + 2)
        assert [used[-1].client_of(key) for key in (b"first", b"second")] == [None, "shop"]
        put(path, "once_second")
        await changed("refused", refused + 1)
        path.unlink()
        await changed("refused", refused + 2)
        await asyncio.sleep(0.1)  # many checks of the same missing file
        assert (read("taken"), read("refused")) == (taken + 2, refused + 2)
        assert len(used) == 3
        put(path, line_of("kiosk", "third"))
        await changed("taken", taken + 3)
        assert (used[-1].clients, file.keys) == (frozenset({"kiosk"}), used[-1])
    logged = refusals(caplog)
    assert ["line 1 is no" in str(line["reason"]) for line in logged] == [True, False]
    assert all("ONCE_GATEWAY_API_KEYS_FILE" in str(line["reason"]) for line in logged)
    assert [line["keys_still_in_force"] for line in logged] == [1, 1]
    assert "once_second" not in caplog.text + str([vars(line) for line in caplog.records])


async def test_a_file_whose_mode_alone_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    put(path, line_of("shop", "first"))
    file = KeyFile(str(path))
    taken = read("taken")
    async with watched(file, [], monkeypatch) as changed:
        path.chmod(0o640)
        await changed("taken", taken + 1)


async def test_a_file_that_is_unreadable_for_a_moment_is_loaded_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    put(path, line_of("shop", "first"))
    file = KeyFile(str(path))
    used: list[Keys] = []
    readable, tries = file._read, 0

    def unreadable() -> Keys:
        nonlocal tries
        tries += 1
        raise KeysError("cannot be read (Too many open files)") from OSError(errno.EMFILE, "Too many open files")

    async def tried() -> bool:
        return tries > 3

    taken, refused = read("taken"), read("refused")
    async with watched(file, used, monkeypatch) as changed:
        for number, name in enumerate(("second", "third"), start=1):
            tries = 0
            monkeypatch.setattr(file, "_read", unreadable)
            put(path, line_of("shop", name))
            await eventually(tried, "another try")
            assert read("refused") == refused + number
            monkeypatch.setattr(file, "_read", readable)
            await changed("taken", taken + number)
            assert [keys.client_of(name.encode()) for keys in used[number - 1 :]] == ["shop"]
    assert len(refusals(caplog)) == 2


def test_a_made_key_belongs_to_its_line() -> None:
    plain, as_json = (CliRunner().invoke(keys, ["new", "shop", *words]) for words in ((), ("--json",)))
    shown = dict(line.split() for line in plain.stdout.splitlines())
    made = json.loads(as_json.stdout)
    for key, line in ((shown["key"], shown["line"]), (made["key"], made["line"])):
        assert key.startswith(CLIENT_KEY_PREFIX)
        assert len(key) >= 43 + len(CLIENT_KEY_PREFIX)
        assert parse(line.encode()).client_of(key.encode()) == "shop"
    assert shown["key"] != made["key"]


def test_a_client_with_an_invalid_name_gets_no_key() -> None:
    result = CliRunner().invoke(keys, ["new", "a:b"])
    assert result.exit_code == 2
    assert "letters, digits" in result.output
    assert not is_client("")
