"""Certificates: real handshakes in memory with the files that are issued."""

import datetime as dt
import ssl
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from deploy.cli.credentials import credentials
from deploy.security import certificates
from deploy.security.certificates import (
    CredentialsError,
    certificate_of,
    find_authority,
    hosts_of,
    open_authority,
)
from deploy.security.principals import CLIENTS


def _shake(server: tuple[Path, Path], client: tuple[Path, Path], host: str) -> tuple[str, str]:
    """Make a handshake in memory and return the names that server and client saw."""
    sides = []
    for purpose, (ca, identity) in ((ssl.PROTOCOL_TLS_SERVER, server), (ssl.PROTOCOL_TLS_CLIENT, client)):
        context = ssl.SSLContext(purpose)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca)
        context.load_cert_chain(identity)
        sides.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        sides[0].wrap_bio(to_server, to_client, server_side=True),
        sides[1].wrap_bio(to_client, to_server, server_hostname=host),
    ]
    for _ in range(4):
        for end in (ends[1], ends[0]):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return _common_name(ends[0]), _common_name(ends[1])


def _common_name(end: ssl.SSLObject) -> str:
    peer = end.getpeercert()
    assert peer
    return str(dict(pair for rdn in peer["subject"] for pair in rdn)["commonName"])  # type: ignore[misc] # typeshed's


def test_a_server_and_a_client_know_each_other_by_name(tmp_path: Path) -> None:
    authority = open_authority(tmp_path)
    server = authority.identity("redis", ["localhost", "127.0.0.1", "::1"])
    client = authority.identity("outbox")
    for host in ("localhost", "127.0.0.1", "::1"):
        assert _shake((authority.ca_file, server), (authority.ca_file, client), host) == ("outbox", "redis")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        _shake((authority.ca_file, server), (authority.ca_file, client), "elsewhere")


def test_a_client_cannot_pose_as_a_server(tmp_path: Path) -> None:
    authority = open_authority(tmp_path)
    client = authority.identity("outbox")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        _shake((authority.ca_file, client), (authority.ca_file, client), "outbox")


def test_a_strangers_certificate_is_refused(tmp_path: Path) -> None:
    authority, stranger = open_authority(tmp_path / "own"), open_authority(tmp_path / "strange")
    server, same_name = authority.identity("redis", ["redis"]), stranger.identity("outbox")
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake((authority.ca_file, server), (authority.ca_file, same_name), "redis")


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    authority = open_authority(tmp_path)
    server = authority.identity("redis", ["redis"])
    client = authority.identity("outbox", valid=dt.timedelta(seconds=-1))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        _shake((authority.ca_file, server), (authority.ca_file, client), "redis")


def test_only_the_owner_can_read_a_key(tmp_path: Path) -> None:
    authority = open_authority(tmp_path / "made")
    authority.identity("ledger")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in authority.directory.iterdir()}
    assert modes == {"authority.pem": 0o644, "authority.key.pem": 0o600, "ledger.pem": 0o600}
    assert stat.S_IMODE(authority.directory.stat().st_mode) == 0o700


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    trusted = open_authority(tmp_path).ca_file.read_bytes()
    assert open_authority(tmp_path).ca_file.read_bytes() == trusted


def test_renewing_replaces_key_and_certificate_and_keeps_the_rest(tmp_path: Path) -> None:
    authority = open_authority(tmp_path)
    path = authority.identity("redis", ["redis", "127.0.0.1"])
    trusted, old, serial = authority.ca_file.read_bytes(), path.read_bytes(), certificate_of(path).serial_number
    assert authority.renew("redis") == path
    assert path.read_bytes() != old
    assert certificate_of(path).serial_number != serial
    assert (hosts_of(path), authority.ca_file.read_bytes()) == (["redis", "127.0.0.1"], trusted)
    assert authority.names() == ["redis"]


def test_holders_trust_each_other_at_each_step_of_an_authoritys_replacement(tmp_path: Path) -> None:
    authority = open_authority(tmp_path)
    server, client = authority.identity("redis", ["redis"]), authority.identity("outbox")
    before = tmp_path / "before.ca"
    before.write_bytes(authority.ca_file.read_bytes())
    authority.add_authority()
    assert _shake((authority.ca_file, server), (before, client), "redis") == ("outbox", "redis")
    authority.renew("redis")
    with pytest.raises(CredentialsError, match="earlier authority: outbox; renew"):
        authority.drop_authorities()
    assert _shake((authority.ca_file, server), (authority.ca_file, client), "redis") == ("outbox", "redis")
    authority.renew("outbox")
    authority.drop_authorities()
    assert _shake((authority.ca_file, server), (authority.ca_file, client), "redis") == ("outbox", "redis")
    with pytest.raises(ssl.SSLCertVerificationError):
        _shake((before, server), (authority.ca_file, client), "redis")


@pytest.mark.parametrize("name", ["", "authority", "Ledger", "../ledger", "a,b", "a b"])
def test_a_name_that_brokers_would_not_accept_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CredentialsError, match="identity's name"):
        open_authority(tmp_path).identity(name)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="holds no credentials"):
        find_authority(tmp_path)
    authority = open_authority(tmp_path)
    with pytest.raises(CredentialsError, match=r"ledger\.pem cannot be read"):
        authority.renew("ledger")
    authority.identity_file("ledger").write_text("nothing")
    with pytest.raises(CredentialsError, match="holds no certificate"):
        authority.renew("ledger")
    key_file = tmp_path / "authority.key.pem"
    key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    for damaged in (b"nothing", key_file.read_bytes()[:60], encrypted):
        key_file.write_bytes(damaged)
        with pytest.raises(CredentialsError, match=r"authority\.key\.pem holds no unencrypted"):
            authority.identity("ledger")
    key_file.unlink()
    with pytest.raises(CredentialsError, match=r"authority\.key\.pem is not here.*once credentials authority"):
        open_authority(tmp_path).identity("ledger")


def test_an_authority_whose_creation_was_interrupted_is_created(tmp_path: Path) -> None:
    open_authority(tmp_path)
    (tmp_path / "authority.key.pem").unlink()
    authority = open_authority(tmp_path)
    server, client = authority.identity("redis", ["redis"]), authority.identity("outbox")
    assert _shake((authority.ca_file, server), (authority.ca_file, client), "redis") == ("outbox", "redis")


def test_an_unusable_identity_is_issued_again_on_request(tmp_path: Path) -> None:
    authority = open_authority(tmp_path)
    assert authority.ensure("outbox")
    assert not authority.ensure("outbox")
    authority.add_authority()
    assert not authority.ensure("outbox"), "its own authority is still trusted"
    path = authority.identity_file("outbox")
    for damaged in (b"", b"nothing"):
        path.write_bytes(damaged)
        assert authority.ensure("outbox")
    authority.identity("outbox", valid=dt.timedelta(days=29))
    assert authority.ensure("outbox")
    # Another authority in the same place: what the earlier one issued is not trusted
    for name in ("authority.pem", "authority.key.pem"):
        (tmp_path / name).unlink()
    assert open_authority(tmp_path).ensure("outbox")


def test_nothing_outlives_its_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 100)
    authority = open_authority(tmp_path / "soon")
    ends = x509.load_pem_x509_certificate(authority.ca_file.read_bytes()).not_valid_after_utc
    assert certificate_of(authority.identity("outbox")).not_valid_after_utc <= ends
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 29)
    with pytest.raises(CredentialsError, match=r"ends on .* replace it"):
        open_authority(tmp_path / "now").identity("outbox")


def test_the_command_makes_what_is_missing_and_renews_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"

    def run(*arguments: str) -> list[str]:
        result = CliRunner().invoke(credentials, [arguments[0], str(folder), *arguments[1:]])
        assert result.exit_code == 0, result.output
        return [Path(line.split()[0]).name for line in result.output.splitlines()]

    server = ("--server", "broker-0=kafka-0, 127.0.0.1")
    assert run("make", *server) == [f"{name}.pem" for name in (*CLIENTS, "broker-0")]
    assert hosts_of(folder / "broker-0.pem") == ["kafka-0", "127.0.0.1"]
    assert run("make", *server) == []
    assert run("make", "--server", "broker-0=kafka-0") == ["broker-0.pem"]
    open_authority(folder).identity("broker-0", ["kafka-0"], valid=dt.timedelta(days=29))
    assert run("make") == ["broker-0.pem"]
    assert hosts_of(folder / "broker-0.pem") == ["kafka-0"]
    assert run("renew", "ledger", "broker-0") == ["ledger.pem", "broker-0.pem"]
    assert run("authority") == ["authority.pem"]
    assert len(run("renew")) == len(CLIENTS) + 1
    assert run("authority", "--drop-old") == ["authority.pem"]


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(credentials, ["renew", str(tmp_path)])
    assert result.exit_code == 78
    assert result.output.count("\n") == 1
    assert "once credentials make" in result.output
    for server in ("broker-0", "broker-0=", "broker-0=a,,b", "broker-0=kaf\u00e9", "ledger=kafka-0"):
        made = CliRunner().invoke(credentials, ["make", str(tmp_path), "--server", server])
        assert (made.exit_code, "NAME=HOST" in made.output) == (2, True), server
