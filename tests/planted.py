"""A consistent system with payments of every kind, and one function for each error that tests plant in it."""

from itertools import count

import msgspec

from shared.events import catalogue
from shared.events.clients import OPERATOR, SubmittedBy
from shared.events.effects import EffectState
from shared.events.headers import Coordinates
from shared.events.payments import DAY_MS, Payment, encode_accepted, encode_instruction
from shared.events.postings import Entry, Posting, decode_ledger_event, encode_ledger_event
from shared.events.transfers import AccountClosed, AccountOpened, decode_transfer, encode_transfer
from tests.partitions import PARTITIONS, partition_for
from tests.payments import decode_instruction
from tests.world import World
from tests.world_effects import Effects

ALICE, BOB = "alice", "bob"
HOME = partition_for(ALICE)
AWAY = partition_for(BOB)
ELSEWHERE = (HOME + 1) % PARTITIONS


SCENE_MS = 600_000
WEBHOOK, MAIL, FILE = "https://example.org/hook", "mailto:bob@example.org", "file:receipts"


class Clean(Effects):
    """Payments of every kind with effects of every outcome, and the trails that the tests plant errors on.

    Attributes:
        alice, bob, carol: the clients of those payments.
    """

    def __init__(
        self, partitions: int = PARTITIONS, raw_from: int | None = 0, by: SubmittedBy | None = OPERATOR
    ) -> None:
        super().__init__(partitions, raw_from, by)
        self.hole = 0  # where a test plants one, in payments.raw on HOME
        self._scene = ""
        self.alice, self.bob, self.carol = ALICE, BOB, "carol"
        self._play()

    def begin_scene(self, number: int) -> None:
        """Make the same payments again between other clients, on the same partitions, with trails of their own.

        No reference data of earlier scenes is in force, or may still be used.
        """
        for topic, key in list(self._reference):
            self.refer(topic, key, None)
        every_account = [record for record in self.logs[catalogue.REFERENCE_SUBSCRIPTIONS, 0] if record.key == b"*"]
        if every_account and every_account[-1].value is not None:
            self.append(catalogue.REFERENCE_SUBSCRIPTIONS, 0, None, b"*")
        self.now_ms += SCENE_MS
        self._scene = f"-{number}"
        self.alice, self.bob, self.carol = (self.client(name, self.home(name)) for name in (ALICE, BOB, "carol"))
        self._play()

    def named(self, payment_id: str) -> str:
        """Return the payment_id that a payment has in this scene."""
        return payment_id + self._scene

    def client(self, name: str, partition: int) -> str:
        """Return an account of this scene that lives on a partition."""
        tried = (f"{name}{self._scene}-{number}" for number in count())
        return next(account for account in tried if self.home(account) == partition)

    def _play(self) -> None:
        alice, bob, carol, named = self.alice, self.bob, self.carol, self.named
        self.opened = self.account_event(AccountOpened(alice, None))
        self.account_event(AccountOpened(carol, 1000))
        self.account_event(AccountClosed(carol))
        self.first = self.pay(named("p1"), alice, bob, 1000)
        self.paid = self.pay(named("p2"), alice, bob, 2500, fee_minor=30)
        self.converted = self.pay(named("p3"), alice, bob, 2500, fee_minor=30, converted=(100, "EUR", "0.04"))
        self.parked = self.pay(named("p4"), f"cash@{self.home(bob)}", carol, 700, to_suspense=True)
        self.declined = self.decline(named("p5"), bob, alice)
        self.reversed = self.reverse(named("r1"), alice, named("p3"))
        self.repeated = self.repeat(self.paid.raw)
        self.refused = self.refuse(b"\xff no payment")
        self.last = self.pay(named("p6"), alice, bob, 4000)
        self.expect(bob, 1000 + 2500 + 4000)
        self._notify_clients()

    def _notify_clients(self) -> None:
        self.receipt = self.notify(self.paid.debit, "receipt", FILE)
        self.notice = self.notify(self.paid.credit, "notice", MAIL)
        self.undone = self.notify(self.reversed.debit, "event", WEBHOOK)
        self.doubtful = self.notify(self.declined.debit, "decline_notice", MAIL, EffectState.IN_DOUBT)
        self.failed = self.notify(self.first.credit, "notice", WEBHOOK, EffectState.FAILED, reason="refused")
        self.parked_event = self.notify(self.parked.credit, "event", WEBHOOK)
        self.given_up = self.notify(
            self.first.debit, "receipt", FILE, EffectState.FAILED, reason="abandoned", revision=2
        )
        self.log.append(self.given_up.effect_id)  # in doubt when it was given up
        self.last_receipt = self.notify(self.last.debit, "receipt", FILE)


def posting_at(world: World, where: Coordinates) -> Posting:
    event = decode_ledger_event(world.at(where).value or b"")
    assert isinstance(event, Posting)
    return event


def with_entries(posting: Posting, *entries: Entry) -> bytes:
    return encode_ledger_event(msgspec.structs.replace(posting, entries=entries))


def lost(world: Clean) -> None:
    world.remove(world.last.debit)
    world.remove(world.last.credit)


def debit_missing_changes_sums(world: Clean) -> None:
    world.remove(world.last.debit)


def two_debits(world: Clean) -> None:
    world.copy(world.paid.debit)


def two_credits(world: Clean) -> None:
    world.copy(world.paid.credit)


def two_declines(world: Clean) -> None:
    world.copy(world.declined.debit)


def debit_after_decline(world: Clean) -> None:
    event = posting_at(world, world.first.debit)
    debit = msgspec.structs.replace(event, payment_id="p5", debtor=BOB)
    declined = world.declined
    world.append(
        catalogue.LEDGER_POSTINGS, AWAY, encode_ledger_event(debit), origin=declined.raw, source=declined.transfer
    )


def altered_amount(world: Clean) -> None:
    event = posting_at(world, world.paid.debit)
    rest = event.entries[2:]
    entries = (Entry(ALICE, "CZK", -2529), Entry(f"in-transit@{HOME}", "CZK", 2499), *rest)
    world.change(world.paid.debit, with_entries(event, *entries))


def altered_credit(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    world.change(
        world.paid.credit, with_entries(event, Entry(f"in-transit@{AWAY}", "CZK", -2499), Entry(BOB, "CZK", 2499))
    )


def credited_to_another(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    world.change(world.paid.credit, with_entries(event, event.entries[0], Entry(f"other@{AWAY}", "CZK", 2500)))


def altered_leg(world: Clean) -> None:
    leg = decode_transfer(world.at(world.paid.leg).value or b"")
    world.change(world.paid.leg, encode_transfer(msgspec.structs.replace(leg, amount_minor=2499)))


def altered_transfer(world: Clean) -> None:
    transfer = decode_transfer(world.at(world.paid.transfer).value or b"")
    world.change(world.paid.transfer, encode_transfer(msgspec.structs.replace(transfer, amount_minor=2501)))


def altered_date(world: Clean) -> None:
    transfer = decode_transfer(world.at(world.paid.transfer).value or b"")
    world.change(world.paid.transfer, encode_transfer(msgspec.structs.replace(transfer, value_date="2026-01-06")))


def altered_on_acceptance(world: Clean) -> None:
    payment = decode_instruction(world.at(world.paid.raw).value or b"")
    assert isinstance(payment, Payment)
    altered = msgspec.structs.replace(payment, amount_minor=2501)
    world.change(world.paid.accepted, encode_accepted(altered, -1, OPERATOR))


def altered_day_of_receipt(world: Clean) -> None:
    """A day later than the raw record's."""
    raw = world.at(world.paid.raw)
    world.change(
        world.paid.accepted, encode_accepted(decode_instruction(raw.value or b""), raw.timestamp_ms + DAY_MS, OPERATOR)
    )


def altered_dead_letter(world: Clean) -> None:
    world.change(world.refused[1], b"\xff other bytes")


def decline_of_another(world: Clean) -> None:
    event = decode_ledger_event(world.at(world.declined.debit).value or b"")
    world.change(world.declined.debit, encode_ledger_event(msgspec.structs.replace(event, payment_id="p9")))


def orphan(world: Clean) -> None:
    world.change(world.copy(world.paid.debit), origin=world.repeated[0])


def orphan_credit(world: Clean) -> None:
    world.change(world.copy(world.paid.credit), origin=world.declined.raw)


def leg_missing(world: Clean) -> None:
    world.remove(world.paid.leg)


def leg_twice(world: Clean) -> None:
    world.copy(world.paid.leg)


def leg_without_debit(world: Clean) -> None:
    world.change(world.copy(world.paid.leg), source=world.declined.transfer, origin=world.declined.raw)


def changelog_behind(world: Clean) -> None:
    world.log_next_offset(HOME, world.last.transfer.offset)


def changelog_without_account(world: Clean) -> None:
    log = world.logs[catalogue.LEDGER_BALANCES, HOME]
    log[:] = [record for record in log if record.key != b"account/alice"]


def unbalanced(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    world.change(world.paid.credit, with_entries(event, event.entries[0], Entry(BOB, "CZK", 2501)))


def unbalanced_by_currency(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    world.change(world.paid.credit, with_entries(event, event.entries[0], Entry(BOB, "EUR", 2500)))


def foreign_account(world: Clean) -> None:
    event = posting_at(world, world.paid.credit)
    entries = (Entry(f"in-transit@{HOME}", "CZK", -2500), event.entries[1])
    world.change(world.paid.credit, with_entries(event, *entries))


def posted_elsewhere(world: Clean) -> None:
    record = world.remove(world.last.debit)
    world.logs[catalogue.LEDGER_POSTINGS, ELSEWHERE].append(record._replace(partition=ELSEWHERE, offset=9000))


def in_two_outcomes(world: Clean) -> None:
    raw = world.paid.raw
    world.outcome(catalogue.PAYMENTS_DEAD_LETTER, raw, world.at(raw).value or b"")


def in_no_outcome(world: Clean) -> None:
    world.remove(world.refused[1])


def raw_aborted(world: Clean) -> None:
    world.remove(world.paid.raw)


def accepted_aborted(world: Clean) -> None:
    world.remove(world.paid.accepted)


def transfer_aborted(world: Clean) -> None:
    world.remove(world.paid.transfer)


def leg_source_aborted(world: Clean) -> None:
    world.change(world.paid.leg, source=world.paid.transfer._replace(offset=world.paid.transfer.offset + 1))


def transfer_twice(world: Clean) -> None:
    world.copy(world.paid.transfer)


def wrong_origin(world: Clean) -> None:
    world.change(world.paid.debit, origin=world.first.raw)


def dedup_without_first(world: Clean) -> None:
    world.change(world.repeated[1], b'{"payment_id":"p2","debtor":"alice","first":"payments.raw:0:900"}')


def dedup_of_another(world: Clean) -> None:
    value = b'{"payment_id":"p2","debtor":"alice","first":"%b"}' % world.first.raw.encode()
    world.change(world.repeated[1], value)


def dedup_of_other_content(world: Clean) -> None:
    payment = decode_instruction(world.at(world.repeated[0]).value or b"")
    assert isinstance(payment, Payment)
    world.change(world.repeated[0], encode_instruction(msgspec.structs.replace(payment, amount_minor=9)))


def accepted_twice(world: Clean) -> None:
    world.pay("p2", ALICE, BOB, 1)


def skipped_by_ingest(world: Clean) -> None:
    world.raw(b"never taken", 0)


def ahead_of_ingest(world: Clean) -> None:
    world.committed["ingest"][HOME] = world.last.raw.offset


def ahead_of_transform(world: Clean) -> None:
    world.committed["transform"][HOME] = world.last.accepted.offset


def ahead_of_ledger(world: Clean) -> None:
    world.committed["ledger"][HOME] = world.last.transfer.offset


def skipped_by_transform(world: Clean) -> None:
    world.remove(world.last.transfer)


def skipped_by_ledger(world: Clean) -> None:
    world.remove(world.last.credit)


def reversed_twice(world: Clean) -> None:
    world.reverse("r2", ALICE, "p3")


def reversed_in_part(world: Clean) -> None:
    event = posting_at(world, world.reversed.debit)
    fee, rest = event.entries[2], event.entries[3:]
    assert fee.account == f"fees@{HOME}"
    entries = (Entry(ALICE, "CZK", 2500), event.entries[1], *rest)
    world.change(world.reversed.debit, with_entries(event, *entries))


def account_event_lost(world: Clean) -> None:
    world.remove(world.opened[1])


def account_event_twice(world: Clean) -> None:
    world.copy(world.opened[1])


def account_event_altered(world: Clean) -> None:
    world.change(world.opened[1], encode_ledger_event(AccountOpened(ALICE, 5)))


def undecodable(world: Clean) -> None:
    world.change(world.paid.debit, b"{}")
