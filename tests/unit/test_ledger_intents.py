"""Effects that an event requests: by account and subscriptions, each with its own id."""

from typing import Any

import msgspec
import pytest

from services.ledger.domain import requests_for
from services.ledger.service import LedgerHandler
from shared.eos.records import Output, Record
from shared.events.catalogue import EFFECTS_REQUESTS, LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.clients import OPERATOR
from shared.events.effects import (
    EVERY_ACCOUNT,
    EffectKind,
    EffectRequest,
    Subscription,
    Subscriptions,
    decode_request,
    effect_id,
)
from shared.events.postings import OF_INSTALLATION, Decline, Entry, NotifiedBy, Posting, decode_ledger_event
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    CreditLeg,
    Transfer,
    TransferRecord,
    TransferReversal,
    encode_transfer,
)
from tests.installation import INSTALLATION
from tests.partitions import PARTITIONS, partition_for

ORIGIN = b"payments.raw:3:1207"
DAY = "1993-01-01"
DEBTOR, CREDITOR, FILE = "2378", "576", "file:all"
P, Q = partition_for(DEBTOR), partition_for(CREDITOR)
ALL_KINDS = Subscriptions(tuple(Subscription(kind, FILE) for kind in EffectKind))
EVERYBODY = {EVERY_ACCOUNT: ALL_KINDS}

DEBIT = Posting(
    "p-1",
    "debit",
    DEBTOR,
    CREDITOR,
    (Entry(DEBTOR, "EUR", -1035), Entry(f"in-transit@{P}", "EUR", 1000), Entry(f"fees@{P}", "EUR", 35)),
    DAY,
    fee_minor=35,
    reference="rent",
)
CREDIT = Posting(
    "p-1", "credit", DEBTOR, CREDITOR, (Entry(f"in-transit@{Q}", "USD", -1085), Entry(CREDITOR, "USD", 1085)), DAY
)
PARKED = Posting(
    "p-1",
    "credit",
    DEBTOR,
    CREDITOR,
    (Entry(f"in-transit@{Q}", "USD", -1085), Entry(f"suspense@{Q}", "USD", 1085)),
    DAY,
)
DECLINE = Decline("p-1", DEBTOR, "insufficient_funds", DAY)


def asked(event: Posting | Decline, account: str, subscriptions: dict[str, Subscriptions]) -> list[EffectRequest]:
    """Return the requests after checking that each id is the derived one and occurs once."""
    requests = requests_for(event, account, ORIGIN, subscriptions, installation=INSTALLATION)
    for request in requests:
        assert request.effect_id == effect_id(ORIGIN, request.kind, request.event, request.destination, installation="")
    assert len({request.effect_id for request in requests}) == len(requests)
    return requests


@pytest.mark.parametrize(
    ("event", "account", "kinds"),
    [
        (DEBIT, DEBTOR, ["receipt", "event"]),
        (CREDIT, CREDITOR, ["notice", "event"]),
        (PARKED, CREDITOR, ["event"]),
        (DECLINE, DEBTOR, ["decline_notice", "event"]),
        (DEBIT, "cash@3", []),
        (DECLINE, "cash@3", []),
    ],
)
def test_each_event_requests_effects_for_the_accounts_concerned(
    event: Posting | Decline, account: str, kinds: list[str]
) -> None:
    assert [request.kind for request in asked(event, account, EVERYBODY)] == kinds
    assert asked(event, account, {}) == []
    assert asked(event, account, {"another": ALL_KINDS}) == []
    assert asked(event, account, {account: Subscriptions(())}) == []


def test_a_receipt_has_the_debited_amount_with_the_fee() -> None:
    [receipt, event] = asked(DEBIT, DEBTOR, EVERYBODY)
    assert receipt == EffectRequest(
        receipt.effect_id,
        "receipt",
        "debit",
        FILE,
        DEBTOR,
        "p-1",
        DEBTOR,
        DAY,
        CREDITOR,
        -1035,
        "EUR",
        35,
        reference="rent",
    )
    assert (event.event, event.amount_minor, event.ordered) == ("debit", -1035, False)


def test_a_notice_has_the_credited_amount() -> None:
    [notice, _] = asked(CREDIT, CREDITOR, EVERYBODY)
    assert (notice.account, notice.debtor, notice.creditor) == (CREDITOR, DEBTOR, CREDITOR)
    assert (notice.event, notice.amount_minor, notice.currency) == ("credit", 1085, "USD")


def test_a_closed_creditor_gets_an_event_without_an_amount() -> None:
    [event] = asked(PARKED, CREDITOR, EVERYBODY)
    assert (event.account, event.amount_minor, event.currency) == (CREDITOR, 0, None)


def test_a_decline_notice_has_a_reason_and_no_amount() -> None:
    [notice, _] = asked(Decline("r-1", DEBTOR, "already_reversed", DAY, reversal=True), DEBTOR, EVERYBODY)
    assert (notice.reason, notice.reversal, notice.event) == ("already_reversed", True, "decline")
    assert (notice.amount_minor, notice.currency, notice.creditor) == (None, None, "")


def test_debit_credit_and_decline_of_one_payment_are_different_events_at_one_destination() -> None:
    both = [*asked(DEBIT, DEBTOR, EVERYBODY), *asked(CREDIT, CREDITOR, EVERYBODY), *asked(DECLINE, DEBTOR, EVERYBODY)]
    assert len({request.effect_id for request in both}) == 6


def test_an_accounts_own_subscription_precedes_the_common_one() -> None:
    own = Subscriptions((Subscription("receipt", FILE, ordered=True), Subscription("receipt", "file:own")))
    found = [(r.kind, r.destination, r.ordered) for r in asked(DEBIT, DEBTOR, {DEBTOR: own, **EVERYBODY})]
    assert found == [("receipt", FILE, True), ("receipt", "file:own", False), ("event", FILE, False)]


def test_a_duplicate_subscription_requests_one_effect() -> None:
    twice = Subscriptions((Subscription("receipt", FILE), Subscription("receipt", FILE, ordered=True)))
    assert [request.ordered for request in asked(DEBIT, DEBTOR, {DEBTOR: twice})] == [False]


def outputs(handler: LedgerHandler, transfer: TransferRecord, offset: int = 1, **more: Any) -> list[Output]:
    """Return the ledger's outputs for one transfer of the operator, or for one of its commands."""
    command = isinstance(transfer, AccountOpened | AccountClosed)
    headers = () if command else (("origin", ORIGIN),)
    if isinstance(transfer, Transfer | TransferReversal):
        transfer = msgspec.structs.replace(transfer, submitted_by=OPERATOR)
    partition = more.get("partition", P)
    return handler.process(Record(LEDGER_TRANSFERS, partition, offset, 0, b"", encode_transfer(transfer), headers))


def ledger(partition: int = P) -> LedgerHandler:
    handler = LedgerHandler(partition, 100, EVERYBODY, partitions=PARTITIONS, installation=INSTALLATION)
    if partition == P:
        outputs(handler, AccountOpened(DEBTOR, 5000), 0)
    return handler


TRANSFER = Transfer("p-1", DEBTOR, CREDITOR, 1000, "EUR", 1000, "EUR", DAY)


def requested(written: list[Output]) -> list[tuple[str, str]]:
    """Return kind and event of each request."""
    requests = [decode_request(output.value or b"") for output in written if output.topic == EFFECTS_REQUESTS]
    return [(request.kind, request.event) for request in requests if isinstance(request, EffectRequest)]


def test_requests_are_on_the_partition_of_their_posting() -> None:
    written = outputs(ledger(), TRANSFER, 5)
    assert [output.topic for output in written] == [
        LEDGER_POSTINGS,
        EFFECTS_REQUESTS,
        EFFECTS_REQUESTS,
        LEDGER_TRANSFERS,
    ]
    for output in written[:3]:
        assert (output.partition, output.key) == (P, DEBTOR.encode())
        assert output.headers == (("origin", ORIGIN), ("source", b"ledger.transfers:%d:5" % P))


def test_a_replay_requests_the_same_effects() -> None:
    assert outputs(ledger(), TRANSFER) == outputs(ledger(), TRANSFER)


def test_the_ledger_requests_effects_for_all_postings_and_declines() -> None:
    handler = ledger()
    assert requested(outputs(handler, TRANSFER)) == [("receipt", "debit"), ("event", "debit")]
    undone = TransferReversal("r-1", DEBTOR, "p-1", DAY)
    assert requested(outputs(handler, undone)) == [("receipt", "debit"), ("event", "debit")]
    again = TransferReversal("r-2", DEBTOR, "p-1", DAY)
    assert requested(outputs(handler, again)) == [("decline_notice", "decline"), ("event", "decline")]
    large = Transfer("p-2", DEBTOR, CREDITOR, 9000, "EUR", 9000, "EUR", DAY)
    assert requested(outputs(handler, large)) == [("decline_notice", "decline"), ("event", "decline")]
    leg = CreditLeg("p-1", DEBTOR, CREDITOR, 1000, "EUR", DAY)
    assert requested(outputs(ledger(Q), leg, partition=Q)) == [("notice", "credit"), ("event", "credit")]


def test_terms_and_house_accounts_request_no_effects() -> None:
    handler = ledger()
    assert requested(outputs(handler, AccountClosed(DEBTOR))) == []
    house = LedgerHandler(3, 100, EVERYBODY, partitions=PARTITIONS, installation=INSTALLATION)
    assert requested(outputs(house, Transfer("p-1", "cash@3", DEBTOR, 10, "EUR", 10, "EUR", DAY), partition=3)) == []


def test_an_event_names_the_subscriptions_in_force() -> None:
    places = {"*": "0:4"}
    handler = LedgerHandler(P, 100, dict(EVERYBODY), places, partitions=PARTITIONS, installation=INSTALLATION)
    outputs(handler, AccountOpened(DEBTOR, 5000))

    def named(transfer: TransferRecord) -> NotifiedBy | None:
        event = decode_ledger_event(outputs(handler, transfer)[0].value or b"")
        assert isinstance(event, Posting | Decline)
        return event.notified_by

    assert named(TRANSFER) == NotifiedBy(None, "0:4", OF_INSTALLATION)
    places[DEBTOR] = "2:9"
    assert named(TransferReversal("r-1", DEBTOR, "p-1", DAY)) == NotifiedBy("2:9", "0:4", OF_INSTALLATION)
    assert named(TransferReversal("r-2", DEBTOR, "p-1", DAY)) == NotifiedBy("2:9", "0:4", OF_INSTALLATION)
    places.clear()
    assert named(Transfer("p-2", DEBTOR, CREDITOR, 9000, "EUR", 9000, "EUR", DAY)) == NotifiedBy(
        None, None, OF_INSTALLATION
    )


def test_a_house_accounts_event_names_no_subscriptions() -> None:
    handler = LedgerHandler(3, 100, EVERYBODY, {"*": "0:4"}, partitions=PARTITIONS, installation=INSTALLATION)
    [posting, _] = outputs(handler, Transfer("p-1", "cash@3", DEBTOR, 10, "EUR", 10, "EUR", DAY), partition=3)
    event = decode_ledger_event(posting.value or b"")
    assert isinstance(event, Posting)
    assert event.notified_by is None


def test_subscriptions_apply_as_soon_as_they_are_known() -> None:
    subscriptions: dict[str, Subscriptions] = {}
    handler = LedgerHandler(P, 100, subscriptions, partitions=PARTITIONS, installation=INSTALLATION)
    outputs(handler, AccountOpened(DEBTOR, None))
    assert requested(outputs(handler, TRANSFER)) == []
    subscriptions[DEBTOR] = Subscriptions((Subscription("receipt", FILE),))
    assert requested(outputs(handler, TRANSFER)) == [("receipt", "debit")]
    del subscriptions[DEBTOR]
    assert requested(outputs(handler, TRANSFER)) == []


def test_an_event_says_that_the_ids_of_its_effects_have_the_installations() -> None:
    subscribed = {DEBTOR: Subscriptions((Subscription(EffectKind.RECEIPT, FILE),))}
    handler = LedgerHandler(P, 100, subscribed, {DEBTOR: "2:9"}, partitions=PARTITIONS, installation=INSTALLATION)
    outputs(handler, AccountOpened(DEBTOR, 5000), 0)
    posting, request, _ = outputs(handler, TRANSFER)
    event, asked = decode_ledger_event(posting.value or b""), decode_request(request.value or b"")
    assert isinstance(event, Posting)
    assert isinstance(asked, EffectRequest)
    assert asked.effect_id == effect_id(ORIGIN, EffectKind.RECEIPT, "debit", FILE, installation=INSTALLATION)
    assert requests_for(event, DEBTOR, ORIGIN, subscribed, installation=INSTALLATION) == [asked]
    former = msgspec.structs.replace(event, notified_by=NotifiedBy("2:9", None))
    [before] = requests_for(former, DEBTOR, ORIGIN, subscribed, installation=INSTALLATION)
    assert before.effect_id == effect_id(ORIGIN, EffectKind.RECEIPT, "debit", FILE, installation="")
