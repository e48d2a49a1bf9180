"""Handlers of /v1: payments singly and in batches, openings of accounts, outcomes by identity.

Invariant: 202 is answered only after every in-sync replica has the record, and each payment of a batch is answered by
itself. What is not 202 was refused or may be sent again.
"""

from typing import Final, Protocol
from urllib.parse import quote

from aiohttp import hdrs, web

from services.gateway import authorisation, commands, domain
from services.gateway.access import Access
from services.gateway.answers import Accepted, Item, Items, OpeningAccepted, Outcome
from services.gateway.bodies import read_body
from services.gateway.domain import Placement, Refusal, RefusedError
from services.gateway.outcomes import LOOKUPS_MAX, LOOKUPS_OF_CLIENT_MAX, WAIT_S_MAX
from services.gateway.writing import SEND_AGAIN, RawWriter
from shared.events.fields import is_account
from shared.events.payments import MAX_PAYMENT_ID_CHARS
from shared.events.postings import AccountTerms
from shared.http.keys import Principal
from shared.http.serving import ClientPlaces, Places, json_answer
from shared.kafka.client.idempotent import RecordMetadata
from shared.telemetry import catalogue
from shared.telemetry.instruments import counter, gauge

BATCH_PATH: Final = "/v1/payments/batch"
BATCHES_MAX: Final = 16  # under way at once: each holds a body and its records in memory
RETRY_AFTER_S: Final = 1

HTTP_REQUESTS_IN_FLIGHT = gauge(catalogue.HTTP_REQUESTS_IN_FLIGHT)
HTTP_PAYMENTS_REFUSED = counter(catalogue.HTTP_PAYMENTS_REFUSED)
HTTP_ACCESS_REFUSED = counter(catalogue.HTTP_ACCESS_REFUSED)


class Owners(Protocol):
    """The part of services.gateway.owners.Owners that handlers need."""

    def terms(self, account: str) -> AccountTerms | None: ...
    def owner_of(self, account: str) -> str: ...
    def is_opening(self, account: str, client: str) -> bool: ...
    def opens(self, account: str, owner: str) -> None: ...


class View(Protocol):
    """The part of services.gateway.outcomes.View that handlers need."""

    async def outcome(self, debtor: str, payment_id: str, wait_s: float, authorization: str) -> Outcome | None: ...


def busy() -> RefusedError:
    """The refusal of a request that finds no place."""
    return RefusedError(Refusal.BUSY, f"too many requests are under way; {SEND_AGAIN}")


class V1:
    """The handlers. Each takes a request and its principal.

    Args:
        partitions: of payments.raw.
        requests_in_flight_max: payments and openings that are sent singly, under way at once; one more gets 503.
        body_bytes_max: of a payment or opening; a larger one gets 413.
        batch_bytes_max: of a batch.
    """

    def __init__(
        self,
        writer: RawWriter,
        owners: Owners,
        view: View,
        access: Access,
        *,
        partitions: int,
        requests_in_flight_max: int,
        body_bytes_max: int,
        batch_bytes_max: int,
    ) -> None:
        self._writer = writer
        self._owners = owners
        self._view = view
        self._access = access
        self._partitions = partitions
        self._body_bytes_max = body_bytes_max
        self._batch_bytes_max = batch_bytes_max
        self.singles: Final = Places(requests_in_flight_max, busy, HTTP_REQUESTS_IN_FLIGHT.set)
        self._batches = Places(BATCHES_MAX, busy)
        self._lookups = ClientPlaces(LOOKUPS_MAX, LOOKUPS_OF_CLIENT_MAX, busy)

    async def post_payment(self, request: web.Request, principal: Principal) -> web.Response:
        """Write a payment to payments.raw, and answer with its coordinates."""
        with self.singles.one():
            key = commands.idempotency_key(request.headers.getall(commands.KEY_HEADER, ()))
            body = commands.with_payment_id(await read_body(request, self._body_bytes_max), key)
            placement = self.admit(body, principal)
            metadata = await self._writer.write(principal, placement, body)
        return json_answer(accepted(placement, metadata), 202, {hdrs.LOCATION: _location(placement)})

    def admit(self, body: bytes, principal: Principal) -> Placement:
        """Return the place of a payment that the principal may submit; RefusedError of any other."""
        placement = domain.place(body, self._partitions)
        debtor = placement.debtor
        owner = self._owners.owner_of(debtor)
        if owner != principal.client and self._owners.is_opening(debtor, principal.client):
            raise RefusedError(Refusal.BUSY, f"the opening of account {debtor} is not decided yet; {SEND_AGAIN}")
        authorisation.check_debit(principal, debtor, owner)
        return placement

    async def post_batch(self, request: web.Request, principal: Principal) -> web.Response:
        """Write the payments of a batch that may be written, and answer each by itself."""
        with self._batches.one():
            if commands.KEY_HEADER in request.headers:
                raise RefusedError(
                    Refusal.IDEMPOTENCY_KEY_INVALID,
                    f"send a batch without {commands.KEY_HEADER}: each of its payments has its own payment_id",
                )
            payments = commands.batch(await read_body(request, self._batch_bytes_max))
            self._access.charge(principal, len(payments) - 1)
            placed = [self._placed(payment, principal) for payment in payments]
            records = [
                (place, body) for place, body in zip(placed, payments, strict=True) if isinstance(place, Placement)
            ]
            results = iter(await self._writer.write_all(principal, records))
        items = tuple(
            self._written(place, next(results)) if isinstance(place, Placement) else self._refused(principal, place)
            for place in placed
        )
        count = sum(item.status == 202 for item in items)
        wait = {"Retry-After": str(RETRY_AFTER_S)} if any(item.status == 503 for item in items) else {}
        return json_answer(Items(count, items), 207, wait)

    def _placed(self, payment: bytes, principal: Principal) -> Placement | RefusedError:
        try:
            domain.check_size(len(payment), self._body_bytes_max)
            return self.admit(payment, principal)
        except RefusedError as error:
            return error

    @staticmethod
    def _written(placement: Placement, result: RecordMetadata | RefusedError) -> Item:
        if isinstance(result, RefusedError):
            return _refusal(result, placement.payment_id)
        return Item(202, placement.payment_id, *result, _location(placement))

    def _refused(self, principal: Principal, error: RefusedError) -> Item:
        if error.reason is Refusal.NOT_AUTHORISED:
            HTTP_ACCESS_REFUSED.labels(error.reason.value).inc()
            self._access.refused(principal, BATCH_PATH, error.reason.value)
        return _refusal(error, None)

    async def post_account(self, request: web.Request, principal: Principal) -> web.Response:
        """Write the command to open an account to payments.raw, and answer with its coordinates."""
        with self.singles.one():
            key = commands.idempotency_key(request.headers.getall(commands.KEY_HEADER, ()))
            body = await read_body(request, self._body_bytes_max)
            opening, placement, value = commands.opening(body, key, self._partitions)
            authorisation.check_opening(principal, opening, self._owners.terms(opening.debtor))
            metadata = await self._writer.write(principal, placement, value)
        self._owners.opens(opening.debtor, opening.owner or principal.client)
        answer = OpeningAccepted(opening.payment_id, opening.debtor, *metadata)
        return json_answer(answer, 202, {hdrs.LOCATION: _location(placement)})

    async def get_payment(self, request: web.Request, principal: Principal) -> web.Response:
        """Answer with the outcome of the identity, as soon as it is known."""
        payment_id, debtor = request.match_info["payment_id"], request.query.get("debtor", "")
        if not is_account(debtor, self._partitions):
            raise RefusedError(Refusal.PARAMETER_INVALID, "send ?debtor=, the account that the payment debits")
        if len(payment_id) > MAX_PAYMENT_ID_CHARS or not payment_id.isprintable():
            wanted = f"send 1 to {MAX_PAYMENT_ID_CHARS} printable characters in the path"
            raise RefusedError(Refusal.PARAMETER_INVALID, f"that is not a payment_id: {wanted}")
        wait_s = _seconds(request.query.get("wait", "0"))
        with self._lookups.one(principal.client):
            found = await self._view.outcome(debtor, payment_id, wait_s, request.headers[hdrs.AUTHORIZATION])
        owner = self._owners.owner_of(debtor)
        if found is None or not authorisation.may_see(principal, debtor, owner, found.client):
            if not self._owners.is_opening(debtor, principal.client):
                authorisation.check_debit(principal, debtor, owner)
            raise RefusedError(
                Refusal.NOT_FOUND,
                "no outcome of this payment_id and debtor is known yet: ask again with &wait=30. Send the payment "
                "again only if it was never answered with 202",
            )
        return json_answer(found, 200)


def accepted(placement: Placement, metadata: RecordMetadata) -> Accepted:
    return Accepted(placement.payment_id, *metadata)


def _location(placement: Placement) -> str:
    return f"/v1/payments/{quote(placement.payment_id, safe='')}?debtor={quote(placement.debtor, safe='')}"


def _refusal(error: RefusedError, payment_id: str | None) -> Item:
    HTTP_PAYMENTS_REFUSED.labels(error.reason.value).inc()
    problem = error.problem
    return Item(
        problem.status, payment_id, type=problem.type, title=problem.title, error=problem.error, detail=problem.detail
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= WAIT_S_MAX:
        raise RefusedError(Refusal.PARAMETER_INVALID, f"wait is not a number of seconds: send 0 to {WAIT_S_MAX:g}")
    return seconds
