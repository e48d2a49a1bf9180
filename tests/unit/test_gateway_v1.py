"""The handlers of /v1 over real HTTP, with what they are connected to in memory."""

import asyncio
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from services.gateway import v1
from services.gateway.access import RateLimiter
from services.gateway.answers import Outcome, OutcomeState
from services.gateway.domain import Refusal
from services.gateway.outcomes import LOOKUPS_OF_CLIENT_MAX
from shared.events.clients import OWNER_UNNAMED, Scope, decode_submitted_by
from shared.events.dead_letters import Reason
from shared.events.headers import SUBMITTED_BY, header
from shared.events.payments import AccountOpening
from shared.events.postings import AccountTerms
from shared.events.validation import decode_payment
from shared.http.keys import Keys, key_of
from shared.http.problems import PROBLEM
from tests.gateways import BATCH_BYTES_MAX, BODY_BYTES_MAX, JSON, Site, gateway, let_in
from tests.harness import eventually
from tests.keys import AUTHORIZATION, KEY, KEYS
from tests.partitions import PARTITIONS
from tests.unit.test_gateway_domain import INVALID, body

WITHOUT_ID = body({"payment_id": None})


async def post(site: Site, path: str, value: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return await site.ask("POST", path, data=data, headers=JSON | headers)


def batch_of(*payments: bytes) -> bytes:
    return b'{"payments":[%b]}' % b",".join(payments)


async def test_a_payment_is_kept_as_received_and_its_location_is_its_identity() -> None:
    value = b'  {"schema_version" : 2, "payment_id":"a/\\u00e9 ?", "debtor":"2378", "creditor":"576",\n'
    value += b'"amount_minor":1250,"currency":"EUR"}  '
    async with gateway() as site:
        status, answer, headers = await post(site, "/v1/payments", value)
        assert (status, answer["payment_id"], answer["offset"]) == (202, "a/é ?", 0)
        assert site.log.records[0][3] == value
        assert site.log.headers[0] == (
            ("submitted-by", f"operator:{sha256(KEY.encode()).hexdigest()[:16]}:house".encode()),
        )
        site.view.outcomes["2378", "a/é ?"] = outcome("2378", "a/é ?")
        status, found, _ = await site.ask("GET", headers["Location"])
        assert (status, found["payment_id"], found["state"]) == (200, "a/é ?", "completed")


def outcome(debtor: str, payment_id: str) -> Outcome:
    return Outcome(
        payment_id=payment_id,
        debtor=debtor,
        creditor="576",
        state=OutcomeState.COMPLETED,
        final=True,
        amount_minor=1250,
        currency="EUR",
        value_date="2026-11-26",
        at="ledger.postings:0:1",
    )


async def test_the_idempotency_key_is_the_payment_id() -> None:
    async with gateway() as site:
        status, answer, _ = await post(site, "/v1/payments", WITHOUT_ID, **{"Idempotency-Key": "k-1"})
        assert (status, answer["payment_id"]) == (202, "k-1")
        status, answer, _ = await post(site, "/v1/payments", body({}), **{"Idempotency-Key": '"p-1"'})
        assert (status, answer["payment_id"]) == (202, "p-1")
        values = [value for _, _, _, value in site.log.records]
        assert values == [b'{"payment_id":"k-1",%b' % WITHOUT_ID[1:], body({})]
        status, problem, _ = await post(site, "/v1/payments", body({}), **{"Idempotency-Key": "k-1"})
        assert (status, problem["error"]) == (422, "idempotency_key_conflict")
        status, problem, _ = await post(site, "/v1/payments", WITHOUT_ID)
        assert (status, problem["error"]) == (422, "field_missing")
        assert len(site.log.records) == 2


@pytest.mark.parametrize("reason", INVALID)
async def test_a_refusal_is_a_problem_of_rfc_9457(reason: str) -> None:
    status, changes = INVALID[reason]
    async with gateway() as site:
        answered, problem, headers = await post(site, "/v1/payments", body(changes))
        assert headers["Content-Type"] == PROBLEM
        assert set(problem) == {"type", "title", "status", "detail", "error"}
        assert (answered, problem["status"], problem["error"]) == (status, status, reason)
        assert problem["type"] == f"urn:once:{reason}"
        assert site.log.records == []


async def test_unknown_paths_and_methods_of_v1_are_problems_as_well() -> None:
    async with gateway() as site:
        for method, path, status in (("GET", "/v1/nothing", 404), ("DELETE", "/v1/accounts", 405)):
            answered, problem, headers = await site.ask(method, path)
            assert (answered, problem["status"], headers["Content-Type"]) == (status, status, PROBLEM)


async def test_each_payment_of_a_batch_is_answered_by_itself() -> None:
    async with gateway() as site:
        site.owners.opened["9"] = AccountTerms("rival", 1)
        sent = [
            body({"payment_id": "a"}),
            b"17",
            body({"payment_id": "b", "debtor": "9"}),
            body({"payment_id": "c", "amount_minor": 0}),
            body({"payment_id": "d", "debtor": "44"}),
        ]
        status, answer, headers = await post(site, "/v1/payments/batch", batch_of(*sent))
        assert (status, answer["accepted"], headers.get("Retry-After")) == (207, 2, None)
        assert [item["status"] for item in answer["payments"]] == [202, 400, 403, 422, 202]
        assert [item.get("error") for item in answer["payments"]] == [
            None,
            Reason.NOT_AN_OBJECT,
            Refusal.NOT_AUTHORISED,
            Reason.AMOUNT_NOT_POSITIVE,
            None,
        ]
        assert [value for _, _, _, value in site.log.records] == [sent[0], sent[4]]
        first = answer["payments"][0]
        assert (first["payment_id"], first["location"]) == ("a", "/v1/payments/a?debtor=2378")
        assert set(first) == {"status", "payment_id", "topic", "partition", "offset", "timestamp_ms", "location"}


async def test_a_payment_of_a_batch_has_the_bound_of_a_single_one() -> None:
    inner = body({"reference": "x"})
    large = inner[:-1] + b" " * BODY_BYTES_MAX + b"}"
    async with gateway() as site:
        _, answer, _ = await post(site, "/v1/payments/batch", batch_of(large, inner))
        assert [item["status"] for item in answer["payments"]] == [413, 202]
        status, problem, _ = await post(site, "/v1/payments/batch", batch_of(inner).ljust(BATCH_BYTES_MAX + 1))
        assert (status, problem["error"]) == (413, "too_large")


async def test_a_batch_takes_no_idempotency_key() -> None:
    async with gateway() as site:
        status, problem, _ = await post(site, "/v1/payments/batch", batch_of(body({})), **{"Idempotency-Key": "k"})
        assert (status, problem["error"]) == (422, "idempotency_key_invalid")
        assert site.log.records == []


async def test_payments_of_a_batch_that_kafka_does_not_take_are_503_each() -> None:
    async with gateway() as site:
        site.log.failing = True
        status, answer, headers = await post(site, "/v1/payments/batch", batch_of(body({}), b"1"))
        assert (status, answer["accepted"], headers["Retry-After"]) == (207, 0, "1")
        first, second = answer["payments"]
        assert (first["status"], first["payment_id"], first["error"]) == (503, "p-1", "kafka_unavailable")
        assert "same payment_id" in first["detail"]
        assert second["status"] == 400


async def test_a_silent_cluster_answers_a_batch_within_the_deadline() -> None:
    async with gateway(accept_timeout_s=0.1) as site:
        site.log.open.clear()
        _, answer, _ = await post(site, "/v1/payments/batch", batch_of(body({}), body({"payment_id": "p-2"})))
        assert [item["status"] for item in answer["payments"]] == [503, 503]
        assert site.log.waiting == 0  # nothing is left under way


async def test_batches_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v1, "BATCHES_MAX", 1)
    async with gateway() as site:
        site.log.open.clear()
        first = asyncio.create_task(post(site, "/v1/payments/batch", batch_of(body({}))))

        async def waits() -> bool:
            return site.log.waiting == 1

        await eventually(waits, "a batch under way")
        status, problem, headers = await post(site, "/v1/payments/batch", batch_of(body({})))
        assert (status, problem["error"], headers["Retry-After"]) == (503, "busy", "1")
        site.log.open.set()
        assert (await first)[0] == 207


async def test_a_batch_counts_each_payment_against_the_rate() -> None:
    clock = [0]
    access = let_in(limiter=RateLimiter(10.0, 20))
    access._clock = lambda: clock[0]
    async with gateway(access=access) as site:
        headers = JSON | AUTHORIZATION
        many = batch_of(*(body({"payment_id": f"p-{n}"}) for n in range(40)))
        status, answer, _ = await site.ask("POST", "/v1/payments/batch", data=many, headers=headers)
        assert (status, answer["accepted"]) == (207, 40)  # a batch is never cut in two
        status, problem, answered = await site.ask("POST", "/v1/payments", data=body({}), headers=headers)
        assert (status, problem["error"], answered["Retry-After"]) == (429, "rate_exceeded", "3")
        clock[0] = 3_000_000_000
        assert (await site.ask("POST", "/v1/payments", data=body({}), headers=headers))[0] == 202


async def test_an_opening_is_an_instruction_and_its_client_may_debit_once_it_is_decided() -> None:
    async with gateway() as site:
        site.owners.unnamed = "another"
        assert (await post(site, "/v1/payments", body({"debtor": "new"})))[0] == 403
        status, answer, headers = await post(site, "/v1/accounts", {"account": "new"}, **{"Idempotency-Key": "c-1"})
        assert (status, answer["command_id"], answer["account"]) == (202, "c-1", "new")
        assert headers["Location"] == "/v1/payments/c-1?debtor=new"
        topic, partition, key, value = site.log.records[0]
        assert key == b"new"
        assert decode_payment(value, PARTITIONS) == AccountOpening("c-1", "new", schema_version=2)
        assert (answer["topic"], answer["partition"]) == (topic, partition)
        status, problem, headers = await post(site, "/v1/payments", body({"debtor": "new"}))
        assert (status, problem["error"], headers["Retry-After"]) == (503, "busy", "1")
        _, answer, headers = await post(site, "/v1/payments/batch", batch_of(body({"debtor": "new"})))
        assert (answer["payments"][0]["status"], headers["Retry-After"]) == (503, "1")
        assert len(site.log.records) == 1
        site.owners.opened["new"] = AccountTerms(OWNER_UNNAMED, 1)
        assert (await post(site, "/v1/payments", body({"debtor": "new"})))[0] == 202


async def test_an_opening_takes_no_account_and_no_payment_id_from_the_owner() -> None:
    """The ledger declines the opening of an account with a balance, and the gateway does not know of the balance."""
    rival = key_of("rival", "once_rival", frozenset({Scope.PAYMENTS_WRITE, Scope.ACCOUNTS_WRITE}))
    async with gateway(access=let_in(Keys([*KEYS, rival]))) as site:
        theirs = {"Authorization": "Bearer once_rival"}
        opening = {"account": "2378", "command_id": "c"}
        assert (await post(site, "/v1/accounts", opening, **theirs))[0] == 202
        assert (await post(site, "/v1/payments", body({}), **theirs))[0] == 503
        assert (await post(site, "/v1/payments", body({}), **AUTHORIZATION))[0] == 202
        submitted_by = [decode_submitted_by(header(headers, SUBMITTED_BY)) for headers in site.log.headers]
        assert [one and one.client for one in submitted_by] == ["rival", OWNER_UNNAMED]


async def test_an_opening_under_way_shows_what_its_client_has_sent_and_nothing_else() -> None:
    """The account may have payments of its former owner, and the ledger may decline the opening."""
    async with gateway() as site:
        site.owners.unnamed = "another"
        site.view.outcomes["new", "theirs"] = msgspec.structs.replace(outcome("new", "theirs"), client="another")
        site.view.outcomes["new", "own"] = msgspec.structs.replace(outcome("new", "own"), client=OWNER_UNNAMED)
        assert (await site.ask("GET", "/v1/payments/theirs?debtor=new"))[0] == 403
        assert (await post(site, "/v1/accounts", {"account": "new", "command_id": "c"}))[0] == 202
        assert (await site.ask("GET", "/v1/payments/own?debtor=new"))[0] == 200
        assert (await site.ask("GET", "/v1/payments/theirs?debtor=new"))[0] == 404
        site.owners.opened["new"] = AccountTerms(OWNER_UNNAMED, 1)
        assert (await site.ask("GET", "/v1/payments/theirs?debtor=new"))[0] == 200


async def test_a_client_sees_what_it_has_sent_from_an_account_of_another_client() -> None:
    """The account changed hands since, or the ledger declined the opening, or another gateway accepted it."""
    async with gateway() as site:
        site.owners.opened["2378"] = AccountTerms("rival", 2)
        assert (await site.ask("GET", "/v1/payments/own?debtor=2378"))[0] == 403
        site.view.outcomes["2378", "own"] = msgspec.structs.replace(outcome("2378", "own"), client=OWNER_UNNAMED)
        assert (await site.ask("GET", "/v1/payments/own?debtor=2378"))[0] == 200
        site.view.outcomes["2378", "theirs"] = msgspec.structs.replace(outcome("2378", "theirs"), client="rival")
        assert (await site.ask("GET", "/v1/payments/theirs?debtor=2378"))[0] == 403


async def test_an_opening_that_was_not_written_gives_no_right() -> None:
    async with gateway() as site:
        site.owners.unnamed = "another"
        site.log.failing = True
        status, _, headers = await post(site, "/v1/accounts", {"account": "new", "command_id": "c"})
        assert (status, headers["Retry-After"]) == (503, "1")
        site.log.failing = False
        assert (await post(site, "/v1/payments", body({"debtor": "new"})))[0] == 403


async def test_an_outcome_is_asked_of_the_view_with_the_clients_key() -> None:
    async with gateway() as site:
        site.view.outcomes["2378", "p-1"] = outcome("2378", "p-1")
        status, found, _ = await site.ask("GET", "/v1/payments/p-1?debtor=2378&wait=12.5")
        assert (status, found["amount_minor"], found["currency"]) == (200, 1250, "EUR")
        assert site.view.asked == [("2378", "p-1", 12.5, f"Bearer {KEY}")]
        status, problem, _ = await site.ask("GET", "/v1/payments/p-2?debtor=2378")
        assert (status, problem["error"]) == (404, "not_found")
        # A view that is made again knows no old outcome, and a repeat from before ingest's window is booked again
        assert "only if it was never answered with 202" in problem["detail"]


async def test_a_client_that_waits_for_outcomes_leaves_room_for_others() -> None:
    other = "once_the-key-of-another-client"
    keys = Keys([*KEYS, key_of("shop", other, frozenset(Scope))])
    async with gateway(access=let_in(keys)) as site:

        async def ask(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return (await site.ask("GET", "/v1/payments/p-1?debtor=2378&wait=30", headers=headers))[0]

        async def waits(count: int) -> None:
            async def all_asked() -> bool:
                return len(site.view.asked) == count

            await eventually(all_asked, f"{count} questions")

        site.view.may_answer.clear()
        held = [asyncio.create_task(ask(KEY)) for _ in range(LOOKUPS_OF_CLIENT_MAX)]
        await waits(LOOKUPS_OF_CLIENT_MAX)
        assert await ask(KEY) == 503
        held.append(asyncio.create_task(ask(other)))
        await waits(LOOKUPS_OF_CLIENT_MAX + 1)
        site.view.may_answer.set()
        assert set(await asyncio.gather(*held[:-1])) == {404}
        assert await held[-1] == 403  # it is none of its payments
        assert await ask(KEY) == 404


async def test_a_view_that_is_away_is_503() -> None:
    async with gateway() as site:
        site.view.failing = True
        status, problem, headers = await site.ask("GET", "/v1/payments/p-1?debtor=2378")
        assert (status, problem["error"], headers["Retry-After"]) == (503, "view_unavailable", "1")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?debtor=",
        "?debtor=a%20b",
        "?debtor=in-transit@0",
        "?debtor=1&wait=31",
        "?debtor=1&wait=-1",
        "?debtor=1&wait=nan",
        "?debtor=1&wait=x",
    ],
)
async def test_invalid_parameters_of_an_outcome_are_400(query: str) -> None:
    async with gateway() as site:
        status, problem, _ = await site.ask("GET", f"/v1/payments/p-1{query}")
        assert (status, problem["error"]) == (400, "parameter_invalid")
        for payment_id in ("x" * 129, "%00"):
            assert (await site.ask("GET", f"/v1/payments/{payment_id}?debtor=2378"))[0] == 400
        assert site.view.asked == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 202),
        ("[::1]:8080", 202),
        ("localhost", 202),
        ("PAY.example.:443", 202),
        ("10.1.2.3", 202),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("a b", 421),
        ("", 421),
    ],
)
async def test_a_host_that_is_not_known_is_refused(host: str, status: int) -> None:
    async with gateway() as site:
        answered, answer, _ = await post(site, "/v1/payments", body({}), Host=host)
        assert answered == status
        if status == 421:
            assert answer["error"] == "host_unknown"
            assert (await site.ask("GET", "/docs", headers={"Host": host}))[0] == 421
        assert len(site.log.records) == (status == 202)
