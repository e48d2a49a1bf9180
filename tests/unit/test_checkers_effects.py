"""The audit of effects: each planted error is found by kind and coordinates, and the figures are counted."""

import tracemalloc
from collections.abc import Callable
from hashlib import blake2b

import pytest

from deploy.checkers.effect_outcomes import EffectRows
from deploy.checkers.verdict import INVARIANT_OF, Kind
from shared.events import catalogue
from shared.events.effects import EffectState, Resolution, encode_request
from tests import planted_effects as effects
from tests import planted_results as results
from tests.planted import ALICE, ELSEWHERE, FILE, HOME, MAIL, WEBHOOK, Clean
from tests.unit.test_checkers_decisions import PLANTED as DECISIONS
from tests.world import World, end, found

REQUESTS, RESULTS = catalogue.EFFECTS_REQUESTS, catalogue.EFFECTS_RESULTS
WAITING, DEAD_LETTER = catalogue.EFFECTS_WAITING, catalogue.EFFECTS_DEAD_LETTER

PLANTED: list[tuple[Callable[[Clean], None], Kind, Callable[[Clean], object]]] = [
    (effects.unreadable_request, Kind.UNREADABLE, lambda w: w.receipt.request),
    (effects.request_without_an_id, Kind.UNREADABLE, lambda w: w.receipt.request),
    (effects.request_without_a_value, Kind.UNREADABLE, lambda w: end(w, REQUESTS, HOME)),
    (effects.id_in_capitals, Kind.UNREADABLE, lambda w: w.receipt.request),
    (effects.strange_id, Kind.EFFECT_ALTERED, lambda w: w.notice.request),
    (effects.receipt_of_a_far_offset, Kind.SOURCE_MISSING, lambda w: w.receipt.request),
    (effects.receipt_of_no_transfer, Kind.SOURCE_MISSING, lambda w: w.receipt.request),
    (effects.receipt_of_another_origin, Kind.ORIGIN_MISMATCH, lambda w: w.receipt.request),
    (effects.request_elsewhere, Kind.EFFECT_ELSEWHERE, lambda w: end(w, REQUESTS, ELSEWHERE)),
    (effects.receipt_of_nothing_posted, Kind.EFFECT_UNFOUNDED, lambda w: w.last_receipt.request),
    (effects.receipt_of_a_credit, Kind.EFFECT_UNFOUNDED, lambda w: w.notice.request),
    (effects.notice_of_a_debit, Kind.EFFECT_UNFOUNDED, lambda w: w.receipt.request),
    (effects.receipt_of_a_decline, Kind.EFFECT_UNFOUNDED, lambda w: w.doubtful.request),
    (effects.unknown_kind, Kind.EFFECT_UNFOUNDED, lambda w: w.undone.request),
    (effects.notice_of_what_suspense_took, Kind.EFFECT_UNFOUNDED, lambda w: w.parked_event.request),
    (effects.receipt_to_the_house, Kind.EFFECT_UNFOUNDED, lambda w: end(w, REQUESTS, w.parked.debit.partition)),
    (effects.effect_of_an_account_event, Kind.EFFECT_ALTERED, lambda w: end(w, REQUESTS, HOME)),
    (effects.effect_of_an_account_event_without_posting, Kind.EFFECT_UNFOUNDED, lambda w: end(w, REQUESTS, HOME)),
    (effects.other_amount, Kind.EFFECT_ALTERED, lambda w: w.receipt.request),
    (effects.amount_one_off_below_zero, Kind.EFFECT_ALTERED, lambda w: end(w, REQUESTS, w.notice.request.partition)),
    (effects.other_currency, Kind.EFFECT_ALTERED, lambda w: w.notice.request),
    (effects.other_account, Kind.EFFECT_ALTERED, lambda w: w.notice.request),
    (effects.other_payment, Kind.EFFECT_ALTERED, lambda w: w.receipt.request),
    (effects.other_debtor, Kind.EFFECT_ALTERED, lambda w: w.notice.request),
    (effects.other_creditor, Kind.EFFECT_ALTERED, lambda w: w.receipt.request),
    (effects.other_date, Kind.EFFECT_ALTERED, lambda w: w.doubtful.request),
    (effects.other_reason, Kind.EFFECT_ALTERED, lambda w: w.doubtful.request),
    (effects.other_fee, Kind.EFFECT_ALTERED, lambda w: w.receipt.request),
    (effects.no_reversal, Kind.EFFECT_ALTERED, lambda w: w.undone.request),
    (effects.other_reference, Kind.EFFECT_ALTERED, lambda w: w.receipt.request),
    (results.unreadable_result, Kind.UNREADABLE, lambda w: w.receipt.result),
    (results.result_of_an_unknown_state, Kind.UNREADABLE, lambda w: end(w, RESULTS, HOME)),
    (results.result_without_a_key, Kind.UNREADABLE, lambda w: end(w, RESULTS, HOME)),
    (results.result_under_another_key, Kind.EFFECT_ALTERED, lambda w: end(w, RESULTS, HOME)),
    (results.waiting_without_an_id, Kind.UNREADABLE, lambda w: end(w, WAITING, HOME)),
    (results.unreadable_letter, Kind.UNREADABLE, lambda w: w.failed.letter),
    (results.letter_without_a_value, Kind.UNREADABLE, lambda w: end(w, DEAD_LETTER, HOME)),
    (results.letter_without_an_id, Kind.UNREADABLE, lambda w: end(w, DEAD_LETTER, HOME)),
    (results.requested_twice, Kind.EFFECT_REQUESTED_TWICE, lambda w: end(w, REQUESTS, HOME)),
    (results.decided_otherwise, Kind.EFFECT_CONTRADICTED, lambda w: end(w, RESULTS, w.notice.result.partition)),
    (results.older_revision_later, Kind.EFFECT_CONTRADICTED, lambda w: end(w, RESULTS, w.notice.result.partition)),
    (results.letter_of_a_sent_one, Kind.EFFECT_CONTRADICTED, lambda w: w.receipt.result),
    (results.result_missing, Kind.EFFECT_MISSING, lambda w: w.notice.request),
    (results.result_missing, Kind.SKIPPED, lambda w: w.notice.request),
    (results.result_deleted, Kind.EFFECT_MISSING, lambda w: w.notice.request),
    (results.waits_still, Kind.EFFECT_WAITING, lambda w: w.notice.request),
    (results.waits_after_a_result, Kind.EFFECT_WAITING, lambda w: w.doubtful.request),
    (results.result_elsewhere, Kind.EFFECT_ELSEWHERE, lambda w: end(w, RESULTS, ELSEWHERE)),
    (results.letter_elsewhere, Kind.EFFECT_ELSEWHERE, lambda w: end(w, DEAD_LETTER, ELSEWHERE)),
    (results.waits_elsewhere, Kind.EFFECT_ELSEWHERE, lambda w: end(w, WAITING, ELSEWHERE)),
    (results.failed_silently, Kind.EFFECT_FAILED_SILENTLY, lambda w: w.failed.result),
    (results.given_up_silently, Kind.EFFECT_FAILED_SILENTLY, lambda w: w.given_up.result),
    (results.request_aborted, Kind.EFFECT_ORPHAN, lambda w: w.notice.result),
    (results.failed_request_aborted, Kind.EFFECT_ORPHAN, lambda w: w.failed.letter),
    (results.waiting_request_aborted, Kind.EFFECT_ORPHAN, lambda w: end(w, WAITING, w.notice.request.partition)),
    (results.ahead_of_outbox, Kind.AHEAD, lambda w: w.last_receipt.request),
    (results.never_sent, Kind.EFFECT_NOT_AT_SINK, lambda w: w.receipt.request),
    (results.no_log_of_that_name, Kind.EFFECT_NOT_AT_SINK, lambda w: end(w, REQUESTS, HOME)),
    (results.sent_twice, Kind.EFFECT_DUPLICATED, lambda _: f"{FILE}:4"),
    (results.sent_unasked, Kind.EFFECT_PHANTOM, lambda _: f"{FILE}:4"),
    (results.sent_unasked_twice, Kind.EFFECT_DUPLICATED, lambda _: f"{FILE}:5"),
    (results.sent_to_the_wrong_sink, Kind.EFFECT_PHANTOM, lambda _: f"{FILE}:4"),
    (results.no_id_in_the_log, Kind.EFFECT_PHANTOM, lambda _: f"{FILE}:4"),
    (results.aborted_but_sent, Kind.EFFECT_PHANTOM, lambda _: f"{FILE}:4"),
    (results.sent_but_failed, Kind.EFFECT_DENIED, lambda w: end(w, REQUESTS, HOME)),
    (results.sent_but_undecided, Kind.EFFECT_DENIED, lambda w: w.receipt.request),
]


@pytest.mark.parametrize(
    ("plant", "kind", "where"), PLANTED, ids=[f"{plant.__name__}-{kind}" for plant, kind, _ in PLANTED]
)
def test_planted_error_is_found(plant: Callable[[Clean], None], kind: Kind, where: Callable[[Clean], object]) -> None:
    world = Clean()
    plant(world)
    verdict = world.audit()
    assert (kind.value, str(where(world))) in found(verdict)
    assert verdict.verdict == "fail"
    assert verdict.invariants[INVARIANT_OF[kind]].result == "fail"


def test_every_kind_is_planted_somewhere() -> None:
    planted = {kind for _, kind, _ in [*PLANTED, *DECISIONS]}
    assert planted >= {kind for kind in Kind if INVARIANT_OF[kind] == "I11"}


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (effects.other_amount, {Kind.EFFECT_ALTERED: 1}),
        (results.requested_twice, {Kind.EFFECT_REQUESTED_TWICE: 1, Kind.EFFECT_NOT_AS_SUBSCRIBED: 1}),
        (results.decided_otherwise, {Kind.EFFECT_CONTRADICTED: 1}),
        (results.failed_silently, {Kind.EFFECT_FAILED_SILENTLY: 1}),
        (results.never_sent, {Kind.EFFECT_NOT_AT_SINK: 1}),
        (results.sent_twice, {Kind.EFFECT_DUPLICATED: 1}),
        (results.sent_unasked, {Kind.EFFECT_PHANTOM: 1}),
        (results.result_missing, {Kind.EFFECT_MISSING: 1, Kind.SKIPPED: 1}),
        (results.waits_after_a_result, {Kind.EFFECT_WAITING: 1}),
    ],
)
def test_one_error_is_reported_once(plant: Callable[[Clean], None], kinds: dict[Kind, int]) -> None:
    world = Clean()
    plant(world)
    assert world.audit().kinds == kinds


def figures(world: World) -> tuple[int, int, int, int, int]:
    """Requested, delivered, duplicated, in doubt and failed."""
    verdict = world.audit()
    return (
        verdict.effects_requested,
        verdict.effects_delivered,
        verdict.effects_duplicated,
        verdict.effects_in_doubt,
        verdict.effects_failed,
    )


def test_figures_of_a_consistent_system() -> None:
    assert figures(Clean()) == (8, 6, 0, 1, 2)


def test_without_logs_the_results_say_what_was_delivered() -> None:
    world = Clean()
    world.sinks = None
    assert figures(world) == (8, 5, 0, 1, 2)
    assert world.audit().verdict == "pass"


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (results.sent_twice, (8, 6, 1, 1, 2)),
        (results.sent_unasked_twice, (8, 7, 1, 1, 2)),
        (results.never_sent, (8, 5, 0, 1, 2)),
        (results.requested_twice, (8, 6, 0, 1, 2)),
        (results.request_aborted, (7, 5, 0, 1, 2)),
        (results.result_missing, (8, 5, 0, 1, 2)),
    ],
)
def test_figures_of_faulty_systems(plant: Callable[[Clean], None], expected: tuple[int, int, int, int, int]) -> None:
    world = Clean()
    plant(world)
    assert figures(world) == expected


def test_resends_are_counted_and_not_a_fault() -> None:
    world = Clean()
    world.decide(world.doubtful.effect, world.doubtful.result.partition, EffectState.SENT, revision=2, resends=3)
    assert figures(world) == (8, 7, 3, 0, 2)
    assert world.audit().verdict == "pass"


def test_last_result_written_again_is_not_a_fault() -> None:
    world = Clean()
    world.copy(world.notice.result)
    partition = world.failed.result.partition
    world.decide(world.failed.effect, partition, EffectState.SENT, revision=2, reason="abandoned")
    assert figures(world) == (8, 7, 0, 1, 1)
    assert world.audit().verdict == "pass"


def test_resolutions_ask_for_no_effect() -> None:
    world = Clean()
    resolution = Resolution(world.doubtful.effect_id, 1, "confirm", world.doubtful.effect)
    at = world.append(REQUESTS, world.doubtful.request.partition, encode_request(resolution))
    world.committed["outbox"][at.partition] = at.offset + 1
    assert figures(world) == (8, 6, 0, 1, 2)
    assert world.audit().verdict == "pass"


def test_waiting_effect_that_is_done_is_not_a_fault() -> None:
    world = Clean()
    partition = world.receipt.request.partition
    world.wait(world.receipt.effect, partition)
    world.append(WAITING, partition, None, key=b"waiting/" + world.receipt.effect_id.encode())
    world.append(WAITING, partition, b"anything", key=b"trust/redis")
    world.append(WAITING, partition, b"anything")
    assert world.audit().verdict == "pass"


def test_failed_effect_that_is_not_at_the_sink_is_not_a_fault() -> None:
    world = Clean()
    world.notify(world.paid.debit, "event", FILE, EffectState.FAILED, reason="refused")
    assert figures(world) == (9, 6, 0, 1, 3)
    assert world.audit().verdict == "pass"


def test_doubtful_and_waiting_may_be_at_the_sink_or_not() -> None:
    world = Clean()
    there = world.notify(world.paid.debit, "event", FILE, EffectState.IN_DOUBT)
    world.log.append(there.effect_id)
    world.notify(world.last.debit, "event", FILE, EffectState.IN_DOUBT)
    assert world.audit().verdict == "pass"
    world.remove(world.receipt.result)
    world.wait(world.receipt.effect, HOME)
    assert world.audit().kinds == {Kind.EFFECT_WAITING: 1}


@pytest.mark.parametrize("expired", [True, False])
def test_effects_of_expired_requests_are_not_judged(expired: bool) -> None:
    world = Clean()
    for effect in (world.receipt, world.given_up):
        world.remove(effect.request)
    world.wait(world.receipt.effect, HOME)
    if expired:
        world.beginnings[REQUESTS, HOME] = world.given_up.request.offset + 1
    verdict = world.audit()
    found_kinds = {Kind.EFFECT_ORPHAN: 4, Kind.EFFECT_PHANTOM: 2, Kind.EFFECT_NOT_AS_SUBSCRIBED: 2}
    assert verdict.kinds == ({} if expired else found_kinds)
    assert (verdict.effects_requested, verdict.effects_delivered) == (6, 4 if expired else 6)
    # Records that expired in another partition do not matter here
    world.beginnings = {(REQUESTS, ELSEWHERE): 1_000}
    world.committed["outbox"][ELSEWHERE] = 1_000
    assert world.audit().kinds == found_kinds


@pytest.mark.parametrize("committed", [None, 100, 500])
def test_requests_that_expired_unprocessed_are_found(committed: int | None) -> None:
    world = Clean()
    world.beginnings[REQUESTS, ELSEWHERE] = 500
    if committed is not None:
        world.committed["outbox"][ELSEWHERE] = committed
    where = f"{REQUESTS}:{ELSEWHERE}"
    assert found(world.audit()) == (set() if committed == 500 else {(Kind.EFFECT_MISSING.value, where)})


def test_known_request_at_the_wrong_sink_is_judged_though_others_expired() -> None:
    world = Clean()
    results.sent_to_the_wrong_sink(world)
    world.beginnings[REQUESTS, world.notice.request.partition] = 1
    assert world.audit().kinds == {Kind.EFFECT_PHANTOM: 1}


def test_without_effects_there_is_neither_a_fault_nor_a_pass() -> None:
    world = World()
    world.pay("p1", f"cash@{HOME}", ALICE, 1000)
    verdict = world.audit()
    assert verdict.verdict == "pass"
    assert verdict.invariants["I11"].result == "no_data"


def test_one_payment_may_have_many_destinations() -> None:
    world = Clean()
    for kind, destination in (("receipt", MAIL), ("event", MAIL), ("receipt", WEBHOOK), ("event", WEBHOOK)):
        world.notify(world.paid.debit, kind, destination)
    assert figures(world) == (12, 10, 0, 1, 2)
    assert world.audit().verdict == "pass"


def test_memory_is_small_for_each_effect() -> None:
    rows = EffectRows()
    count = 50_000
    tracemalloc.start()
    try:
        for number in range(count):
            key = blake2b(b"%d" % number, digest_size=16).digest()
            rows.requests.add(key, number, 1)
            rows.results.add(key, number, 1, 1, 0)
            rows.deliveries.add(key, 1, number)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(list(rows.requests.bucket(number))) for number in range(256)) == count
    assert used / count < 200
