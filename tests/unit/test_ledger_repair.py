"""Repair of the ledger: missing parts are booked as they were decided, and the state follows the postings."""

import itertools

import msgspec
import pytest

from services.ledger.posted import PostedBooks
from services.ledger.repair import LedgerRepair, SupersededError
from services.ledger.service import LedgerHandler
from shared.eos.records import Output, Record
from shared.events.catalogue import EFFECTS_REQUESTS, LEDGER_ACCOUNTS, LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.codec import InternalInputError
from shared.events.effects import EffectRequest, Subscription, Subscriptions, decode_request
from shared.events.headers import ORIGIN
from shared.events.postings import (
    ACCOUNT_PREFIX,
    OF_INSTALLATION,
    OF_ORIGIN,
    Account,
    Decline,
    NotifiedBy,
    Posting,
    decode_ledger_event,
    decode_terms,
    encode_account,
)
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    CreditLeg,
    TransferRecord,
    decode_transfer,
    encode_transfer,
)
from tests.installation import INSTALLATION
from tests.ledgers import CREDITOR, DEBTOR, P, Q, reversal, transfer
from tests.partitions import PARTITIONS

WINDOW = 100


def at(offset: int, event: TransferRecord) -> Record:
    command = isinstance(event, AccountOpened | AccountClosed) and not getattr(event, "command_id", "")
    headers = () if command else ((ORIGIN, b"payments.raw:%d:%d" % (P, offset)),)
    return Record(LEDGER_TRANSFERS, P, offset, 0, b"key", encode_transfer(event), headers)


EVENTS: list[TransferRecord] = [
    AccountOpened(DEBTOR, 5000),
    transfer("p-1", 1000, 5),
    transfer("p-2", 3000),
    reversal("r-1", "p-1"),
    reversal("r-2", "p-1"),
    transfer("p-3", 9999),
]
INPUT = [at(offset, event) for offset, event in enumerate(EVENTS)]


def processed(handler: LedgerHandler, records: list[Record]) -> dict[int, list[Output]]:
    outputs = {record.offset: handler.process(record) for record in records}
    handler.store.commit()
    return outputs


def posting_of(outputs: list[Output]) -> Output:
    return next(output for output in outputs if output.topic == LEDGER_POSTINGS)


def leg_of(outputs: list[Output]) -> Output | None:
    return next((output for output in outputs if output.topic == LEDGER_TRANSFERS), None)


def balances(handler: LedgerHandler) -> dict[str, tuple[dict[str, int], int | None]]:
    return {
        name: ({currency: minor for currency, minor in account.balances.items() if minor}, account.overdraft_minor)
        for name, account in handler.accounts.items()
        if any(account.balances.values()) or name == DEBTOR
    }


def decoded(output: Output | None) -> CreditLeg | None:
    leg = None if output is None else decode_transfer(output.value or b"")
    assert leg is None or isinstance(leg, CreditLeg)
    return leg


@pytest.mark.parametrize(
    ("lost", "posting", "leg", "state"),
    [
        (lost, *kept)
        for lost in ((1,), (2,), (3,), (1, 3), (1, 2, 3, 4, 5))
        for kept in itertools.product((False, True), repeat=3)
    ],
)
def test_missing_parts_are_booked_as_they_were_decided(
    lost: tuple[int, ...], posting: bool, leg: bool, state: bool
) -> None:
    """After a repair, nothing shows that a posting, a credit leg or a state was lost."""
    whole = LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION)
    outputs = processed(whole, INPUT)
    books = PostedBooks(P, WINDOW)
    for record in INPUT:
        if record.offset in lost:
            books.want(decode_transfer(record.value or b""))
        if record.offset not in lost or posting:
            for output in outputs[record.offset][:1]:
                books.take(decode_ledger_event(output.value or b""))
    mender = LedgerRepair(P, WINDOW, {}, books, partitions=PARTITIONS, installation=INSTALLATION)
    old = LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION)
    for record in INPUT if state else INPUT[: lost[0]]:
        old.process(record)
    for key, value in old.store.changes():
        mender.store.restore(key, value)
    mender.correct()
    for offset in lost:
        made = outputs[offset]
        known = decoded(leg_of(made)) if leg else None
        event = decode_ledger_event(posting_of(made).value or b"") if posting else None
        again = mender.mend(INPUT[offset], event, known)
        assert again == made
    mender.store.commit()
    assert balances(mender) == balances(whole)


def test_a_booked_debit_stays_booked_without_cover() -> None:
    whole = LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION)
    outputs = processed(whole, INPUT[:2])
    mender = LedgerRepair(
        P, WINDOW, {}, PostedBooks(P, WINDOW), partitions=PARTITIONS, installation=INSTALLATION
    )  # not even the account's opening is known
    mender.correct()
    again = mender.mend(INPUT[1], None, decoded(leg_of(outputs[1])))
    assert again == outputs[1]
    [declined] = mender.mend(INPUT[2], None, None)
    assert isinstance(decode_ledger_event(declined.value or b""), Decline)


RECEIPTS, NOTICES = (Subscriptions((Subscription(kind, f"file:{kind}"),)) for kind in ("receipt", "notice"))


def test_a_posting_is_notified_by_the_subscriptions_that_it_names() -> None:
    subscriptions, places = {DEBTOR: RECEIPTS}, {DEBTOR: "2:9"}
    whole = LedgerHandler(P, WINDOW, subscriptions, places, partitions=PARTITIONS, installation=INSTALLATION)
    made = processed(whole, INPUT[:2])[1]
    posted = decode_ledger_event(posting_of(made).value or b"")
    versions = {"2:9": RECEIPTS, "2:11": NOTICES}

    def mended(versions: dict[str, Subscriptions]) -> list[Output]:
        mender = LedgerRepair(
            P,
            WINDOW,
            {DEBTOR: NOTICES},
            PostedBooks(P, WINDOW),
            partitions=PARTITIONS,
            installation=INSTALLATION,
            places={DEBTOR: "2:11"},
            versions=versions,
        )
        mender.correct()
        return mender.mend(INPUT[1], posted, None)

    assert [output.topic for output in made] == [LEDGER_POSTINGS, EFFECTS_REQUESTS, LEDGER_TRANSFERS]
    assert mended(versions) == made
    with pytest.raises(InternalInputError, match=r"reference\.subscriptions:2:9, which is no longer there"):
        mended({"2:11": NOTICES})


def test_a_posting_that_names_no_subscriptions_is_notified_by_the_present_ones() -> None:
    former = LedgerHandler(P, WINDOW, {DEBTOR: RECEIPTS}, partitions=PARTITIONS, installation=INSTALLATION)
    made = processed(former, INPUT[:2])[1]
    posted = decode_ledger_event(posting_of(made).value or b"")
    assert isinstance(posted, Posting)
    mender = LedgerRepair(
        P, WINDOW, {DEBTOR: RECEIPTS}, PostedBooks(P, WINDOW), partitions=PARTITIONS, installation=INSTALLATION
    )
    mender.correct()
    again = mender.mend(INPUT[1], msgspec.structs.replace(posted, notified_by=None), None)
    assert [output.topic for output in again] == [output.topic for output in made]


@pytest.mark.parametrize("form", [OF_ORIGIN, OF_INSTALLATION])
def test_a_lost_posting_has_the_form_of_the_effects_that_exist(form: str) -> None:
    """Else a lost request would be made a second time, under another id."""
    both = Subscriptions((*RECEIPTS.subscriptions, Subscription("event", "file:event")))
    subscriptions, places = {DEBTOR: both}, {DEBTOR: "2:9"}
    whole = LedgerHandler(P, WINDOW, subscriptions, places, partitions=PARTITIONS, installation=INSTALLATION)
    whole._effect_ids = form
    made = processed(whole, INPUT[:2])[1]
    requests = [one for one in made if one.topic == EFFECTS_REQUESTS]
    mender = LedgerRepair(
        P,
        WINDOW,
        subscriptions,
        PostedBooks(P, WINDOW),
        partitions=PARTITIONS,
        installation=INSTALLATION,
        places=places,
        versions={"2:9": both},
    )
    mender.correct()
    kept = decode_request(requests[1].value or b"")
    assert isinstance(kept, EffectRequest)
    again = mender.mend(INPUT[1], None, decoded(leg_of(made)), [kept])
    assert [one for one in again if one.topic == EFFECTS_REQUESTS] == requests
    posted = decode_ledger_event(posting_of(again).value or b"")
    assert isinstance(posted, Posting)
    assert posted.notified_by == NotifiedBy("2:9", None, form)


def test_a_leg_that_does_not_follow_from_its_transfer_is_refused() -> None:
    mender = LedgerRepair(P, WINDOW, {}, PostedBooks(P, WINDOW), partitions=PARTITIONS, installation=INSTALLATION)
    mender.correct()
    leg = CreditLeg("p-1", DEBTOR, CREDITOR, 999, "EUR", "1993-01-01")
    with pytest.raises(InternalInputError, match="does not follow"):
        mender.mend(INPUT[1], None, leg)
    with pytest.raises(InternalInputError, match="does not follow"):
        mender.mend(INPUT[3], None, leg)


ALPHA = SubmittedBy("alpha", "0123456789abcdef")
COMMANDS: list[TransferRecord] = [
    AccountOpened(DEBTOR, 0, "alpha", 0, "o-1", None, "1993-01-01", ALPHA),
    AccountOpened(DEBTOR, 0, "alpha", 0, "o-2", 0, "1993-01-01", ALPHA),  # stale
    AccountOpened(DEBTOR, 500, "alpha"),
    AccountOpened(DEBTOR, 500, "alpha", 0, "o-3", 2, "1993-01-01", OPERATOR),  # changes nothing
    AccountClosed(DEBTOR),
]


def books_after(made: dict[int, list[Output]], *, lost: int | None = None, followed: int = 0) -> PostedBooks:
    """The events of all commands but a lost one, and the first records of ledger.accounts."""
    books = PostedBooks(P, WINDOW)
    for offset, outputs in made.items():
        if offset != lost:
            books.take(decode_ledger_event(posting_of(outputs).value or b""), outputs[0].headers)
    for output in [one for outputs in made.values() for one in outputs if one.topic == LEDGER_ACCOUNTS][:followed]:
        books.followed[(output.key or b"").decode()] = decode_terms(output.value or b"")
    return books


def mender_after(made: dict[int, list[Output]], *, lost: int | None = None, followed: int = 0) -> LedgerRepair:
    return mender_with(books_after(made, lost=lost, followed=followed))


def mender_with(books: PostedBooks) -> LedgerRepair:
    mender = LedgerRepair(P, WINDOW, {}, books, partitions=PARTITIONS, installation=INSTALLATION)
    mender.correct()
    return mender


@pytest.mark.parametrize("lost", range(len(COMMANDS)))
@pytest.mark.parametrize("follows", [False, True])
def test_a_lost_account_event_is_written_as_it_was(lost: int, *, follows: bool) -> None:
    """The last one of its account, and perhaps its record of ledger.accounts too."""
    commands = [at(offset, event) for offset, event in enumerate(COMMANDS[: lost + 1])]
    whole = LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION)
    made = processed(whole, commands)
    written = [one for outputs in made.values() for one in outputs if one.topic == LEDGER_ACCOUNTS]
    mender = mender_after(made, lost=lost, followed=len(written) - (not follows))
    again = mender.mend(commands[lost], None, None)
    assert again == [posting_of(made[lost])]
    missing = not follows and lost != 3  # the one before says the same as number 3
    assert mender.follow() == (written[-1:] if missing else [])
    mender.store.commit()
    assert mender.accounts.get(DEBTOR) == whole.accounts.get(DEBTOR)


@pytest.mark.parametrize("followed", [0, 1, 3])
def test_ledger_accounts_gets_the_last_record_of_an_account_again_and_no_older_one(followed: int) -> None:
    """An older one would take the place of the newer one."""
    commands = [at(offset, event) for offset, event in enumerate(COMMANDS)]
    made = processed(LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION), commands)
    mender = mender_after(made, followed=followed)
    for command, outputs in zip(commands, made.values(), strict=True):
        event = decode_ledger_event(posting_of(outputs).value or b"")
        assert mender.mend(command, event, None) == ([posting_of(outputs)] if isinstance(event, Decline) else [])
    assert mender.follow() == made[4][1:]
    assert mender.follow() == []


def test_an_attempt_leaves_nothing_to_the_next_one() -> None:
    """A fenced attempt wrote nothing."""
    commands = [at(offset, event) for offset, event in enumerate(COMMANDS[:3])]
    made = processed(LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION), commands)
    books = books_after(made, lost=2)
    for _ in range(2):
        mender = mender_with(books)
        mender.mend(commands[2], None, None)
        assert mender.follow() == made[2][1:]
        assert mender.follow() == []
    assert mender_with(books).follow() == made[0][1:]


def test_a_record_of_ledger_accounts_that_is_ahead_of_the_events_waits_for_its_event() -> None:
    made = processed(
        LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION),
        [at(offset, event) for offset, event in enumerate(COMMANDS[:3])],
    )
    mender = mender_after(made, lost=2, followed=2)
    mender.mend(at(2, COMMANDS[2]), None, None)
    assert mender.follow() == []


SUPERSEDING: list[tuple[TransferRecord, TransferRecord]] = [
    (AccountOpened(DEBTOR, 0, "alpha"), AccountOpened(DEBTOR, 0, "beta")),
    (AccountClosed(DEBTOR), AccountOpened(DEBTOR, 0, "beta")),
    (AccountOpened(DEBTOR, 0, "alpha"), AccountClosed(DEBTOR)),
    (AccountOpened(DEBTOR, 0, "alpha", 0, "o-1", None, "1993-01-01", OPERATOR), AccountOpened(DEBTOR, 0, "beta")),
]


@pytest.mark.parametrize(("lost", "later"), SUPERSEDING)
def test_a_lost_command_does_not_undo_a_later_one(lost: TransferRecord, later: TransferRecord) -> None:
    """Its part of the transaction was lost, the changelog's part included."""
    made = processed(
        LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION),
        [at(0, AccountOpened(DEBTOR, 7)), at(2, later)],
    )
    mender = mender_after(made, followed=2)
    before = mender.accounts.get(DEBTOR)
    with pytest.raises(SupersededError, match=f"{LEDGER_TRANSFERS}:{P}:2 has changed {DEBTOR} since"):
        mender.mend(at(1, lost), None, None)
    assert mender.accounts.get(DEBTOR) == before
    assert mender.follow() == []


@pytest.mark.parametrize(
    "command",
    [
        AccountOpened(DEBTOR, 500, "alpha"),
        AccountClosed(DEBTOR),
        AccountOpened(DEBTOR, 500, "alpha", 0, "o-1", None, "1993-01-01", OPERATOR),
    ],
)
def test_a_lost_command_that_a_later_one_repeats_has_the_version_of_that(command: TransferRecord) -> None:
    """Its terms are those of the account. The record of ledger.accounts remains that of the later command."""
    opened = AccountOpened(DEBTOR, 7)
    made = processed(
        LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION),
        [at(0, opened), at(2, command)],
    )
    books = books_after(made, followed=2)
    mender = mender_with(books)
    [again] = mender.mend(at(1, command), None, None)
    expected = posting_of(made[2])
    assert (again.topic, again.value) == (LEDGER_POSTINGS, expected.value)
    assert mender.follow() == []
    books.take(decode_ledger_event(again.value or b""), again.headers)
    books.followed.clear()
    assert mender_with(books).follow() == made[2][1:]


def test_a_lost_command_that_would_be_declined_now_is_declined() -> None:
    """A decline changes nothing."""
    made = processed(
        LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION),
        [at(2, AccountOpened(DEBTOR, 0, "beta"))],
    )
    [declined] = mender_after(made, followed=1).mend(at(1, COMMANDS[1]), None, None)
    assert isinstance(decode_ledger_event(declined.value or b""), Decline)


def test_accounts_of_former_versions_are_not_in_ledger_accounts() -> None:
    books = PostedBooks(P, WINDOW)
    books.take(AccountOpened(DEBTOR, 500))
    mender = LedgerRepair(P, WINDOW, {}, books, partitions=PARTITIONS, installation=INSTALLATION)
    mender.correct()
    assert mender.follow() == []


def test_the_account_of_another_owner_is_debited_again_where_it_was() -> None:
    """It was the client's when its credit leg was written."""
    paid = at(1, transfer(submitted_by=ALPHA))
    opened = at(0, AccountOpened(DEBTOR, None, "alpha"))
    made = processed(LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION), [opened, paid])
    mender = LedgerRepair(P, WINDOW, {}, PostedBooks(P, WINDOW), partitions=PARTITIONS, installation=INSTALLATION)
    mender.correct()
    assert mender.mend(paid, None, decoded(leg_of(made[1]))) == made[1]


@pytest.mark.parametrize("raw_from", [0, 1, 2])
def test_a_repair_knows_from_where_on_ownership_is_enforced(raw_from: int) -> None:
    paid = at(1, msgspec.structs.replace(transfer(), debtor=f"cash@{P}", submitted_by=None))
    mender = LedgerRepair(
        P, WINDOW, {}, PostedBooks(P, WINDOW), partitions=PARTITIONS, installation=INSTALLATION, raw_from=raw_from
    )
    mender.correct()
    event = decode_ledger_event(posting_of(mender.mend(paid, None, None)).value or b"")
    assert isinstance(event, Posting if raw_from == 2 else Decline)
    assert event.submitted_by == (OPERATOR if raw_from == 2 else None)


def test_state_without_a_posting_is_reverted() -> None:
    mender = LedgerRepair(P, WINDOW, {}, PostedBooks(P, WINDOW), partitions=PARTITIONS, installation=INSTALLATION)
    for key, value in _state_of(Account({"EUR": 70}, 0)):
        mender.store.restore(key, value)
    mender.correct()
    mender.store.commit()
    assert balances(mender) == {DEBTOR: ({}, 0)}


def _state_of(account: Account) -> list[tuple[bytes, bytes]]:
    return [(ACCOUNT_PREFIX + DEBTOR.encode(), encode_account(account))]


def mender_of_subscribers(
    books: PostedBooks, subscribed: Subscriptions, *accounts: str, partition: int = P
) -> LedgerRepair:
    """A repair with the accounts' subscription at 2:9."""
    mender = LedgerRepair(
        partition,
        WINDOW,
        dict.fromkeys(accounts, subscribed),
        books,
        partitions=PARTITIONS,
        installation=INSTALLATION,
        places=dict.fromkeys(accounts, "2:9"),
        versions={"2:9": subscribed},
    )
    mender.correct()
    return mender


LEG = Record(
    LEDGER_TRANSFERS,
    Q,
    7,
    0,
    b"key",
    encode_transfer(CreditLeg("p-1", DEBTOR, CREDITOR, 1000, "EUR", "1993-01-01")),
    ((ORIGIN, b"payments.raw:%d:1" % P),),
)
BOTH = Subscriptions((*NOTICES.subscriptions, Subscription("event", "file:event")))


@pytest.mark.parametrize("form", [OF_ORIGIN, OF_INSTALLATION])
@pytest.mark.parametrize("is_posted", [False, True])
def test_lost_requests_of_a_credit_leg_are_written(form: str, *, is_posted: bool) -> None:
    """By the posting that exists; else in the form of the effects that exist."""
    subscribed, places = {CREDITOR: BOTH}, {CREDITOR: "2:9"}
    whole = LedgerHandler(Q, WINDOW, subscribed, places, partitions=PARTITIONS, installation=INSTALLATION)
    whole._effect_ids = form
    made = whole.process(LEG)
    books = PostedBooks(Q, WINDOW)
    posted = decode_ledger_event(posting_of(made).value or b"") if is_posted else None
    if posted is not None:
        books.take(posted)
    mender = mender_of_subscribers(books, BOTH, CREDITOR, partition=Q)
    kept = decode_request(made[1].value or b"")
    assert isinstance(kept, EffectRequest)
    assert [output.topic for output in made] == [LEDGER_POSTINGS, EFFECTS_REQUESTS, EFFECTS_REQUESTS]
    assert mender.mend(LEG, posted, None, [] if is_posted else [kept]) == made
    assert mender.accounts.get(CREDITOR) == whole.accounts.get(CREDITOR)


@pytest.mark.parametrize("offset", [1, 3])
def test_a_request_shows_that_a_debit_was_booked(offset: int) -> None:
    """Whatever the balance is now, and although the payment was reversed since."""
    whole = LedgerHandler(
        P, WINDOW, {DEBTOR: RECEIPTS}, {DEBTOR: "2:9"}, partitions=PARTITIONS, installation=INSTALLATION
    )
    outputs = processed(whole, INPUT[: offset + 1])
    books = PostedBooks(P, WINDOW)
    books.want(EVENTS[offset])
    for number in range(1, offset):
        books.take(decode_ledger_event(posting_of(outputs[number]).value or b""))
    mender = mender_of_subscribers(books, RECEIPTS, DEBTOR)
    assert mender.mend(INPUT[offset], None, None, requests_in(outputs[offset])) == outputs[offset]


@pytest.mark.parametrize("offset", [2, 4])
def test_a_request_shows_that_an_event_was_declined_and_why(offset: int) -> None:
    """At present, there is cover, and nothing was reversed."""
    notices = Subscriptions((Subscription("decline_notice", "file:declines"),))
    whole = LedgerHandler(
        P, WINDOW, {DEBTOR: notices}, {DEBTOR: "2:9"}, partitions=PARTITIONS, installation=INSTALLATION
    )
    declined = at(2, transfer("p-2", 9999))
    outputs = processed(whole, [*INPUT[:2], declined, *INPUT[3:5]])
    books = PostedBooks(P, WINDOW)
    books.want(EVENTS[offset])
    books.take(AccountOpened(DEBTOR, None))
    books.take(decode_ledger_event(posting_of(outputs[1]).value or b""))
    mender = mender_of_subscribers(books, notices, DEBTOR)
    record = declined if offset == 2 else INPUT[offset]
    assert [one.topic for one in outputs[offset]] == [LEDGER_POSTINGS, EFFECTS_REQUESTS]
    assert mender.mend(record, None, None, requests_in(outputs[offset])) == outputs[offset]


def test_a_request_that_does_not_follow_from_its_transfer_is_refused() -> None:
    whole = LedgerHandler(
        P, WINDOW, {DEBTOR: RECEIPTS}, {DEBTOR: "2:9"}, partitions=PARTITIONS, installation=INSTALLATION
    )
    outputs = processed(whole, INPUT[:2])
    mender = mender_of_subscribers(PostedBooks(P, WINDOW), RECEIPTS, DEBTOR)
    with pytest.raises(InternalInputError, match="does not follow"):
        mender.mend(INPUT[3], None, None, requests_in(outputs[1]))  # there is no payment to be reversed


def requests_in(outputs: list[Output]) -> list[EffectRequest]:
    found = [decode_request(one.value or b"") for one in outputs if one.topic == EFFECTS_REQUESTS]
    return [one for one in found if isinstance(one, EffectRequest)]


def test_the_reversal_of_an_older_booking_is_not_one_of_its_successor() -> None:
    """ingest had forgotten the identity, and accepted the payment again."""
    events = [*EVENTS[:2], EVENTS[3], EVENTS[1], reversal("r-3", "p-1")]
    records = [at(offset, event) for offset, event in enumerate(events)]
    whole = LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION)
    outputs = processed(whole, records)
    books = PostedBooks(P, WINDOW)
    for event in events[3:]:
        books.want(event)
    for number in range(4):
        books.take(decode_ledger_event(posting_of(outputs[number]).value or b""))
    mender = mender_with(books)
    posted = decode_ledger_event(posting_of(outputs[3]).value or b"")
    assert mender.mend(records[3], posted, None) == outputs[3]
    assert mender.mend(records[4], None, None) == outputs[4]


def paid_and_reversed(*, state: int, late: int | None = None) -> tuple[LedgerRepair, LedgerHandler, list[Record]]:
    """A repair whose state has the first records only, while all postings exist, and the ledger as it was.

    The posting of the record `late` is the last one.
    """
    paid = [transfer(f"p-{n}", 10) for n in range(4)]
    events: list[TransferRecord] = [AccountOpened(DEBTOR, None), *paid, reversal("r-1", "p-1")]
    records = [at(offset, event) for offset, event in enumerate(events)]
    whole, old = (LedgerHandler(P, WINDOW, {}, partitions=PARTITIONS, installation=INSTALLATION) for _ in range(2))
    books = PostedBooks(P, WINDOW)
    made = processed(whole, records)
    for offset in sorted(made, key=lambda offset: (offset == late, offset)):
        books.take(decode_ledger_event(posting_of(made[offset]).value or b""), made[offset][0].headers)
    for record in records[:state]:
        old.process(record)
    mender = LedgerRepair(P, WINDOW, {}, books, partitions=PARTITIONS, installation=INSTALLATION)
    for key, value in old.store.changes():
        mender.store.restore(key, value)
    mender.correct()
    return mender, whole, records


@pytest.mark.parametrize("state", range(7))
def test_the_state_remembers_payments_and_their_reversals_as_they_were_posted(state: int) -> None:
    """Else a second reversal would return the money again, and a first one would be declined."""
    mender, whole, records = paid_and_reversed(state=state)
    mender.store.commit()
    assert balances(mender) == balances(whole)
    for number in range(4):
        order = at(len(records) + number, reversal(f"r-{number + 2}", f"p-{number}"))
        assert mender.process(order) == whole.process(order)


@pytest.mark.parametrize("late", [None, 2])
def test_a_complete_state_is_not_changed(late: int | None) -> None:
    """Also where an earlier repair wrote a payment behind its reversal."""
    mender, _, records = paid_and_reversed(state=6, late=late)
    assert len(records) == 6
    assert list(mender.store.changes()) == []


def test_payments_that_left_the_window_are_not_remembered_again() -> None:
    """The state has the last ones, and the books have more: the windows count what was booked."""
    records = [at(0, AccountOpened(DEBTOR, None)), *(at(n, transfer(f"p-{n}", 10)) for n in range(1, 6))]
    small = LedgerHandler(P, 2, {}, partitions=PARTITIONS, installation=INSTALLATION)
    books = PostedBooks(P, 3)
    for outputs in processed(small, records).values():
        books.take(decode_ledger_event(posting_of(outputs).value or b""), outputs[0].headers)
    assert [name for _, name in books.last] == ["p-3", "p-4", "p-5"] == [name for _, name in books.originals]
    mender = LedgerRepair(P, 3, {}, books, partitions=PARTITIONS, installation=INSTALLATION)
    replay = LedgerHandler(P, 2, {}, partitions=PARTITIONS, installation=INSTALLATION)
    for record in records:
        replay.process(record)
    for key, value in replay.store.changes():
        mender.store.restore(key, value)
    mender.correct()
    assert list(mender.store.changes()) == []
