"""Errors in the links between records: unreadable records, wrong partitions, sources and origins."""

import msgspec

from shared.events import catalogue
from shared.events.headers import Coordinates
from shared.events.payments import Repeat, encode_repeat
from shared.events.postings import Account, Entry, encode_account, encode_ledger_event
from shared.events.transfers import Transfer, decode_transfer, encode_transfer
from tests.planted import ALICE, AWAY, ELSEWHERE, HOME, Clean, posting_at, with_entries

FAR_OFFSET = 10**15


def move(world: Clean, where: Coordinates, partition: int) -> None:
    """Move a record to another partition, at a new offset."""
    record = world.remove(where)
    again = world.append(where.topic, partition, record.value, record.key)
    world.logs[where.topic, partition][-1] = record._replace(partition=partition, offset=again.offset)


def unknown_changelog_key(world: Clean) -> None:
    world.append(catalogue.LEDGER_BALANCES, HOME, b"{}", key=b"other/1")


def unreadable_next_offset(world: Clean) -> None:
    world.append(catalogue.LEDGER_BALANCES, HOME, b"12", key=b"next_offset")


def unreadable_account(world: Clean) -> None:
    world.append(catalogue.LEDGER_BALANCES, AWAY, b"[]", key=b"account/bob")


def unreadable_expected_balance(world: Clean) -> None:
    world.append(catalogue.REFERENCE_BALANCES, AWAY, b"{}", key=b"bob")


def unreadable_accepted(world: Clean) -> None:
    world.change(world.paid.accepted, b"\xff")


def unreadable_repeat(world: Clean) -> None:
    world.change(world.repeated[1], b"{}")


def unreadable_transfer(world: Clean) -> None:
    world.change(world.paid.transfer, b"{}")


def unknown_leg(world: Clean) -> None:
    event = posting_at(world, world.paid.debit)
    world.change(world.paid.debit, encode_ledger_event(msgspec.structs.replace(event, leg="both")))


def state_of_no_partition(world: Clean) -> None:
    world.append(catalogue.LEDGER_BALANCES, HOME, encode_account(Account()), key=b"account/cash@9")


def state_on_another_partition(world: Clean) -> None:
    world.log_account("bob", HOME)


def state_on_a_partition_that_is_read_first(world: Clean) -> None:
    """The right state follows, with the same account as its key."""
    world.log_account(ALICE, ELSEWHERE)
    topic = catalogue.LEDGER_BALANCES
    world.logs[topic, HOME] = world.logs.pop((topic, HOME))


def entry_of_no_partition(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    world.change(world.paid.credit, with_entries(event, event.entries[0], Entry("cash@9", "CZK", 2500)))


def dead_letter_elsewhere(world: Clean) -> None:
    move(world, world.refused[1], 3)


def accepted_elsewhere(world: Clean) -> None:
    move(world, world.paid.accepted, ELSEWHERE)


def transfer_elsewhere(world: Clean) -> None:
    move(world, world.paid.transfer, ELSEWHERE)


def outcome_of_two(world: Clean) -> None:
    world.change(world.paid.accepted, source=world.first.raw)


def account_event_of_a_payment(world: Clean) -> None:
    world.change(world.opened[1], origin=world.first.raw)


def transfer_of_another_origin(world: Clean) -> None:
    world.change(world.paid.transfer, origin=world.first.raw)


def transfer_of_an_impossible_origin(world: Clean) -> None:
    world.change(world.paid.transfer, origin=world.paid.raw._replace(offset=2**64))


def posting_of_an_endless_origin(world: Clean) -> None:
    record = world.remove(world.paid.debit)
    headers = {**dict(record.headers), "origin": b"payments.raw:0:" + b"9" * 5000}
    world.logs[record.topic, record.partition].append(record._replace(headers=tuple(headers.items())))


def leg_of_another_origin(world: Clean) -> None:
    world.change(world.paid.leg, origin=world.first.raw)


def leg_of_no_transfer(world: Clean) -> None:
    world.change(world.paid.leg, source=world.paid.raw)


def leg_of_a_far_offset(world: Clean) -> None:
    world.change(world.paid.leg, source=world.paid.transfer._replace(offset=FAR_OFFSET))


def transfer_of_a_far_offset(world: Clean) -> None:
    world.change(world.paid.transfer, source=world.paid.accepted._replace(offset=FAR_OFFSET))


def posting_of_a_far_offset(world: Clean) -> None:
    world.change(world.paid.debit, source=world.paid.transfer._replace(offset=FAR_OFFSET))


def outcome_of_a_far_offset(world: Clean) -> None:
    far = world.refused[0]._replace(offset=FAR_OFFSET)
    world.change(world.refused[1], origin=far, source=far)


def decline_of_a_leg(world: Clean) -> None:
    world.change(world.declined.debit, source=world.paid.leg)


def debit_of_a_leg(world: Clean) -> None:
    other = world.pay("p7", f"cash@{AWAY}", ALICE, 10)
    world.change(world.last.debit, source=other.leg)


def credit_of_a_transfer(world: Clean) -> None:
    world.change(world.paid.credit, source=world.declined.transfer)


def debit_of_a_declined_transfer(world: Clean) -> None:
    transfer = decode_transfer(world.at(world.paid.transfer).value or b"")
    assert isinstance(transfer, Transfer)
    world.change(world.paid.transfer, encode_transfer(msgspec.structs.replace(transfer, decline="no_rate")))


def repeat_of_a_later_record(world: Clean) -> None:
    """ingest dropped the first of two, and accepted the second."""
    first, second = world.paid.raw, world.repeated[0]
    world.change(world.paid.accepted, origin=second, source=second)
    for at in (world.paid.transfer, world.paid.debit, world.paid.leg, world.paid.credit):
        world.change(at, origin=second)
    repeat = encode_repeat(Repeat("p2", ALICE, str(second)))
    world.change(world.repeated[1], repeat, origin=first, source=first)
