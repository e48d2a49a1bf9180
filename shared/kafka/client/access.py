"""Access to a cluster: its brokers, and the files for mutual TLS.

Invariant: each client that starts makes a new context from the files, so changes on disk take effect then. Host names
of brokers are verified, and TLS 1.2 is the minimum. A file that cannot be used raises a `SettingsError` that names it.
"""

import datetime as dt
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from shared.settings import ServiceSettings, SettingsError

CONNECTION_IDLE_MS: Final = 30_000
"""Milliseconds until a connection without requests is closed.

Leaders and coordinators move when a broker dies, and each producer of a process then opens connections to others. The
library's default keeps the former ones for nine minutes, and so the number of open files follows each broker's death.
"""


@dataclass(frozen=True, slots=True)
class Tls:
    """The two PEM files of a client.

    Attributes:
        ca_file: certificates of the authorities that sign brokers' certificates.
        identity_file: the client's private key and its certificate chain.
    """

    ca_file: str
    identity_file: str

    def context(self) -> ssl.SSLContext:
        """Make a context from the current files.

        Raises:
            SettingsError: a file is missing, cannot be read, or has the wrong content.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it checks host names
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.ca_file)
        except OSError as error:
            raise _unusable("ONCE_TLS_CA_FILE", self.ca_file, "certificates", error) from error
        try:
            context.load_cert_chain(self.identity_file, password="")  # given, so that OpenSSL does not prompt for one
        except OSError as error:
            raise _unusable(
                "ONCE_TLS_IDENTITY_FILE", self.identity_file, "a private key and its certificate", error
            ) from error
        return context

    @property
    def principal(self) -> str:
        """Return the common name of the identity file's certificate.

        Raises:
            SettingsError: as `context`, or the certificate has expired.
        """
        certificate = _certificates("ONCE_TLS_IDENTITY_FILE", self.identity_file, "a certificate")[0]
        if certificate.not_valid_after_utc < dt.datetime.now(dt.UTC):
            raise SettingsError(
                f"ONCE_TLS_IDENTITY_FILE is {self.identity_file}, whose certificate expired on "
                f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: renew it"
            )
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[0].value) if names else certificate.subject.rfc4514_string()

    def expiries(self) -> dict[str, dt.datetime]:
        """Return when the identity ends, and the last of the trusted authorities: it is the one that issues.

        Raises:
            SettingsError: a file is missing, cannot be read, or holds no certificate.
        """
        identity = _certificates("ONCE_TLS_IDENTITY_FILE", self.identity_file, "a certificate")[0].not_valid_after_utc
        trusted = _certificates("ONCE_TLS_CA_FILE", self.ca_file, "certificates")
        return {"identity": identity, "authority": max(each.not_valid_after_utc for each in trusted)}


def _certificates(variable: str, path: str, holds: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise _unusable(variable, path, holds, error) from error


@dataclass(frozen=True, slots=True)
class Access:
    """A cluster, and the files to connect with. As text it is the brokers.

    Attributes:
        bootstrap_servers: brokers, host:port, comma separated.
        tls: None for a cluster without TLS.
    """

    bootstrap_servers: str
    tls: Tls | None = None

    def __str__(self) -> str:
        return self.bootstrap_servers

    @property
    def bearer(self) -> str:
        """Name the client in messages: principal and file. It never fails, because another error is being reported."""
        if self.tls is None:
            return "a client without TLS"
        try:
            return f"{self.tls.principal} (by {self.tls.identity_file})"
        except SettingsError as error:
            return f"an unknown principal ({error})"


Bootstrap = str | Access
"""Argument of every client: brokers, comma separated, of a cluster without TLS, or an `Access`."""


def tls_of(ca_file: str, identity_file: str) -> Tls | None:
    """Combine both files, or return None for neither. The files are not read yet.

    Raises:
        SettingsError: only one is given.
    """
    if not ca_file and not identity_file:
        return None
    if not ca_file or not identity_file:
        missing, given = "ONCE_TLS_CA_FILE", "ONCE_TLS_IDENTITY_FILE"
        if ca_file:
            missing, given = given, missing
        raise SettingsError(f"{missing} is not set, and {given} is: set both for a cluster with TLS, else neither")
    return Tls(ca_file, identity_file)


def access(settings: ServiceSettings) -> Access:
    """Return the cluster that a service's settings name.

    Raises:
        SettingsError: as `tls_of`.
    """
    return Access(settings.bootstrap_servers, tls_of(settings.tls_ca_file, settings.tls_identity_file))


def access_by(bootstrap: Bootstrap) -> Access:
    """Return an `Access` as it is, and brokers alone as one without TLS."""
    return bootstrap if isinstance(bootstrap, Access) else Access(bootstrap)


def connection_options(bootstrap: Bootstrap) -> dict[str, Any]:
    """Return aiokafka's connection arguments: security protocol, and a new context for each call.

    Raises:
        SettingsError: a file cannot be used any more.
    """
    tls = access_by(bootstrap).tls
    return {} if tls is None else {"security_protocol": "SSL", "ssl_context": tls.context()}


def client_options(bootstrap: Bootstrap) -> dict[str, Any]:
    """Return `connection_options`, the brokers and CONNECTION_IDLE_MS: the arguments common to aiokafka's clients."""
    idle = {"connections_max_idle_ms": CONNECTION_IDLE_MS}
    return {"bootstrap_servers": str(bootstrap), **idle, **connection_options(bootstrap)}


def _unusable(variable: str, path: str, holds: str, error: Exception) -> SettingsError:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return SettingsError(f"{variable} is {path}, which cannot be read ({error.strerror}): name the right file")
    return SettingsError(f"{variable} is {path}, which does not hold {holds} in PEM: name the right file")
