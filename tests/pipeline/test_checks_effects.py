"""Requested effects report their events truly, and each has an outcome."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from shared.events import catalogue
from shared.events.effects import EffectState, Resolution, ResolutionAction, encode_request
from shared.events.headers import Coordinates
from spark.checks import effects
from tests import planted_effects, planted_results
from tests.pipeline.nights import found, kept, manifest, night
from tests.planted import AWAY, HOME, Clean
from tests.tiers import full, mostly_full
from tests.world_effects import AT_MS

EVENTS, OUTCOMES = "events:requests", "requests:results"
Plant = Callable[[Clean], None]
Where = Callable[[Clean], Coordinates]


def newest(topic: str, partition: int) -> Where:
    """The last record of a partition, once an error is planted."""
    return lambda world: Coordinates(topic, partition, world.logs[topic, partition][-1].offset)


FALSE: dict[Plant, tuple[str, Where]] = {
    planted_effects.receipt_to_the_house: ("effect", newest(catalogue.EFFECTS_REQUESTS, AWAY)),
    planted_effects.notice_of_what_suspense_took: ("effect", lambda world: world.parked_event.request),
    planted_effects.other_reference: ("amount", lambda world: world.receipt.request),
    planted_effects.receipt_of_another_origin: ("orphan", lambda world: world.receipt.request),
}
"""The kind of the break, and the request that has it."""

WRONG: dict[Plant, tuple[str, Where]] = {
    planted_results.requested_twice: ("duplicate", newest(catalogue.EFFECTS_REQUESTS, HOME)),
    planted_results.result_missing: ("effect", lambda world: world.notice.request),
    planted_results.failed_silently: ("effect", lambda world: world.failed.result),
    planted_results.decided_otherwise: ("effect", newest(catalogue.EFFECTS_RESULTS, AWAY)),
    planted_results.result_of_an_unknown_state: ("effect", newest(catalogue.EFFECTS_RESULTS, HOME)),
    planted_results.waits_after_a_result: ("torn", newest(catalogue.EFFECTS_WAITING, AWAY)),
    planted_results.request_aborted: ("effect", lambda world: world.notice.result),
    planted_results.ahead_of_outbox: ("torn", lambda world: world.last_receipt.result),
}
"""Likewise, of outcomes."""


def test_a_clean_system_is_counted(spark: SparkSession) -> None:
    checked = effects.check(night(spark, Clean()))
    assert found(checked) == []
    sent = {"effects_sent": 5, "effects_failed": 2, "effects_in_doubt": 1}
    assert {name: checked.figures[name] for name in sent} == sent
    assert not any(checked.in_flight.values())
    assert not checked.carry


@pytest.mark.parametrize("plant", mostly_full(FALSE, [planted_effects.other_reference]), ids=lambda one: one.__name__)
def test_requests_that_report_an_event_falsely(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    plant(world)
    kind, where = FALSE[plant]
    # One of another kind or destination is another effect: its result is missing as well
    of_events = [one for one in found(effects.check(night(spark, world))) if one[1] == EVENTS]
    assert of_events == [(kind, EVENTS, str(where(world)))]


@pytest.mark.parametrize("plant", mostly_full(WRONG, [planted_results.result_missing]), ids=lambda one: one.__name__)
def test_wrong_outcomes(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    plant(world)
    kind, where = WRONG[plant]
    assert found(effects.check(night(spark, world))) == [(kind, OUTCOMES, str(where(world)))]


@full
def test_a_request_of_an_earlier_cut_is_not_made_again(spark: SparkSession) -> None:
    world = Clean()
    first = manifest(world)
    again = world.copy(world.receipt.request)
    world.committed["outbox"][HOME] = again.offset + 1
    checked = effects.check(night(spark, world, manifest(world, previous=first)))
    assert found(checked) == [("duplicate", EVENTS, str(again))]


def test_a_request_that_was_not_consumed_waits_until_it_is_late(spark: SparkSession) -> None:
    world = Clean()
    request = world.last_receipt.request
    world.remove(world.last_receipt.result)
    world.committed["outbox"][HOME] = request.offset
    now = night(spark, world)
    checked = effects.check(now)
    assert found(checked) == []
    assert checked.in_flight["outbox"] == 1
    late = effects.check(replace(now, late_cut=now.manifest))
    assert found(late) == [("effect", OUTCOMES, str(request))]
    assert late.in_flight["outbox"] == 0


@full
def test_an_effect_that_was_due_long_ago_is_a_break(spark: SparkSession) -> None:
    world = Clean()
    planted_results.waits_still(world)
    now = night(spark, world)
    for taken_at_ms, due in ((AT_MS, False), (AT_MS + 1, True)):
        late_cut = structs.replace(now.manifest, taken_at_ms=taken_at_ms)
        checked = effects.check(replace(now, late_cut=late_cut))
        assert found(checked) == ([("effect", OUTCOMES, str(world.notice.request))] if due else [])
        assert checked.in_flight["effects_waiting"] == (not due)


@full
def test_a_later_decision_counts_by_the_difference(spark: SparkSession) -> None:
    world = Clean()
    first = manifest(world)
    world.decide(world.doubtful.effect, world.doubtful.result.partition, EffectState.SENT, revision=2)
    checked = effects.check(night(spark, world, manifest(world, previous=first)))
    assert found(checked) == []
    assert (checked.figures["effects_sent"], checked.figures["effects_in_doubt"]) == (1, -1)


@full
def test_a_failed_effect_that_is_decided_again_has_its_letter(spark: SparkSession) -> None:
    world = Clean()
    first = manifest(world)
    world.decide(world.failed.effect, world.failed.result.partition, EffectState.FAILED, revision=2)
    assert found(effects.check(night(spark, world, manifest(world, previous=first)))) == []


@full
def test_an_effect_that_is_sent_again_waits_until_it_is_late(spark: SparkSession) -> None:
    world = Clean()
    failed, first = world.failed, manifest(world)
    at = world.wait(failed.effect, failed.result.partition)
    second = manifest(world, previous=first)
    waits = effects.check(night(spark, world, second))
    assert found(waits) == []
    assert (waits.in_flight["effects_waiting"], waits.figures["effects_waiting"]) == (1, 1)
    third = manifest(world, previous=second)
    late = replace(
        night(spark, world, third, kept(waits.carry)), late_cut=structs.replace(first, taken_at_ms=AT_MS + 1)
    )
    overdue = effects.check(late)
    assert found(overdue) == [("effect", OUTCOMES, str(failed.request))]
    assert (overdue.in_flight["effects_waiting"], overdue.figures["effects_waiting"]) == (0, 0)
    world.append(at.topic, at.partition, None, world.at(at).key)
    world.decide(failed.effect, failed.result.partition, EffectState.SENT, revision=2)
    sent = effects.check(night(spark, world, manifest(world, previous=third), kept(overdue.carry)))
    assert found(sent) == []
    figures = {"effects_waiting": -1, "effects_sent": 1, "effects_failed": -1}
    assert {name: sent.figures[name] for name in figures} == figures
    assert not sent.carry


@full
def test_an_effect_that_is_sent_again_in_its_first_cut_waits(spark: SparkSession) -> None:
    world = Clean()
    failed = world.failed
    decision = Resolution(failed.effect_id, 1, ResolutionAction.RESEND, failed.effect)
    resolved = world.append(catalogue.EFFECTS_REQUESTS, failed.request.partition, encode_request(decision))
    world.committed["outbox"][resolved.partition] = resolved.offset + 1
    at = world.wait(failed.effect, failed.result.partition)
    first = manifest(world)
    waits = effects.check(night(spark, world, first))
    assert found(waits) == []
    assert (waits.in_flight["effects_waiting"], waits.figures["effects_waiting"]) == (1, 1)
    again = world.decide(failed.effect, failed.result.partition, EffectState.SENT, revision=2)
    world.change(again, source=resolved)
    second = manifest(world, previous=first)
    still = effects.check(night(spark, world, second, kept(waits.carry)))
    assert (found(still), still.figures["effects_waiting"], still.figures["effects_sent"]) == ([], 0, 1)
    world.append(at.topic, at.partition, None, world.at(at).key)
    done = effects.check(night(spark, world, manifest(world, previous=second), kept(still.carry)))
    assert (found(done), done.figures["effects_waiting"], done.figures["effects_sent"]) == ([], -1, 0)
    assert not done.carry


@full
def test_only_a_decision_to_send_it_again_lets_a_decided_effect_wait(spark: SparkSession) -> None:
    world = Clean()
    failed = world.failed
    decision = Resolution(failed.effect_id, 1, ResolutionAction.CONFIRM, failed.effect)
    resolved = world.append(catalogue.EFFECTS_REQUESTS, failed.request.partition, encode_request(decision))
    world.committed["outbox"][resolved.partition] = resolved.offset + 1
    at = world.wait(failed.effect, failed.result.partition)
    assert str(at) in {where for *_, where in found(effects.check(night(spark, world)))}


@full
def test_a_result_of_an_expired_request_cannot_be_judged(spark: SparkSession) -> None:
    world = Clean()
    request = world.notice.request
    world.remove(request)
    cut = manifest(world, beginnings={(request.topic, request.partition): request.offset + 1})
    checked = effects.check(night(spark, world, cut))
    assert found(checked) == []
    assert checked.figures["expired"] == 1
