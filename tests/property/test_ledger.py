"""The ledger with records in random order, against laws that need no second ledger: I1, I2, I5, I9, and ownership."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from services.ledger.service import LedgerHandler
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_TRANSFERS
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.postings import Account, AccountTerms, Decline, LedgerEvent, Posting
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    Transfer,
    TransferRecord,
    TransferReversal,
    encode_transfer,
)
from tests.installation import INSTALLATION
from tests.ledgers import Ledger
from tests.partitions import PARTITIONS, partition_for
from tests.stores import compacted, restore

CLIENTS = ["2378", "576", "704", "a"]
HOUSE = ["cash@0", "cash@5", "loans@2"]
DAY = "1993-01-01"
ORIGIN = (("origin", b"payments.raw:0:0"),)

accounts = st.sampled_from(CLIENTS + HOUSE)
payment_ids = st.integers(0, 30).map(str)
amounts_minor = st.integers(1, 3000)
# Mostly the operator, so that most payments are decided by their cover
submitters = st.just(OPERATOR) | st.sampled_from(
    [
        SubmittedBy("alpha", "0" * 16),
        SubmittedBy("beta", "1" * 16),
        SubmittedBy("alpha", "2" * 16, house=True),
        SubmittedBy("operator", "3" * 16),
        None,
    ]
)
owners = st.just("operator") | st.sampled_from(["alpha", "beta"])


@st.composite
def transfers(draw: st.DrawFn) -> Transfer:
    """Payments as transform writes them, priced or not."""
    debtor, creditor = draw(st.lists(accounts, min_size=2, max_size=2, unique=True))
    amount_minor = draw(amounts_minor)
    fee_minor = 0 if "@" in debtor else draw(st.integers(0, 50))
    if draw(st.booleans()):
        currency = draw(st.sampled_from(["EUR", "USD"]))
        return Transfer(
            draw(payment_ids),
            debtor,
            creditor,
            amount_minor,
            currency,
            amount_minor,
            currency,
            DAY,
            fee_minor,
            submitted_by=draw(submitters),
        )
    decline = draw(st.sampled_from([None, None, None, "no_rate"]))
    credit_minor = 0 if decline else draw(amounts_minor)
    return Transfer(
        draw(payment_ids),
        debtor,
        creditor,
        amount_minor,
        "EUR",
        credit_minor,
        "USD",
        DAY,
        fee_minor,
        "1",
        "",
        decline,
        submitted_by=draw(submitters),
    )


records: st.SearchStrategy[TransferRecord] = (
    transfers()
    | transfers()
    | st.builds(TransferReversal, payment_ids, accounts, payment_ids, st.just(DAY), submitted_by=submitters)
    | st.builds(AccountOpened, st.sampled_from(CLIENTS), st.none() | st.integers(0, 5000), owners)
    | st.builds(
        AccountOpened,
        st.sampled_from(CLIENTS),
        st.sampled_from([0, 0, 0, None, 500]),
        owners,
        st.just(0),
        payment_ids,
        st.sampled_from([None, None, 0, 1, 2]),
        st.just(DAY),
        submitters,
    )
    | st.builds(AccountClosed, st.sampled_from(CLIENTS))
)
orders = st.lists(st.tuples(records, st.booleans()), max_size=60)
windows = st.integers(1, 8)


def run(order: list[tuple[TransferRecord, bool]], reversal_window: int) -> Ledger:
    """Process records; where the flag says so, credit legs wait for later ones."""
    ledger = Ledger(reversal_window)
    for event, wait in order:
        ledger.send(event)
        if not wait:
            ledger.drain()
    return ledger


def sums(balances: dict[tuple[str, str], int]) -> dict[str, int]:
    """By currency, zeros left out."""
    totals: Counter[str] = Counter()
    for (_, currency), amount in balances.items():
        totals[currency] += amount
    return {currency: total for currency, total in totals.items() if total}


@given(orders, windows)
def test_each_posting_balances_and_stays_on_its_partition(
    order: list[tuple[TransferRecord, bool]], reversal_window: int
) -> None:
    for partition, event in run(order, reversal_window).events:
        if isinstance(event, Posting):
            entries = {(str(number), entry.currency): entry.amount_minor for number, entry in enumerate(event.entries)}
            assert sums(entries) == {}
            assert len(event.entries) >= 2
            assert all(entry.amount_minor for entry in event.entries)
            assert {partition_for(entry.account) for entry in event.entries} == {partition}


@given(orders, windows)
def test_money_is_conserved_and_transit_empties(order: list[tuple[TransferRecord, bool]], reversal_window: int) -> None:
    ledger = run(order, reversal_window)
    assert sums(ledger.balances()) == {}
    ledger.drain()
    balances = ledger.balances()
    assert sums(balances) == {}
    transit = {key: amount for key, amount in balances.items() if key[0].startswith("in-transit@")}
    assert sums(transit) == {}


@given(orders, windows)
def test_every_debit_gets_its_credit_and_every_record_its_outcome(
    order: list[tuple[TransferRecord, bool]], reversal_window: int
) -> None:
    ledger = run(order, reversal_window)
    ledger.drain()
    events = [event for _, event in ledger.events]
    legs = Counter(event.leg for event in events if isinstance(event, Posting))
    declines = sum(isinstance(event, Decline) for event in events)
    opened = sum(isinstance(event, AccountOpened) and event.command_id != "" for event in events)
    asked = sum(
        isinstance(event, Transfer | TransferReversal) or (isinstance(event, AccountOpened) and event.command_id != "")
        for event, _ in order
    )
    assert legs["debit"] == legs["credit"]
    assert legs["debit"] + declines + opened == asked


@given(orders, windows)
def test_no_payment_takes_an_account_below_its_limit(
    order: list[tuple[TransferRecord, bool]], reversal_window: int
) -> None:
    ledger = Ledger(reversal_window)
    for event, _ in order:
        for outcome in ledger.send(event):
            if isinstance(outcome, Posting) and not outcome.reversal and "@" not in outcome.debtor:
                state = ledger.handlers[partition_for(outcome.debtor)].accounts.get(outcome.debtor)
                assert state is not None
                assert not state.closed
                currency = outcome.entries[0].currency
                assert state.overdraft_minor is None or state.balances[currency] >= -state.overdraft_minor
        ledger.drain()


@given(orders, windows)
def test_folding_the_events_gives_the_accounts(order: list[tuple[TransferRecord, bool]], reversal_window: int) -> None:
    ledger = run(order, reversal_window)
    folded: dict[str, Account] = {}
    for _, event in ledger.events:
        if isinstance(event, Posting):
            for account, currency, amount_minor in ((e.account, e.currency, e.amount_minor) for e in event.entries):
                state = folded.setdefault(account, Account({}, None if "@" in account else 0))
                state.balances[currency] = state.balances.get(currency, 0) + amount_minor
        elif isinstance(event, AccountOpened):
            state = folded.setdefault(event.account, Account({}))
            state.overdraft_minor, state.closed = event.overdraft_minor, False
            state.owner, state.version = event.owner, event.version
        elif isinstance(event, AccountClosed):
            state = folded.setdefault(event.account, Account({}))
            state.closed, state.version = True, event.version
    live = {account: state for handler in ledger.handlers for account, state in handler.accounts.items()}
    assert folded == live
    assert ledger.accounts == {
        account: AccountTerms(state.owner, state.version, state.overdraft_minor, state.closed)
        for account, state in live.items()
        if state.version or account in ledger.accounts  # it may change nothing: version 0
    }


@given(orders, windows)
def test_only_an_accounts_owner_debits_it_and_changes_it(
    order: list[tuple[TransferRecord, bool]], reversal_window: int
) -> None:
    """Written down a second time, over the events before each decision."""
    events = [event for _, event in run(order, reversal_window).events]
    for number, event in enumerate(events):
        if isinstance(event, Posting) and event.leg == "debit":
            assert _may_debit(events[:number], event.debtor, event.submitted_by)
        elif isinstance(event, Decline) and not event.opening:
            denied = event.reason == "not_authorised"
            assert denied != _may_debit(events[:number], event.debtor, event.submitted_by)
        elif isinstance(event, AccountOpened) and event.command_id:
            assert _may_open(events[:number], event)


def _owner(events: list[LedgerEvent], account: str) -> str:
    opened = [event for event in events if isinstance(event, AccountOpened) and event.account == account]
    return opened[-1].owner if opened else "operator"


def _may_debit(events: list[LedgerEvent], account: str, by: SubmittedBy | None) -> bool:
    if by is None:
        return False
    return by.house if "@" in account else by.client == _owner(events, account)


def _may_open(events: list[LedgerEvent], event: AccountOpened) -> bool:
    by = event.submitted_by
    if by is None or by.house:
        return by is not None
    touched = [
        one
        for one in events
        if (isinstance(one, AccountOpened | AccountClosed) and one.account == event.account)
        or (isinstance(one, Posting) and any(entry.account == event.account for entry in one.entries))
    ]
    terms = [one for one in touched if not isinstance(one, Posting)]
    open_ = not terms or isinstance(terms[-1], AccountOpened)
    own = not touched or (open_ and _owner(events, event.account) == by.client)
    return own and event.owner == by.client and event.overdraft_minor == 0


@settings(max_examples=50)
@given(orders, windows, records, st.integers(0, 200))
def test_a_restored_partition_decides_as_the_live_one(
    order: list[tuple[TransferRecord, bool]], reversal_window: int, event: TransferRecord, clean_until: int
) -> None:
    ledger = run(order, reversal_window)
    account = event.account if isinstance(event, AccountOpened | AccountClosed) else event.debtor
    partition = partition_for(account)
    restored = LedgerHandler(partition, reversal_window, {}, partitions=PARTITIONS, installation=INSTALLATION)
    restore(restored.store, compacted(ledger.changelogs[partition], clean_until))
    command = isinstance(event, AccountClosed) or (isinstance(event, AccountOpened) and not event.command_id)
    record = Record(LEDGER_TRANSFERS, partition, 1, 0, None, encode_transfer(event), () if command else ORIGIN)
    live = ledger.handlers[partition]
    assert restored.process(record) == live.process(record)
    assert dict(restored.store.changes()) == dict(live.store.changes())


@given(st.lists(transfers(), max_size=30), st.sets(st.integers(0, 30)))
def test_decisions_do_not_depend_on_where_transactions_end(order: list[Transfer], ends: set[int]) -> None:
    whole = [
        LedgerHandler(partition, 3, {}, partitions=PARTITIONS, installation=INSTALLATION) for partition in range(6)
    ]
    cut = [LedgerHandler(partition, 3, {}, partitions=PARTITIONS, installation=INSTALLATION) for partition in range(6)]
    for offset, event in enumerate(order):
        partition = partition_for(event.debtor)
        record = Record(LEDGER_TRANSFERS, partition, offset, 0, None, encode_transfer(event), ORIGIN)
        assert whole[partition].process(record) == cut[partition].process(record)
        if offset in ends:
            cut[partition].store.commit()
