"""Refused identities: unknown clients, and services without their identity, files or rights."""

import asyncio
import datetime as dt
import socket
import ssl
from pathlib import Path

import pytest

from deploy.local.supervisor.stack import Stack
from deploy.local.supervisor.topology import SERVICES
from deploy.security.certificates import Authority, certificate_of, open_authority
from deploy.security.principals import OPERATOR
from shared.events.catalogue import PAYMENTS_DEDUPLICATED
from shared.kafka.admin.acls import ensure_rules
from shared.kafka.admin.rules import (
    MEMBERS,
    PROCESSORS,
    Kind,
    Operation,
    Rule,
    rules,
)
from shared.kafka.client.access import Tls
from tests.harness import Service, wait_until
from tests.integration.secure.commands import once
from tests.tiers import full

pytestmark = pytest.mark.timeout(900)


def test_a_client_without_a_certificate_of_the_authority_is_refused(
    stack: Stack, authority: Authority, tmp_path: Path
) -> None:
    stranger = open_authority(tmp_path / "strange")
    stranger.identity(OPERATOR)
    expired = authority.identity("expired", valid=dt.timedelta(seconds=1))
    trusted = str(authority.ca_file)

    forged = once(stack, "txn", "list", tls=Tls(trusted, str(stranger.identity_file(OPERATOR))))
    assert (forged.returncode, forged.stderr.count("\n")) == (78, 1), forged.stderr
    assert "denied to operator" in forged.stderr
    assert "no TLS connection" in forged.stderr
    distrusting = once(stack, "txn", "list", tls=Tls(str(stranger.ca_file), str(authority.identity_file(OPERATOR))))
    assert (distrusting.returncode, distrusting.stderr.count("\n")) == (78, 1), distrusting.stderr
    assert "the broker's certificate is refused" in distrusting.stderr

    def talks(context: ssl.SSLContext | None) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", stack.kafka.nodes[0].port), timeout=5) as raw:
                connection = raw if context is None else context.wrap_socket(raw, server_hostname="127.0.0.1")
                connection.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\0\xff\xff")
                # The length of a response; a TLS alert has none
                return 0 < int.from_bytes(connection.recv(4)) < 1024 * 1024
        except (ssl.SSLError, ConnectionError):
            return False

    known = authority.tls().context()
    without = ssl.create_default_context(cafile=trusted)
    wait_until(lambda: dt.datetime.now(dt.UTC) > certificate_of(expired).not_valid_after_utc, "it is expired", 10)
    late = ssl.create_default_context(cafile=trusted)
    late.load_cert_chain(expired)
    assert [talks(context) for context in (known, without, late, None)] == [True, False, False, False]
    expired.unlink()


@full
def test_a_client_without_tls_is_asked_to_use_it(stack: Stack, tmp_path: Path) -> None:
    brokers = stack.kafka.bootstrap_servers
    command = once(stack, "txn", "list", ONCE_DIR=str(tmp_path), ONCE_BOOTSTRAP_SERVERS=brokers)
    assert (command.returncode, command.stderr.count("\n")) == (78, 1), command.stderr
    said = " speaks TLS: name the authority's file in ONCE_TLS_CA_FILE"
    assert said in command.stderr
    service = Service("transform", brokers, tmp_path, "9").start()
    assert service.wait_exit(60) == 78, service.process.log_tail()
    last = service.log()[-1]  # after the client library's errors
    assert last["event"] == "denied"
    assert said in str(last["reason"])


def refused(service: Service, event: str) -> str:
    """Return why a service refused to start, with exit code 78 and one line."""
    assert service.wait_exit(60) == 78, service.process.log_tail()
    [line] = service.log()
    assert (line["event"], line["level"]) == (event, "error"), line
    return str(line["reason"])


def another_instance(stack: Stack, directory: Path, name: str, tls: Tls) -> Service:
    """Start another instance of a service with these files."""
    files = {"TLS_CA_FILE": tls.ca_file, "TLS_IDENTITY_FILE": tls.identity_file, "REDIS_URL": stack.redis.url}
    return Service(name, stack.kafka.bootstrap_servers, directory, "9", **files).start()


def test_a_service_whose_rule_is_missing_says_so_at_its_start(
    stack: Stack, authority: Authority, tmp_path: Path
) -> None:
    missing = Rule("ingest", Kind.TOPIC, PAYMENTS_DEDUPLICATED, Operation.WRITE)
    asyncio.run(ensure_rules(stack.access, rules() - {missing}))
    try:
        reason = refused(another_instance(stack, tmp_path, "ingest", authority.tls("ingest")), "denied")
    finally:
        asyncio.run(ensure_rules(stack.access))
    assert reason.startswith(
        f"denied to ingest (by {authority.identity_file('ingest')}): as ingest it needs WRITE on topic "
        f"{PAYMENTS_DEDUPLICATED} (brokers "
    )
    assert "docs/access.md" in reason


@full
def test_a_service_with_anothers_identity_says_so_at_its_start(
    stack: Stack, authority: Authority, tmp_path: Path
) -> None:
    others = {name: "gateway" if name != "gateway" else "transform" for name in SERVICES}
    started = {name: another_instance(stack, tmp_path, name, authority.tls(other)) for name, other in others.items()}
    for name, other in others.items():
        reason = refused(started[name], "denied")
        assert f"denied to {other} (by {authority.identity_file(other)}): as {name} it needs " in reason
        assert (f"READ on group {name}" in reason) == (name in MEMBERS)
        assert (f"WRITE on transactional id {name}-*" in reason) == (name in PROCESSORS)


def test_files_that_cannot_be_used_are_named_at_the_start(stack: Stack, authority: Authority, tmp_path: Path) -> None:
    good = authority.tls("transform")
    stranger = open_authority(tmp_path / "strange").identity("transform")
    expired = open_authority(tmp_path / "late").identity("transform", valid=dt.timedelta(seconds=-1))
    cases: list[tuple[Tls, str, str]] = [
        (Tls(good.ca_file, str(tmp_path / "gone.pem")), "settings refused", "gone.pem, which cannot be read"),
        (Tls(str(tmp_path / "gone.pem"), good.identity_file), "settings refused", "gone.pem, which cannot be read"),
        (Tls(good.ca_file, good.ca_file), "settings refused", "does not hold a private key"),
        (Tls(good.ca_file, ""), "settings refused", "ONCE_TLS_IDENTITY_FILE is not set"),
        (Tls(good.ca_file, str(expired)), "settings refused", "expired on"),
        (Tls(good.ca_file, str(stranger)), "denied", "no TLS connection"),
    ]
    started = [another_instance(stack, tmp_path / str(i), "transform", case[0]) for i, case in enumerate(cases)]
    for service, (_, event, reason) in zip(started, cases, strict=True):
        assert reason in refused(service, event)
