"""The cluster and the TLS files of a command: the named ones, or the running stack's."""

import os
from pathlib import Path

import pytest

from deploy.cli.cluster import find_access
from deploy.local.supervisor import state
from deploy.security.certificates import open_authority
from shared.kafka.client.access import Access, Tls
from shared.settings import SettingsError

STACK = "127.0.0.1:9"
OTHER = "127.0.0.1:10"


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tls:
    """The operator of the secure stack that runs."""
    for name in ("BOOTSTRAP_SERVERS", "TLS_CA_FILE", "TLS_IDENTITY_FILE"):
        monkeypatch.delenv(f"ONCE_{name}", raising=False)
    monkeypatch.setenv("ONCE_DIR", str(tmp_path))
    authority = open_authority(tmp_path / "credentials")
    authority.identity("operator")
    authority.identity("another")
    tls = authority.tls()
    files = state.TlsFiles(tls.ca_file, tls.identity_file)
    state.write(tmp_path, running(STACK, files))
    return tls


def running(brokers: str, tls: state.TlsFiles | None) -> state.StackState:
    """The state of a stack whose supervisor is this process."""
    ticks = state.start_ticks(os.getpid())
    assert ticks is not None
    return state.StackState(os.getpid(), ticks, True, brokers, "redis://127.0.0.1:1/0", (), tls)


def test_the_running_stack_is_reached_as_its_operator(operator: Tls) -> None:
    assert find_access() == Access(STACK, operator)


def test_the_stacks_files_are_used_with_its_own_brokers_only(operator: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCE_BOOTSTRAP_SERVERS", OTHER)
    assert find_access() == Access(OTHER)
    monkeypatch.setenv("ONCE_BOOTSTRAP_SERVERS", STACK)
    assert find_access() == Access(STACK, operator)


def test_named_files_come_first(operator: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    another = operator.identity_file.replace("operator", "another")
    monkeypatch.setenv("ONCE_TLS_CA_FILE", operator.ca_file)
    monkeypatch.setenv("ONCE_TLS_IDENTITY_FILE", another)
    assert find_access() == Access(STACK, Tls(operator.ca_file, another))
    monkeypatch.setenv("ONCE_TLS_IDENTITY_FILE", another + ".gone")
    with pytest.raises(SettingsError, match="cannot be read"):
        find_access()
    monkeypatch.delenv("ONCE_TLS_IDENTITY_FILE")
    with pytest.raises(SettingsError, match="ONCE_TLS_IDENTITY_FILE is not set"):
        find_access()


def test_without_a_stack_and_without_a_name_there_is_no_cluster(operator: Tls, tmp_path: Path) -> None:
    state.state_path(tmp_path).unlink()
    assert find_access() is None
