"""Changes of the view's tables by records, one by one and in pages of any size."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.string import StrDumper

from services.balances.projection.domain import Page, Position, plan
from shared.eos.records import Record
from shared.eos.sources import SeenSources
from shared.events.clients import OPERATOR
from shared.events.codec import InternalInputError
from shared.events.headers import REPAIR
from shared.events.postings import CREDIT, DEBIT, Decline, Entry, LedgerEvent, Posting
from shared.events.transfers import AccountClosed, AccountOpened, Transfer, TransferReversal
from tests.ledgers import CREDITOR, DAY, DEBTOR, Ledger, P, Q, converted, reversal, transfer
from tests.partitions import PARTITIONS, partition_for
from tests.view_tables import MemoryTables, made_from, page, record, topic, whole

BEYOND_64_BITS = 2**63 - 1


def taken(events: list[tuple[int, LedgerEvent]]) -> MemoryTables:
    """The tables after all events, one page for each partition."""
    tables = MemoryTables()
    logs = topic(events)
    tables.write(plan([whole(log, partition) for partition, log in enumerate(logs)], tables.positions))
    return tables


@pytest.fixture
def busy(ledger: Ledger) -> Ledger:
    """A ledger with one of each kind of event."""
    ledger.send(AccountOpened(CREDITOR, 500))
    ledger.send(transfer("p-1", 1000, 10))
    ledger.send(Transfer("p-2", DEBTOR, CREDITOR, 1000, "EUR", 1085, "USD", DAY, 10, "1.0850", submitted_by=OPERATOR))
    ledger.drain()
    ledger.send(reversal("r-1", "p-1"))
    ledger.send(Transfer("p-3", CREDITOR, DEBTOR, 5_000_000, "EUR", 5_000_000, "EUR", DAY, submitted_by=OPERATOR))
    ledger.send(AccountClosed(CREDITOR))
    ledger.drain()
    return ledger


def test_balances_and_terms_are_the_ledger_s_own(busy: Ledger) -> None:
    tables = taken(busy.events)

    assert tables.balances() == busy.balances()
    states = {name: state for handler in busy.handlers for name, state in handler.accounts.items()}
    assert {
        str(row["account"]): (row["overdraft_minor"], row["closed"]) for row in tables.tables["accounts"].values()
    } == {name: (state.overdraft_minor, state.closed) for name, state in states.items()}


def test_a_reference_is_written_without_the_character_that_postgresql_does_not_take() -> None:
    entries = Entry(DEBTOR, "EUR", -10), Entry(f"in-transit@{P}", "EUR", 10)
    posting = Posting("p-1", DEBIT, DEBTOR, CREDITOR, entries, DAY, reference="a\0b", submitted_by=OPERATOR)
    (row,) = taken([(P, posting)]).tables["events"].values()
    assert StrDumper(str).dump(str(row["reference"])) == "a\N{REPLACEMENT CHARACTER}b".encode()


def test_totals_are_those_of_each_holder_on_each_partition(busy: Ledger) -> None:
    totals = taken(busy.events).tables["totals"]

    assert {key[1] for key in totals} == {"clients", "in-transit", "fees", "fx:EUR", "fx:USD", "suspense"}
    summed: Counter[object] = Counter()
    for (_, _, currency), row in totals.items():
        assert row["balance_minor"] == row["credits_minor"] - row["debits_minor"]
        summed[currency] += row["balance_minor"]
    assert set(summed.values()) == {0}
    clients = totals[P, "clients", "EUR"]
    assert (clients["debits_minor"], clients["credits_minor"]) == (2020, 1010)


def test_entries_have_the_balance_after_each(busy: Ledger) -> None:
    entries = taken(busy.events).tables["entries"]

    running: Counter[tuple[object, object]] = Counter()
    for key in sorted(entries):
        row = entries[key]
        account = row["account"], row["currency"]
        running[account] += row["amount_minor"]
        assert row["balance_minor"] == running[account]


def test_events_have_their_posting_and_its_source(ledger: Ledger) -> None:
    ledger.send(converted())
    ledger.drain()
    events = taken(ledger.events).tables["events"]

    debit, credit = sorted(events.values(), key=lambda row: str(row["kind"]), reverse=True)
    assert debit == {
        "partition": P,
        "offset": 2,
        "payment_id": "p-1",
        "kind": DEBIT,
        "debtor": DEBTOR,
        "creditor": CREDITOR,
        "value_date": DAY,
        "reversal": False,
        "reverses": None,
        "opening": False,
        "reason": None,
        "reference": "",
        "fee_minor": 10,
        "rate": "1.0850",
        "client": "operator",
        "key_id": "",
        "version": None,
        "timestamp_ms": 1_700_000_000_002,
        "origin": "payments.raw:2:7",
        "source": f"ledger.transfers:{P}:2",
    }
    assert (credit["kind"], credit["partition"]) == (CREDIT, Q)


def test_a_decline_is_an_event_without_entries() -> None:
    tables = taken([(P, Decline("p-1", DEBTOR, "insufficient_funds", DAY))])

    [row] = tables.tables["events"].values()
    assert (row["kind"], row["reason"], row["creditor"], row["fee_minor"]) == (
        "decline",
        "insufficient_funds",
        None,
        0,
    )
    assert not tables.tables["entries"]
    assert not tables.tables["balances"]


def test_two_lines_of_one_account_are_one_posting_of_it() -> None:
    entries = (Entry(DEBTOR, "EUR", -5), Entry(DEBTOR, "EUR", 2), Entry(f"fees@{P}", "EUR", 3))
    tables = taken([(P, Posting("p", DEBIT, DEBTOR, CREDITOR, entries, DAY))])

    row = tables.tables["balances"][DEBTOR, "EUR"]
    assert (row["balance_minor"], row["postings"], row["last_offset"]) == (-3, 1, 0)


def test_closing_an_account_keeps_its_overdraft_and_opening_it_again_sets_another() -> None:
    def terms(*events: LedgerEvent) -> tuple[object, object]:
        row = taken([(P, event) for event in events]).tables["accounts"][(DEBTOR,)]
        return row["overdraft_minor"], row["closed"]

    assert terms(AccountClosed(DEBTOR)) == (0, True)
    assert terms(AccountOpened(DEBTOR, 7), AccountClosed(DEBTOR)) == (7, True)
    assert terms(AccountOpened(DEBTOR, 7), AccountClosed(DEBTOR), AccountOpened(DEBTOR, None)) == (None, False)


def test_sums_beyond_64_bits_are_exact() -> None:
    entries = (Entry(DEBTOR, "EUR", -BEYOND_64_BITS), Entry(f"in-transit@{P}", "EUR", BEYOND_64_BITS))
    posting = Posting("p", DEBIT, DEBTOR, CREDITOR, entries, DAY)
    tables = taken([(P, posting)] * 5)

    assert tables.balances() == {
        (DEBTOR, "EUR"): -5 * BEYOND_64_BITS,
        (f"in-transit@{P}", "EUR"): 5 * BEYOND_64_BITS,
    }
    assert tables.tables["totals"][P, "clients", "EUR"]["debits_minor"] == 5 * BEYOND_64_BITS


@pytest.mark.parametrize("value", [b"no event", b"", b'{"type":"posting"}', b'{"type":"other"}', b"\xff"])
def test_an_undecodable_record_stops_the_view_with_its_coordinates(value: bytes) -> None:
    tables = MemoryTables()
    bad = page(P, 0, 9, record(P, 3, Decline("p", DEBTOR, "x", DAY)), record(P, 7, value))

    with pytest.raises(InternalInputError, match=f"ledger.postings:{P}:7: "):
        plan([bad], tables.positions)


@pytest.mark.parametrize(
    "event",
    [
        Posting("p", DEBIT, DEBTOR, CREDITOR, (Entry(CREDITOR, "EUR", -1), Entry(f"fees@{P}", "EUR", 1)), DAY),
        Posting("p", DEBIT, DEBTOR, CREDITOR, (Entry(DEBTOR, "EUR", -1), Entry(f"fees@{Q}", "EUR", 1)), DAY),
        Posting("p", DEBIT, DEBTOR, CREDITOR, (Entry(DEBTOR, "EUR", -1), Entry("fees@x", "EUR", 1)), DAY),
        AccountOpened(CREDITOR, 0),
    ],
)
def test_an_account_of_another_partition_stops_the_view(event: LedgerEvent) -> None:
    with pytest.raises(InternalInputError, match=f"ledger.postings:{P}:0: "):
        taken([(P, event)])


def test_an_account_known_on_another_partition_is_refused_as_well(ledger: Ledger) -> None:
    ledger.send(transfer())
    tables = taken(ledger.events)
    stolen = Posting("p", DEBIT, DEBTOR, CREDITOR, (Entry(DEBTOR, "EUR", -1), Entry(f"fees@{Q}", "EUR", 1)), DAY)

    with pytest.raises(InternalInputError, match=f"account {DEBTOR} lives on partition {P}"):
        tables.write(plan([page(Q, 0, 1, record(Q, 0, stolen))], tables.positions))


def test_a_page_beyond_the_position_is_a_gap_and_nothing_after_it_is_applied() -> None:
    decline = Decline("p", DEBTOR, "x", DAY)
    pages = [
        page(P, 0, 2, record(P, 0, decline)),
        page(P, 4, 6, record(P, 4, decline)),
        page(P, 6, 8, record(P, 6, decline)),
        page(Q, 0, 2, record(Q, 0, decline)),
    ]
    made = plan(pages, MemoryTables().positions)

    assert made.gaps == {P}
    assert {partition: move.after.next_offset for partition, move in made.moves.items()} == {P: 2, Q: 2}
    assert [read.at.offset for read in made.reads] == [0, 0]


def test_a_page_of_markers_alone_moves_the_position_and_keeps_its_time() -> None:
    tables = MemoryTables()
    tables.write(plan([page(P, 0, 2, record(P, 0, Decline("p", DEBTOR, "x", DAY)))], tables.positions))
    tables.write(plan([page(P, 2, 9)], tables.positions))

    assert tables.positions[P] == Position(9, 1_700_000_000_000, SeenSources({f"ledger.transfers:{P}": 0}))


# Records whose source was processed already


def hundred(offset: int, source: int, payment_id: str = "p") -> Record:
    """A posting of 100 at this offset, made from this record of ledger.transfers."""
    entries = (Entry(DEBTOR, "EUR", -100), Entry(f"in-transit@{P}", "EUR", 100))
    return record(P, offset, Posting(payment_id, DEBIT, DEBTOR, CREDITOR, entries, DAY), made_from(P, source))


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_repeat_is_ignored_wherever_the_pages_are_cut(cut: int) -> None:
    records = [hundred(0, 7), hundred(1, 9), hundred(2, 7), hundred(3, 9)]
    tables = MemoryTables()
    repeats = []
    for start, end in ((0, cut), (cut, 4)):
        made = plan([page(P, start, end, *records[start:end])], tables.positions)
        repeats += [found.offset for found in made.repeats.get(P, ())]
        tables.write(made)

    assert repeats == [2, 3]
    assert sorted(tables.tables["events"]) == [(P, 0), (P, 1)]
    assert tables.balances() == {(DEBTOR, "EUR"): -200, (f"in-transit@{P}", "EUR"): 200}
    at = tables.positions[P]
    assert (at.next_offset, at.timestamp_ms) == (4, 1_700_000_000_003)
    assert at.sources == SeenSources({f"ledger.transfers:{P}": 9})


def test_pages_of_one_transaction_share_their_sources() -> None:
    pages = [page(P, 0, 2, hundred(0, 7)), page(P, 2, 4, hundred(2, 7)), page(P, 4, 6, hundred(4, 8))]
    made = plan(pages, MemoryTables().positions)

    assert [read.at.offset for read in made.reads] == [0, 4]
    assert [found.offset for found in made.repeats[P]] == [2]


def test_a_plan_that_is_not_written_leaves_no_source_behind() -> None:
    tables = MemoryTables()
    for _ in range(2):
        made = plan([page(P, 0, 2, hundred(0, 7))], tables.positions)
        assert not made.repeats
    assert tables.positions[P].sources == SeenSources()


def test_a_record_that_is_read_again_is_not_a_repeat() -> None:
    tables = MemoryTables()
    tables.write(plan([page(P, 0, 2, hundred(0, 7))], tables.positions))
    made = plan([page(P, 0, 4, hundred(0, 7), hundred(2, 8))], tables.positions)

    assert not made.repeats
    assert [read.at.offset for read in made.reads] == [2]


def test_each_partition_has_sources_of_its_own() -> None:
    decline = Decline("p", DEBTOR, "x", DAY)
    pages = [page(number, 0, 2, record(number, 0, decline, made_from(P, 7))) for number in (P, Q)]
    assert not plan(pages, MemoryTables().positions).repeats


def test_a_repaired_record_is_applied_once_although_its_source_is_old() -> None:
    headers = (*made_from(P, 3), (REPAIR, b"r-1:0"))
    repaired, again = (record(P, offset, Decline("p", DEBTOR, "x", DAY), headers) for offset in (2, 4))
    made = plan([page(P, 0, 6, hundred(0, 7), repaired, again)], MemoryTables().positions)

    assert [read.at.offset for read in made.reads] == [0, 2]
    assert [found.offset for found in made.repeats[P]] == [4]


accounts = st.sampled_from(["2378", "576", "704", "cash@0", "loans@2"])
business = st.lists(
    st.one_of(
        st.builds(
            lambda names, amount, fee: Transfer(
                "p", names[0], names[1], amount, "EUR", amount, "EUR", DAY, fee, submitted_by=OPERATOR
            ),
            st.lists(accounts, min_size=2, max_size=2, unique=True),
            st.integers(1, 2**62),
            st.integers(0, 5),
        ),
        st.builds(TransferReversal, st.just("r"), accounts, st.just("p"), st.just(DAY)),
        st.builds(AccountOpened, st.sampled_from(["2378", "576"]), st.none() | st.integers(0, 5000)),
        st.builds(AccountClosed, st.sampled_from(["2378", "576"])),
    ),
    max_size=25,
)


def posted(orders: Sequence[Transfer | TransferReversal | AccountOpened | AccountClosed]) -> Ledger:
    ledger = Ledger()
    for account in ("2378", "576", "704"):
        ledger.send(AccountOpened(account, None))
    for order in orders:
        ledger.send(order)
        ledger.drain()
    return ledger


def delivered(logs: list[list[Record]], chance: random.Random) -> Iterator[tuple[list[Page], Mapping[int, int]]]:
    """Yield batches of pages, cut anywhere and some delivered twice, each with the positions after it.

    A page may begin before the applied position, as after a position was read again.
    """
    at = dict.fromkeys(range(PARTITIONS), 0)
    ends = {number: 2 * len(log) for number, log in enumerate(logs)}
    while any(at[number] < end for number, end in ends.items()):
        batch = []
        for number in chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS)):
            for _ in range(chance.randint(0, 2)):
                start = chance.randint(max(0, at[number] - 6), at[number])
                end = chance.randint(start, min(ends[number], start + 12))
                records = [found for found in logs[number] if start <= found.offset < end]
                batch.append(Page(number, start, end, records))
                at[number] = max(at[number], end)
        yield batch, dict(at)


@given(business, st.integers(0, 2**32))
def test_pages_cut_anywhere_and_delivered_again_give_the_same_rows(orders: list[Transfer], seed: int) -> None:
    chance = random.Random(seed)
    ledger = posted(orders)
    logs = topic(ledger.events)
    expected = taken(ledger.events)
    tables = MemoryTables()
    for batch, positions in delivered(logs, chance):
        made = plan(batch, tables.positions)
        assert not made.gaps
        tables.write(made)
        assert {number: position.next_offset for number, position in tables.positions.items()} == positions

    assert tables.tables == expected.tables
    assert tables.balances() == ledger.balances()
    assert all(row["partition"] == partition_for(str(row["account"])) for row in tables.tables["balances"].values())


@given(business)
def test_redelivery_of_everything_changes_nothing(orders: list[Transfer]) -> None:
    logs = topic(posted(orders).events)
    tables = MemoryTables()
    pages = [whole(log, partition) for partition, log in enumerate(logs)]
    tables.write(plan(pages, tables.positions))
    before = {name: dict(rows) for name, rows in tables.tables.items()}, dict(tables.positions)

    singles = [page(found.partition, 0, found.offset + 1, found) for found in itertools.chain(*logs)]
    again = plan([*pages, *singles], tables.positions)

    assert (again.reads, again.moves, again.gaps) == ([], {}, set())
    tables.write(again)
    assert (tables.tables, tables.positions) == before
