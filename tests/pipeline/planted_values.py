"""Errors of values: amounts, links, and effects; each mutation yields the breaks that it must lead to."""

from collections.abc import Iterator

import msgspec

from shared.events import catalogue
from shared.events.clients import OPERATOR
from shared.events.effects import (
    EffectRequest,
    EffectResult,
    EffectState,
    decode_request,
    decode_result,
    encode_request,
    encode_result,
)
from shared.events.headers import SOURCE, Coordinates, header
from shared.events.payments import Payment, Repeat, encode_accepted, encode_repeat
from shared.events.postings import Entry, decode_account, encode_account
from shared.events.transfers import CreditLeg, Transfer, decode_transfer, encode_transfer
from spark.night import Kind
from tests.payments import decode_instruction
from tests.pipeline.found import Found, found
from tests.pipeline.worlds import Volume
from tests.planted import posting_at, with_entries
from tests.world import Trail, last_state

FAR_OFFSET = 10**12


# Amount: two records disagree


def accepted_altered(world: Volume) -> Iterator[Found]:
    paid = world.take("plain")
    payment = decode_instruction(world.at(paid.raw).value or b"")
    assert isinstance(payment, Payment)
    altered = msgspec.structs.replace(payment, amount_minor=payment.amount_minor + 1)
    world.change(paid.accepted, encode_accepted(altered, -1, OPERATOR))
    yield found(Kind.AMOUNT, paid.accepted, world)
    yield found(Kind.AMOUNT, paid.transfer, world)


def time_of_receipt_altered(world: Volume) -> Iterator[Found]:
    """The payment has a value date of its own, so nothing follows from it."""
    paid = world.take("charged")
    raw = world.at(paid.raw)
    world.change(paid.accepted, encode_accepted(decode_instruction(raw.value or b""), raw.timestamp_ms + 1, OPERATOR))
    yield found(Kind.AMOUNT, paid.accepted, world)


def fee_altered(world: Volume) -> Iterator[Found]:
    paid = world.take("charged")
    _change_transfer(world, paid, fee_minor=31)
    yield found(Kind.AMOUNT, paid.debit, world)
    yield found(Kind.DECISION, paid.transfer, world)


def rate_altered(world: Volume) -> Iterator[Found]:
    paid = world.take("converted")
    _change_transfer(world, paid, rate="0.05")
    yield found(Kind.AMOUNT, paid.transfer, world)
    yield found(Kind.AMOUNT, paid.debit, world)
    yield found(Kind.DECISION, paid.transfer, world)


def currency_altered(world: Volume) -> Iterator[Found]:
    paid = world.take("house")
    posting = posting_at(world, paid.credit)
    entries = [Entry(entry.account, "EUR", entry.amount_minor) for entry in posting.entries]
    world.change(paid.credit, with_entries(posting, *entries))
    yield found(Kind.AMOUNT, paid.credit, world)


def posting_altered(world: Volume) -> Iterator[Found]:
    paid = world.take("suspense")
    posting = posting_at(world, paid.debit)
    entries = [Entry(one.account, one.currency, one.amount_minor * 2) for one in posting.entries]
    world.change(paid.debit, with_entries(posting, *entries))
    yield found(Kind.AMOUNT, paid.debit, world)
    yield found(Kind.AMOUNT, paid.leg, world)


def posting_unbalanced(world: Volume) -> Iterator[Found]:
    paid = world.take("plain")
    posting = posting_at(world, paid.credit)
    sent, own = posting.entries
    world.change(paid.credit, with_entries(posting, sent, Entry(own.account, own.currency, own.amount_minor + 1)))
    yield found(Kind.AMOUNT, paid.credit, world)
    yield found(Kind.AMOUNT, paid.credit, world)


def leg_altered(world: Volume) -> Iterator[Found]:
    paid = world.take("charged")
    leg = decode_transfer(world.at(paid.leg).value or b"")
    assert isinstance(leg, CreditLeg)
    world.change(paid.leg, encode_transfer(msgspec.structs.replace(leg, amount_minor=leg.amount_minor + 1)))
    yield found(Kind.AMOUNT, paid.leg, world)
    yield found(Kind.AMOUNT, paid.credit, world)


def creditor_altered(world: Volume) -> Iterator[Found]:
    paid = world.take("converted")
    _change_transfer(world, paid, creditor="mallory")
    yield found(Kind.AMOUNT, paid.transfer, world)
    yield found(Kind.AMOUNT, paid.debit, world)


def request_altered(world: Volume) -> Iterator[Found]:
    trail = world.take_effect("sent")
    request = decode_request(world.at(trail.request).value or b"")
    assert isinstance(request, EffectRequest)
    world.change(trail.request, encode_request(msgspec.structs.replace(request, amount_minor=1)))
    yield found(Kind.AMOUNT, trail.request, world)


def states_altered(world: Volume) -> Iterator[Found]:
    for account in (world.large[0], "carol"):  # with postings, and without
        at = last_state(world, account)
        state = decode_account(world.at(at).value or b"")
        balances = {currency: minor + 1 for currency, minor in (state.balances or {"CZK": 0}).items()}
        world.change(at, encode_account(msgspec.structs.replace(state, balances=balances)))
    yield from ()


# Orphan: a record names an impossible source or origin


def decline_of_nothing(world: Volume) -> Iterator[Found]:
    declined = world.take("declined")
    again = world.copy(declined.debit)
    world.change(again, source=declined.transfer._replace(offset=FAR_OFFSET))
    yield found(Kind.ORPHAN, again, world)


def origin_of_another(world: Volume) -> Iterator[Found]:
    paid = world.take("converted")
    world.change(paid.credit, origin=world.first.raw)
    yield found(Kind.ORPHAN, paid.credit, world)


def accepted_without_source(world: Volume) -> Iterator[Found]:
    paid = world.take("plain")
    again = world.append(paid.accepted.topic, paid.accepted.partition, world.at(paid.accepted).value)
    world.unanswered.append(again)
    yield found(Kind.ORPHAN, again, world)


def repeat_of_nothing(world: Volume) -> Iterator[Found]:
    raw, outcome = world.take_pair("repeat")
    instruction = decode_instruction(world.at(raw).value or b"")
    repeat = Repeat(instruction.payment_id, instruction.debtor, str(raw._replace(offset=raw.offset + 1)))
    world.change(outcome, encode_repeat(repeat))
    yield found(Kind.ORPHAN, outcome, world)


# Torn: one part of a transaction is visible, another is not


def leg_and_credit_missing(world: Volume) -> Iterator[Found]:
    paid = world.take("plain")
    world.remove(paid.leg)
    world.remove(paid.credit)
    yield found(Kind.TORN, paid.debit, world)


def debit_missing(world: Volume) -> Iterator[Found]:
    paid = world.take("charged")
    world.remove(paid.debit)
    yield found(Kind.MISSING, paid.transfer, world)
    yield found(Kind.TORN, paid.leg, world)


# Uncommitted: a record was made from a record of an aborted transaction


def raw_aborted(world: Volume) -> Iterator[Found]:
    paid = world.take("house")
    world.remove(paid.raw)
    yield found(Kind.UNCOMMITTED, paid.accepted, world)


def leg_aborted(world: Volume) -> Iterator[Found]:
    paid = world.take("converted")
    world.remove(paid.leg)
    yield found(Kind.TORN, paid.debit, world)
    yield found(Kind.UNCOMMITTED, paid.credit, world)


def repeat_aborted(world: Volume) -> Iterator[Found]:
    raw, outcome = world.take_pair("repeat")
    world.remove(raw)
    yield found(Kind.UNCOMMITTED, outcome, world)


# Effects


def result_missing(world: Volume) -> Iterator[Found]:
    trail = world.take_effect("sent")
    world.remove(trail.result)
    yield found(Kind.EFFECT, trail.request, world)


def request_missing(world: Volume) -> Iterator[Found]:
    trail = world.take_effect("late")
    source = header(world.at(trail.request).headers, SOURCE) or b""
    events = world.logs[catalogue.LEDGER_POSTINGS, trail.request.partition]
    [event] = [record for record in events if header(record.headers, SOURCE) == source]
    world.remove(trail.request)
    yield found(Kind.EFFECT, trail.result, world)
    yield found(Kind.DECISION, Coordinates(event.topic, event.partition, event.offset), world)


def result_of_nothing(world: Volume) -> Iterator[Found]:
    trail = world.take_effect("in_doubt")
    result = decode_result(world.at(trail.result).value or b"")
    forged = EffectResult(result.effect_id[::-1], EffectState.SENT, result.at_ms, 1)
    at = world.append(
        catalogue.EFFECTS_RESULTS, trail.result.partition, encode_result(forged), forged.effect_id.encode()
    )
    yield found(Kind.EFFECT, at, world)


# Undecodable


def posting_unreadable(world: Volume) -> Iterator[Found]:
    paid = world.take("suspense")
    world.change(paid.debit, b"{}")
    yield found(Kind.UNDECODABLE, paid.debit, world)


def _change_transfer(world: Volume, paid: Trail, **changes: object) -> None:
    transfer = decode_transfer(world.at(paid.transfer).value or b"")
    assert isinstance(transfer, Transfer)
    world.change(paid.transfer, encode_transfer(msgspec.structs.replace(transfer, **changes)))
