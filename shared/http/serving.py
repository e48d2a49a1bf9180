"""HTTP responses: JSON, the documentation, metrics of every request, and a limit on concurrent requests.

Invariant: no response is cached or content-sniffed. Labels do not grow with what clients send. A message that is not
HTTP is counted and never logged.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from shared.http.page import MEDIA_TYPE, Document, render
from shared.telemetry import catalogue
from shared.telemetry.instruments import counter, histogram

HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_PAGE_HEADERS: Final = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_UNMATCHED: Final = "unmatched"

SERVER_LOG: Final = logging.getLogger(f"{__name__}.server")
"""The server's own log, without requests that are not HTTP."""

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_wanted(record: logging.LogRecord) -> bool:
    """Whether to log a line of the server: not one that quotes an unreadable request head, which may contain a key.

    Any client can send such a head, so it is not an error here; the server has answered it with 400.
    """
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError):
        return True
    HTTP_MALFORMED.inc()
    return False


SERVER_LOG.addFilter(_is_wanted)
SERVER_LOG.setLevel(logging.DEBUG)  # the server logs an unknown method at this level, which counts as well


def runner_of(application: web.Application, *, idle_timeout_s: float, shutdown_timeout_s: float) -> web.AppRunner:
    """Return the runner of an application whose clients may be strangers. Bodies are not decompressed.

    Args:
        idle_timeout_s: seconds until a connection is closed that has no whole head of a request.
        shutdown_timeout_s: seconds for requests under way at a stop.
    """
    return web.AppRunner(
        application,
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=idle_timeout_s,
        logger=SERVER_LOG,
        shutdown_timeout=shutdown_timeout_s,
    )


class Places:
    """A limit on concurrent requests, at least 1. A request over the limit is refused at once instead of queued.

    Args:
        full: makes the exception to raise when no place is free.
        show: takes the number of requests under way whenever it changes.
    """

    def __init__(
        self, limit: int, full: Callable[[], Exception], show: Callable[[int], object] = lambda _: None
    ) -> None:
        self._limit = limit
        self._full = full
        self._show = show
        self._taken = 0

    @property
    def taken(self) -> int:
        """Requests under way."""
        return self._taken

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a place; raise what `full` makes when none is free."""
        if self._taken >= self._limit:
            raise self._full()
        self._taken += 1
        self._show(self._taken)
        try:
            yield
        finally:
            self._taken -= 1
            self._show(self._taken)


class ClientPlaces:
    """Places of which one client can hold some only; as many clients are remembered as keys name.

    Args:
        limit, full: as for `Places`.
        of_client: places of one client.
    """

    def __init__(self, limit: int, of_client: int, full: Callable[[], Exception]) -> None:
        self._all = Places(limit, full)
        self._of = defaultdict[str, Places](partial(Places, of_client, full))

    @property
    def taken(self) -> int:
        """Requests under way."""
        return self._all.taken

    @contextmanager
    def one(self, client: str | None) -> Iterator[None]:
        """Hold a place, as `Places.one`. Without a client only `limit` applies."""
        with self._all.one(), nullcontext() if client is None else self._of[client].one():
            yield


_encode: Final = msgspec.json.Encoder().encode


def json_answer(
    body: msgspec.Struct, status: int, headers: dict[str, str] | None = None, media_type: str = MEDIA_TYPE
) -> web.Response:
    return web.Response(
        body=_encode(body), status=status, content_type=media_type, headers={**HEADERS, **(headers or {})}
    )


def document_answer(document: Document) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type=MEDIA_TYPE, headers=HEADERS)


def page_answer(document: Document, request: web.Request, fallback: str) -> web.Response:
    """Return an OpenAPI document as an HTML page. Its examples name the Host of the request, else `fallback`."""
    text = render(document, request.headers.get("Host"), fallback)
    return web.Response(text=text, content_type="text/html", headers={**HEADERS, **_PAGE_HEADERS})


def route_of(request: web.Request) -> str:
    """The template of a request's route, such as /payments/{payment_id}; `unmatched` without one."""
    resource = request.match_info.route.resource
    return _UNMATCHED if resource is None else resource.canonical


@web.middleware
async def observed(request: web.Request, handler: Answer) -> web.StreamResponse:
    """Count and time every answer, by route template."""
    route = route_of(request)
    method = _UNMATCHED if route == _UNMATCHED or request.method not in hdrs.METH_ALL else request.method
    status = 500
    begun = time.perf_counter()
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        HTTP_REQUESTS.labels(method, route, status).inc()
        HTTP_REQUEST_SECONDS.labels(method, route).observe(time.perf_counter() - begun)


HTTP_REQUESTS = counter(catalogue.HTTP_REQUESTS)
HTTP_MALFORMED = counter(catalogue.HTTP_MALFORMED)
HTTP_REQUEST_SECONDS = histogram(catalogue.HTTP_REQUEST_SECONDS)
