"""The gateway's application: aiohttp routes, access, refusals, and the paths of former clients.

Invariant: every request but those for the documentation has a principal before anything is read or looked up, and its
key has the scope of the route. The requests under way, the size of a body and every wait have a bound; beyond it the
answer is 503 or 408.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote

from aiohttp import hdrs, web

from services.gateway import authorisation, domain, openapi
from services.gateway.access import Access
from services.gateway.answers import PaymentState
from services.gateway.bodies import read_body
from services.gateway.domain import Refusal, RefusedError
from services.gateway.v1 import (
    BATCH_PATH,
    HTTP_ACCESS_REFUSED,
    HTTP_PAYMENTS_REFUSED,
    RETRY_AFTER_S,
    V1,
    Owners,
    View,
    accepted,
    busy,
)
from services.gateway.writing import Outage, RawWriter, Writer
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.clients import Scope, decode_submitted_by
from shared.events.dead_letters import Reason
from shared.events.headers import SUBMITTED_BY, header
from shared.http.hosts import Hosts
from shared.http.keys import Principal
from shared.http.page import Document
from shared.http.problems import PROBLEM
from shared.http.serving import Answer, Places, document_answer, json_answer, observed, page_answer, route_of
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.lineage.outcome import FINAL, Outcome, RecordNotFoundError
from shared.telemetry.instruments import at_zero

BODY_BYTES_LEAST: Final = 1024
BODY_BYTES_MOST: Final = 1_000_000  # with key and batch header, within the brokers' max.message.bytes
BATCH_BYTES_MOST: Final = 16 * 1024 * 1024
LOOKUPS_MAX: Final = 8  # states looked up in the topics at once: each one opens connections of its own

_V1: Final = "/v1/"
_SHOWN_HOST: Final = "127.0.0.1:8080"
# The documentation is public. Every other path needs a key, unknown ones included
_WITHOUT_KEY: Final = frozenset({"/", "/docs", "/openapi.json"})
_ACCESS: Final = frozenset(
    {
        Refusal.KEY_MISSING,
        Refusal.KEY_UNKNOWN,
        Refusal.KEY_EXPIRED,
        Refusal.RATE_EXCEEDED,
        Refusal.NOT_AUTHORISED,
        Refusal.HOST_UNKNOWN,
    }
)
_CHALLENGES: Final[Mapping[Reason | Refusal, str]] = {  # RFC 6750, section 3
    Refusal.KEY_MISSING: 'Bearer realm="payments"',
    Refusal.KEY_UNKNOWN: 'Bearer realm="payments", error="invalid_token"',
    Refusal.KEY_EXPIRED: 'Bearer realm="payments", error="invalid_token"',
}

PRINCIPAL: Final = web.RequestKey("principal", Principal)

at_zero(HTTP_ACCESS_REFUSED, _ACCESS)

Find = Callable[[int, int, Callable[[Record], bool]], Awaitable[Outcome]]
"""From partition, offset and a predicate for the record that is meant to its outcome. Raises as `lineage.outcome`."""
Handler = Callable[[web.Request, Principal], Awaitable[web.StreamResponse]]


class Gateway:
    """The application's handlers.

    Args:
        hosts: names by which clients may reach the gateway; any other Host gets 421.
        partitions: of payments.raw.
        accept_timeout_s: seconds until a payment that Kafka does not accept, or a state that is not found, gets 503.
        requests_in_flight_max: payments under way at once; one more gets 503.
        body_bytes_max: of a body; a larger one gets 413.
        batch_bytes_max: of a batch; likewise.
    """

    def __init__(
        self,
        writer: Writer,
        find: Find,
        access: Access,
        owners: Owners,
        view: View,
        hosts: Hosts,
        *,
        partitions: int,
        accept_timeout_s: float,
        requests_in_flight_max: int,
        body_bytes_max: int,
        batch_bytes_max: int,
    ) -> None:
        if accept_timeout_s <= 0 or requests_in_flight_max < 1:
            raise ValueError("the accept timeout and the number of requests in flight must be above 0")
        _check_bytes("ONCE_GATEWAY_BODY_BYTES_MAX", body_bytes_max, BODY_BYTES_MOST)
        _check_bytes("ONCE_GATEWAY_BATCH_BYTES_MAX", batch_bytes_max, BATCH_BYTES_MOST)
        self._writer = RawWriter(writer, accept_timeout_s)
        self._v1 = V1(
            self._writer,
            owners,
            view,
            access,
            partitions=partitions,
            requests_in_flight_max=requests_in_flight_max,
            body_bytes_max=body_bytes_max,
            batch_bytes_max=batch_bytes_max,
        )
        self._find = find
        self._access = access
        self._owners = owners
        self._hosts = hosts
        self._partitions = partitions
        self._body_bytes_max = body_bytes_max
        self._lookups = Places(LOOKUPS_MAX, busy)
        self._reading = Outage("states cannot be read", "states can be read again")
        self._document: Document = openapi.document(body_bytes_max, batch_bytes_max, partitions)

    def app(self) -> web.Application:
        """The application. Run it with auto_decompress off: a body is measured and kept as it was received."""
        app = web.Application(middlewares=[observed, self._refusing, self._admitted])
        app.add_routes(
            [
                web.post("/v1/payments", _scoped(Scope.PAYMENTS_WRITE, self._v1.post_payment)),
                web.post(BATCH_PATH, _scoped(Scope.PAYMENTS_WRITE, self._v1.post_batch)),
                web.get("/v1/payments/{payment_id}", _scoped(Scope.READ, self._v1.get_payment)),
                web.post("/v1/accounts", _scoped(Scope.ACCOUNTS_WRITE, self._v1.post_account)),
                web.post("/payments", _scoped(Scope.PAYMENTS_WRITE, self.post_payment)),
                web.get("/payments/{payment_id}", _scoped(Scope.READ, self.get_payment)),
                web.get("/openapi.json", self.get_openapi),
                web.get("/docs", self.get_docs),
                web.get("/", self.get_root),
            ]
        )
        return app

    @web.middleware
    async def _refusing(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        """Answer every refusal as JSON that says what to change; on /v1 as a problem of RFC 9457."""
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
        self._count(request, refusal)
        if refusal.status == 503 or refusal.retry_after_s is not None:
            headers["Retry-After"] = str(refusal.retry_after_s or RETRY_AFTER_S)
        if refusal.status == 401:
            headers["WWW-Authenticate"] = _CHALLENGES[refusal.reason]
        if request.path.startswith(_V1):
            return json_answer(refusal.problem, refusal.status, headers, PROBLEM)
        return json_answer(refusal.body, refusal.status, headers)

    def _count(self, request: web.Request, refusal: RefusedError) -> None:
        reason = refusal.reason.value
        if refusal.reason in _ACCESS:
            HTTP_ACCESS_REFUSED.labels(reason).inc()
            self._access.refused(request.get(PRINCIPAL, refusal.principal), route_of(request), reason)
        if request.method == "POST":
            HTTP_PAYMENTS_REFUSED.labels(reason).inc()

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        """Admit a request, or refuse it before anything is read or looked up."""
        host = request.headers.get(hdrs.HOST)
        if not self._hosts.known(host):
            raise RefusedError(
                Refusal.HOST_UNKNOWN,
                "this gateway is not known by the name in Host: use its address, or have the operator add the name to "
                "ONCE_GATEWAY_HOSTS",
            )
        if request.path not in _WITHOUT_KEY:
            request[PRINCIPAL] = self._access.admit(request.headers.getall(hdrs.AUTHORIZATION, ()))
        return await handler(request)

    async def post_payment(self, request: web.Request, principal: Principal) -> web.Response:
        """Write a payment to payments.raw, unchanged, and answer with its coordinates."""
        with self._v1.singles.one():
            body = await read_body(request, self._body_bytes_max)
            placement = self._v1.admit(body, principal)
            metadata = await self._writer.write(principal, placement, body)
        segment = quote(placement.payment_id, safe="")
        location = f"/payments/{segment}?partition={metadata.partition}&offset={metadata.offset}"
        return json_answer(accepted(placement, metadata), 202, {hdrs.LOCATION: location})

    async def get_payment(self, request: web.Request, principal: Principal) -> web.Response:
        """Answer with the state of the payment at these coordinates."""
        payment_id = request.match_info["payment_id"]
        query = request.query
        partition, offset = domain.coordinates(query.get("partition"), query.get("offset"), self._partitions)

        def is_meant(record: Record) -> bool:
            return domain.names_payment(record.value, payment_id) and self._may_see(principal, record)

        with self._lookups.one():
            try:
                found = await self._find(partition, offset, is_meant)
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

    def _may_see(self, principal: Principal, record: Record) -> bool:
        sender = decode_submitted_by(header(record.headers, SUBMITTED_BY))
        debtor = (record.key or b"").decode(errors="replace")
        owner = self._owners.owner_of(debtor)
        return authorisation.may_see(principal, debtor, owner, None if sender is None else sender.client)

    async def get_openapi(self, _: web.Request) -> web.Response:
        return document_answer(self._document)

    async def get_docs(self, request: web.Request) -> web.Response:
        return page_answer(self._document, request, _SHOWN_HOST)

    async def get_root(self, _: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/docs"})


def _check_bytes(variable: str, given: int, most: int) -> None:
    if not BODY_BYTES_LEAST <= given <= most:
        raise ValueError(f"{variable} is {given}: set it to {BODY_BYTES_LEAST} to {most}")


def _scoped(scope: Scope, handler: Handler) -> Answer:
    """A handler for requests whose key has the scope."""

    async def handle(request: web.Request) -> web.StreamResponse:
        principal = request[PRINCIPAL]
        authorisation.check_scope(principal, scope)
        return await handler(request, principal)

    return handle
