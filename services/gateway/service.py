"""The gateway's HTTP side: aiohttp handlers around the domain.

Invariant: 202 is answered only after every in-sync replica has the record, so nothing that was accepted is lost. The
requests under way, the size of a body and every wait have a bound; beyond it the answer is 503 or 408. After a 503 the
record may still have been written. The client sends it again with the same payment_id, and the identity makes a repeat
harmless.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol
from urllib.parse import quote

from aiohttp import web

from services.gateway import domain, openapi
from services.gateway.access import Access
from services.gateway.domain import Accepted, PaymentState, Refusal, RefusedError
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.dead_letters import Reason
from shared.events.headers import Headers
from shared.http.page import Document
from shared.http.serving import Answer, Places, document_answer, json_answer, observed, page_answer, route_of
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import RecordMetadata
from shared.kafka.lineage.outcome import FINAL, Outcome, RecordNotFoundError
from shared.telemetry import catalogue
from shared.telemetry.instruments import at_zero, counter, gauge

BODY_TIMEOUT_S: Final = 5.0  # a slow client holds a place that others want
BODY_BYTES_LEAST: Final = 1024
BODY_BYTES_MOST: Final = 1_000_000  # with key and batch header, within the brokers' max.message.bytes
LOOKUPS_MAX: Final = 8  # states looked up at once: each one opens connections of its own
RETRY_AFTER_S: Final = 1

_SEND_AGAIN = "send it again with the same payment_id: a repeat is recognised, so it is booked once"
_SHOWN_HOST: Final = "127.0.0.1:8080"
# The documentation, which is no secret. Every other path, unknown ones included, needs a key
_WITHOUT_KEY: Final = frozenset({"/", "/docs", "/openapi.json"})
_ACCESS: Final = frozenset({Refusal.KEY_MISSING, Refusal.KEY_UNKNOWN, Refusal.KEY_EXPIRED, Refusal.RATE_EXCEEDED})
_CHALLENGES: Final[Mapping[Reason | Refusal, str]] = {  # RFC 6750, section 3
    Refusal.KEY_MISSING: 'Bearer realm="payments"',
    Refusal.KEY_UNKNOWN: 'Bearer realm="payments", error="invalid_token"',
    Refusal.KEY_EXPIRED: 'Bearer realm="payments", error="invalid_token"',
}

HTTP_REQUESTS_IN_FLIGHT = gauge(catalogue.HTTP_REQUESTS_IN_FLIGHT)
HTTP_PAYMENTS_REFUSED = counter(catalogue.HTTP_PAYMENTS_REFUSED)
HTTP_ACCESS_REFUSED = counter(catalogue.HTTP_ACCESS_REFUSED)
at_zero(HTTP_ACCESS_REFUSED, _ACCESS)

Find = Callable[[int, int, Callable[[Record], bool]], Awaitable[Outcome]]
"""From partition, offset and a predicate for the record that is meant to its outcome. Raises as `lineage.outcome`."""

log = logging.getLogger(__name__)


class Writer(Protocol):
    """The part of shared.kafka.client.idempotent.IdempotentWriter that the gateway needs."""

    async def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> RecordMetadata: ...


class _Told:
    """Logs a lasting failure once for each outage, not for each request: its events are `lost` and `found`."""

    def __init__(self, lost: str, found: str) -> None:
        self._lost = lost
        self._found = found
        self._failing = False

    def failed(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            log.warning(self._lost, extra={"reason": str(error) or "no answer in time"})

    def worked(self) -> None:
        if self._failing:
            self._failing = False
            log.info(self._found)


class Gateway:
    """The application's handlers.

    Args:
        partitions: of payments.raw.
        accept_timeout_s: seconds until a payment that Kafka does not accept, or a state that is not found, gets 503.
        requests_in_flight_max: payments under way at once; one more gets 503.
        body_bytes_max: of a body; a larger one gets 413.
    """

    def __init__(
        self,
        writer: Writer,
        find: Find,
        access: Access,
        *,
        partitions: int,
        accept_timeout_s: float,
        requests_in_flight_max: int,
        body_bytes_max: int,
    ) -> None:
        if accept_timeout_s <= 0 or requests_in_flight_max < 1:
            raise ValueError("the accept timeout and the number of requests in flight must be above 0")
        if not BODY_BYTES_LEAST <= body_bytes_max <= BODY_BYTES_MOST:
            raise ValueError(
                f"ONCE_GATEWAY_BODY_BYTES_MAX is {body_bytes_max}: set it to {BODY_BYTES_LEAST} to {BODY_BYTES_MOST}"
            )
        self._writer = writer
        self._find = find
        self._access = access
        self._partitions = partitions
        self._body_bytes_max = body_bytes_max
        self._accept_timeout_s = accept_timeout_s
        self._payments = Places(requests_in_flight_max, _busy)
        self._lookups = Places(LOOKUPS_MAX, _busy)
        self._writing = _Told("kafka takes no payments", "kafka takes payments again")
        self._reading = _Told("states cannot be read", "states can be read again")

    def app(self) -> web.Application:
        """The application. Run it with auto_decompress off: a body is measured and kept as it was received."""
        app = web.Application(middlewares=[observed, _in_json, self._admitted])
        app.add_routes(
            [
                web.post("/payments", self.post_payment),
                web.get("/payments/{payment_id}", self.get_payment),
                web.get("/openapi.json", self.get_openapi),
                web.get("/docs", self.get_docs),
                web.get("/", self.get_root),
            ]
        )
        return app

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        """Admit a request, or refuse it before anything is read or looked up."""
        if request.path in _WITHOUT_KEY:
            return await handler(request)
        try:
            self._access.admit(request.headers.getall("Authorization", ()))
        except RefusedError as error:
            HTTP_ACCESS_REFUSED.labels(error.reason.value).inc()
            self._access.refused(error.principal, route_of(request), error.reason.value)
            raise
        return await handler(request)

    async def post_payment(self, request: web.Request) -> web.Response:
        """Write a payment to payments.raw, unchanged, and answer with its coordinates."""
        with self._payments.one():
            HTTP_REQUESTS_IN_FLIGHT.set(self._payments.taken)
            try:
                return await self._accept(request)
            finally:
                HTTP_REQUESTS_IN_FLIGHT.set(self._payments.taken - 1)

    async def _accept(self, request: web.Request) -> web.Response:
        encoding = request.headers.get("Content-Encoding")
        bytes_max = self._body_bytes_max
        domain.check_form(request.content_type, request.charset, encoding, request.content_length, bytes_max)
        body = await _read(request, bytes_max)
        placement = domain.place(body, self._partitions)
        metadata = await self._send(placement, body)
        accepted = Accepted(placement.payment_id, PAYMENTS_RAW, *metadata[1:])
        segment = quote(placement.payment_id, safe="")
        location = f"/payments/{segment}?partition={metadata.partition}&offset={metadata.offset}"
        return json_answer(accepted, 202, {"Location": location})

    async def _send(self, placement: domain.Placement, body: bytes) -> RecordMetadata:
        try:
            async with asyncio.timeout(self._accept_timeout_s):
                metadata = await self._writer.send(PAYMENTS_RAW, placement.partition, placement.key, body)
        except (KafkaUnavailableError, TimeoutError) as error:
            self._writing.failed(error)
            what = f"Kafka did not acknowledge the payment within {self._accept_timeout_s:g} s"
            raise RefusedError(Refusal.KAFKA_UNAVAILABLE, f"{what}; {_SEND_AGAIN}") from error
        self._writing.worked()
        return metadata

    async def get_payment(self, request: web.Request) -> web.Response:
        """Answer with the state of the payment at these coordinates."""
        payment_id = request.match_info["payment_id"]
        query = request.query
        partition, offset = domain.coordinates(query.get("partition"), query.get("offset"), self._partitions)
        with self._lookups.one():
            try:
                found = await self._find(
                    partition, offset, lambda record: domain.names_payment(record.value, payment_id)
                )
            except RecordNotFoundError as error:
                self._reading.worked()
                detail = (
                    "no payment of this payment_id there: send both coordinates as the Location of the 202 has them"
                )
                raise RefusedError(Refusal.NOT_FOUND, detail) from error
            except KafkaUnavailableError as error:
                self._reading.failed(error)
                detail = "the brokers did not answer in time: ask again"
                raise RefusedError(Refusal.KAFKA_UNAVAILABLE, detail) from error
        self._reading.worked()
        state = PaymentState(
            payment_id=payment_id,
            topic=PAYMENTS_RAW,
            partition=partition,
            offset=offset,
            state=found.state.value,
            final=found.state in FINAL,
            at=str(found.at),
            reason=found.reason,
            detail=found.detail,
        )
        return json_answer(state, 200)

    async def get_openapi(self, _: web.Request) -> web.Response:
        return document_answer(self._document())

    async def get_docs(self, request: web.Request) -> web.Response:
        return page_answer(self._document(), request, _SHOWN_HOST)

    async def get_root(self, _: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/docs"})

    def _document(self) -> Document:
        return openapi.document(self._body_bytes_max, self._partitions)


def _busy() -> RefusedError:
    return RefusedError(Refusal.BUSY, f"too many requests are under way; {_SEND_AGAIN}")


async def _read(request: web.Request, bytes_max: int) -> bytes:
    """Read the body, bounded in size and time; RefusedError if it is too large or does not come."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                body += chunk
                domain.check_size(len(body), bytes_max)
    except TimeoutError as error:
        detail = f"the body did not come within {BODY_TIMEOUT_S:g} s; {_SEND_AGAIN}"
        raise RefusedError(Refusal.BODY_INCOMPLETE, detail) from error
    except (web.RequestPayloadError, ConnectionError) as error:
        raise RefusedError(Refusal.BODY_INCOMPLETE, f"the body broke off; {_SEND_AGAIN}") from error
    return bytes(body)


@web.middleware
async def _in_json(request: web.Request, handler: Answer) -> web.StreamResponse:
    """Answer every refusal as JSON that says what to change."""
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except RefusedError as error:
        refusal = error
    except web.HTTPNotFound:
        refusal = RefusedError(Refusal.NOT_FOUND, "there is no such path: see /docs")
    except web.HTTPMethodNotAllowed as error:
        headers["Allow"] = error.headers["Allow"]
        refusal = RefusedError(Refusal.METHOD_NOT_ALLOWED, f"use {headers['Allow']}: see /docs")
    if request.method == "POST":
        HTTP_PAYMENTS_REFUSED.labels(refusal.reason.value).inc()
    if refusal.status == 503 or refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s or RETRY_AFTER_S)
    if refusal.status == 401:
        headers["WWW-Authenticate"] = _CHALLENGES[refusal.reason]
    return json_answer(refusal.body, refusal.status, headers)
