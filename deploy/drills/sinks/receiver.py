"""A webhook receiver as a subscriber should build it, over real HTTP, that keeps a journal and fails on demand.

It processes each webhook-id, or Idempotency-Key in the former format, once, answers a repeat as it answered the first,
refuses the same key with another body (422), one that is still under way (409) and, given the outbox's key, a call that
is not signed (401).

    POST /faults      Faults as JSON: how the next calls fail
    GET  /deliveries  Counts as JSON
    POST anything     a delivery

Run it within a test (`async with Receiver(...)`) or as a process of its own, which outlives the outbox that calls it:
`python -m deploy.drills.sinks.receiver --port 0 --log FILE [--key-file FILE]`; it prints its port once it listens.
"""

import asyncio
import hashlib
import time
from collections import Counter
from contextlib import AsyncExitStack
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

import click
import msgspec
import uvloop
from aiohttp import web

from deploy.drills.sinks.journal import Journal, entries
from deploy.drills.sinks.serving import serve
from deploy.drills.sinks.signatures import verify
from services.outbox.sinks.webhook import IDEMPOTENCY_KEY, derive_secret

LOOPBACK = "127.0.0.1"
_JSON = "application/json"


class Mode(StrEnum):
    """How a call fails."""

    OK = "ok"  # it does not
    STATUS = "status"  # not processed; answered with `status`
    TIMEOUT = "timeout"  # not processed and not answered; the connection is dropped after `delay_s`
    LOST_ANSWER = "lost_answer"  # processed, then the connection is dropped
    SLOW = "slow"  # processed and answered after `delay_s`, whether or not the caller is still there


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the next calls fail.

    Attributes:
        mode: see Mode.
        status, retry_after: of the answer, for STATUS.
        delay_s: seconds, for TIMEOUT and SLOW.
        times: how many calls; None is all until the next faults.
    """

    mode: Mode = Mode.OK
    status: int = 500
    retry_after: str | int | None = None
    delay_s: float = 1.0
    times: int | None = None


class What(StrEnum):
    """Outcome of a call."""

    PROCESSED = "processed"  # the first of its key
    REPEATED = "repeated"
    CONFLICT = "conflict"  # a known key with another body
    UNDER_WAY = "under_way"
    UNSIGNED = "unsigned"
    KEYLESS = "keyless"
    FAULT = "fault"  # not processed, by a fault


_STATUS = {
    What.PROCESSED: 200,
    What.REPEATED: 200,
    What.CONFLICT: 422,
    What.UNDER_WAY: 409,
    What.UNSIGNED: 401,
    What.KEYLESS: 400,
}


class Delivery(msgspec.Struct, frozen=True):
    """One call in the journal.

    Attributes:
        at_ms: when it came, milliseconds since 1970 UTC.
        key: its webhook-id or Idempotency-Key.
        digest: blake2b-128 of its body, hex.
        signed: whether its signature holds; None where the receiver has no key.
        what: its outcome.
    """

    at_ms: int
    key: str
    digest: str
    signed: bool | None
    what: What


class Counts(msgspec.Struct, frozen=True):
    """Counts of calls, including those before a restart.

    Attributes:
        calls: all.
        deliveries: those that were processed or recognised as a repeat.
        distinct: keys that were processed: effects.
        by_what: calls by What.
        by_key: deliveries by key.
    """

    calls: int
    deliveries: int
    distinct: int
    by_what: dict[str, int]
    by_key: dict[str, int]


class Receiver:
    """The receiver.

    Args:
        log: its journal.
        key: the outbox's key, which can be replaced by another one; None checks no signatures.
        port: to listen on; 0 picks one.
        path: of the hook, for `url`.
    """

    def __init__(self, log: Path, key: bytes | None = None, port: int = 0, path: str = "/hook") -> None:
        self.log = log
        self.port = port
        self.faults = Faults()
        self._path = path
        self.key = key
        self._taken = 0  # calls affected by the present faults
        self._digests: dict[str, str] = {}
        self._by_key: Counter[str] = Counter()
        self._by_what: Counter[str] = Counter()
        self._under_way: set[str] = set()
        self._journal: Journal[Delivery] = Journal(log)
        self._open = AsyncExitStack()

    @property
    def url(self) -> str:
        """The URL for deliveries."""
        return f"http://{LOOPBACK}:{self.port}{self._path}"

    def fail(self, faults: Faults) -> None:
        """Set how the next calls fail."""
        self.faults = faults
        self._taken = 0

    def counts(self) -> Counts:
        """Counts of calls so far."""
        return Counts(
            calls=self._by_what.total(),
            deliveries=self._by_key.total(),
            distinct=len(self._digests),
            by_what=dict(self._by_what),
            by_key=dict(self._by_key),
        )

    async def __aenter__(self) -> Self:
        for delivery in entries(self.log, Delivery):
            self._count(delivery)
        self._open.enter_context(self._journal)
        runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0)
        await runner.setup()
        self._open.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, LOOPBACK, self.port).start()
        self.port = runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST" and request.path != "/faults":
            return await self._deliver(request)
        if request.method == "POST":
            try:
                self.fail(msgspec.json.decode(await request.read(), type=Faults))
            except msgspec.ValidationError as error:
                return web.Response(status=400, text=str(error))
            return web.Response(status=204)
        if request.path == "/deliveries":
            return web.Response(body=msgspec.json.encode(self.counts()), content_type=_JSON)
        return web.Response(status=404)

    async def _deliver(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        digest = hashlib.blake2b(body, digest_size=16).hexdigest()
        key = request.headers.get("webhook-id", request.headers.get(IDEMPOTENCY_KEY, ""))
        signed = self._signed(request, body)
        faults = self._due()
        if faults.mode is Mode.STATUS:
            self._record(key, digest, signed, What.FAULT)
            headers = {} if faults.retry_after is None else {"Retry-After": str(faults.retry_after)}
            return web.Response(status=faults.status, headers=headers, text="a fault on demand")
        if faults.mode is Mode.TIMEOUT:
            self._record(key, digest, signed, What.FAULT)
            await asyncio.sleep(faults.delay_s)
            return _dropped(request)
        if faults.mode is Mode.SLOW and key not in self._under_way:
            self._under_way.add(key)
            try:
                await asyncio.sleep(faults.delay_s)
            finally:
                self._under_way.discard(key)
        what = self._judge(key, digest, signed)
        self._record(key, digest, signed, what)
        if faults.mode is Mode.LOST_ANSWER:
            return _dropped(request)
        return web.Response(status=_STATUS[what], body=f'{{"{what}":true}}'.encode(), content_type=_JSON)

    def _due(self) -> Faults:
        """The faults of this call."""
        if self.faults.times is not None and self._taken >= self.faults.times:
            return Faults()
        self._taken += 1
        return self.faults

    def _signed(self, request: web.BaseRequest, body: bytes) -> bool | None:
        if self.key is None:
            return None
        secret = _secret(self.key, f"http://{request.host}{request.raw_path}")
        return verify(secret, request.headers, body, time.time())

    def _judge(self, key: str, digest: str, signed: bool | None) -> What:
        if not key:
            return What.KEYLESS
        if signed is False:
            return What.UNSIGNED
        if key in self._under_way:
            return What.UNDER_WAY
        known = self._digests.get(key)
        if known is None:
            return What.PROCESSED
        return What.REPEATED if known == digest else What.CONFLICT

    def _record(self, key: str, digest: str, signed: bool | None, what: What) -> None:
        delivery = Delivery(time.time_ns() // 1_000_000, key, digest, signed, what)
        self._journal.append(delivery)
        self._count(delivery)

    def _count(self, delivery: Delivery) -> None:
        self._by_what[delivery.what] += 1
        if delivery.what in {What.PROCESSED, What.REPEATED}:
            self._by_key[delivery.key] += 1
        if delivery.what is What.PROCESSED:
            self._digests[delivery.key] = delivery.digest


_secret = lru_cache(1024)(derive_secret)


def _dropped(request: web.BaseRequest) -> web.StreamResponse:
    """Drop the connection; the answer is lost."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--port", type=int, default=0)
@click.option("--log", type=click.Path(path_type=Path), required=True)
@click.option("--key-file", type=click.Path(path_type=Path))
def main(port: int, log: Path, key_file: Path | None) -> None:
    """Run one until SIGTERM."""
    key = None if key_file is None else key_file.read_bytes()
    uvloop.run(serve(Receiver(log, key, port)))


if __name__ == "__main__":
    main(prog_name="python -m deploy.drills.sinks.receiver")
