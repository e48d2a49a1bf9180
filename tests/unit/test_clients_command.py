"""`once clients` without a cluster: the file of keys, and what is shown of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.clients.local import client_files, ensure_local
from shared.http.keys import key_of, parse, parse_time
from tests.commands import once


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ONCE_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("ONCE_DIR", str(tmp_path / "stack"))


def answered(*words: object) -> Any:
    done = once("clients", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_client_is_added_listed_and_revoked(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    expires = "2107-01-01T00:00:00Z"
    added = answered("add", "shop", "--scopes", "read,accounts:write", "--expires", expires, "--file", file)
    assert parse(file.read_bytes()).authenticate([f"Bearer {added['key']}"], 0).key_id == added["key_id"]
    terms = {"scopes": ["accounts:write", "read"], "expires": expires}
    another = answered("add-key", "shop", "--file", file)
    keys = answered("keys", "shop", "--file", file)
    assert keys["keys"][0] == {"key_id": added["key_id"], **terms, "last_used": None}
    assert keys["keys"][1]["scopes"] == ["payments:write", "read"]
    [client] = answered("list", "--file", file)["clients"]
    assert client == {
        "client": "shop",
        "keys": 2,
        "scopes": ["accounts:write", "payments:write", "read"],
        "expires": expires,
        "last_used": None,
    }
    assert answered("revoke", "shop", another["key_id"], "--file", file)["revoked"] == [another["key_id"]]
    assert [key.expires_at_ms for key in parse(file.read_bytes())] == [parse_time(expires)]


def test_the_file_is_the_named_one_or_the_settings_or_the_local_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = once("clients", "list")
    assert (done.exit_code, "ONCE_GATEWAY_API_KEYS_FILE" in done.output) == (2, True)
    ensure_local(client_files(tmp_path / "stack"))
    assert [client["client"] for client in answered("list")["clients"]] == ["local"]
    monkeypatch.setenv("ONCE_GATEWAY_API_KEYS_FILE", str(tmp_path / "keys"))
    answered("add", "shop")
    assert [client["client"] for client in answered("list")["clients"]] == ["shop"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["add", "shop", "--scopes", "write"], 2, "payments:write"),
        (["add", "shop", "--expires", "2020-01-01T00:00:00Z"], 2, "passed"),
        (["add", "shop", "--expires", "tomorrow"], 2, "2027-01-01T00:00:00Z"),
        (["add", "a b"], 1, "client's name"),
        (["add-key", "shop"], 1, "once clients add shop"),
        (["keys", "shop"], 1, "shop has no key"),
        (["revoke", "shop"], 1, "shop has no key"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, words: list[str], code: int, says: str) -> None:
    done = once("clients", *words, "--file", tmp_path / "keys")
    assert done.exit_code == code
    assert says in done.output
    assert not (tmp_path / "keys").exists()


def test_a_change_that_is_not_recorded_says_so(tmp_path: Path) -> None:
    done = once("clients", "add", "shop", "--file", tmp_path / "keys")
    assert "not recorded in operations.audit" in done.stderr
    key = done.stdout.split()[1]
    assert done.stdout == f"key     {key}\nkey id  {key_of('shop', key).id}\n"
