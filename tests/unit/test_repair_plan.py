"""The input records of a repair, by the verifier's findings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.checkers.audit import INPUTS
from deploy.checkers.verdict import INVARIANT_OF, Kind, Violation
from deploy.repairs.plan import SERVICES, Gap, parts, plan
from shared.events.headers import Coordinates

MENDED = {Kind.SKIPPED, Kind.TORN_CHANGELOG, Kind.EFFECT_NOT_AS_SUBSCRIBED}


def found(kind: Kind, where: str) -> Violation:
    return Violation(INVARIANT_OF[kind], kind.value, where, "")


def test_skipped_records_are_grouped_by_scope_in_order() -> None:
    violations = [
        found(Kind.SKIPPED, "ledger.transfers:1:4"),
        found(Kind.SKIPPED, "payments.raw:2:9"),
        found(Kind.SKIPPED, "payments.raw:2:7"),
        found(Kind.NO_OUTCOME, "payments.raw:2:7"),
        found(Kind.EFFECT_MISSING, "effects.requests:0:3"),
        found(Kind.SKIPPED, "effects.requests:0:3"),
        found(Kind.SKIPPED, "payments.accepted:0:1"),
    ]
    planned = plan(violations, {})
    assert planned.gaps == [
        Gap("ingest", 2, (7, 9)),
        Gap("transform", 0, (1,)),
        Gap("ledger", 1, (4,)),
        Gap("outbox", 0, (3,)),
    ]
    assert planned.unmendable == []


def test_a_record_beyond_the_changelog_is_an_input_itself() -> None:
    behind = found(Kind.TORN_CHANGELOG, "payments.raw:0:1")
    assert parts([behind]) == set()
    assert plan([behind, found(Kind.SKIPPED, "payments.raw:0:1")], {}) == ([Gap("ingest", 0, (1,))], [])


def test_a_record_that_lacks_its_siblings_is_traced_to_its_source() -> None:
    torn = found(Kind.TORN_CREDIT_LEG, "ledger.postings:3:8")
    silent = found(Kind.EFFECT_FAILED_SILENTLY, "effects.results:4:2")
    assert parts([torn, silent]) == {Coordinates("ledger.postings", 3, 8), Coordinates("effects.results", 4, 2)}
    sources = {
        torn.where: Coordinates("ledger.transfers", 3, 5),
        silent.where: Coordinates("effects.requests", 4, 1),
    }
    assert plan([torn, silent], sources).gaps == [Gap("ledger", 3, (5,)), Gap("outbox", 4, (1,))]
    assert plan([torn], {}).unmendable == [torn]


def test_a_balance_that_is_not_its_fold_is_a_scope_without_input() -> None:
    violations = [
        found(Kind.BALANCE_DIFFERS, "ledger.balances:2:7"),
        found(Kind.TERMS_DIFFER, "ledger.balances:2"),
        found(Kind.OWNER_DIFFERS, "ledger.accounts:2"),
        found(Kind.OWNER_DIFFERS, "ledger.accounts:2:9"),
        found(Kind.DRIFT, "ledger.balances"),
    ]
    assert plan(violations, {}) == ([Gap("ledger", 2, ())], [])


def test_a_posting_that_lacks_requests_is_mended_from_its_source() -> None:
    assert plan([found(Kind.EFFECT_NOT_AS_SUBSCRIBED, "ledger.transfers:3:5")], {}) == ([Gap("ledger", 3, (5,))], [])


def test_decisions_that_a_missing_posting_makes_wrong_do_not_keep_it_from_being_repaired() -> None:
    kinds = Kind.WRONG_DEBIT, Kind.WRONG_DECLINE, Kind.UNAUTHORISED, Kind.WRONG_ACCOUNT_EVENT
    following = [found(kind, f"ledger.postings:1:{offset}") for offset, kind in enumerate(kinds, 8)]
    assert plan([found(Kind.SKIPPED, "ledger.transfers:1:4"), *following], {}) == ([Gap("ledger", 1, (4,))], [])


@pytest.mark.parametrize("kind", [Kind.DUPLICATE_DEBIT, Kind.ALTERED_POSTING, Kind.UNREADABLE])
def test_wrong_postings_keep_their_partition_from_being_repaired(kind: Kind) -> None:
    wrong = found(kind, "ledger.postings:1:3")
    kept = found(Kind.SKIPPED, "ledger.transfers:1:4")
    planned = plan([wrong, kept, found(Kind.SKIPPED, "ledger.transfers:2:4")], {})
    assert planned == ([Gap("ledger", 2, (4,))], [wrong, kept])


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (Kind.DUPLICATE_TRANSFER, "ledger.transfers:1:4"),
        (Kind.DUPLICATE_CREDIT_LEG, "ledger.transfers:1:4"),
        (Kind.TWO_OUTCOMES, "payments.accepted:1:4"),
    ],
)
def test_a_repeat_that_its_receiver_dropped_is_not_missing(kind: Kind, where: str) -> None:
    repeat, skipped = found(kind, where), found(Kind.SKIPPED, where)
    assert plan([skipped, repeat], {}) == ([], [skipped, repeat])


@given(
    st.lists(
        st.builds(
            lambda kind, topic, partition, offset: found(kind, f"{topic}:{partition}:{offset}"),
            st.sampled_from(list(Kind)),
            st.sampled_from([*INPUTS.values(), "ledger.postings", "payments.accepted"]),
            st.integers(0, 5),
            st.integers(0, 20),
        )
    )
)
def test_each_gap_was_found_and_each_scope_is_one_gap(violations: list[Violation]) -> None:
    planned = plan(violations, {})
    skipped = {one.where for one in violations if one.kind in MENDED}
    assert {str(at) for gap in planned.gaps for at in gap.inputs()} <= skipped
    scopes = [(SERVICES.index(gap.service), gap.partition) for gap in planned.gaps]
    assert scopes == sorted(set(scopes))
    assert all(list(gap.offsets) == sorted(set(gap.offsets)) for gap in planned.gaps)
