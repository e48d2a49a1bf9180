"""Open transactions, derived from the cluster's responses: which hold back records, and which hang."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from shared.eos.open_transactions import (
    Look,
    Offsets,
    Open,
    Producer,
    Suspicion,
    Target,
    Transaction,
    by_coordinator,
    held_open,
    holders,
    late,
    unclaimed,
)

HERE: Target = ("payments.accepted", 0)
THERE: Target = ("ledger.transfers", 4)
NOW_MS = 1_700_000_100_000
BROKERS = frozenset({0, 1, 2})


def transaction(
    name: str = "ingest-payments.raw-0",
    *,
    producer_id: int = 7,
    state: str = "Ongoing",
    start_ms: int | None = NOW_MS - 5_000,
    partitions: tuple[Target, ...] = (HERE,),
    coordinator: int = 1,
) -> Transaction:
    return Transaction(name, producer_id, 3, state, coordinator, 10_000, start_ms, partitions)


def producer(producer_id: int = 7, start_offset: int | None = 20) -> Producer:
    return Producer(producer_id, 3, 9, NOW_MS - 4_000, 0, start_offset)


def look(
    *transactions: Transaction,
    producers: dict[Target, tuple[Producer, ...]] | None = None,
    offsets: dict[Target, Offsets] | None = None,
    coordinators: Iterable[int] = BROKERS,
) -> Look:
    given: dict[Target, tuple[Producer, ...]] = {HERE: (producer(),)} if producers is None else producers
    stable = {
        target: min([p.start_offset for p in rows if p.start_offset is not None] or [30])
        for target, rows in given.items()
    }
    return Look(
        NOW_MS,
        BROKERS,
        frozenset(coordinators),
        transactions,
        {target: Offsets(offset, 30) for target, offset in stable.items()} if offsets is None else offsets,
        given,
    )


ONE = Open(*HERE, 20, 7, 3)
NOTHING_OPEN = look(producers={}, offsets={HERE: Offsets(30, 30)})


def test_an_age_counts_from_the_start_and_never_goes_below_zero() -> None:
    assert transaction().age_s(NOW_MS) == 5.0
    assert transaction(start_ms=NOW_MS + 400).age_s(NOW_MS) == 0.0
    assert transaction(start_ms=None).age_s(NOW_MS) == 0.0


def test_a_transaction_is_open_while_it_holds_back_records() -> None:
    states = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
    assert all(transaction(state=state).is_open for state in states)
    assert not any(transaction(state=state).is_open for state in ("Empty", "CompleteCommit", "CompleteAbort", "Dead"))


def test_the_first_transaction_of_a_partition_is_its_holder() -> None:
    seen = look(
        transaction(),
        transaction("ledger-ledger.transfers-1", producer_id=8, partitions=(HERE, THERE)),
        producers={HERE: (producer(8, 25), producer(7, 20), producer(6, None)), THERE: (producer(8, 11),)},
    )
    found = {holder.open.target: holder for holder in holders(seen)}
    assert (found[HERE].transactional_id, found[HERE].stable, found[HERE].held) == ("ingest-payments.raw-0", 20, 10)
    assert (found[THERE].transactional_id, found[THERE].held) == ("ledger-ledger.transfers-1", 19)


def test_an_unknown_holder_has_no_name_and_a_partition_without_open_transactions_no_holder() -> None:
    assert [holder.transactional_id for holder in holders(look())] == [None]
    assert holders(NOTHING_OPEN) == []


def test_a_coordinators_transaction_claims_its_partitions_in_any_epoch_until_it_ends() -> None:
    newer = Transaction("a", 7, 4, "PrepareAbort", 1, 10_000, NOW_MS, (HERE,))
    assert unclaimed([ONE], [newer]) == []
    assert unclaimed([ONE], [transaction(partitions=(THERE,))]) == [ONE]
    assert unclaimed([ONE], [transaction(state="CompleteCommit")]) == [ONE]
    assert unclaimed([ONE], [transaction(producer_id=8)]) == [ONE]


def test_a_transaction_hangs_after_two_consecutive_looks_and_not_after_one() -> None:
    first = Suspicion().after(look())
    assert first == Suspicion(frozenset({ONE}))
    assert first.after(look()).hanging == {ONE}
    assert first.after(NOTHING_OPEN) == Suspicion()
    assert first.after(NOTHING_OPEN).after(look()).hanging == frozenset()


def test_another_transaction_of_the_same_producer_is_suspected_separately() -> None:
    later = look(producers={HERE: (producer(start_offset=28),)})
    assert Suspicion().after(look()).after(later).hanging == frozenset()


def test_while_a_coordinator_is_missing_no_transaction_is_suspected_or_cleared() -> None:
    half = look(coordinators=(0, 2))
    assert Suspicion().after(half) == Suspicion()
    hanging = Suspicion().after(look()).after(look())
    assert hanging.after(half).hanging == {ONE}
    assert hanging.after(half).after(half).after(look()).hanging == {ONE}
    assert hanging.after(look(producers={}, offsets={HERE: Offsets(30, 30)}, coordinators=())) == Suspicion()


def test_a_silent_partition_clears_nothing_until_its_last_stable_offset_advances() -> None:
    hanging = Suspicion().after(look()).after(look())
    silent = look(producers={}, offsets={})
    without_producers = look(producers={}, offsets={HERE: Offsets(20, 30)})
    assert hanging.after(silent).hanging == {ONE}
    assert hanging.after(without_producers).hanging == {ONE}
    assert hanging.after(look(producers={}, offsets={HERE: Offsets(21, 30)})) == Suspicion()


def test_a_transaction_that_its_coordinator_finds_again_is_cleared() -> None:
    hanging = Suspicion().after(look()).after(look())
    assert hanging.after(look(transaction())).hanging == frozenset()


def test_late_transactions_are_open_beyond_the_maximum_and_sorted_by_age() -> None:
    seen = look(
        transaction("young", start_ms=NOW_MS - 60_000),
        transaction("old", start_ms=NOW_MS - 60_001),
        transaction("older", state="PrepareCommit", start_ms=NOW_MS - 90_000),
        transaction("ended", state="CompleteCommit", start_ms=NOW_MS - 90_000),
    )
    assert [known.transactional_id for known in late(seen, 60_000)] == ["older", "old"]


def test_each_coordinator_that_answered_has_an_entry_even_without_open_transactions() -> None:
    by_broker = by_coordinator(look(transaction(), transaction("b", state="Empty"), coordinators=(0, 1)))
    assert {broker: [known.transactional_id for known in rows] for broker, rows in by_broker.items()} == {
        0: [],
        1: ["ingest-payments.raw-0"],
    }


_PARTITIONS = st.sampled_from([HERE, THERE])
_PRODUCERS = st.builds(
    Producer,
    st.integers(1, 4),
    st.just(0),
    st.just(0),
    st.just(0),
    st.just(0),
    st.one_of(st.none(), st.integers(0, 29)),
)
_TRANSACTIONS = st.builds(
    Transaction,
    st.uuids().map(str),
    st.integers(1, 4),
    st.just(0),
    st.sampled_from(["Ongoing", "PrepareAbort", "CompleteCommit"]),
    st.just(1),
    st.just(10_000),
    st.just(NOW_MS),
    st.lists(_PARTITIONS, max_size=2, unique=True).map(tuple),
)
_LOOKS = st.builds(
    lambda producers, transactions, coordinators: look(
        *transactions,
        producers={target: tuple(rows) for target, rows in producers.items()},
        coordinators=coordinators,
    ),
    st.dictionaries(_PARTITIONS, st.lists(_PRODUCERS, max_size=4)),
    st.lists(_TRANSACTIONS, max_size=4),
    st.sampled_from([(0, 1, 2), (0, 1)]),
)


@given(st.lists(_LOOKS, min_size=1, max_size=6))
def test_a_hanging_transaction_was_suspected_before_and_no_partition_denies_it(looks: list[Look]) -> None:
    suspicion = Suspicion()
    for seen in looks:
        before, suspicion = suspicion, suspicion.after(seen)
        assert suspicion.hanging <= before.suspected | before.hanging
        assert suspicion.hanging <= suspicion.suspected
        opened = set(held_open(seen))
        assert all(one in opened or one.target not in seen.producers for one in suspicion.suspected)
        if seen.all_coordinators:
            claimed = opened - set(unclaimed(opened, seen.transactions))
            assert not claimed & suspicion.suspected


@given(_LOOKS)
def test_every_holder_begins_before_all_others_of_its_partition(seen: Look) -> None:
    opened = held_open(seen)
    for holder in holders(seen):
        assert holder.open.start_offset == min(one.start_offset for one in opened if one.target == holder.open.target)
        assert holder.held > 0
