"""raw = accepted + deduplicated + dead-lettered, and each deduplicated record is a repeat."""

from dataclasses import replace

import msgspec
import pytest
from pyspark.sql import SparkSession

from shared.events import catalogue
from shared.events.catalogue import PAYMENTS_DEDUPLICATED
from shared.events.clients import OPERATOR
from shared.events.headers import REPAIR
from shared.events.payments import (
    SCHEMA_VERSION,
    Payment,
    Repeat,
    encode_accepted,
    encode_instruction,
    encode_repeat,
)
from spark import decisions, ownership
from spark.checks import intake
from tests.payments import decode_instruction
from tests.pipeline.nights import ends, found, kept, manifest, night, rows_of
from tests.planted import ALICE, BOB, HOME, Clean
from tests.tiers import full
from tests.world import DATE

OUTCOMES, REPEATS = "raw:outcomes", "repeats:firsts"


def altered(payment: Payment, **changes: object) -> bytes:
    """An accepted record of a payment with other fields."""
    return encode_accepted(msgspec.structs.replace(payment, **changes), -1, OPERATOR)


@full
def test_a_clean_system_is_counted(spark: SparkSession) -> None:
    checked = intake.check_ingest(night(spark, Clean()))
    assert found(checked) == []
    assert checked.figures == {"records_in": 9, "accepted": 7, "deduplicated": 1, "dead_lettered": 1}
    assert not any(checked.in_flight.values())
    assert set(checked.carry) == {ownership.CARRIED}


@full
def test_outcomes_that_differ_from_the_raw_record(spark: SparkSession) -> None:
    world = Clean()
    payment = decode_instruction(world.at(world.paid.raw).value or b"")
    assert isinstance(payment, Payment)
    world.change(world.last.accepted, altered(payment, payment_id="p6", currency="EUR", amount_minor=4000))
    world.change(world.refused[1], b"\xff other bytes")
    unread = world.first.accepted
    world.change(unread, b"{}")
    refused = world.refuse(b"{}")
    world.remove(refused[1])
    again = world.outcome(catalogue.PAYMENTS_DEAD_LETTER, world.paid.raw, world.at(world.paid.raw).value or b"")
    accepted = world.raw(b"no payment", HOME)
    forged = world.outcome(catalogue.PAYMENTS_ACCEPTED, accepted, altered(payment, payment_id="p8"))
    checked = intake.check_ingest(night(spark, world))
    assert found(checked) == sorted(
        [
            ("amount", OUTCOMES, str(world.last.accepted)),
            ("amount", OUTCOMES, str(world.refused[1])),
            ("missing", OUTCOMES, str(refused[0])),
            ("duplicate", OUTCOMES, str(again)),
            ("orphan", OUTCOMES, str(forged)),
        ]
    )
    details = {row["detail"] for row in rows_of(checked)}
    assert "currency EUR, not CZK" in details
    seen = intake.check_undecodable(night(spark, world))
    assert found(seen) == [("undecodable", "undecodable", str(unread))]
    assert seen.figures == {"undecodable": 1}


@full
def test_deduplicated_records_that_are_not_repeats(spark: SparkSession) -> None:
    world = Clean()
    payment = decode_instruction(world.at(world.paid.raw).value or b"")
    assert isinstance(payment, Payment)
    sound = world.repeat(world.paid.raw)[1]
    later = world.repeat(world.paid.raw)
    world.change(later[1], b'{"payment_id":"p2","debtor":"alice","first":"%b"}' % later[0].encode())
    never = world.repeat(world.paid.raw)[1]
    world.change(never, b'{"payment_id":"p2","debtor":"alice","first":"%b"}' % world.repeated[0].encode())
    other = world.repeat(world.paid.raw)[1]
    world.change(other, b'{"payment_id":"p2","debtor":"alice","first":"%b"}' % world.first.raw.encode())
    content = world.repeat(world.paid.raw)
    world.change(content[0], encode_instruction(msgspec.structs.replace(payment, amount_minor=9)))
    foreign = world.repeat(world.paid.raw)[1]
    world.change(foreign, b'{"payment_id":"p2","debtor":"alice","first":"ledger.transfers:0:1"}')
    checked = intake.check_ingest(night(spark, world))
    orphans = [("orphan", REPEATS, str(where)) for where in (later[1], never, foreign)]
    amounts = [("amount", REPEATS, str(where)) for where in (other, content[1])]
    assert found(checked) == sorted([*orphans, *amounts])
    assert checked.figures["deduplicated"] == 7
    assert sound.offset < later[1].offset


@full
@pytest.mark.parametrize("amount_minor", [10, 11])
@pytest.mark.parametrize("as_repeat", [True, False])
def test_only_a_repaired_outcome_may_follow_from_a_later_payment(
    spark: SparkSession, amount_minor: int, as_repeat: bool
) -> None:
    """A payment was lost, then sent again and accepted. Its repair finds the identity taken."""
    world = Clean()
    payment = Payment("sent-again", ALICE, BOB, amount_minor, "CZK", SCHEMA_VERSION, value_date=DATE)
    lost = world.raw(encode_instruction(payment), HOME)
    again = world.pay("sent-again", ALICE, BOB, 10)
    if as_repeat:
        repeat = encode_repeat(Repeat("sent-again", ALICE, str(again.raw)))
        outcome = world.outcome(PAYMENTS_DEDUPLICATED, lost, repeat)
    else:
        outcome = world.dead_letter(lost, "identity_conflict")

    def wheres() -> list[str]:
        now = night(spark, world)
        return [where for check in (intake.check_ingest, decisions.check) for *_, where in found(check(now))]

    assert wheres() == [str(outcome)]
    world.add_header(outcome, REPAIR, "repair-1:0")
    # The content decides which of the two is right
    assert wheres() == ([] if as_repeat is (amount_minor == 10) else [str(outcome)])


@full
def test_a_repeat_of_a_payment_of_an_earlier_cut(spark: SparkSession) -> None:
    world = Clean()
    first = manifest(world)
    sound, wrong = world.repeat(world.paid.raw)[1], world.repeat(world.paid.raw)[1]
    world.change(wrong, b'{"payment_id":"p2","debtor":"alice","first":"%b"}' % world.repeated[0].encode())
    checked = intake.check_ingest(night(spark, world, manifest(world, previous=first)))
    assert found(checked) == [("orphan", REPEATS, str(wrong))]
    assert checked.figures["records_in"] == 2
    assert sound.partition == HOME


@full
def test_a_repeat_waits_while_its_first_may_be_above_the_cut(spark: SparkSession) -> None:
    world = Clean()
    before = ends(world)
    paid = world.pay("p9", ALICE, BOB, 10)
    world.repeat(paid.raw)
    accepted = (catalogue.PAYMENTS_ACCEPTED, HOME)
    high = ends(world)[accepted]
    cut = manifest(world, stops={accepted: before[accepted]}, highs={accepted: high}, settled=False)
    checked = intake.check_ingest(night(spark, world, cut))
    assert found(checked) == []
    assert checked.in_flight == {"ingest": 1, "ingest_ahead": 0, "repeats": 1}
    left = {"ingest_parents_payments_raw", "ingest_marks", "ingest_repeats"}
    assert set(checked.carry) == {*left, ownership.CARRIED}
    later = intake.check_ingest(night(spark, world, manifest(world, previous=cut), kept(checked.carry)))
    assert found(later) == []
    assert not any(later.in_flight.values())
    assert set(later.carry) == {ownership.CARRIED}


@full
def test_the_time_of_receipt_is_that_of_the_raw_record(spark: SparkSession) -> None:
    world = Clean()
    raw = world.at(world.paid.raw)
    world.change(
        world.paid.accepted, encode_accepted(decode_instruction(raw.value or b""), raw.timestamp_ms + 1, OPERATOR)
    )
    assert found(intake.check_ingest(night(spark, world))) == [("amount", OUTCOMES, str(world.paid.accepted))]


@full
def test_a_repeat_does_not_wait_for_ever(spark: SparkSession) -> None:
    world = Clean()
    before = ends(world)
    paid = world.pay("p9", ALICE, BOB, 10)
    repeat = world.repeat(paid.raw)[1]
    accepted = (catalogue.PAYMENTS_ACCEPTED, HOME)
    world.remove(paid.accepted)
    cut = manifest(world, stops={accepted: before[accepted]}, highs={accepted: ends(world)[accepted]}, settled=False)
    late = intake.check_ingest(replace(night(spark, world, cut), late_cut=cut))
    both = [("missing", OUTCOMES, str(paid.raw)), ("orphan", REPEATS, str(repeat))]
    assert found(late) == both
    # A later cut that cannot see the end of the topic hides nothing that was judged
    tail = {accepted: ends(world)[accepted] + 5}
    again = manifest(world, highs=tail, settled=False, previous=cut)
    assert found(intake.check_ingest(night(spark, world, again, kept(late.carry)))) == both
