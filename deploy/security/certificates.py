"""An authority of the stack's own, and the certificates that it issues (X.509, RFC 5280; EC P-256 keys).

Invariant: an identity is one PEM file, the private key (PKCS #8, unencrypted) and its certificate chain, readable by
its owner alone; OpenSSL, Kafka's brokers and its Java client all take that form. A file is replaced in one step, so
that no reader sees half of it. An identity without addresses can only be a client: peers that check a certificate's
purpose refuse it as a server. The authority's key is needed to issue, never to run.

    DIRECTORY/authority.pem        every authority that is trusted; goes to everyone
    DIRECTORY/authority.key.pem    the issuing authority's key and certificate; stays where certificates are issued
    DIRECTORY/NAME.pem             an identity; goes to NAME alone

The authority is replaced in three steps, everyone started again after each: `add_authority` (old and new are trusted,
the new one issues), every identity issued again, `drop_authorities` (only the new one is trusted).
"""

import datetime as dt
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deploy.security.files import replace
from deploy.security.principals import OPERATOR
from shared.kafka.client.access import Tls

AUTHORITY_DAYS: Final = 3650
IDENTITY_DAYS: Final = 365
RENEWED_DAYS_BEFORE: Final = 30
"""An identity that is asked for again is renewed so many days before it expires."""
_CLOCKS_DIFFER: Final = dt.timedelta(hours=1)  # a certificate counts from before its making: clocks differ
_PUBLIC: Final = 0o644


class CredentialsError(Exception):
    """Credentials cannot be made or read; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority and the folder of what it issued; by `open_authority` or `find_authority`."""

    directory: Path

    @property
    def ca_file(self) -> Path:
        return self.directory / "authority.pem"

    def identity_file(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def tls(self, name: str = OPERATOR) -> Tls:
        """The files by which a client is `name`."""
        return Tls(str(self.ca_file), str(self.identity_file(name)))

    def identity(self, name: str, hosts: Sequence[str] = (), *, valid: dt.timedelta | None = None) -> Path:
        """Issue an identity, in place of an earlier one of this name; returns its file.

        Args:
            name: the common name: lower case letters, digits and dashes.
            hosts: addresses and host names under which it serves; empty for a client.
            valid: IDENTITY_DAYS if None; it ends with the authority at the latest.

        Raises:
            CredentialsError: the name cannot be used, the authority's key is not here, or the authority ends soon.
        """
        if not name or name == "authority" or set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-"):
            raise CredentialsError(f"{name!r} cannot be an identity's name: use lower case letters, digits and dashes")
        issuer_key, issuer = self._issuer()
        left = issuer.not_valid_after_utc - dt.datetime.now(dt.UTC)
        if left < dt.timedelta(days=RENEWED_DAYS_BEFORE):
            raise CredentialsError(
                f"the authority in {self.directory} ends on {issuer.not_valid_after_utc:%Y-%m-%d}, and what it issues "
                "with it: replace it with `once credentials authority`"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = _builder(name, key, min(left, valid or dt.timedelta(days=IDENTITY_DAYS)))
        builder = (
            builder.issuer_name(issuer.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(issues=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(issuer_key, hashes.SHA256())
        path = self.identity_file(name)
        replace(path, _pem(key) + _pem(certificate))
        return path

    def ensure(self, name: str, hosts: Sequence[str] = ()) -> bool:
        """Issue an identity, as `identity` does, unless a usable one exists; return whether it was issued.

        One will do that has these hosts, lasts for RENEWED_DAYS_BEFORE and is of an authority that is trusted.
        """
        try:
            certificate = certificate_of(self.identity_file(name))
        except CredentialsError:  # missing or damaged
            self.identity(name, hosts)
            return True
        lasts = certificate.not_valid_after_utc - dt.datetime.now(dt.UTC) > dt.timedelta(days=RENEWED_DAYS_BEFORE)
        trusted = {each.subject for each in self._trusted()}
        if lasts and _hosts(certificate) == list(hosts) and certificate.issuer in trusted:
            return False
        self.identity(name, hosts)
        return True

    def renew(self, name: str) -> Path:
        """Issue an identity again, with a new key and the addresses that it had; raises as `identity`."""
        return self.identity(name, hosts_of(self.identity_file(name)))

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.directory.glob("*.pem") if path not in {self.ca_file, self._key_file})

    def add_authority(self) -> None:
        """Make a new authority that issues from now on; the earlier ones stay trusted."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = f"once authority {secrets.token_hex(8)}"  # distinguished from an earlier one by its name
        certificate = (
            _builder(name, key, dt.timedelta(days=AUTHORITY_DAYS))
            .issuer_name(_name(name))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(issues=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        earlier = self.ca_file.read_bytes() if self.ca_file.exists() else b""
        # The trust first: an issued certificate must be trusted from the start
        replace(self.ca_file, _pem(certificate) + earlier, _PUBLIC)
        replace(self._key_file, _pem(key) + _pem(certificate))

    def drop_authorities(self) -> None:
        """Trust the issuing authority alone from now on.

        Raises:
            CredentialsError: an identity of an earlier authority is still here, or the authority's key is not.
        """
        _, issuer = self._issuer()
        old = [name for name in self.names() if certificate_of(self.identity_file(name)).issuer != issuer.subject]
        if old:
            raise CredentialsError(f"issued by an earlier authority: {', '.join(old)}; renew them first")
        replace(self.ca_file, _pem(issuer), _PUBLIC)

    @property
    def _key_file(self) -> Path:
        return self.directory / "authority.key.pem"

    @property
    def begun_only(self) -> bool:
        """Whether its making was stopped before it had a key: it has issued nothing, and never will."""
        return self.ca_file.exists() and not self._key_file.exists() and not self.names()

    def _trusted(self) -> list[x509.Certificate]:
        try:
            return x509.load_pem_x509_certificates(_read(self.ca_file))
        except ValueError as error:
            raise CredentialsError(f"{self.ca_file} holds no certificates: put the authority's back") from error

    def _issuer(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        if not self._key_file.exists():
            raise CredentialsError(
                f"{self._key_file} is not here, and nothing is issued without: put it back, or replace the authority "
                "with `once credentials authority`"
            )
        data = _read(self._key_file)
        try:
            key = serialization.load_pem_private_key(data, password=None)
            issuer = x509.load_pem_x509_certificate(data)
        except (ValueError, TypeError) as error:  # the latter for one that is encrypted
            raise self._no_key() from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise self._no_key()
        return key, issuer

    def _no_key(self) -> CredentialsError:
        return CredentialsError(
            f"{self._key_file} holds no unencrypted elliptic curve key with its certificate: put the authority's back"
        )


def open_authority(directory: Path) -> Authority:
    """The authority in this folder, made when there is none; only the owner can read a folder that is made."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = Authority(directory)
    if not authority.ca_file.exists() or authority.begun_only:
        authority.add_authority()
    return authority


def find_authority(directory: Path) -> Authority:
    """The authority in this folder; CredentialsError where there is none."""
    authority = Authority(directory)
    if not authority.ca_file.exists():
        raise CredentialsError(f"{directory} holds no credentials: make them with `once credentials make`")
    return authority


def certificate_of(path: Path) -> x509.Certificate:
    """The first certificate in an identity file; CredentialsError where there is none."""
    data = _read(path)
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise CredentialsError(
            f"{path} holds no certificate: issue it again with `once credentials make`, a server's with --server"
        ) from error


def hosts_of(path: Path) -> list[str]:
    """The addresses and host names that an identity serves under; empty for a client's."""
    return _hosts(certificate_of(path))


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found.value]


def _builder(common_name: str, key: ec.EllipticCurvePrivateKey, valid: dt.timedelta) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, issues: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not issues,
        key_cert_sign=issues,
        crl_sign=issues,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(item: ec.EllipticCurvePrivateKey | x509.Certificate) -> bytes:
    if isinstance(item, x509.Certificate):
        return item.public_bytes(serialization.Encoding.PEM)
    return item.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CredentialsError(
            f"{path} cannot be read ({error.strerror}): make it with `once credentials make`"
        ) from error
