"""Errors in single fields of what the ledger wrote: entries, sums and links are right."""

import msgspec

from shared.events import catalogue
from shared.events.headers import Coordinates
from shared.events.postings import decode_ledger_event, encode_ledger_event
from shared.events.transfers import AccountOpened, decode_transfer, encode_transfer
from tests.planted import AWAY, HOME, Clean
from tests.planted_decisions import decline_reversal
from tests.planted_owners import ACME, submitted
from tests.world import Trail, end


def change_posted(world: Clean, at: Coordinates, **changes: object) -> None:
    """Alter a posting or decline."""
    event = decode_ledger_event(world.at(at).value or b"")
    world.change(at, encode_ledger_event(msgspec.structs.replace(event, **changes)))


def change_ordered(world: Clean, at: Coordinates, **changes: object) -> None:
    """Alter a record of ledger.transfers."""
    event = decode_transfer(world.at(at).value or b"")
    world.change(at, encode_transfer(msgspec.structs.replace(event, **changes)))


def change_legs(world: Clean, trail: Trail, **changes: object) -> None:
    """Alter all that the ledger wrote of a payment."""
    change_posted(world, trail.debit, **changes)
    change_ordered(world, trail.leg, **changes)
    change_posted(world, trail.credit, **changes)


def reversal_of_another_payment(world: Clean) -> None:
    """The order names p2, the posting takes p3 back. A later order, which was declined, names p3 as well."""
    for at in (world.reversed.raw, world.reversed.accepted, world.reversed.transfer):
        value = world.at(at).value or b""
        world.change(at, value.replace(b'"reverses":"p3"', b'"reverses":"p2"'))
    decline_reversal(world, "p3", "already_reversed")


def reversal_under_another_name(world: Clean) -> None:
    change_legs(world, world.reversed, payment_id="r9")


def reversal_of_another_day(world: Clean) -> None:
    change_legs(world, world.reversed, value_date="2030-01-01")


def reversal_with_another_text(world: Clean) -> None:
    change_posted(world, world.reversed.debit, reference="altered")


def reversal_with_a_price(world: Clean) -> None:
    change_posted(world, world.reversed.debit, fee_minor=30, rate="0.04")


def reversal_at_the_cost_of_another_creditor(world: Clean) -> None:
    """The debtor gets back the right amount, from an account that never received it."""
    paid = world.alice, "p2"
    world.debits[paid] = msgspec.structs.replace(world.debits[paid], creditor=f"cash@{AWAY}")
    world.reverse("r2", *paid)


def fee_stated_wrongly(world: Clean) -> None:
    """The entries charge the right fee."""
    change_posted(world, world.paid.debit, fee_minor=29)


def debit_that_reverses(world: Clean) -> None:
    change_posted(world, world.paid.debit, reverses="p1")


def credit_with_a_fee(world: Clean) -> None:
    change_posted(world, world.paid.credit, fee_minor=30)


def credit_with_a_rate(world: Clean) -> None:
    change_posted(world, world.paid.credit, rate="0.04")


def credit_with_a_text(world: Clean) -> None:
    change_posted(world, world.paid.credit, reference="altered")


def credit_that_reverses(world: Clean) -> None:
    change_posted(world, world.paid.credit, reverses="p1")


def decline_of_another_day(world: Clean) -> None:
    change_posted(world, world.declined.debit, value_date="2030-01-01")


def payment_declined_as_a_reversal(world: Clean) -> None:
    change_posted(world, world.declined.debit, reversal=True)


def reversal_declined_as_a_payment(world: Clean) -> None:
    decline_reversal(world, "p3", "already_reversed")
    change_posted(world, end(world, catalogue.LEDGER_POSTINGS, HOME), reversal=False)


def opening_declined_on_another_day(world: Clean) -> None:
    with submitted(world, ACME):
        _, at = world.decline_opening("o1", world.alice, "not_authorised")
    change_posted(world, at, value_date="2030-01-01")


def command_declined_on_a_day(world: Clean) -> None:
    _, at = world.decline_command(AccountOpened(world.alice, 5, expected_version=9))
    change_posted(world, at, value_date="2030-01-01")
