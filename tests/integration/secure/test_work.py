"""A secure stack at work: a withdrawn right, the nightly reconciliation, replaced credentials."""

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.drills.few_rows import for_few_rows
from deploy.local.supervisor.stack import Stack
from deploy.security.certificates import Authority, certificate_of
from deploy.security.principals import OPERATOR, broker
from shared.events.catalogue import LEDGER_POSTINGS
from shared.kafka.admin.acls import ensure_rules
from shared.kafka.admin.rules import Kind, Operation, Rule, rules
from shared.kafka.client.errors import KafkaUnavailableError
from tests.harness import wait_until
from tests.integration.secure.commands import READY_S, once, verdict
from tests.payments import payments
from tests.proof import send_raw
from tests.tiers import full

pytestmark = pytest.mark.timeout(900)


@full
def test_a_right_that_is_withdrawn_at_work_ends_the_service_and_nothing_is_lost(stack: Stack) -> None:
    ledger = stack.services["ledger"]
    asyncio.run(send_raw(stack.access, payments("granted", 50)))
    before = verdict(stack)
    withdrawn = {Rule("ledger", Kind.TOPIC, LEDGER_POSTINGS, operation) for operation in Operation}
    asyncio.run(ensure_rules(stack.access, rules() - withdrawn))
    try:
        asyncio.run(send_raw(stack.access, payments("denied", 50)))
        wait_until(lambda: ledger.snapshot().state == "failed", "the ledger gives up", 60)
        assert ledger.last_exit_code == 78
        said = json.loads(ledger.process.log_tail(1))
        assert (said["event"], said["service"]) == ("denied", "ledger")
        assert "denied to ledger (by " in said["reason"]
        # A broker's refusal, or the missing right at its start if the ledger had to rejoin
        assert re.search(r"(TopicAuthorizationFailedError: |needs WRITE on topic )ledger\.postings[ :]", said["reason"])
    finally:
        asyncio.run(ensure_rules(stack.access))
        ledger.start()
    stack.wait_ready(READY_S)
    after = verdict(stack)
    assert (after["verdict"], after["accepted"]) == ("pass", before["accepted"] + 50)


@full
def test_the_stack_is_supervised_without_the_operators_files(stack: Stack, authority: Authority) -> None:
    identity, ledger = authority.identity_file(OPERATOR), stack.services["ledger"]
    away = identity.rename(identity.with_name("away"))
    try:
        pid = ledger.process.pid
        ledger.process.kill()
        wait_until(lambda: ledger.process.pid not in {None, pid}, "the ledger is restarted", 30)
    finally:
        away.rename(identity)
    stack.wait_ready(READY_S)


@full
def test_the_nightly_job_reconciles_with_its_own_identity(stack: Stack, authority: Authority, tmp_path: Path) -> None:
    asyncio.run(send_raw(stack.access, payments("night", 50)))
    verified = verdict(stack)
    done = once(
        stack,
        "reconcile",
        "--json",
        tls=authority.tls("reconciliation"),
        ONCE_SPARK_MEMORY="1g",
        **for_few_rows(tmp_path / "conf"),
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    report = json.loads(done.stdout)
    assert report["verdict"] == "clean"
    assert report["figures"]["accepted"] == verified["accepted"] >= 50


@full
def test_credentials_are_replaced_under_load(stack: Stack, authority: Authority) -> None:
    """Restart each broker and service with a new identity under load; the authority stays."""
    done = asyncio.Event()
    sent = 0

    async def load() -> None:
        nonlocal sent
        while not done.is_set():
            try:
                await send_raw(stack.access, payments(f"rotated-{sent}", 20, seed=sent))
            except KafkaUnavailableError:
                continue  # records that were written are repeats at the next attempt
            sent += 1
            await asyncio.sleep(0.2)

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

    asyncio.run(send_raw(stack.access, payments("before", 50)))
    trusted, before = authority.ca_file.read_bytes(), verdict(stack)
    asyncio.run(rotate())
    assert sent > 0
    assert authority.ca_file.read_bytes() == trusted
    for node in stack.kafka.nodes:
        serial = certificate_of(authority.identity_file(broker(node.node_id))).serial_number
        raw = socket.create_connection(("127.0.0.1", node.port), timeout=5)
        with authority.tls().context().wrap_socket(raw, server_hostname="127.0.0.1") as connection:
            shown = connection.getpeercert()
        assert shown is not None
        assert int(str(shown["serialNumber"]), 16) == serial
    stack.wait_ready(READY_S)
    after = verdict(stack)
    assert (after["verdict"], after["accepted"]) == ("pass", before["accepted"] + 20 * sent)


def _each(stack: Stack) -> Iterator[tuple[str, Callable[[], None]]]:
    """List the parts that get a new identity, each with its graceful restart by the supervisor."""
    parts = {
        broker(node.node_id): process for node, process in zip(stack.kafka.nodes, stack.kafka.processes, strict=True)
    }
    for name, process in (*parts.items(), *((name, part.process) for name, part in stack.services.items())):

        def again(name: str = name, pid: int | None = process.pid) -> None:
            process = parts.get(name) or stack.services[name].process
            process.terminate(30)
            wait_until(lambda: process.pid not in {None, pid}, f"{name} is restarted", 30)
            if name in parts:
                stack.kafka.wait_in_sync()

        yield name, again
