"""The file of keys as commands change it: issued, revoked, by several commands at once, and its permissions."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy import PROJECT_ROOT
from deploy.clients.keyring import Keyring, KeyringError
from deploy.clients.local import LOCAL, SCOPES, client_files, ensure_local
from shared.events.clients import Scope
from shared.http.keys import DEFAULT_SCOPES, KEYS_PER_CLIENT_MAX, Key, key_of, parse
from tests.keys import line_of


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path / "new" / "api-keys")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_issued_key_is_in_the_file_until_it_is_revoked(keyring: Keyring) -> None:
    first, entry = keyring.issue("shop", DEFAULT_SCOPES, first=True)
    second, _ = keyring.issue("shop", frozenset({Scope.READ}), 1_800_000_000_000, first=False)
    assert first != second
    assert entry == key_of("shop", first)
    assert keyring.read() == [entry, key_of("shop", second, frozenset({Scope.READ}), 1_800_000_000_000)]
    assert parse(keyring.path.read_bytes()).authenticate([f"Bearer {first}"], 0).client == "shop"
    assert keyring.revoke("shop", entry.id) == [entry]
    assert [key.id for key in keyring.read()] == [key_of("shop", second).id]
    assert mode_of(keyring.path) == 0o600
    assert first not in keyring.path.read_text()


@pytest.mark.parametrize("content", ["", "\n", "# keys of the gateway\n"])
def test_a_file_without_keys_gets_its_first_one(keyring: Keyring, content: str) -> None:
    keyring.path.parent.mkdir()
    keyring.path.write_text(content)  # made before for another owner: a change keeps it
    with pytest.raises(KeyringError, match="shop has no key"):
        keyring.revoke("shop")
    _, entry = keyring.issue("shop", DEFAULT_SCOPES, first=True)
    assert keyring.read() == [entry]
    assert keyring.path.read_text().startswith(content.strip())


def test_all_keys_of_a_client_are_revoked_and_comments_remain(keyring: Keyring) -> None:
    keyring.path.parent.mkdir()
    shops = [line_of("shop", "a"), line_of("shop", "b")]
    keyring.path.write_text(f"# the shop\n{shops[0]}\n\n{line_of('kiosk', 'c')}\n{shops[1]}\n# the end\n")
    assert [key.line for key in keyring.revoke("shop")] == shops
    assert keyring.path.read_text() == f"# the shop\n\n{line_of('kiosk', 'c')}\n# the end\n"


def test_the_file_is_utf_8_whatever_the_locale(keyring: Keyring) -> None:
    keyring.path.parent.mkdir()
    keyring.path.write_text("# für den Laden\n", encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from deploy.clients.keyring import Keyring; "
        "from shared.http.keys import DEFAULT_SCOPES; "
        "Keyring(Path(sys.argv[1])).issue('shop', DEFAULT_SCOPES)"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(
        [sys.executable, "-c", code, str(keyring.path)], env={**os.environ, **locale}, cwd=PROJECT_ROOT, check=True
    )
    assert keyring.path.read_text(encoding="utf-8").startswith("# für den Laden\n")
    assert [key.client for key in keyring.read()] == ["shop"]


def one_too_many(keyring: Keyring) -> None:
    for _ in range(KEYS_PER_CLIENT_MAX + 1):
        keyring.issue("shop", DEFAULT_SCOPES)


def invalid(keyring: Keyring) -> None:
    keyring.path.parent.mkdir()
    keyring.path.write_text("once_a-key-that-was-pasted")
    keyring.issue("shop", DEFAULT_SCOPES)


def twice(keyring: Keyring) -> None:
    keyring.issue("shop", DEFAULT_SCOPES, first=True)
    keyring.issue("shop", DEFAULT_SCOPES, first=True)


def the_last(keyring: Keyring) -> None:
    keyring.issue("shop", DEFAULT_SCOPES)
    keyring.revoke("shop")


def another(keyring: Keyring) -> None:
    keyring.issue("shop", DEFAULT_SCOPES)
    keyring.revoke("shop", "00" * 8)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda keyring: keyring.issue("a:b", DEFAULT_SCOPES), "cannot be a client's name"),
        (lambda keyring: keyring.issue("shop", DEFAULT_SCOPES, first=False), "once clients add shop"),
        (lambda keyring: keyring.revoke("shop"), "shop has no key"),
        (another, "shop has no key 0000"),
        (twice, "once clients add-key shop"),
        (the_last, "no key would be left"),
        (one_too_many, "is key 9 of shop"),
        (invalid, "line 1 is no"),
    ],
)
def test_a_change_that_cannot_be_made_leaves_the_file_as_it_was(
    keyring: Keyring, act: Callable[[Keyring], object], says: str
) -> None:
    with pytest.raises(KeyringError, match=says) as refused:
        act(keyring)
    assert "pasted" not in str(refused.value)
    if keyring.path.exists() and act is not invalid:
        assert len(keyring.read()) == (KEYS_PER_CLIENT_MAX if act is one_too_many else 1)


def test_a_key_that_cannot_be_recorded_is_not_issued(keyring: Keyring) -> None:
    def refuse(_key: Key) -> None:
        raise ValueError("no broker answers")

    with pytest.raises(ValueError, match="no broker answers"):
        keyring.issue("shop", DEFAULT_SCOPES, before=refuse)
    assert keyring.read() == []


def test_commands_at_once_lose_no_key(keyring: Keyring) -> None:
    with ThreadPoolExecutor(8) as threads:
        keys = list(threads.map(lambda number: keyring.issue(f"client-{number}", DEFAULT_SCOPES)[1], range(40)))
    assert sorted(keyring.read()) == sorted(keys)


def test_a_file_whose_owner_cannot_be_kept_is_not_changed(keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway could not read it any more, and would end."""
    keyring.issue("shop", DEFAULT_SCOPES)
    keyring.issue("kiosk", DEFAULT_SCOPES)
    content, before = keyring.path.read_bytes(), keyring.path.stat()
    for name in ("chown", "fchown"):
        monkeypatch.setattr(os, name, _refuse)
    monkeypatch.setattr(os, "geteuid", lambda: before.st_uid + 1)
    with pytest.raises(KeyringError, match="not permitted"):
        keyring.revoke("shop")
    after = keyring.path.stat()
    assert (keyring.path.read_bytes(), after.st_ino) == (content, before.st_ino)
    assert sorted(path.name for path in keyring.path.parent.iterdir()) == ["api-keys", "api-keys.lock"]


def _refuse(*_: object) -> None:
    raise PermissionError(errno.EPERM, "not permitted")


def test_a_changed_file_keeps_its_owner_and_mode(keyring: Keyring) -> None:
    keyring.issue("shop", DEFAULT_SCOPES)
    keyring.path.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(keyring.path, 12345, 12345)
    before = keyring.path.stat()
    keyring.issue("kiosk", DEFAULT_SCOPES)
    after = keyring.path.stat()
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert mode_of(keyring.path) == 0o640  # a file of keys is no one else's


def test_the_local_client_is_made_once_and_again_when_its_line_is_lost(tmp_path: Path) -> None:
    files = client_files(tmp_path)
    ensure_local(files)
    key = files.local_key.read_text()
    assert Keyring(files.keys).read() == [key_of(LOCAL, key, SCOPES)]
    assert mode_of(files.local_key) == mode_of(files.keys) == 0o600
    ensure_local(files)
    assert files.local_key.read_text() == key
    Keyring(files.keys).issue("shop", DEFAULT_SCOPES)
    Keyring(files.keys).revoke(LOCAL)
    ensure_local(files)
    assert files.local_key.read_text() != key
    assert {found.client for found in Keyring(files.keys).read()} == {"shop", LOCAL}
