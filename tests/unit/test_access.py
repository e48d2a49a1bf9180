"""Access to a cluster: both files or neither, each checked, and named when it is unusable."""

import datetime as dt
import ssl
from pathlib import Path

import pytest

from deploy.security import certificates
from deploy.security.certificates import Authority, open_authority
from shared.kafka.client.access import (
    CONNECTION_IDLE_MS,
    Access,
    Tls,
    access,
    access_by,
    client_options,
    connection_options,
    tls_of,
)
from shared.settings import MonitorSettings, SettingsError, load, tls_files

BROKERS = "127.0.0.1:9092,127.0.0.1:9093"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = open_authority(tmp_path)
    made.identity("monitor")
    return made


def tls(authority: Authority) -> Tls:
    return Tls(str(authority.ca_file), str(authority.identity_file("monitor")))


def test_brokers_alone_are_a_cluster_without_tls() -> None:
    assert access_by(BROKERS) == Access(BROKERS) == access(load(MonitorSettings, {"ONCE_BOOTSTRAP_SERVERS": BROKERS}))
    alone = {"bootstrap_servers": BROKERS, "connections_max_idle_ms": CONNECTION_IDLE_MS}
    assert client_options(BROKERS) == client_options(Access(BROKERS)) == alone
    assert connection_options(BROKERS) == {}
    assert str(Access(BROKERS, Tls("a", "b"))) == BROKERS


def test_a_service_is_given_both_files(authority: Authority) -> None:
    files = tls(authority)
    settings = load(
        MonitorSettings,
        {
            "ONCE_BOOTSTRAP_SERVERS": BROKERS,
            "ONCE_TLS_CA_FILE": files.ca_file,
            "ONCE_TLS_IDENTITY_FILE": files.identity_file,
        },
    )
    found = access(settings)
    assert (found, found.bearer) == (Access(BROKERS, files), f"monitor (by {files.identity_file})")
    options = client_options(found)
    context = options["ssl_context"]
    assert (options["bootstrap_servers"], options["security_protocol"]) == (BROKERS, "SSL")
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_each_client_reads_the_files_again(authority: Authority) -> None:
    files = tls(authority)
    one, other = (connection_options(Access(BROKERS, files))["ssl_context"] for _ in range(2))
    assert one is not other
    Path(files.identity_file).write_text("rubbish")
    with pytest.raises(SettingsError, match="ONCE_TLS_IDENTITY_FILE"):
        connection_options(Access(BROKERS, files))


def test_commands_take_both_files_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCE_TLS_CA_FILE", raising=False)
    monkeypatch.setenv("ONCE_TLS_IDENTITY_FILE", "operator.pem")
    assert tls_files() == ("", "operator.pem")


def test_one_file_alone_is_refused() -> None:
    assert tls_of("", "") is None
    with pytest.raises(SettingsError, match=r"ONCE_TLS_IDENTITY_FILE is not set, and ONCE_TLS_CA_FILE is"):
        tls_of("ca.pem", "")
    with pytest.raises(SettingsError, match=r"ONCE_TLS_CA_FILE is not set, and ONCE_TLS_IDENTITY_FILE is"):
        tls_of("", "identity.pem")


def test_a_file_that_cannot_be_used_is_named(authority: Authority, tmp_path: Path) -> None:
    good, rubbish = tls(authority), tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    for wrong, message in (
        (
            Tls(str(tmp_path / "gone"), good.identity_file),
            r"ONCE_TLS_CA_FILE is .*/gone, which cannot be read \(No such",
        ),
        (Tls(str(rubbish), good.identity_file), r"ONCE_TLS_CA_FILE is .* does not hold certificates"),
        (Tls(good.ca_file, str(tmp_path / "gone")), r"ONCE_TLS_IDENTITY_FILE is .*/gone, which cannot be read"),
        (Tls(good.ca_file, good.ca_file), r"ONCE_TLS_IDENTITY_FILE is .* does not hold a private key"),
    ):
        with pytest.raises(SettingsError, match=message):
            wrong.context()
    with pytest.raises(SettingsError, match="does not hold a certificate"):
        Tls(good.ca_file, str(rubbish)).principal  # noqa: B018 # it is refused


def test_an_encrypted_key_is_refused_without_a_password_prompt(authority: Authority) -> None:
    path = authority.identity_file("monitor")
    text = path.read_text()
    begin = text.index("-----END PRIVATE KEY-----")
    path.write_text(
        text[:begin].replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY") + "-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    with pytest.raises(SettingsError, match="does not hold a private key"):
        tls(authority).context()


def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    authority.identity("monitor", valid=dt.timedelta(seconds=-1))
    with pytest.raises(SettingsError, match="expired on"):
        tls(authority).principal  # noqa: B018 # the same


def test_a_client_knows_when_its_certificates_end(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.identity("monitor", valid=dt.timedelta(days=20))
    first = tls(authority).expiries()
    left = first["identity"] - dt.datetime.now(dt.UTC)
    assert dt.timedelta(days=19) < left <= dt.timedelta(days=20)
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 100)
    authority.add_authority()  # trusted as well; the last one counts
    assert tls(authority).expiries() == first
    with pytest.raises(SettingsError, match=r"ONCE_TLS_CA_FILE is .*/gone, which cannot be read"):
        Tls(str(tmp_path / "gone"), tls(authority).identity_file).expiries()
