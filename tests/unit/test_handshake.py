"""The cause of a failed connection to a broker, where TLS is the cause."""

import asyncio
import ssl
from pathlib import Path
from typing import NoReturn

import pytest

from deploy.security.certificates import open_authority
from shared.kafka.client.access import Access, Tls
from shared.kafka.client.errors import DeniedError, refuse_handshake

BROKERS = "127.0.0.1:1,127.0.0.1:2"


@pytest.fixture
def access(tmp_path: Path) -> Access:
    authority = open_authority(tmp_path)
    return Access(BROKERS, Tls(str(authority.ca_file), str(authority.identity("monitor"))))


@pytest.fixture
def unusable(tmp_path: Path, access: Access) -> Access:
    """Access with an empty identity file."""
    (tmp_path / "rubbish.pem").write_text("rubbish")
    return Access(BROKERS, Tls(access.tls.ca_file if access.tls else "", str(tmp_path / "rubbish.pem")))


class Ending:
    """Connections that all end with one error, counted."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.tried = 0

    async def __call__(self, *_: object, **__: object) -> NoReturn:
        self.tried += 1
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF)"),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        ConnectionRefusedError(),
        asyncio.IncompleteReadError(b"", 4),
    ],
)
async def test_a_broker_that_closes_the_connection_has_refused_no_certificate(
    access: Access, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = Ending(error)
    monkeypatch.setattr("asyncio.open_connection", ending)
    await refuse_handshake(access)
    assert ending.tried == 2


async def test_a_refused_certificate_is_reported_with_what_to_change(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    alert = ssl.SSLError(1, "an alert")
    alert.reason = "TLSV1_ALERT_UNKNOWN_CA"
    monkeypatch.setattr("asyncio.open_connection", Ending(alert))
    with pytest.raises(DeniedError) as refused:
        await refuse_handshake(access)
    said = str(refused.value)
    assert said.startswith("denied to monitor (by ")
    assert ": no TLS connection with 127.0.0.1:" in said
    assert ": tlsv1 alert unknown ca: ONCE_TLS_CA_FILE must name the brokers' authority" in said
    assert "once access apply" not in said
    assert "\n" not in said


async def test_unusable_files_are_found_before_a_connection_is_made(
    unusable: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = Ending(ConnectionRefusedError())
    monkeypatch.setattr("asyncio.open_connection", ending)
    with pytest.raises(DeniedError, match=r"ONCE_TLS_IDENTITY_FILE is .* does not hold a private key"):
        await refuse_handshake(unusable)
    assert ending.tried == 0
