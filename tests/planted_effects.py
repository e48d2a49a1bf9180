"""Errors in effect requests: requests without a posting, or that differ from it."""

import msgspec

from shared.events import catalogue
from shared.events.effects import EffectRequest, EffectState, effect_id, encode_request
from shared.events.headers import Coordinates
from shared.events.transfers import AccountOpened, CreditLeg, encode_transfer
from tests.planted import ALICE, BOB, ELSEWHERE, HOME, MAIL, WEBHOOK, Clean
from tests.planted_links import FAR_OFFSET, move
from tests.world import end
from tests.world_effects import EffectTrail

STRANGE_ID = "5" * 32


def _rewrite(world: Clean, trail: EffectTrail, **changes: object) -> None:
    """Change a request's content, and its id to match."""
    effect = msgspec.structs.replace(trail.effect, **changes)
    origin = dict(world.at(trail.request).headers)["origin"]
    identity = effect_id(origin, effect.kind, effect.event, effect.destination, installation="")
    world.change(trail.request, encode_request(msgspec.structs.replace(effect, effect_id=identity)))


def put_elsewhere(world: Clean, where: Coordinates) -> None:
    """Move a record to a wrong partition, and consume it there."""
    move(world, where, ELSEWHERE)
    world.committed["outbox"][ELSEWHERE] = end(world, where.topic, ELSEWHERE).offset + 1


def _request_on(world: Clean, effect: EffectRequest, source: Coordinates) -> None:
    """Request an effect on the home partition, with the result sent."""
    at = world.append(catalogue.EFFECTS_REQUESTS, HOME, encode_request(effect), source=source)
    world.committed["outbox"][HOME] = at.offset + 1
    world.decide(effect, HOME, EffectState.SENT)


def unreadable_request(world: Clean) -> None:
    world.change(world.receipt.request, b"{}")


def request_without_an_id(world: Clean) -> None:
    world.change(world.receipt.request, encode_request(msgspec.structs.replace(world.receipt.effect, effect_id="5")))


def request_without_a_value(world: Clean) -> None:
    world.append(catalogue.EFFECTS_REQUESTS, HOME, None)


def id_in_capitals(world: Clean) -> None:
    name = world.receipt.effect_id.upper()
    world.change(world.receipt.request, encode_request(msgspec.structs.replace(world.receipt.effect, effect_id=name)))


def strange_id(world: Clean) -> None:
    effect = msgspec.structs.replace(world.notice.effect, effect_id=STRANGE_ID)
    world.change(world.notice.request, encode_request(effect))


def receipt_of_a_far_offset(world: Clean) -> None:
    world.change(world.receipt.request, source=world.paid.transfer._replace(offset=FAR_OFFSET))


def receipt_of_no_transfer(world: Clean) -> None:
    world.change(world.receipt.request, source=world.paid.raw)


def receipt_of_another_origin(world: Clean) -> None:
    world.change(world.receipt.request, origin=world.first.raw)


def request_elsewhere(world: Clean) -> None:
    put_elsewhere(world, world.receipt.request)


def receipt_of_nothing_posted(world: Clean) -> None:
    world.remove(world.last.debit)


def receipt_of_a_credit(world: Clean) -> None:
    _rewrite(world, world.notice, kind="receipt")


def notice_of_a_debit(world: Clean) -> None:
    _rewrite(world, world.receipt, kind="notice", event="credit")


def receipt_of_a_decline(world: Clean) -> None:
    _rewrite(world, world.doubtful, kind="receipt", event="debit")


def unknown_kind(world: Clean) -> None:
    _rewrite(world, world.undone, kind="rumour")


def notice_of_what_suspense_took(world: Clean) -> None:
    _rewrite(world, world.parked_event, kind="notice")


def receipt_to_the_house(world: Clean) -> None:
    world.notify(world.parked.debit, "receipt", WEBHOOK)


def effect_of_an_account_event(world: Clean) -> None:
    effect = EffectRequest(
        effect_id(b"", "decline_notice", "decline", MAIL, installation=""),
        "decline_notice",
        "decline",
        MAIL,
        ALICE,
        "p",
        ALICE,
        "",
    )
    _request_on(world, effect, world.opened[0])


def effect_of_an_account_event_without_posting(world: Clean) -> None:
    at = world.append(catalogue.LEDGER_TRANSFERS, HOME, encode_transfer(AccountOpened(ALICE, None)))
    world.committed["ledger"][HOME] = at.offset + 1
    effect = EffectRequest(
        effect_id(b"", "event", "decline", MAIL, installation=""), "event", "decline", MAIL, ALICE, "p", ALICE, ""
    )
    _request_on(world, effect, at)


def other_amount(world: Clean) -> None:
    _rewrite(world, world.receipt, amount_minor=-2500)


def amount_one_off_below_zero(world: Clean) -> None:
    leg = CreditLeg("p9", ALICE, BOB, -1, "CZK", "2026-01-05")
    posted = world._credit(leg, world.paid.raw, world.paid.transfer, BOB)[1]
    _rewrite(world, world.notify(posted, "event", WEBHOOK), amount_minor=-2)


def other_currency(world: Clean) -> None:
    _rewrite(world, world.notice, currency="EUR")


def other_account(world: Clean) -> None:
    _rewrite(world, world.notice, account=ALICE)


def other_payment(world: Clean) -> None:
    _rewrite(world, world.receipt, payment_id="p1")


def other_debtor(world: Clean) -> None:
    _rewrite(world, world.notice, debtor="carol")


def other_creditor(world: Clean) -> None:
    _rewrite(world, world.receipt, creditor="carol")


def other_date(world: Clean) -> None:
    _rewrite(world, world.doubtful, value_date="2026-01-06")


def other_reason(world: Clean) -> None:
    _rewrite(world, world.doubtful, reason="debtor_closed")


def other_fee(world: Clean) -> None:
    _rewrite(world, world.receipt, fee_minor=29)


def no_reversal(world: Clean) -> None:
    _rewrite(world, world.undone, reversal=False)


def other_reference(world: Clean) -> None:
    _rewrite(world, world.receipt, reference="rent")
