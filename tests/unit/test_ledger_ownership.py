"""The ledger: who may debit which account, who may open one, and the versions of an account's terms."""

import msgspec
import pytest

from services.ledger.service import LedgerHandler
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.postings import Account, AccountTerms, Decline, Posting
from shared.events.transfers import AccountClosed, AccountOpened, DeclineReason, Transfer, TransferReversal
from tests.ledgers import CREDITOR, DAY, DEBTOR, Ledger, P, declined, reversal, transfer

ALPHA = SubmittedBy("alpha", "0123456789abcdef")
BETA = SubmittedBy("beta", "0123456789abcdef")
TREASURY = SubmittedBy("treasury", "0123456789abcdef", house=True)
CLERK = SubmittedBy("operator", "0123456789abcdef")  # a key of the operator's, without the scope house
NOT_AUTHORISED, STALE = DeclineReason.NOT_AUTHORISED, DeclineReason.STALE_VERSION


def of_house(submitted_by: SubmittedBy | None) -> Transfer:
    return Transfer("p-1", f"cash@{P}", CREDITOR, 5, "EUR", 5, "EUR", DAY, submitted_by=submitted_by)


def opening(
    submitted_by: SubmittedBy | None,
    overdraft_minor: int | None = 0,
    *,
    owner: str | None = None,
    expected: int | None = None,
    command_id: str = "o-1",
) -> AccountOpened:
    client = "operator" if submitted_by is None else submitted_by.client
    return AccountOpened(DEBTOR, overdraft_minor, owner or client, 0, command_id, expected, DAY, submitted_by)


@pytest.mark.parametrize("owner", [None, "operator", "alpha"])
@pytest.mark.parametrize("submitted_by", [OPERATOR, CLERK, ALPHA, BETA, TREASURY, None])
def test_a_client_debits_its_own_accounts_only(owner: str | None, submitted_by: SubmittedBy | None) -> None:
    ledger = Ledger()
    if owner is not None:
        ledger.send(AccountOpened(DEBTOR, None, owner))
    may = submitted_by is not None and submitted_by.client == (owner or "operator")
    [event] = ledger.send(transfer(submitted_by=submitted_by))
    assert (declined([event]) == NOT_AUTHORISED) != may
    assert isinstance(event, Posting | Decline)
    assert event.submitted_by == submitted_by
    if not may:
        assert (ledger.balances(), list(ledger.waiting)) == ({}, [])


@pytest.mark.parametrize("submitted_by", [OPERATOR, CLERK, ALPHA, TREASURY, None])
def test_a_house_account_is_debited_with_the_scope_house(submitted_by: SubmittedBy | None) -> None:
    ledger = Ledger()
    may = submitted_by is not None and submitted_by.house
    assert declined(ledger.send(of_house(submitted_by))) == (None if may else NOT_AUTHORISED)
    assert bool(ledger.balances()) == may


@pytest.mark.parametrize("submitted_by", [ALPHA, BETA, TREASURY, OPERATOR, None])
def test_a_reversal_needs_what_its_payment_needed(submitted_by: SubmittedBy | None) -> None:
    ledger = Ledger()
    ledger.send(AccountOpened(DEBTOR, None, "alpha"))
    ledger.send(transfer(submitted_by=ALPHA))
    before = ledger.balances()
    [event] = ledger.send(reversal(submitted_by=submitted_by))
    if submitted_by == ALPHA:
        assert isinstance(event, Posting)
        assert event.submitted_by == ALPHA
    else:
        assert isinstance(event, Decline)
        assert (event.reason, event.reversal, event.submitted_by) == (NOT_AUTHORISED, True, submitted_by)
        assert ledger.balances() == before


@pytest.mark.parametrize("submitted_by", [TREASURY, ALPHA])
def test_a_house_accounts_reversal_needs_the_scope_house(submitted_by: SubmittedBy) -> None:
    ledger = Ledger()
    ledger.send(of_house(TREASURY))
    undone = TransferReversal("r-1", f"cash@{P}", "p-1", DAY, submitted_by=submitted_by)
    assert declined(ledger.send(undone)) == (None if submitted_by.house else NOT_AUTHORISED)


def test_it_is_the_first_reason_to_decline() -> None:
    """Else a stranger would learn of an account's cover, or of its payments."""
    ledger = Ledger()
    ledger.send(AccountOpened(DEBTOR, 0, "alpha"))
    assert declined(ledger.send(transfer(submitted_by=BETA))) == NOT_AUTHORISED
    assert declined(ledger.send(reversal(submitted_by=BETA))) == NOT_AUTHORISED
    unpriced = msgspec.structs.replace(transfer(submitted_by=BETA), decline="no_rate")
    assert declined(ledger.send(unpriced)) == NOT_AUTHORISED
    ledger.send(AccountClosed(DEBTOR))
    assert declined(ledger.send(transfer(submitted_by=BETA))) == NOT_AUTHORISED
    assert declined(ledger.send(transfer(submitted_by=ALPHA))) == DeclineReason.DEBTOR_CLOSED


@pytest.mark.parametrize("submitted_by", [None, BETA])
@pytest.mark.parametrize("offset", [6, 7, 8])
def test_what_is_from_before_ownership_was_enforced_counts_as_the_operators(
    submitted_by: SubmittedBy | None, offset: int
) -> None:
    ledger = Ledger(raw_from=7)
    origin = b"payments.raw:%d:%d" % (P, offset)
    for event in (
        of_house(submitted_by),
        TransferReversal("r-1", f"cash@{P}", "p-1", DAY, submitted_by=submitted_by),
        opening(submitted_by, None, owner="alpha"),
    ):
        [decided] = ledger.send(event, origin=origin)
        assert isinstance(decided, Decline) == (offset >= 7)
        assert isinstance(decided, Decline | Posting | AccountOpened)
        assert decided.submitted_by == (submitted_by if offset >= 7 else OPERATOR)


@pytest.mark.parametrize(
    ("by", "overdraft_minor", "owner", "expected"),
    [
        (ALPHA, 0, None, None),
        (ALPHA, 0, "alpha", None),
        (ALPHA, 1, None, NOT_AUTHORISED),
        (ALPHA, None, None, NOT_AUTHORISED),
        (ALPHA, 0, "beta", NOT_AUTHORISED),
        (None, 0, None, NOT_AUTHORISED),
        (CLERK, 0, None, None),
        (CLERK, 1, None, NOT_AUTHORISED),
        (TREASURY, None, "beta", None),
        (OPERATOR, 500, "alpha", None),
    ],
)
def test_an_account_without_state_is_opened_by_its_owner(
    by: SubmittedBy | None, overdraft_minor: int | None, owner: str | None, expected: str | None
) -> None:
    ledger = Ledger()
    command = opening(by, overdraft_minor, owner=owner)
    [event] = ledger.send(command)
    if expected is None:
        assert event == msgspec.structs.replace(command, version=1)
        assert ledger.accounts == {DEBTOR: AccountTerms(command.owner, 1, overdraft_minor)}
        opened = Account({}, overdraft_minor, owner=command.owner, version=1)
        assert ledger.handlers[P].accounts.get(DEBTOR) == opened
    else:
        assert isinstance(event, Decline)
        assert (event.payment_id, event.debtor, event.value_date) == ("o-1", DEBTOR, DAY)
        assert (event.reason, event.opening, event.submitted_by) == (expected, True, by)
        assert (ledger.accounts, ledger.handlers[P].accounts.get(DEBTOR)) == ({}, None)


def test_an_account_that_took_money_before_it_was_opened_is_the_operators() -> None:
    ledger = Ledger()
    ledger.send(Transfer("p-1", f"cash@{P}", DEBTOR, 5, "EUR", 5, "EUR", DAY, submitted_by=OPERATOR))
    ledger.drain()
    assert declined(ledger.send(opening(ALPHA))) == NOT_AUTHORISED
    assert declined(ledger.send(transfer(amount_minor=5, submitted_by=ALPHA))) == NOT_AUTHORISED
    assert declined(ledger.send(transfer(amount_minor=5))) is None


@pytest.mark.parametrize("by", [ALPHA, BETA, CLERK, TREASURY])
@pytest.mark.parametrize("closed", [False, True])
def test_an_account_with_an_owner_is_opened_again_by_it_only(by: SubmittedBy, *, closed: bool) -> None:
    ledger = Ledger()
    ledger.send(opening(ALPHA))
    if closed:
        ledger.send(AccountClosed(DEBTOR))
    may = by.house or (by == ALPHA and not closed)
    assert declined(ledger.send(opening(by, command_id="o-2"))) == (None if may else NOT_AUTHORISED)
    assert ledger.accounts[DEBTOR].owner == (by.client if may else "alpha")


def test_each_change_is_a_version_and_each_command_has_an_outcome() -> None:
    ledger = Ledger()
    steps: list[tuple[AccountOpened | AccountClosed, int | None]] = [
        (opening(ALPHA, command_id="o-1"), 1),
        (opening(ALPHA, command_id="o-2"), 1),  # changes nothing
        (AccountOpened(DEBTOR, 0, "alpha"), None),  # an operator's command that changes nothing
        (AccountOpened(DEBTOR, 500, "alpha"), 2),
        (opening(TREASURY, 500, owner="beta", command_id="o-3"), 3),
        (AccountClosed(DEBTOR), 4),
        (AccountClosed(DEBTOR), None),
        (opening(TREASURY, 500, owner="beta", command_id="o-4"), 5),  # opens it again
    ]
    for command, version in steps:
        expected = [] if version is None else [msgspec.structs.replace(command, version=version)]
        assert ledger.send(command) == expected
    assert ledger.accounts == {DEBTOR: AccountTerms("beta", 5, 500)}


@pytest.mark.parametrize("expected", [0, 1, 2])
def test_a_command_for_another_version_is_stale(expected: int) -> None:
    ledger = Ledger()
    ledger.send(opening(ALPHA))
    [event] = ledger.send(opening(ALPHA, expected=expected, command_id="o-2"))
    assert declined([event]) == (None if expected == 1 else STALE)
    assert ledger.accounts[DEBTOR].version == 1


def test_version_0_is_that_of_an_account_that_was_never_opened() -> None:
    assert declined(Ledger().send(opening(ALPHA, expected=1))) == STALE
    assert declined(Ledger().send(opening(ALPHA, expected=0))) is None


def test_a_stranger_does_not_learn_the_version() -> None:
    ledger = Ledger()
    ledger.send(opening(ALPHA))
    assert declined(ledger.send(opening(BETA, expected=7, command_id="o-2"))) == NOT_AUTHORISED


def test_an_operators_command_for_another_version_is_declined() -> None:
    ledger = Ledger()
    ledger.send(AccountOpened(DEBTOR, 0, "alpha"))
    [event] = ledger.send(AccountOpened(DEBTOR, 500, "alpha", expected_version=0))
    assert isinstance(event, Decline)
    assert (event.payment_id, event.reason, event.opening, event.submitted_by) == ("", STALE, True, None)
    assert ledger.send(AccountOpened(DEBTOR, 500, "alpha", expected_version=1)) == [
        AccountOpened(DEBTOR, 500, "alpha", 2, expected_version=1)
    ]


def test_the_changes_of_a_transaction_that_is_rolled_back_are_forgotten() -> None:
    ledger = Ledger()
    ledger.send(opening(ALPHA))
    handler: LedgerHandler = ledger.handlers[P]
    account = handler.accounts.edit(DEBTOR)
    assert account is not None
    account.owner, account.version = "beta", 9
    handler.store.rollback()
    assert handler.accounts.get(DEBTOR) == Account({}, 0, owner="alpha", version=1)
