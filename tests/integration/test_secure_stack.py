"""A secure stack: who may do what is tried for real, strangers and thieves are refused, and credentials are replaced at
work. All of it on one stack, which must still be right at the end."""

import asyncio
import datetime as dt
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local import state
from deploy.local.security import tls_as
from deploy.local.supervisor import Stack, describe
from deploy.security.certificates import Authority, certificate_of, open_authority
from deploy.security.principals import OPERATOR, SERVICES, broker
from shared.eos.crash import CrashPoints
from shared.eos.errors import EosError
from shared.eos.open_transactions import Transaction
from shared.events.catalogue import LEDGER_POSTINGS, PAYMENTS_DEDUPLICATED, TOPICS
from shared.kafka.access import Access, Tls
from shared.kafka.acls import Changed, ensure_rules
from shared.kafka.brokers import Brokers
from shared.kafka.errors import DeniedError, KafkaUnavailableError, is_denied
from shared.kafka.idempotent import IdempotentWriter
from shared.kafka.producer import TransactionalProducer
from shared.kafka.reader import end_offsets
from shared.kafka.rules import (
    CLUSTER,
    MEMBERS,
    PRINCIPALS,
    PROCESSORS,
    Kind,
    Operation,
    Rule,
    allows,
    rules,
    transactional_ids,
)
from shared.kafka.transactions import look
from tests.access_attempts import NOBODYS, Caller, nobodys
from tests.harness import ROOT, Service, wait_until
from tests.payments import payments
from tests.pipeline.few_rows import FOR_FEW_ROWS
from tests.proof import send_raw

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

COMMAND_S = 800.0
READY_S = 180.0
LETTERS = {
    Operation.READ: "R",
    Operation.WRITE: "W",
    Operation.DESCRIBE: "d",
    Operation.DESCRIBE_CONFIGS: "c",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Every service, each with an identity of its own; the commands find it by its stack.json."""
    made = Stack(
        tmp_path_factory.mktemp("secure"),
        heap_mb=256,
        secure=True,
        on_state=lambda current: state.write(current.directory, describe(current)),
    )
    try:
        made.start()
        made.wait_ready(READY_S)
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def authority(stack: Stack) -> Authority:
    """Whose certificates the stack trusts."""
    assert stack.kafka.authority is not None
    return stack.kafka.authority


def as_(stack: Stack, authority: Authority, principal: str) -> Access:
    """The stack's brokers, for the bearer of an identity."""
    return Access(stack.kafka.bootstrap_servers, tls_as(authority, principal))


def once(
    stack: Stack, *arguments: str, tls: Tls | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command as an operator does; as the bearer of `tls` when given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ONCE_")}
    clean |= {"ONCE_DIR": str(stack.directory), **environment}
    if tls is not None:
        clean |= {"ONCE_TLS_CA_FILE": tls.ca_file, "ONCE_TLS_IDENTITY_FILE": tls.identity_file}
    command = [sys.executable, "-m", "deploy.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=COMMAND_S, check=False)


def verdict(stack: Stack) -> dict[str, Any]:
    """What `once verify` says, given without further arguments."""
    done = once(stack, "verify", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def cells() -> list[Rule]:
    """Everything that is tried, without the principal: each operation on each topic, group, transactional.id and on the
    cluster."""
    internal = ("__consumer_offsets", "__transaction_state")
    topics = [
        Rule("", Kind.TOPIC, name, operation)
        for name in (*(topic.name for topic in TOPICS), *internal)
        for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    ]
    groups = [
        Rule("", Kind.GROUP, name, operation)
        for name in (*MEMBERS, "another")
        for operation in (Operation.READ, Operation.DESCRIBE)
    ]
    ids = [
        Rule("", Kind.TRANSACTIONAL_ID, f"{transactional_ids(service)}tried", operation)
        for service in (*PROCESSORS, "another")
        for operation in (Operation.WRITE, Operation.DESCRIBE)
    ]
    cluster = [
        Rule("", Kind.CLUSTER, CLUSTER, operation) for operation in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    ]
    return [*topics, *groups, *ids, *cluster]


def test_each_principal_may_do_what_the_rules_say_and_nothing_else(stack: Stack, authority: Authority) -> None:
    granted, seen = rules(), dict[Rule, bool]()
    for number, principal in enumerate(PRINCIPALS):
        # Every broker decides by itself: each is asked by some
        node = stack.kafka.nodes[number % len(stack.kafka.nodes)]
        with Caller(node.port, tls_as(authority, principal)) as caller:
            for cell in cells():
                wanted = cell._replace(principal=principal)
                seen[wanted] = not caller.denied(wanted)
            let_through = [request[0] for request in NOBODYS if not nobodys(caller, request)]
            assert let_through == [], f"{principal} may administer"
    show(seen)
    wrong = [rule for rule, allowed in seen.items() if allowed != allows(granted, rule)]
    assert wrong == []
    assert {True, False} == set(seen.values())
    # Each rule was tried, and let its principal through
    untried = {rule for rule in granted if not any(seen[tried] and allows(frozenset({rule}), tried) for tried in seen)}
    assert untried == set()


def show(seen: dict[Rule, bool]) -> None:
    """Print what was let through, by resource and principal."""
    width = max(len(rule.name) for rule in seen) + 1
    print("\n" + " " * (width + 18) + "".join(f"{name:>15}" for name in PRINCIPALS))
    for kind, name in dict.fromkeys((rule.kind, rule.name) for rule in seen):
        row = ""
        for principal in PRINCIPALS:
            letters = [
                letter
                for operation, letter in LETTERS.items()
                if seen.get(Rule(principal, kind, name, operation), False)
            ]
            row += f"{''.join(letters) or '-':>15}"
        print(f"{kind.name.lower():<17} {name:<{width}}{row}")
    print(f"{len(seen)} things tried, {sum(seen.values())} let through")


def test_the_operator_may_administer(stack: Stack) -> None:
    assert asyncio.run(ensure_rules(stack.access)) == Changed((), ())
    done = once(stack, "access", "check")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_rule_that_nobody_knows_is_shown_and_removed(stack: Stack) -> None:
    way_in = Rule("ingest", Kind.TOPIC, LEDGER_POSTINGS, Operation.WRITE)
    assert len(asyncio.run(ensure_rules(stack.access, {*rules(), way_in})).created) == 1
    found = once(stack, "access", "check")
    assert (found.returncode, found.stdout) == (1, "- User:ingest WRITE on topic ledger.postings\n")
    removed = once(stack, "access", "apply")
    assert (removed.returncode, removed.stdout) == (0, found.stdout)
    assert once(stack, "access", "check").returncode == 0


async def transaction_of(access: Access, transactional_id: str) -> Transaction:
    async with Brokers(access) as brokers:
        seen = await look(brokers, [LEDGER_POSTINGS])
    return next(one for one in seen.transactions if one.transactional_id == transactional_id)


def test_a_thief_can_neither_fence_the_ledger_nor_write_for_it(stack: Stack, authority: Authority) -> None:
    own = "ledger-ledger.transfers-0"
    before, end = (
        asyncio.run(transaction_of(stack.access, own)),
        asyncio.run(end_offsets(stack.access, [LEDGER_POSTINGS])),
    )

    async def fence(thief: Access) -> None:
        producer = TransactionalProducer(thief, own, 10_000, CrashPoints("", lambda _: None))
        try:
            await producer.init(20)
        finally:
            await producer.discard()

    async def write(thief: Access) -> None:
        async with IdempotentWriter(thief) as writer:
            await writer.write(LEDGER_POSTINGS, 0, b"stolen", b"{}")

    for principal in PRINCIPALS:
        if principal == "ledger":
            continue
        with pytest.raises(EosError) as refused:
            asyncio.run(fence(as_(stack, authority, principal)))
        assert is_denied(refused.value), principal
        with pytest.raises(DeniedError, match=rf"denied to {principal} \(by .*{principal}\.pem\)"):
            asyncio.run(write(as_(stack, authority, principal)))
    after = asyncio.run(transaction_of(stack.access, own))
    assert (after.producer_id, after.producer_epoch) == (before.producer_id, before.producer_epoch)
    assert asyncio.run(end_offsets(stack.access, [LEDGER_POSTINGS])) == end
    # The owner of the name may, and so the epoch does move when somebody is let in
    other = own.replace("-0", "-99")
    asyncio.run(fence_as_owner(as_(stack, authority, "ledger"), other))
    assert asyncio.run(transaction_of(stack.access, other)).producer_id >= 0


async def fence_as_owner(ledger: Access, transactional_id: str) -> None:
    producer = TransactionalProducer(ledger, transactional_id, 10_000, CrashPoints("", lambda _: None))
    await producer.init(20)
    await producer.discard()


def test_nobody_comes_in_without_a_certificate_of_the_authority(
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
                # The length of an answer; of an alert of TLS it is none
                return 0 < int.from_bytes(connection.recv(4)) < 1024 * 1024
        except (ssl.SSLError, ConnectionError):
            return False

    known = tls_as(authority).context()
    without = ssl.create_default_context(cafile=trusted)
    wait_until(lambda: dt.datetime.now(dt.UTC) > certificate_of(expired).not_valid_after_utc, "it expires", 10)
    late = ssl.create_default_context(cafile=trusted)
    late.load_cert_chain(expired)
    assert [talks(context) for context in (known, without, late, None)] == [True, False, False, False]
    expired.unlink()


def refused(service: Service, event: str) -> str:
    """Why a service refused to start: with 78, in one line."""
    assert service.wait_exit(60) == 78, service.process.log_tail()
    [line] = service.log()
    assert (line["event"], line["level"]) == (event, "error"), line
    return str(line["reason"])


def beside(stack: Stack, directory: Path, name: str, tls: Tls) -> Service:
    """Another instance of a service, with these files."""
    files = {"TLS_CA_FILE": tls.ca_file, "TLS_IDENTITY_FILE": tls.identity_file, "REDIS_URL": stack.redis.url}
    return Service(name, stack.kafka.bootstrap_servers, directory, "9", **files).start()


def test_a_service_whose_rule_is_missing_says_so_at_its_start(
    stack: Stack, authority: Authority, tmp_path: Path
) -> None:
    missing = Rule("ingest", Kind.TOPIC, PAYMENTS_DEDUPLICATED, Operation.WRITE)
    asyncio.run(ensure_rules(stack.access, rules() - {missing}))
    try:
        reason = refused(beside(stack, tmp_path, "ingest", tls_as(authority, "ingest")), "denied")
    finally:
        asyncio.run(ensure_rules(stack.access))
    assert reason.startswith(
        f"denied to ingest (by {authority.identity_file('ingest')}): as ingest it needs WRITE on topic "
        f"{PAYMENTS_DEDUPLICATED} (brokers "
    )
    assert "docs/access.md" in reason


def test_a_service_with_anothers_identity_says_so_at_its_start(
    stack: Stack, authority: Authority, tmp_path: Path
) -> None:
    others = {name: "gateway" if name != "gateway" else "transform" for name in SERVICES}
    started = {name: beside(stack, tmp_path, name, tls_as(authority, other)) for name, other in others.items()}
    for name, other in others.items():
        reason = refused(started[name], "denied")
        assert f"denied to {other} (by {authority.identity_file(other)}): as {name} it needs " in reason
        assert (f"READ on group {name}" in reason) == (name in MEMBERS)
        assert (f"WRITE on transactional id {name}-*" in reason) == (name in PROCESSORS)


def test_files_that_cannot_be_used_are_named_at_the_start(stack: Stack, authority: Authority, tmp_path: Path) -> None:
    good = tls_as(authority, "transform")
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
    started = [beside(stack, tmp_path / str(i), "transform", case[0]) for i, case in enumerate(cases)]
    for service, (_, event, reason) in zip(started, cases, strict=True):
        assert reason in refused(service, event)


def test_a_right_that_is_withdrawn_at_work_ends_the_service_and_nothing_is_lost(stack: Stack) -> None:
    ledger = stack.services["ledger"]
    withdrawn = {Rule("ledger", Kind.TOPIC, LEDGER_POSTINGS, operation) for operation in Operation}
    asyncio.run(ensure_rules(stack.access, rules() - withdrawn))
    try:
        asyncio.run(send_raw(stack.access, payments("denied", 50)))
        wait_until(lambda: ledger.snapshot().state == "failed", "the ledger gives up", 60)
        assert ledger.last_exit_code == 78
        said = json.loads(ledger.process.log_tail(1))
        assert (said["event"], said["service"]) == ("denied", "ledger")
        assert "denied to ledger (by " in said["reason"]
        assert "TopicAuthorizationFailedError" in said["reason"]
    finally:
        asyncio.run(ensure_rules(stack.access))
        ledger.start()
    stack.wait_ready(READY_S)
    found = verdict(stack)
    assert (found["verdict"], found["accepted"]) == ("pass", 50)


def test_the_nightly_job_reconciles_as_itself(stack: Stack, authority: Authority, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in FOR_FEW_ROWS.items()))
    done = once(
        stack,
        "reconcile",
        "--json",
        tls=tls_as(authority, "reconciliation"),
        ONCE_SPARK_MEMORY="1g",
        SPARK_CONF_DIR=str(conf),
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    report = json.loads(done.stdout)
    assert report["verdict"] == "clean"
    assert report["figures"]["accepted"] == 50


def test_credentials_are_replaced_under_load(stack: Stack, authority: Authority) -> None:
    """Each broker and each service is started again with a new identity while payments come in; the authority stays."""
    done = asyncio.Event()
    sent = 0

    async def load() -> None:
        nonlocal sent
        while not done.is_set():
            try:
                await send_raw(stack.access, payments(f"rotated-{sent}", 20, seed=sent))
            except KafkaUnavailableError:
                continue  # what was written of it is a repeat the next time
            sent += 1
            await asyncio.sleep(0.05)

    async def rotate() -> None:
        loading = asyncio.create_task(load())
        try:
            for name, again in _each(stack):
                old = authority.identity_file(name).read_bytes()
                authority.renew(name)
                assert authority.identity_file(name).read_bytes() != old
                await asyncio.to_thread(again)
        finally:
            done.set()
            await loading

    trusted = authority.ca_file.read_bytes()
    before = sent
    asyncio.run(rotate())
    assert sent > before
    assert authority.ca_file.read_bytes() == trusted
    for node in stack.kafka.nodes:
        serial = certificate_of(authority.identity_file(broker(node.node_id))).serial_number
        raw = socket.create_connection(("127.0.0.1", node.port), timeout=5)
        with tls_as(authority).context().wrap_socket(raw, server_hostname="127.0.0.1") as connection:
            shown = connection.getpeercert()
        assert shown is not None
        assert int(str(shown["serialNumber"]), 16) == serial
    stack.wait_ready(READY_S)
    found = verdict(stack)
    assert (found["verdict"], found["accepted"]) == ("pass", 50 + 20 * sent)


def _each(stack: Stack) -> Iterator[tuple[str, Callable[[], None]]]:
    """Who gets a new identity, and how it is started again: in good order, by the supervisor."""
    parts = {
        broker(node.node_id): process for node, process in zip(stack.kafka.nodes, stack.kafka.processes, strict=True)
    }
    for name, process in (*parts.items(), *((name, part.process) for name, part in stack.services.items())):

        def again(name: str = name, pid: int | None = process.pid) -> None:
            process = parts.get(name) or stack.services[name].process
            process.terminate(30)
            wait_until(lambda: process.pid not in {None, pid}, f"{name} is started again", 30)
            if name in parts:
                stack.kafka.wait_in_sync()

        yield name, again
