"""Errors in the outcomes of effects: results, dead letters, waiting effects, and the sink's log."""

import msgspec

from shared.events import catalogue
from shared.events.effects import EffectState, encode_request
from shared.events.postings import decode_ledger_event
from tests.planted import ELSEWHERE, FILE, HOME, Clean
from tests.planted_effects import STRANGE_ID, put_elsewhere
from tests.world_effects import request_of


def unreadable_result(world: Clean) -> None:
    world.change(world.receipt.result, b"{}")


def result_of_an_unknown_state(world: Clean) -> None:
    world.decide(world.receipt.effect, HOME, "lost")


def result_without_a_key(world: Clean) -> None:
    world.append(catalogue.EFFECTS_RESULTS, HOME, world.at(world.receipt.result).value)


def result_under_another_key(world: Clean) -> None:
    record = world.at(world.receipt.result)
    world.append(catalogue.EFFECTS_RESULTS, HOME, record.value, key=world.last_receipt.effect_id.encode())


def waiting_without_an_id(world: Clean) -> None:
    world.append(catalogue.EFFECTS_WAITING, HOME, b"{}", key=b"waiting/5")


def unreadable_letter(world: Clean) -> None:
    world.change(world.failed.letter, b"\xff")


def letter_without_a_value(world: Clean) -> None:
    world.append(catalogue.EFFECTS_DEAD_LETTER, HOME, None)


def letter_without_an_id(world: Clean) -> None:
    effect = msgspec.structs.replace(world.failed.effect, effect_id="")
    world.append(catalogue.EFFECTS_DEAD_LETTER, HOME, encode_request(effect))


def requested_twice(world: Clean) -> None:
    at = world.copy(world.receipt.request)
    world.committed["outbox"][HOME] = at.offset + 1


def decided_otherwise(world: Clean) -> None:
    world.decide(world.notice.effect, world.notice.result.partition, EffectState.IN_DOUBT)


def older_revision_later(world: Clean) -> None:
    partition = world.notice.result.partition
    world.decide(world.notice.effect, partition, EffectState.SENT, revision=3)
    world.decide(world.notice.effect, partition, EffectState.SENT, revision=2)


def letter_of_a_sent_one(world: Clean) -> None:
    world.append(catalogue.EFFECTS_DEAD_LETTER, HOME, encode_request(world.receipt.effect))


def result_missing(world: Clean) -> None:
    world.remove(world.notice.result)


def result_deleted(world: Clean) -> None:
    world.append(catalogue.EFFECTS_RESULTS, world.notice.result.partition, None, key=world.notice.effect_id.encode())


def waits_still(world: Clean) -> None:
    world.remove(world.notice.result)
    world.wait(world.notice.effect, world.notice.request.partition)


def waits_after_a_result(world: Clean) -> None:
    world.wait(world.doubtful.effect, world.doubtful.request.partition)


def result_elsewhere(world: Clean) -> None:
    put_elsewhere(world, world.receipt.result)


def letter_elsewhere(world: Clean) -> None:
    put_elsewhere(world, world.failed.letter)


def waits_elsewhere(world: Clean) -> None:
    world.wait(world.receipt.effect, ELSEWHERE)


def failed_silently(world: Clean) -> None:
    world.remove(world.failed.letter)


def given_up_silently(world: Clean) -> None:
    world.remove(world.given_up.letter)


def request_aborted(world: Clean) -> None:
    world.remove(world.notice.request)


def failed_request_aborted(world: Clean) -> None:
    world.remove(world.failed.request)
    world.remove(world.failed.result)


def waiting_request_aborted(world: Clean) -> None:
    world.remove(world.notice.request)
    world.remove(world.notice.result)
    world.wait(world.notice.effect, world.notice.request.partition)


def ahead_of_outbox(world: Clean) -> None:
    world.committed["outbox"][HOME] = world.last_receipt.request.offset


def never_sent(world: Clean) -> None:
    world.log.remove(world.receipt.effect_id)


def no_log_of_that_name(world: Clean) -> None:
    world.notify(world.paid.debit, "event", "file:events")


def sent_twice(world: Clean) -> None:
    world.log.append(world.receipt.effect_id)


def sent_unasked(world: Clean) -> None:
    world.log.append(STRANGE_ID)


def sent_unasked_twice(world: Clean) -> None:
    world.log.extend([STRANGE_ID, STRANGE_ID])


def sent_to_the_wrong_sink(world: Clean) -> None:
    world.log.append(world.notice.effect_id)


def no_id_in_the_log(world: Clean) -> None:
    world.log.append("none")


def aborted_but_sent(world: Clean) -> None:
    effect = request_of(decode_ledger_event(world.at(world.first.debit).value or b""), world.first.raw, "event", FILE)
    world.log.append(effect.effect_id)


def sent_but_failed(world: Clean) -> None:
    trail = world.notify(world.first.debit, "event", FILE, EffectState.FAILED, reason="refused")
    world.log.append(trail.effect_id)


def sent_but_undecided(world: Clean) -> None:
    world.remove(world.receipt.result)
