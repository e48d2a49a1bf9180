"""Errors of missing and duplicated records; each mutation yields the breaks that it must lead to."""

from collections.abc import Iterator

from shared.events import catalogue
from shared.events.payments import Payment
from shared.events.transfers import TransferReversal, decode_transfer
from spark.night import Kind
from tests.payments import decode_instruction
from tests.pipeline.found import Found, found
from tests.pipeline.worlds import Volume

# Missing: a record was consumed, and its outcome is missing


def accepted_missing(world: Volume) -> Iterator[Found]:
    paid = world.take("plain")
    world.remove(paid.accepted)
    yield found(Kind.MISSING, paid.raw, world)
    yield found(Kind.UNCOMMITTED, paid.transfer, world)


def transfer_missing(world: Volume) -> Iterator[Found]:
    paid = world.take("charged")
    world.remove(paid.transfer)
    yield found(Kind.MISSING, paid.accepted, world)
    yield found(Kind.UNCOMMITTED, paid.debit, world)


def reversal_missing(world: Volume) -> Iterator[Found]:
    paid = world.take("reversed")
    world.remove(paid.transfer)
    yield found(Kind.MISSING, paid.accepted, world)
    yield found(Kind.UNCOMMITTED, paid.debit, world)


def payment_lost_in_ledger(world: Volume) -> Iterator[Found]:
    paid = world.take("house")
    for at in (paid.debit, paid.leg, paid.credit):
        world.remove(at)
    yield found(Kind.MISSING, paid.transfer, world)


def credit_missing(world: Volume) -> Iterator[Found]:
    paid = world.take("suspense")
    world.remove(paid.credit)
    yield found(Kind.MISSING, paid.leg, world)


def decline_missing(world: Volume) -> Iterator[Found]:
    paid = world.take("declined")
    world.remove(paid.debit)
    yield found(Kind.MISSING, paid.transfer, world)


def repeat_missing(world: Volume) -> Iterator[Found]:
    raw, outcome = world.take_pair("repeat")
    world.remove(outcome)
    yield found(Kind.MISSING, raw, world)


def dead_letter_missing(world: Volume) -> Iterator[Found]:
    raw, outcome = world.take_pair("refused")
    world.remove(outcome)
    yield found(Kind.MISSING, raw, world)


# Duplicate: a record is there more than once


def accepted_twice(world: Volume) -> Iterator[Found]:
    again = world.copy(world.take("plain").accepted)
    yield found(Kind.DUPLICATE, again, world)
    world.committed["transform"][again.partition] = again.offset + 1
    world.unanswered.append(again)


def transfer_twice(world: Volume) -> Iterator[Found]:
    again = world.copy(world.take("converted").transfer)
    world.unanswered.append(again)
    yield found(Kind.DUPLICATE, again, world)


def debit_twice(world: Volume) -> Iterator[Found]:
    yield found(Kind.DUPLICATE, world.copy(world.take("plain").debit), world)


def credit_twice(world: Volume) -> Iterator[Found]:
    yield found(Kind.DUPLICATE, world.copy(world.take("house").credit), world)


def leg_twice(world: Volume) -> Iterator[Found]:
    again = world.copy(world.take("charged").leg)
    world.unanswered.append(again)
    yield found(Kind.DUPLICATE, again, world)


def decline_twice(world: Volume) -> Iterator[Found]:
    yield found(Kind.DUPLICATE, world.copy(world.take("declined").debit), world)


def repeat_twice(world: Volume) -> Iterator[Found]:
    yield found(Kind.DUPLICATE, world.copy(world.take_pair("repeat")[1]), world)


def accepted_and_refused(world: Volume) -> Iterator[Found]:
    raw = world.take("suspense").raw
    again = world.outcome(catalogue.PAYMENTS_DEAD_LETTER, raw, world.at(raw).value or b"")
    yield found(Kind.DUPLICATE, again, world)._replace(payment_id=None)
    yield found(Kind.DECISION, again, world)


def reversed_twice(world: Volume) -> Iterator[Found]:
    reversal = decode_transfer(world.at(world.take("reversed").transfer).value or b"")
    assert isinstance(reversal, TransferReversal)
    again = world.reverse(f"{reversal.payment_id}-again", reversal.debtor, reversal.reverses)
    yield found(Kind.DUPLICATE, again.debit, world)


def identity_twice(world: Volume) -> Iterator[Found]:
    payment = decode_instruction(world.at(world.take("plain").raw).value or b"")
    assert isinstance(payment, Payment)
    again = world.pay(payment.payment_id, payment.debtor, payment.creditor, payment.amount_minor)
    yield found(Kind.DUPLICATE, again.debit, world)
