"""What the runtime does when a membership ends: it joins again, or gives up.

Memberships themselves are in tests/simulation/test_sessions.py.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import NoReturn

import pytest

from shared.eos.errors import (
    EXIT_FENCED,
    EosError,
    FatalError,
    FencedError,
    RejoinError,
    UnknownOutcomeError,
)
from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.client.errors import DeniedError
from shared.kafka.runtime import runtime
from shared.kafka.runtime.runtime import FENCED_AGAIN_S, Runtime
from shared.kafka.runtime.worker import Membership, Resource
from shared.settings import RuntimeSettings
from shared.telemetry.server import Health

PLAIN = RuntimeSettings(bootstrap_servers="127.0.0.1:1")
SECURED = replace(PLAIN, tls_ca_file="ca.pem", tls_identity_file="ingest.pem")
DENIED = DeniedError("denied to ingest")


class Workload:
    """A workload that never works."""

    service = "ingest"
    topic = PAYMENTS_RAW
    resources: tuple[Resource, ...] = ()

    def workers(self, _: Membership) -> NoReturn:
        raise AssertionError("no instance asks for any")


class Memberships:
    """Memberships that end one after the other, each with the next of some errors, and the service is then stopped.

    Args:
        ends: seconds after which a membership ends, and its error.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: Sequence[tuple[float, EosError]]) -> None:
        self.begun = self.handshakes = 0
        self._stop = asyncio.Event()
        self._ends = ends
        self._now_s = 1000.0
        for name in ("broker_config", "check_topics", "check_clock"):
            monkeypatch.setattr(runtime, name, self._succeed)
        monkeypatch.setattr(runtime, "refuse_handshake", self._refuse)
        monkeypatch.setattr(runtime, "REJOIN_BACKOFF_S", 0)
        monkeypatch.setattr(runtime, "Instance", lambda *_: self)
        monkeypatch.setattr(runtime, "time", SimpleNamespace(monotonic=lambda: self._now_s))

    async def run(self, _: asyncio.Event) -> None:
        after_s, error = self._ends[self.begun]
        self._now_s += after_s
        self.begun += 1
        if self.begun == len(self._ends):
            self._stop.set()
        raise error

    async def end(self, settings: RuntimeSettings = PLAIN) -> int | EosError | DeniedError:
        """Return the exit code of a service with these memberships, or what it raised."""
        try:
            return await Runtime(Workload(), settings, [], Health()).run(self._stop)
        except (EosError, DeniedError) as error:
            return error

    async def _succeed(self, *_: object) -> str:
        return "60000"

    async def _refuse(self, _: object) -> NoReturn:
        self.handshakes += 1
        raise DENIED


GONE = RejoinError("brokers are gone")
FENCED = FencedError("fenced", "ProducerFenced")
UNGRANTED = RejoinError("not allowed", "GroupAuthorizationFailedError")


async def test_a_member_whose_certificate_is_refused_at_run_time_ends_with_a_denial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memberships = Memberships(monkeypatch, [(0.0, GONE), (0.0, GONE)])
    assert await memberships.end(SECURED) is DENIED
    assert (memberships.begun, memberships.handshakes) == (1, 1)


@pytest.mark.parametrize(("settings", "count"), [(PLAIN, 2), (SECURED, 1)], ids=["without TLS", "after a stop"])
async def test_no_handshake_is_made(settings: RuntimeSettings, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memberships = Memberships(monkeypatch, [(0.0, GONE)] * count)
    assert await memberships.end(settings) == 0
    assert (memberships.begun, memberships.handshakes) == (count, 0)


@pytest.mark.parametrize("error", [GONE, UnknownOutcomeError("no answer")], ids=["removed", "unknown outcome"])
async def test_an_instance_that_must_drop_its_state_rejoins_as_often_as_it_takes(
    error: EosError, monkeypatch: pytest.MonkeyPatch
) -> None:
    memberships = Memberships(monkeypatch, [(0.0, error)] * 5)
    assert await memberships.end() == 0
    assert memberships.begun == 5


@pytest.mark.parametrize(
    ("ends", "begun", "code"),
    [
        ([(0.0, FENCED), (FENCED_AGAIN_S, FENCED), (FENCED_AGAIN_S, FENCED)], 3, 0),
        ([(0.0, FENCED), (FENCED_AGAIN_S - 1, FENCED), (0.0, GONE)], 2, EXIT_FENCED),
        ([(0.0, FENCED), (1.0, GONE), (1.0, FENCED), (0.0, GONE)], 3, EXIT_FENCED),
    ],
    ids=["late each time", "soon", "soon, after it rejoined for another reason"],
)
async def test_an_instance_that_is_fenced_rejoins_once_and_ends_when_it_is_fenced_again_soon(
    ends: list[tuple[float, EosError]], begun: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memberships = Memberships(monkeypatch, ends)
    assert await memberships.end() == code
    assert memberships.begun == begun


async def test_a_fatal_error_ends_the_service_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memberships = Memberships(monkeypatch, [(0.0, FatalError("a defect")), (0.0, GONE)])
    assert await memberships.end() == EXIT_FENCED
    assert memberships.begun == 1


async def test_a_missing_right_is_reported_and_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    memberships = Memberships(monkeypatch, [(0.0, UNGRANTED), (0.0, GONE)])
    assert await memberships.end() is UNGRANTED
    assert memberships.begun == 1
