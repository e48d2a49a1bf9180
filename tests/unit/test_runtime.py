"""How a membership of the group ends, and when the runtime joins again; sessions and consumers are made up."""

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
    """What scopes need beside their input; the cluster is away for its first starts, and when it is said to be."""

    def __init__(self, *, starts_refused: int = 0) -> None:
        self.starts_refused = starts_refused
        self.told: list[str] = []
        self.failed = False

    async def start(self) -> None:
        self.told.append("start")
        if self.starts_refused:
            self.starts_refused -= 1
            raise KafkaUnavailableError("away")

    def check(self) -> None:
        if self.failed:
            raise KafkaUnavailableError("gone")

    async def stop(self) -> None:
        self.told.append("stop")


class Workload:
    """One whose credentials are gone when it is to make a scope."""

    service = "ingest"
    topic = PAYMENTS_RAW

    def __init__(self, *beside: Table) -> None:
        self.beside = beside

    def scope(self, *_: object) -> NoReturn:
        raise SettingsError("ONCE_TLS_IDENTITY_FILE is ingest.pem, which cannot be read")


class Consumer:
    """A member that joins at once and is given nothing; one that `waits` is not even told that."""

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


def session_of(monkeypatch: pytest.MonkeyPatch, *beside: Table, ends: bool = False) -> Session:
    async def left(_: object) -> bool:
        return ends

    monkeypatch.setattr("shared.kafka.runtime.session.PatientConsumer", Consumer)
    monkeypatch.setattr("shared.kafka.runtime.session.leave", left)
    return Session(Workload(*beside), PLAIN, Health(), CrashPoints("", lambda _: None))


@pytest.mark.parametrize("error", [FencedError("fenced"), UnsafeSettingsError("unsafe"), FatalError("stands")])
async def test_a_client_that_does_not_end_hides_no_error_that_ends_the_process(
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


async def test_a_member_that_stops_needs_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = asyncio.Event()
    stop.set()
    await session_of(monkeypatch).run(stop)


async def test_the_first_failure_is_told_when_credentials_are_gone_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(monkeypatch)
    session._consumer._coordinator = SimpleNamespace(generation=1)
    assigned = [SimpleNamespace(topic=PAYMENTS_RAW, partition=0)]
    session.on_partitions_assigned(assigned)
    first = session._failed.result()
    assert "ingest.pem, which cannot be read" in str(first)
    session.on_partitions_assigned(assigned)
    assert session._failed.result() is first


async def test_what_scopes_need_is_started_anew_by_each_session(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(starts_refused=1)
    refused = session_of(monkeypatch, table, ends=True)
    with pytest.raises(UnknownOutcomeError, match="away"):
        await refused.run(asyncio.Event())
    assert refused._consumer.joined == 0
    assert table.told == ["start", "stop"]

    failing = session_of(monkeypatch, table, ends=True)
    running = asyncio.create_task(failing.run(asyncio.Event()))
    await eventually(joined(failing), "it joined")
    table.failed = True
    with pytest.raises(UnknownOutcomeError, match="gone"):
        await running
    assert table.told == ["start", "stop"] * 2

    table.failed = False
    working, stop = session_of(monkeypatch, table, ends=True), asyncio.Event()
    running = asyncio.create_task(working.run(stop))
    await eventually(joined(working), "it joined")
    stop.set()
    await running
    assert table.told == ["start", "stop"] * 3


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
    """Memberships that each end because the cluster does not answer; after so many, the service is told to stop."""

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
    """How a service ends whose certificate is refused at work, and how often that was asked."""
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


async def test_a_member_whose_certificate_is_refused_at_work_says_so_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await rejoining(SECURED, monkeypatch, ends=2) == (DENIED, 1)


async def test_nobody_is_asked_without_tls_or_when_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
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
