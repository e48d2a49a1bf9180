"""The page's HTTP side: its files, the event stream, and a payment's way.

Invariant: the page's policy lets it load only its own files and nothing inline. The number of streams and of ways being
looked up has a bound. A stream ends when its client accepts nothing for STALLED_S seconds, and before the next message
when its key is no longer valid. One collector works for all streams, and only while there is one.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Final

from aiohttp import hdrs, web

from services.balances.api.access import Admission
from services.balances.api.parameters import Refusal, Refused, RefusedError, WayQuery, check_payment_id, parse
from services.balances.api.reader import Reader, busy
from services.balances.api.routes import answering
from services.balances.dashboard.collector import Client, Collector, Hub, TooManyClientsError
from services.balances.dashboard.observed import Watched
from services.balances.dashboard.probes import Monitor, MonitorUnavailableError
from services.balances.dashboard.snapshot import Snapshot, encode_snapshot
from services.balances.dashboard.tables import posted, ways_of
from services.balances.projection.progress import Progress
from shared.http.serving import Places, json_answer
from shared.telemetry.server import Health

CLIENTS_MAX: Final = 64
WAYS_MAX: Final = 4  # ways being looked up at once, as many as the monitor reads
RETRY_MS: Final = 1000
HEARTBEAT_S: Final = 5.0
STALLED_S: Final = 15.0
SEND_BUFFER_BYTES: Final = 64 * 1024  # of a stream, in the kernel: a newer message cannot replace what waits there
LINGER_S: Final = 3.0  # the collector runs on after the last client, so that a page that is reloaded finds it at work

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
FILES: Final = {  # by path: nothing else is served
    "/": ("index.html", "text/html"),
    "/static/app.css": ("app.css", "text/css"),
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
    **{
        f"/static/{name}.js": (f"{name}.js", "text/javascript")
        for name in ("app", "dom", "figures", "format", "pipeline", "search")
    },
}

_PACKAGE: Final = "services.balances"
_FOLDER: Final = "static"

log = logging.getLogger(__name__)


class Live:
    """The page's handlers, and the collector behind them.

    Args:
        admission: that the application admits requests by.
    """

    def __init__(
        self,
        watched: Sequence[Watched],
        *,
        admission: Admission,
        partitions: int,
        reader: Reader,
        progress: Progress,
        health: Health,
    ) -> None:
        self._admission = admission
        self._reader = reader
        self._monitor = Monitor(watched)
        self._hub = Hub(CLIENTS_MAX, self._on_watched)
        self._collector = Collector(
            watched,
            monitor=self._monitor,
            partitions=partitions,
            reader=reader,
            progress=progress,
            health=health,
            publish=self._publish,
        )
        self._collecting: asyncio.Task[None] | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._stopping = False
        self._ways = Places(WAYS_MAX, busy)
        self._ways_failing = False

    def routes(self) -> list[web.RouteDef]:
        """The page's routes. Add them before the API's, which take all of /api."""
        return [
            *(web.get(path, partial(_file, *file)) for path, file in FILES.items()),
            web.get("/events", self.get_events, allow_head=False),
            web.route(hdrs.METH_ANY, "/api/payments/{payment_id}/way", answering(self.get_way)),
        ]

    async def stop(self) -> None:
        """End all streams and the collector. Call it before the server waits for its connections."""
        self._stopping = True
        self._hub.close()
        self._cancel_lingering()
        await self._end()

    async def get_events(self, request: web.Request) -> web.StreamResponse:
        """Snapshots as server-sent events, for as long as the client accepts them."""
        try:
            with self._hub.client() as client:
                return await _stream(request, client, self._admission)
        except TooManyClientsError as error:
            body = Refused(Refusal.BUSY.value, f"{error}: close one, or ask again later")
            return json_answer(body, 503, {hdrs.RETRY_AFTER: "5"})

    async def get_way(self, request: web.Request) -> web.Response:
        payment_id = request.match_info["payment_id"]
        check_payment_id(payment_id)
        query = parse(WayQuery, request.query.items())
        with self._ways.one():
            found = (await self._reader.read(partial(posted, payment_id=payment_id, debtor=query.debtor))).found
            if not found:
                detail = "nothing was posted of this payment_id, as far as the view has read"
                raise RefusedError(Refusal.NOT_FOUND, detail)
            try:
                steps = await self._monitor.steps(one.at for one in found)
            except MonitorUnavailableError as error:
                if not self._ways_failing:  # once for each outage, not for each request
                    self._ways_failing = True
                    log.warning("ways cannot be read", extra={"reason": str(error)})
                raise RefusedError(Refusal.KAFKA_UNAVAILABLE, f"{error}; ask again later") from error
        if self._ways_failing:
            self._ways_failing = False
            log.info("ways can be read again")
        return json_answer(ways_of(payment_id, found, steps), 200)

    def _publish(self, snapshot: Snapshot) -> None:
        self._hub.publish(encode_snapshot(snapshot))

    def _on_watched(self, watched: bool) -> None:
        self._cancel_lingering()
        if not watched:
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(LINGER_S, self._cancel)
        else:
            self._collect()

    def _collect(self) -> None:
        if not self._stopping and (self._collecting is None or self._collecting.done()):
            self._collecting = asyncio.create_task(self._collector.run(), name="collector")
            self._collecting.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("the collector ended", exc_info=task.exception())
            self._hub.close()  # pages connect again, and the first one starts it again
        elif self._hub.watched:  # a client came between the cancellation and the end
            self._collect()

    def _cancel(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()

    def _cancel_lingering(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    async def _end(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.wait([self._collecting])


async def _file(name: str, content_type: str, _: web.Request) -> web.Response:
    return web.Response(body=_read(name), content_type=content_type, charset="utf-8", headers=HEADERS)


@cache
def _read(name: str) -> bytes:
    return (files(_PACKAGE) / _FOLDER / name).read_bytes()


async def _stream(request: web.Request, client: Client, admission: Admission) -> web.StreamResponse:
    response = web.StreamResponse(headers={**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    _keep_little(request)
    await response.prepare(request)
    try:
        await _write(response, b"retry: %d\n\n" % RETRY_MS)
        while not client.closed:
            message = await client.next(HEARTBEAT_S)
            admission.admit(request)
            await _write(response, b": alive\n\n" if message is None else b"data: %b\n\n" % message)
    except RefusedError:  # its key was revoked or has expired: the client asks again, and gets the refusal
        pass
    except (ConnectionError, TimeoutError):  # it has gone, or takes nothing
        if request.transport is not None:
            request.transport.abort()
    return response


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(STALLED_S):
        await response.write(data)


def _keep_little(request: web.Request) -> None:
    """Keep buffers small: messages in buffers are not replaced by newer ones, and a slow client would fall behind."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    transport.set_write_buffer_limits(high=0)
