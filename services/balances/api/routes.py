"""The read side's JSON API: handlers around the questions. It only reads.

Invariant: every answer says how far the view had read, every refusal what to change, and as of when. Nothing waits or
accumulates without a bound.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from aiohttp import hdrs, web
from sqlalchemy import Connection

from services.balances.api import openapi, parameters, queries
from services.balances.api.answers import Account, Digest, Entries, Payments, Totals
from services.balances.api.parameters import EntriesQuery, FreshnessQuery, PaymentQuery, Query, Refusal, RefusedError
from services.balances.api.queries import PaymentsFound
from services.balances.api.reader import (
    WAITERS_MAX,
    DatabaseUnavailableError,
    Reader,
    ReaderBusyError,
    Snapshot,
    Waiting,
    busy,
    freshness_of,
)
from services.balances.projection.progress import Position, Progress, as_of, overall
from shared.events.fields import HOUSE_ACCOUNTS
from shared.http.serving import Places, document_answer, json_answer, observed, page_answer

FRESHNESS_TIMEOUT_S: Final = 2.0  # after it, an answer does not say how old it is
RETRY_AFTER_S: Final = 1
SHOWN_HOST: Final = "127.0.0.1:8090"
METHODS: Final = (hdrs.METH_GET, hdrs.METH_HEAD)

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The application's handlers.

    Args:
        partitions: of ledger.postings.
        waiters_max: requests that may wait for the view at once; one more gets 503.
    """

    def __init__(self, reader: Reader, progress: Progress, partitions: int, *, waiters_max: int = WAITERS_MAX) -> None:
        self._partitions = partitions
        self._all = range(partitions)
        self._reader = reader
        self._progress = progress
        self._waiting = Waiting(reader, progress, waiters_max=waiters_max)
        self._digests = Places(1, busy)

    def routes(self) -> list[web.RouteDef]:
        """Every path of the API, for an application of the caller's; an unknown one below /api is 404 in JSON."""
        handlers: dict[str, Handler] = {
            "/api/accounts/{account}": self.get_account,
            "/api/accounts/{account}/entries": self.get_entries,
            "/api/totals": self.get_totals,
            "/api/payments/{payment_id}": self.get_payment,
            "/api/freshness": self.get_freshness,
            "/api/digest": self.get_digest,
            "/openapi.json": self.get_openapi,
            "/docs": self.get_docs,
            "/api/{rest:.*}": self.get_nothing,
        }
        return [web.route(hdrs.METH_ANY, path, answering(handler)) for path, handler in handlers.items()]

    async def get_account(self, request: web.Request) -> web.Response:
        name = request.match_info["account"]
        partition = parameters.home(name, self._partitions)
        query = parameters.parse(Query, request.query.items())
        await self._wait(query)
        found, now = await self._answer(partial(queries.account, name=name), [partition])
        if found is None:
            raise _no_account(name, now)
        overdraft = None if found.overdraft_minor is None else str(found.overdraft_minor)
        last_offset = max((balance.last_offset for balance in found.balances), default=None)
        return json_answer(Account(name, partition, found.closed, overdraft, found.balances, last_offset, now), 200)

    async def get_entries(self, request: web.Request) -> web.Response:
        name = request.match_info["account"]
        partition = parameters.home(name, self._partitions)
        query = parameters.parse(EntriesQuery, request.query.items())
        parameters.check_currency(query.currency)
        after = parameters.decode_cursor(name, query)
        await self._wait(query)
        found, now = await self._answer(partial(queries.entries, name=name, query=query, after=after), [partition])
        if found is None:
            raise _no_account(name, now)
        following = None if found.last is None else parameters.encode_cursor(name, query, found.last)
        return json_answer(Entries(name, partition, query.order, found.entries, following, now), 200)

    async def get_totals(self, request: web.Request) -> web.Response:
        await self._wait(parameters.parse(Query, request.query.items()))
        found, now = await self._answer(queries.totals, self._all)
        return json_answer(Totals(found, all(total.conserved for total in found), now), 200)

    async def get_payment(self, request: web.Request) -> web.Response:
        payment_id = request.match_info["payment_id"]
        parameters.check_payment_id(payment_id)
        query = parameters.parse(PaymentQuery, request.query.items())
        question = partial(queries.payments, payment_id=payment_id, debtor=query.debtor)

        async def look() -> tuple[PaymentsFound, tuple[Position, ...]]:
            return await self._answer(question, self._all)

        def enough(seen: tuple[PaymentsFound, tuple[Position, ...]]) -> bool:
            known = seen[0].payments
            return bool(known) and (query.until == "known" or all(payment.settled for payment in known))

        await self._wait(query)
        found, now = await self._waiting.until(look, enough, query.wait)
        if not found.payments:
            raise _no_payment(query, now)
        return json_answer(Payments(payment_id, found.payments, found.more, now), 200)

    async def get_freshness(self, request: web.Request) -> web.Response:
        parameters.parse(FreshnessQuery, request.query.items())
        _, now = await self._answer(queries.positions, self._all)
        return json_answer(overall(now), 200)

    async def get_digest(self, request: web.Request) -> web.Response:
        """One figure for all balances. One request at a time: it reads them all."""
        query = parameters.parse(Query, request.query.items())
        await self._wait(query)
        with self._digests.one():
            found, now = await self._answer(queries.digest, self._all)
        return json_answer(Digest(found.digest, found.balances, now), 200)

    async def get_openapi(self, _: web.Request) -> web.Response:
        return document_answer(openapi.document(self._partitions))

    async def get_docs(self, request: web.Request) -> web.Response:
        return page_answer(openapi.document(self._partitions), request, SHOWN_HOST)

    async def get_nothing(self, _: web.Request) -> web.Response:
        raise RefusedError(
            Refusal.NOT_FOUND,
            f"there is no such path: there are {', '.join(openapi.document(self._partitions)['paths'])}",
        )

    async def _wait(self, query: Query) -> None:
        """Wait for the records that the client has to see."""
        wanted = parameters.wanted(query.at_least, self._partitions)
        if wanted and not await self._waiting.reached(wanted, query.timeout):
            _, now = await self._answer(queries.positions, sorted(wanted))
            raise _not_reached(wanted, query.timeout, now)

    async def _answer(
        self, question: Callable[[Connection], T], partitions: Iterable[int]
    ) -> tuple[T, tuple[Position, ...]]:
        """Ask; return the answer, and how old it is."""
        # Before the snapshot, so that the answer is not older than it says
        freshness = await freshness_of(self._progress, FRESHNESS_TIMEOUT_S)
        snapshot: Snapshot[T] = await self._reader.read(question)
        return snapshot.found, as_of(snapshot.positions, freshness, partitions)


def _no_account(name: str, now: tuple[Position, ...]) -> RefusedError:
    read = "; ".join(f"partition {one.partition} is read up to offset {one.next_offset}" for one in now)
    hint = f" (a house account's has its partition, as {name}@0)" if name in HOUSE_ACCOUNTS else ""
    detail = (
        f"no account of this name was opened or posted to so far ({read}): check its name{hint}, or wait for what you "
        "wrote with ?at_least=partition:offset"
    )
    return RefusedError(Refusal.NOT_FOUND, detail, now)


def _no_payment(query: PaymentQuery, now: tuple[Position, ...]) -> RefusedError:
    whose = "" if query.debtor is None else " from this debtor"
    waited = f", though waited for {query.wait:g} s" if query.wait else ""
    detail = (
        f"no payment of this payment_id{whose} was posted or declined so far{waited}: one just sent takes a moment, "
        "wait for it with ?wait=5; one that was refused as invalid or recognised as a repeat never gets here, the "
        "Location of the gateway's 202 shows it"
    )
    return RefusedError(Refusal.NOT_FOUND, detail, now)


def _not_reached(wanted: dict[int, int], timeout_s: float, now: tuple[Position, ...]) -> RefusedError:
    missing = ", ".join(
        f"{one.partition}:{wanted[one.partition]} (partition {one.partition} is read up to offset {one.next_offset})"
        for one in now
    )
    detail = (
        f"the view has not read all of these within {timeout_s:g} s: {missing}. Ask again, with a timeout of up to "
        f"{parameters.WAIT_S_MAX:g} s, or without at_least for an answer as it is now"
    )
    return RefusedError(Refusal.NOT_REACHED, detail, now)


def answering(handler: Handler) -> Handler:
    """Count and time a handler, and give its refusals as JSON."""

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {}
        try:
            _check_method(request)
            return await handler(request)
        except RefusedError as error:
            refusal = error
        except ReaderBusyError:
            refusal = busy()
        except DatabaseUnavailableError:
            detail = "the view's database does not answer, or the view is being built: ask again in a moment"
            refusal = RefusedError(Refusal.VIEW_UNAVAILABLE, detail)
        if refusal.status == 405:
            headers["Allow"] = ", ".join(METHODS)
        elif refusal.status in {503, 504}:
            headers["Retry-After"] = str(RETRY_AFTER_S)
        return json_answer(refusal.body, refusal.status, headers)

    async def observed_answer(request: web.Request) -> web.StreamResponse:
        return await observed(request, answer)

    return observed_answer


def _check_method(request: web.Request) -> None:
    if request.method not in METHODS:
        raise RefusedError(Refusal.METHOD_NOT_ALLOWED, f"use {' or '.join(METHODS)}: this side only reads")
