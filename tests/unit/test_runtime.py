"""When the runtime asks why brokers are gone, and which transactional ids it refuses.

How a membership ends is in tests/simulation/test_sessions.py.
"""

import asyncio
from dataclasses import replace
from typing import NoReturn

import pytest

from shared.eos.errors import (
    RejoinError,
    UnsafeSettingsError,
)
from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.admin.rights import refuse_ungranted
from shared.kafka.client.errors import DeniedError
from shared.kafka.runtime.runtime import Runtime
from shared.settings import RuntimeSettings
from shared.telemetry.server import Health

PLAIN = RuntimeSettings(bootstrap_servers="127.0.0.1:1")
SECURED = replace(PLAIN, tls_ca_file="ca.pem", tls_identity_file="ingest.pem")
DENIED = DeniedError("denied to ingest")


class Workload:
    """A workload that makes no scope."""

    service = "ingest"
    topic = PAYMENTS_RAW
    beside = ()

    def scope(self, *_: object) -> NoReturn:
        raise AssertionError("no session asks for one")


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
