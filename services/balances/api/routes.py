"""The read side's JSON API: handlers around the questions. It only reads.

Invariant: every answer says how far the view had read, every refusal what to change, and as of when. Nothing waits or
accumulates without a bound.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from services.balances.api import openapi, parameters, queries
from services.balances.api.access import Admission, challenges, check_owner, client_of, sender_of
from services.balances.api.answers import Account, Digest, Entries, Payments, Totals
from services.balances.api.parameters import EntriesQuery, FreshnessQuery, PaymentQuery, Query, Refusal, RefusedError
from services.balances.api.queries import PaymentsFound
from services.balances.api.reader import (
    DatabaseUnavailableError,
    Reader,
    ReaderBusyError,
    Waiting,
    busy,
)
from services.balances.api.snapshots import Snapshots, no_account
from services.balances.api.v1.answers import Outcomes, State, problem, with_integers
from services.balances.api.v1.parameters import (
    DatedEntriesQuery,
    OutcomesQuery,
    check_dates,
    check_wait,
    decode_cursor,
    encode_cursor,
)
from services.balances.api.v1.queries import OutcomesFound, dated_entries, outcomes
from services.balances.projection.progress import Freshness, Position, Progress, overall
from shared.http.problems import PROBLEM
from shared.http.serving import Places, document_answer, json_answer, observed, page_answer

RETRY_AFTER_S: Final = 1
SHOWN_HOST: Final = "127.0.0.1:8090"
METHODS: Final = (hdrs.METH_GET, hdrs.METH_HEAD)

Question = Callable[[web.Request], Awaitable[msgspec.Struct]]
Convert = Callable[[msgspec.Struct], msgspec.Struct]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Refusing = Callable[[RefusedError, dict[str, str]], web.Response]


class Api:
    """The application's handlers.

    Args:
        partitions: of ledger.postings.
        waiting: for the view, of requests that ask for it; its own by default.
    """

    def __init__(self, reader: Reader, progress: Progress, partitions: int, waiting: Waiting | None = None) -> None:
        self._partitions = partitions
        self._snapshots = Snapshots(reader, progress, partitions, waiting or Waiting(reader, progress))
        self._digests = Places(1, busy)

    def routes(self) -> list[web.RouteDef]:
        """Every path of the API, for an application of the caller's; an unknown one below /api or /v1 is 404."""
        former: dict[str, Question] = {
            "/api/accounts/{account}": self.get_account,
            "/api/accounts/{account}/entries": self.get_entries,
            "/api/totals": self.get_totals,
            "/api/payments/{payment_id}": self.get_payment,
            "/api/freshness": self.get_freshness,
            "/api/digest": self.get_digest,
            "/api/{rest:.*}": self.get_nothing,
        }
        first: dict[str, Question] = {
            "/v1/accounts/{account}": self.get_account,
            "/v1/accounts/{account}/entries": self.get_dated_entries,
            "/v1/payments": self.get_outcomes,
            "/v1/totals": self.get_totals,
            "/v1/freshness": self.get_freshness,
            "/v1/digest": self.get_digest,
            "/v1/{rest:.*}": self.get_nothing,
        }
        handlers = {
            **{path: answering(_in_json(question)) for path, question in former.items()},
            **{
                path: answering(_in_json(question, with_integers), refusing=_problem)
                for path, question in first.items()
            },
            "/openapi.json": answering(self.get_openapi),
            "/docs": answering(self.get_docs),
        }
        return [web.route(hdrs.METH_ANY, path, handler) for path, handler in handlers.items()]

    async def get_account(self, request: web.Request) -> Account:
        name = request.match_info["account"]
        partition = parameters.home(name, self._partitions)
        await self._snapshots.reach(parameters.parse(Query, request.query.items()), sender_of(request))
        found, now = await self._snapshots.ask(partial(queries.account, name=name), [partition])
        if found is None:
            raise no_account(name, now)
        terms = found.terms
        check_owner(request, name, terms.owner)
        return Account(
            account=name,
            partition=partition,
            closed=terms.closed,
            overdraft_minor=None if terms.overdraft_minor is None else str(terms.overdraft_minor),
            owner=terms.owner,
            version=terms.version,
            balances=found.balances,
            last_offset=max((balance.last_offset for balance in found.balances), default=None),
            as_of=now,
        )

    async def get_entries(self, request: web.Request) -> Entries:
        name = request.match_info["account"]
        partition = parameters.home(name, self._partitions)
        query = parameters.parse(EntriesQuery, request.query.items())
        parameters.check_currency(query.currency)
        after = parameters.decode_cursor(name, query)
        await self._snapshots.reach(query, sender_of(request))
        found, now = await self._snapshots.ask(
            partial(queries.entries, name=name, query=query, after=after), [partition]
        )
        if found is None:
            raise no_account(name, now)
        following = None if found.last is None else parameters.encode_cursor(name, query, found.last)
        return Entries(name, partition, query.order, found.entries, following, now)

    async def get_dated_entries(self, request: web.Request) -> Entries:
        name = request.match_info["account"]
        partition = parameters.home(name, self._partitions)
        query = parameters.parse(DatedEntriesQuery, request.query.items())
        parameters.check_currency(query.currency)
        check_dates(query, name)
        asked = "entries", name, query.currency, query.since, query.to, query.order
        after = decode_cursor(asked, query.after)
        await self._snapshots.reach(query, sender_of(request))
        found, now = await self._snapshots.ask(partial(dated_entries, name=name, query=query, after=after), [partition])
        if found is None:
            raise no_account(name, now)
        check_owner(request, name, found.owner)
        following = None if found.last is None else encode_cursor(asked, found.last)
        return Entries(name, partition, query.order, found.entries, following, now)

    async def get_totals(self, request: web.Request) -> Totals:
        await self._snapshots.reach(parameters.parse(Query, request.query.items()), sender_of(request))
        found, now = await self._snapshots.ask(queries.totals, self._snapshots.all)
        return Totals(found, all(total.conserved for total in found), now)

    async def get_payment(self, request: web.Request) -> Payments:
        payment_id = request.match_info["payment_id"]
        parameters.check_payment_id(payment_id)
        query = parameters.parse(PaymentQuery, request.query.items())
        question = partial(queries.payments, payment_id=payment_id, debtor=query.debtor)

        def enough(seen: PaymentsFound) -> bool:
            known = seen.payments
            return bool(known) and (query.until == "known" or all(payment.settled for payment in known))

        await self._snapshots.reach(query, sender_of(request))
        found, now = await self._snapshots.ask_until(question, enough, query.wait, sender_of(request))
        if not found.payments:
            raise _no_payment(query, now)
        return Payments(payment_id, found.payments, found.more, now)

    async def get_outcomes(self, request: web.Request) -> Outcomes:
        query = parameters.parse(OutcomesQuery, request.query.items())
        parameters.home(query.debtor, self._partitions)
        check_wait(query)
        asked = "payments", query.debtor, query.payment_id, query.since, query.to, query.order
        after = decode_cursor(asked, query.after)

        def enough(seen: OutcomesFound) -> bool:
            known = seen.outcomes
            return bool(known) and (query.until == "known" or known[0].state is not State.POSTED)

        await self._snapshots.reach(query, sender_of(request))
        question = partial(outcomes, query=query, after=after, reader=client_of(request))
        found, now = await self._snapshots.ask_until(question, enough, query.wait, sender_of(request))
        following = None if found.last is None else encode_cursor(asked, found.last)
        return Outcomes(query.debtor, found.outcomes, following, now)

    async def get_freshness(self, request: web.Request) -> Freshness:
        parameters.parse(FreshnessQuery, request.query.items())
        _, now = await self._snapshots.ask(queries.positions, self._snapshots.all)
        return overall(now)

    async def get_digest(self, request: web.Request) -> Digest:
        """One figure for all balances. One request at a time: it reads them all."""
        await self._snapshots.reach(parameters.parse(Query, request.query.items()), sender_of(request))
        with self._digests.one():
            found, now = await self._snapshots.ask(queries.digest, self._snapshots.all)
        return Digest(found.digest, found.balances, now)

    async def get_openapi(self, _: web.Request) -> web.Response:
        return document_answer(openapi.document(self._partitions))

    async def get_docs(self, request: web.Request) -> web.Response:
        return page_answer(openapi.document(self._partitions), request, SHOWN_HOST)

    async def get_nothing(self, _: web.Request) -> msgspec.Struct:
        raise RefusedError(
            Refusal.NOT_FOUND,
            f"there is no such path: there are {', '.join(openapi.document(self._partitions)['paths'])}",
        )


def _no_payment(query: PaymentQuery, now: tuple[Position, ...]) -> RefusedError:
    whose = "" if query.debtor is None else " from this debtor"
    waited = f", though waited for {query.wait:g} s" if query.wait else ""
    detail = (
        f"no payment of this payment_id{whose} was posted or declined so far{waited}: one just sent takes a moment, "
        "wait for it with ?wait=5; one that was refused as invalid or recognised as a repeat never gets here, the "
        "Location of the gateway's 202 shows it"
    )
    return RefusedError(Refusal.NOT_FOUND, detail, now)


def _in_json(question: Question, convert: Convert = lambda found: found) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return json_answer(convert(await question(request)), 200)

    return answer


def _refusal(refusal: RefusedError, headers: dict[str, str]) -> web.Response:
    return json_answer(refusal.body, refusal.status, headers)


def _problem(refusal: RefusedError, headers: dict[str, str]) -> web.Response:
    answer = json_answer(problem(refusal.status, refusal.body), refusal.status, headers)
    answer.content_type = PROBLEM
    return answer


def answering(handler: Handler, *, refusing: Refusing = _refusal) -> Handler:
    """Count and time a handler, and give its refusals as JSON."""

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {}
        try:
            _check_method(request)
            _check_text(request)
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
        return refusing(refusal, headers)

    async def observed_answer(request: web.Request) -> web.StreamResponse:
        return await observed(request, answer)

    return observed_answer


def admitting(admission: Admission) -> Middleware:
    """Make the middleware that admits every request of the application, or refuses it in JSON."""

    @web.middleware
    async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            admission.admit(request)
        except RefusedError as error:
            refusal = error
        else:
            return await handler(request)

        async def refuse(_: web.Request) -> web.StreamResponse:
            refusing = _problem if request.path.startswith("/v1/") else _refusal
            answer = refusing(refusal, {})
            if refusal.status == 401:
                for challenge in challenges():
                    answer.headers.add(hdrs.WWW_AUTHENTICATE, challenge)
            return answer

        return await observed(request, refuse)

    return admitted


def _check_method(request: web.Request) -> None:
    if request.method not in METHODS:
        raise RefusedError(Refusal.METHOD_NOT_ALLOWED, f"use {' or '.join(METHODS)}: this side only reads")


def _check_text(request: web.Request) -> None:
    """Refuse U+0000, which PostgreSQL does not take: its error would be logged with the values of the query."""
    if any("\0" in text for text in (request.path, *request.query.values())):
        raise RefusedError(Refusal.PARAMETER_INVALID, "the path or a parameter has the character U+0000: leave it out")
