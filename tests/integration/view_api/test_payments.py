"""Status and events of a payment."""

from typing import Any

from services.balances.api.statements import PAYMENT_EVENTS_MAX
from shared.events.clients import OPERATOR
from shared.events.transfers import AccountOpened, Transfer
from tests.ledgers import CREDITOR, DAY, DEBTOR, P, Q, converted, reversal, transfer
from tests.views import Site


async def only(site: Site, path: str) -> dict[str, Any]:
    """Read the only payment at this path."""
    [payment] = (await site.get(path))["payments"]
    assert isinstance(payment, dict)
    return payment


async def test_a_payment_goes_from_debited_to_completed_to_reversed(site: Site) -> None:
    ledger = site.view.ledger
    ledger.send(converted())
    site.view.take()
    payment = await only(site, "/api/payments/p-1")
    assert (payment["status"], payment["settled"], payment["creditor"]) == ("debited", False, CREDITOR)
    assert (payment["fee_minor"], payment["rate"], payment["value_date"]) == ("10", "1.0850", DAY)
    [event] = payment["events"]
    assert (event["kind"], event["at"]) == ("debit", f"ledger.postings:{P}:2")
    assert (event["origin"], event["source"]) == ("payments.raw:0:7", f"ledger.transfers:{P}:2")
    assert event["lines"][0] == {
        "account": DEBTOR,
        "currency": "EUR",
        "amount_minor": "-1010",
        "balance_minor": "-1010",
    }
    assert len(event["lines"]) == 5
    ledger.drain()
    site.view.take()
    payment = await only(site, "/api/payments/p-1")
    assert (payment["status"], payment["settled"], payment["reversed_by"]) == ("completed", True, None)
    assert [event["at"] for event in payment["events"]] == [f"ledger.postings:{P}:2", f"ledger.postings:{Q}:0"]
    ledger.send(reversal())
    site.view.take()
    payment = await only(site, "/api/payments/p-1")
    assert (payment["status"], payment["settled"], payment["reversed_by"]) == ("reversed", True, "r-1")
    back = await only(site, "/api/payments/r-1")
    assert (back["status"], back["reversal"], back["reverses"], back["reference"]) == (
        "debited",
        True,
        "p-1",
        "mistake",
    )


async def test_a_credit_may_be_in_the_view_before_its_debit(site: Site) -> None:
    site.view.ledger.send(transfer())
    site.view.ledger.drain()
    site.view.take([Q])
    payment = await only(site, "/api/payments/p-1")
    assert (payment["status"], payment["settled"], payment["debtor"]) == ("credited", False, DEBTOR)
    assert [event["kind"] for event in payment["events"]] == ["credit"]
    site.view.take([P])
    payment = await only(site, "/api/payments/p-1")
    assert (payment["status"], payment["reference"]) == ("completed", "rent")


async def test_a_decline_has_its_reason(site: Site) -> None:
    ledger = site.view.ledger
    ledger.send(AccountOpened(DEBTOR, 0))
    ledger.send(transfer())
    ledger.send(reversal())
    site.view.take()
    payment = await only(site, "/api/payments/p-1")
    assert (payment["status"], payment["settled"], payment["reason"]) == ("declined", True, "insufficient_funds")
    assert (payment["creditor"], payment["events"][0]["kind"], payment["events"][0]["lines"]) == (None, "decline", [])
    back = await only(site, "/api/payments/r-1")
    assert (back["status"], back["reason"], back["reversal"]) == ("declined", "original_not_found", True)


async def test_a_payment_that_is_booked_twice_is_shown_twice(site: Site) -> None:
    for _ in range(2):
        site.view.ledger.send(transfer())
    site.view.take()
    payment = await only(site, "/api/payments/p-1")
    assert [event["kind"] for event in payment["events"]] == ["debit", "debit"]


def paid_by(debtor: str) -> Transfer:
    return Transfer("p/1 é", debtor, CREDITOR, 10, "EUR", 10, "EUR", DAY, submitted_by=OPERATOR)


async def test_payments_of_one_id_are_distinguished_by_their_debtors(site: Site) -> None:
    ledger = site.view.ledger
    for debtor in ("b", "a", "c"):
        ledger.send(AccountOpened(debtor, None))
        ledger.send(paid_by(debtor))
    ledger.drain()
    site.view.take()
    answer = await site.get("/api/payments/p%2F1%20%C3%A9")
    assert answer["payment_id"] == "p/1 é"
    assert [payment["debtor"] for payment in answer["payments"]] == ["a", "b", "c"]
    assert answer["more"] is False
    payment = await only(site, "/api/payments/p%2F1%20%C3%A9?debtor=b")
    assert (payment["debtor"], payment["status"]) == ("b", "completed")
    assert (await site.ask("/api/payments/p%2F1%20%C3%A9?debtor=d"))[0] == 404


async def test_payments_of_one_id_have_a_bound(site: Site) -> None:
    ledger = site.view.ledger
    debtors = [f"debtor-{number}" for number in range(PAYMENT_EVENTS_MAX)]
    for debtor in debtors:
        ledger.send(AccountOpened(debtor, None))
        ledger.send(paid_by(debtor))
    ledger.drain()
    site.view.take()
    answer = await site.get("/api/payments/p%2F1%20%C3%A9")
    assert (len(answer["payments"]), answer["more"]) == (PAYMENT_EVENTS_MAX // 2, True)
    assert {payment["status"] for payment in answer["payments"]} == {"completed"}
    assert (await only(site, f"/api/payments/p%2F1%20%C3%A9?debtor={debtors[-1]}"))["status"] == "completed"
