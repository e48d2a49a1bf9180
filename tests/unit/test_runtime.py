"""The end of a group membership, and when the runtime joins again, with stand-ins for sessions and consumers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from shared.eos.crash import CrashPoints
from shared.eos.errors import (
    EosError,
    FatalError,
    FencedError,
    RejoinError,
    UnknownOutcomeError,
    UnsafeSettingsError,
)
from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.admin.rights import refuse_ungranted
from shared.kafka.client.errors import DeniedError, KafkaUnavailableError, is_denied
from shared.kafka.runtime.runtime import Runtime
from shared.kafka.runtime.session import Session
from shared.settings import RuntimeSettings, SettingsError
from shared.telemetry.server import Health
from tests.harness import eventually

PLAIN = RuntimeSettings(bootstrap_servers="127.0.0.1:1")
SECURED = replace(PLAIN, tls_ca_file="ca.pem", tls_identity_file="ingest.pem")
DENIED = DeniedError("denied to ingest")


class Table:
    """A resource of a session. The cluster is unavailable for its first starts, and while `failed` is set."""

    def __init__(self, *, starts_refused: int = 0) -> None:
        self.starts_refused = starts_refused
        self.calls: list[str] = []
        self.failed = False

    async def start(self) -> None:
        self.calls.append("start")
        if self.starts_refused:
            self.starts_refused -= 1
            raise KafkaUnavailableError("away")

    def check(self) -> None:
        if self.failed:
            raise KafkaUnavailableError("gone")

    async def stop(self) -> None:
        self.calls.append("stop")


class Workload:
    """A workload whose credentials are gone when it makes a scope."""

    service = "ingest"
    topic = PAYMENTS_RAW

    def __init__(self, *tables: Table) -> None:
        self.beside = tables

    def scope(self, *_: object) -> NoReturn:
        raise SettingsError("ONCE_TLS_IDENTITY_FILE is ingest.pem, which cannot be read")


class Consumer:
    """A member that joins at once without partitions, or waits for its assignment if `waits` is set."""

    _coordinator = _fetcher = None
    waits = False
    joined = 0

    def __init__(self, **_: Any) -> None:
        pass

    def subscribe(self, *_: object, **__: object) -> None:
        pass

    def pause(self, *_: object) -> None:
        pass

    async def start(self) -> None:
        self.joined += 1
        if self.waits:
            await asyncio.Event().wait()


def session_of(monkeypatch: pytest.MonkeyPatch, *tables: Table, ends: bool = False) -> Session:
    async def left(_: object) -> bool:
        return ends

    monkeypatch.setattr("shared.kafka.runtime.session.PatientConsumer", Consumer)
    monkeypatch.setattr("shared.kafka.runtime.session.leave", left)
    return Session(Workload(*tables), PLAIN, Health(), CrashPoints("", lambda _: None))


@pytest.mark.parametrize("error", [FencedError("fenced"), UnsafeSettingsError("unsafe"), FatalError("stalled")])
async def test_a_fatal_error_is_raised_although_the_client_does_not_end(
    error: EosError, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(monkeypatch)
    session._failed.set_result(error)
    with pytest.raises(EosError) as raised:
        await session.run(asyncio.Event())
    assert raised.value is error


async def test_a_client_that_does_not_end_must_not_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(monkeypatch)
    unknown = UnknownOutcomeError("no answer")
    unknown.__cause__ = DENIED
    session._failed.set_result(unknown)
    with pytest.raises(FatalError, match="the client did not end") as raised:
        await session.run(asyncio.Event())
    assert raised.value.__cause__ is unknown
    assert is_denied(raised.value)


async def test_a_stop_does_not_need_the_client_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = asyncio.Event()
    stop.set()
    await session_of(monkeypatch).run(stop)


async def test_the_first_failure_is_reported_when_credentials_are_gone_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(monkeypatch)
    session._consumer._coordinator = SimpleNamespace(generation=1)
    assigned = [SimpleNamespace(topic=PAYMENTS_RAW, partition=0)]
    session.on_partitions_assigned(assigned)
    first = session._failed.result()
    assert "ingest.pem, which cannot be read" in str(first)
    session.on_partitions_assigned(assigned)
    assert session._failed.result() is first


async def test_each_session_starts_its_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(starts_refused=1)
    refused = session_of(monkeypatch, table, ends=True)
    with pytest.raises(UnknownOutcomeError, match="away"):
        await refused.run(asyncio.Event())
    assert refused._consumer.joined == 0
    assert table.calls == ["start", "stop"]

    failing = session_of(monkeypatch, table, ends=True)
    running = asyncio.create_task(failing.run(asyncio.Event()))
    await eventually(joined(failing), "it joined")
    table.failed = True
    with pytest.raises(UnknownOutcomeError, match="gone"):
        await running
    assert table.calls == ["start", "stop"] * 2

    table.failed = False
    working, stop = session_of(monkeypatch, table, ends=True), asyncio.Event()
    running = asyncio.create_task(working.run(stop))
    await eventually(joined(working), "it joined")
    stop.set()
    await running
    assert table.calls == ["start", "stop"] * 3


async def test_a_member_that_waits_for_its_partitions_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    session, stop = session_of(monkeypatch, ends=True), asyncio.Event()
    session._consumer.waits = True
    running = asyncio.create_task(session.run(stop))
    await eventually(joined(session), "it waits")
    stop.set()
    await asyncio.wait_for(running, 10)


def joined(session: Session) -> Callable[[], Awaitable[bool]]:
    async def has() -> bool:
        return bool(session._consumer.joined)

    return has


class Sessions:
    """Sessions that end because the cluster does not answer. After `ends` of them, the service is stopped."""

    def __init__(self, stop: asyncio.Event, ends: int) -> None:
        self.stop = stop
        self.left = ends

    def __call__(self, *_: object) -> "Sessions":
        return self

    async def run(self, _: asyncio.Event) -> NoReturn:
        self.left -= 1
        if self.left == 0:
            self.stop.set()
        raise RejoinError("brokers are gone")


async def rejoining(
    settings: RuntimeSettings, monkeypatch: pytest.MonkeyPatch, *, ends: int
) -> tuple[int | DeniedError, int]:
    """Return the end of a service whose certificate is refused at run time, and the number of handshakes."""
    stop, asked = asyncio.Event(), []

    async def nothing(*_: object) -> str:
        return "60000"

    async def refused(brokers: object) -> NoReturn:
        asked.append(brokers)
        raise DENIED

    for name in ("broker_config", "check_topics", "check_clock"):
        monkeypatch.setattr(f"shared.kafka.runtime.runtime.{name}", nothing)
    monkeypatch.setattr("shared.kafka.runtime.runtime.refuse_handshake", refused)
    monkeypatch.setattr("shared.kafka.runtime.runtime.REJOIN_BACKOFF_S", 0)
    monkeypatch.setattr("shared.kafka.runtime.runtime.Session", Sessions(stop, ends))
    try:
        return await Runtime(Workload(), settings, [], Health()).run(stop), len(asked)
    except DeniedError as error:
        return error, len(asked)


async def test_a_member_whose_certificate_is_refused_at_run_time_ends_with_a_denial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await rejoining(SECURED, monkeypatch, ends=2) == (DENIED, 1)


async def test_no_handshake_is_made_without_tls_or_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await rejoining(PLAIN, monkeypatch, ends=2) == (0, 0)
    assert await rejoining(SECURED, monkeypatch, ends=1) == (0, 0)


def test_transactional_ids_that_no_rule_grants_are_refused() -> None:
    inputs = [(PAYMENTS_RAW, partition) for partition in range(6)]
    refuse_ungranted(SECURED, "ingest", inputs)
    foreign = "{topic}-{service}-{partition}"
    refuse_ungranted(replace(PLAIN, transactional_id=foreign), "ingest", inputs)
    secured = replace(SECURED, transactional_id=foreign)
    with pytest.raises(UnsafeSettingsError) as refused:
        Runtime(Workload(), secured, [], Health())
    assert str(refused.value) == (
        f"ONCE_TRANSACTIONAL_ID makes {PAYMENTS_RAW}-ingest-0, and access rules grant ingest ingest-* alone: begin it "
        "with {service}-"
    )
