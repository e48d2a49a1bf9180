"""Wrong decisions: records that agree with each other, and not with what the services had to decide."""

from collections.abc import Callable

import msgspec

from shared.events import catalogue
from shared.events.clients import OPERATOR
from shared.events.effects import Subscription, Subscriptions, encode_request, encode_subscriptions
from shared.events.headers import SOURCE, Coordinates, header
from shared.events.payments import SCHEMA_VERSION, Payment, Reversal, encode_accepted, encode_instruction
from shared.events.postings import Account, Decline, encode_account, encode_ledger_event
from shared.events.reference import Fee, Rate, encode_reference
from shared.events.transfers import (
    AccountClosed,
    AccountOpened,
    PricedBy,
    Transfer,
    TransferReversal,
    decode_transfer,
    encode_transfer,
)
from tests.planted import AWAY, FILE, HOME, MAIL, Clean, posting_at
from tests.world import DATE, Trail, World, by_none, last_state

FEES, RATES, SUBSCRIPTIONS = catalogue.REFERENCE_FEES, catalogue.REFERENCE_RATES, catalogue.REFERENCE_SUBSCRIPTIONS
LATER_MS = 61_000


def change_reference(world: World, topic: str, key: str, value: Fee | Rate) -> None:
    """Change the fee or rate in force where it is, so that what was priced by it is wrong."""
    _, at = world._reference[topic, key]
    partition, _, offset = (at or "").partition(":")
    world.change(Coordinates(topic, int(partition), int(offset)), encode_reference(value))


def change_transfer(world: World, trail: Trail, **changes: object) -> None:
    transfer = decode_transfer(world.at(trail.transfer).value or b"")
    world.change(trail.transfer, encode_transfer(msgspec.structs.replace(transfer, **changes)))


def decoded_fee(world: World, trail: Trail) -> int:
    """The offset of the fee that a transfer names."""
    transfer = decode_transfer(world.at(trail.transfer).value or b"")
    assert isinstance(transfer, Transfer)
    assert transfer.priced_by is not None
    return int((transfer.priced_by.fee or "").partition(":")[2])


def fee_too_high(world: Clean) -> None:
    world.pay(world.named("w"), world.alice, world.bob, 1000, fee_minor=5000)
    change_reference(world, FEES, "CZK", Fee(fixed_minor=30))


def fee_not_charged(world: Clean) -> None:
    trail = world.pay(world.named("w"), world.alice, world.bob, 1000)
    at = world.refer(FEES, "CZK", Fee(fixed_minor=30))
    change_transfer(world, trail, priced_by=PricedBy(at, None))


def share_rounded_up(world: Clean) -> None:
    world.pay(world.named("w"), world.alice, world.bob, 250, fee_minor=1)
    change_reference(world, FEES, "CZK", Fee(basis_points=20))  # 0.5, and the even number is 0


def fee_beyond_its_bound(world: Clean) -> None:
    world.pay(world.named("w"), world.alice, world.bob, 250, fee_minor=10)
    change_reference(world, FEES, "CZK", Fee(fixed_minor=10, max_minor=9))


def fee_of_the_house(world: Clean) -> None:
    cash = f"cash@{HOME}"
    world.refer(FEES, "CZK", Fee(fixed_minor=30))
    world.pay(world.named("w"), cash, world.bob, 1000, fee_minor=30)


def rate_of_another_record(world: Clean) -> None:
    world.pay(world.named("w"), world.alice, world.bob, 2500, converted=(100, "EUR", "0.04"))
    change_reference(world, RATES, "CZK/EUR", Rate("0.05"))


def conversion_rounded_up(world: Clean) -> None:
    world.pay(world.named("w"), world.alice, world.bob, 2501, converted=(101, "EUR", "0.04"))


def declined_with_a_rate(world: Clean) -> None:
    trail = world.decline(world.named("w"), world.alice, world.bob, no_rate=True)
    at = world.refer(RATES, "CZK/USD", Rate("0.05"))
    transfer = decode_transfer(world.at(trail.transfer).value or b"")
    assert isinstance(transfer, Transfer)
    assert transfer.priced_by is not None
    change_transfer(world, trail, priced_by=PricedBy(transfer.priced_by.fee, at))


def _pay_unsubscribed(world: Clean, *, fee_minor: int = 0) -> Trail:
    """Pay between accounts that nobody has subscribed to: a posting names no subscription."""
    debtor = world.client("dave", HOME)
    world.account_event(AccountOpened(debtor, None))
    return world.pay(world.named("w"), debtor, f"cash@{AWAY}", 1000, fee_minor=fee_minor)


def priced_by_a_superseded_fee(world: Clean) -> None:
    at = world.refer(FEES, "CZK", Fee(fixed_minor=30))
    world.refer(FEES, "CZK", Fee(fixed_minor=31))
    world.now_ms += LATER_MS
    trail = _pay_unsubscribed(world, fee_minor=30)
    change_transfer(world, trail, priced_by=PricedBy(at, None))


def priced_by_a_later_fee(world: Clean) -> None:
    world.now_ms += LATER_MS
    at = world.refer(FEES, "CZK", Fee(fixed_minor=30))
    world.now_ms -= LATER_MS
    trail = world.pay(world.named("w"), world.alice, world.bob, 1000, fee_minor=30)
    change_transfer(world, trail, priced_by=PricedBy(at, None))


def priced_by_no_record(world: Clean) -> None:
    trail = world.pay(world.named("w"), world.alice, world.bob, 1000, fee_minor=30)
    change_transfer(world, trail, priced_by=PricedBy("0:9999", None))


def priced_by_the_record_of_another_currency(world: Clean) -> None:
    trail = world.pay(world.named("w"), world.alice, world.bob, 1000, fee_minor=30)
    change_transfer(world, trail, priced_by=PricedBy(world.refer(FEES, "EUR", Fee(fixed_minor=30)), None))


def priced_by_nothing_though_a_fee_was_in_force(world: Clean) -> None:
    world.refer(FEES, "CZK", Fee(fixed_minor=30))
    world.now_ms += LATER_MS
    trail = _pay_unsubscribed(world)
    change_transfer(world, trail, priced_by=PricedBy(None, None))
    world.remove(Coordinates(FEES, 0, world.logs[FEES, 0][-1].offset))  # the record that deletes it


def a_rate_without_a_conversion(world: Clean) -> None:
    trail = world.pay(world.named("w"), world.alice, world.bob, 1000)
    change_transfer(world, trail, priced_by=PricedBy(None, world.refer(RATES, "CZK/EUR", Rate("0.04"))))


def fee_of_no_version_that_may_have_been_used(world: Clean) -> None:
    trail = world.pay(world.named("w"), world.alice, world.bob, 1000, fee_minor=29)
    change_reference(world, FEES, "CZK", Fee(fixed_minor=30))
    change_transfer(world, trail, priced_by=None)


def declined_without_a_limit(world: Clean) -> None:
    world.decline(world.named("w"), world.alice, world.bob)


def declined_with_cover(world: Clean) -> None:
    trail = world.decline(world.named("w"), world.bob, world.alice)
    payment = Payment(world.named("w"), world.bob, world.alice, 7500, "CZK", SCHEMA_VERSION)
    world.change(trail.raw, encode_instruction(payment))
    world.change(trail.accepted, encode_accepted(payment, -1, OPERATOR))
    change_transfer(world, trail, amount_minor=7500, credit_minor=7500)


def _declined(payment_id: str, debtor: str, reason: str) -> Decline:
    return Decline(payment_id, debtor, reason, DATE, notified_by=by_none(debtor), submitted_by=OPERATOR)


def declined_as_closed(world: Clean) -> None:
    trail = world.decline(world.named("w"), world.bob, world.alice)
    world.change(
        trail.debit,
        encode_ledger_event(_declined(world.named("w"), world.bob, "debtor_closed")),
    )


def house_declined_as_closed(world: Clean) -> None:
    world.decline(world.named("w"), f"cash@{HOME}", world.bob, because="debtor_closed")


def declined_for_funds_though_closed(world: Clean) -> None:
    world.account_event(AccountOpened(world.bob, 5))
    world.account_event(AccountClosed(world.bob))
    world.decline(world.named("w"), world.bob, world.alice)


def declined_for_another_reason_than_its_transfer(world: Clean) -> None:
    trail = world.decline(world.named("w"), world.alice, world.bob, no_rate=True)
    world.change(
        trail.debit,
        encode_ledger_event(_declined(world.named("w"), world.alice, "amount_vanishes")),
    )


def booked_beyond_the_limit(world: Clean) -> None:
    world.pay(world.named("w"), world.bob, world.alice, 1_000_000 + 7500)


def booked_one_beyond_the_limit(world: Clean) -> None:
    world.account_event(AccountOpened(world.bob, 10))
    world.pay(world.named("w"), world.bob, world.alice, 7500 + 11)


def booked_though_closed(world: Clean) -> None:
    world.account_event(AccountClosed(world.alice))
    world.pay(world.named("w"), world.alice, world.bob, 1)


def credited_though_closed(world: Clean) -> None:
    world.pay(world.named("w"), world.alice, world.carol, 100)


def credited_to_suspense_though_open(world: Clean) -> None:
    world.pay(world.named("w"), world.alice, world.bob, 100, to_suspense=True)


def house_credited_to_suspense(world: Clean) -> None:
    world.pay(world.named("w"), world.alice, f"clearing@{AWAY}", 100, to_suspense=True)


def reversed_to_suspense_though_open(world: Clean) -> None:
    world.reverse(world.named("w"), world.alice, world.named("p2"), to_suspense=True)


def house_reversed_to_suspense(world: Clean) -> None:
    cash = f"cash@{HOME}"
    world.pay(world.named("w"), cash, world.bob, 100)
    world.reverse(world.named("undo"), cash, world.named("w"), to_suspense=True)


def decline_reversal(world: Clean, reverses: str, reason: str) -> None:
    """Decline a reversal of one of alice's payments."""
    reversal = Reversal(world.named("w"), world.alice, reverses, SCHEMA_VERSION, DATE)
    raw, accepted = world._accept(reversal)
    ordered = world._transfer(
        encode_transfer(TransferReversal(world.named("w"), world.alice, reverses, DATE, submitted_by=OPERATOR)),
        HOME,
        origin=raw,
        source=accepted,
    )
    event = msgspec.structs.replace(_declined(world.named("w"), world.alice, reason), reversal=True)
    world.append(catalogue.LEDGER_POSTINGS, HOME, encode_ledger_event(event), origin=raw, source=ordered)
    world.log_next_offset(HOME, ordered.offset + 1)


def original_found_and_not_reversed(world: Clean) -> None:
    decline_reversal(world, world.named("p2"), "original_not_found")


def original_not_reversed_before(world: Clean) -> None:
    decline_reversal(world, world.named("p2"), "already_reversed")


def original_reversed_and_not_found(world: Clean) -> None:
    decline_reversal(world, world.named("p3"), "original_not_found")


def original_unknown_and_reversed(world: Clean) -> None:
    decline_reversal(world, world.named("p99"), "already_reversed")


def account_event_without_a_change(world: Clean) -> None:
    world.account_event(AccountOpened(world.alice, None))


def account_event_lost_between_two(world: Clean) -> None:
    world.account_event(AccountOpened(world.bob, 5))
    world.opened = world.account_event(AccountOpened(world.bob, 6))
    world.account_event(AccountOpened(world.bob, 5))
    world.remove(world.opened[1])


def first_opening_lost(world: Clean) -> None:
    """On the terms of an account without any event. A payment gave the account a state afterwards."""
    account = world.client("plain", HOME)
    world.opened = opened = world.account_event(AccountOpened(account, 0))
    world.remove(opened[1])
    for topic, key in ((catalogue.LEDGER_BALANCES, f"account/{account}"), (catalogue.LEDGER_ACCOUNTS, account)):
        log = world.logs[topic, HOME]
        log[:] = [one for one in log if one.key != key.encode()]
    del world.terms[account]
    world.pay("plain", world.alice, account, 5)


def _close_in_the_changelog(world: Clean, account: str, overdraft_minor: int | None) -> None:
    state = Account(dict(world.balances[account]), overdraft_minor, closed=True)
    last = last_state(world, account)
    source = Coordinates.decode(header(world.at(last).headers, SOURCE) or b"")
    key = b"account/" + account.encode()
    world.append(catalogue.LEDGER_BALANCES, last.partition, encode_account(state), key, source=source)


def state_with_other_terms(world: Clean) -> None:
    _close_in_the_changelog(world, world.bob, 10**9)


def state_of_a_closed_house_account(world: Clean) -> None:
    _close_in_the_changelog(world, f"cash@{AWAY}", None)


def refuse_payment(world: Clean, reason: str, **changes: object) -> None:
    """Refuse a payment of alice, valid unless the changes say otherwise."""
    payment = msgspec.structs.replace(
        Payment(world.named("w"), world.alice, world.bob, 100, "CZK", SCHEMA_VERSION, None, DATE), **changes
    )
    world.dead_letter(world.raw(encode_instruction(payment), HOME), reason)


def refuse(reason: str, **changes: object) -> Callable[[Clean], None]:
    def plant(world: Clean) -> None:
        refuse_payment(world, reason, **changes)

    plant.__name__ = f"refused_for_{reason}"
    return plant


def refused_as_a_conflict_of_equal_content(world: Clean) -> None:
    world.dead_letter(world.raw(world.at(world.paid.raw).value or b"", HOME), "identity_conflict")


def refused_for_another_partition(world: Clean) -> None:
    payment = Payment(world.named("w"), world.bob, world.alice, 100, "CZK", SCHEMA_VERSION, None, DATE)
    world.dead_letter(world.raw(encode_instruction(payment), HOME), "field_invalid")


def accepted_without_a_known_currency(world: Clean) -> None:
    for at in (world.paid.raw, world.paid.accepted):
        payment = msgspec.json.decode(world.at(at).value or b"")
        world.change(at, msgspec.json.encode({**payment, "currency": "XYZ"}))


def hole_in_the_input(world: Clean) -> None:
    world._next[catalogue.PAYMENTS_RAW, HOME] += 1
    world.hole = world._next[catalogue.PAYMENTS_RAW, HOME] - 1
    world.pay(world.named("w"), world.alice, world.bob, 1)


def hole_at_the_end_of_the_input(world: Clean) -> None:
    world.hole = world._next[catalogue.PAYMENTS_RAW, HOME]
    world._next[catalogue.PAYMENTS_RAW, HOME] += 5


def input_expired(world: Clean) -> None:
    world.hole = 0
    for trail in (world.first, world.paid):
        world.remove(trail.raw)


def request_and_result_lost(world: Clean) -> None:
    world.remove(world.last_receipt.request)
    world.remove(world.last_receipt.result)
    world.log.remove(world.last_receipt.effect_id)


def request_without_a_subscription(world: Clean) -> None:
    named = posting_at(world, world.paid.debit).notified_by
    world.notify(world.paid.debit, "event", MAIL)
    posting = msgspec.structs.replace(posting_at(world, world.paid.debit), notified_by=named)
    world.change(world.paid.debit, encode_ledger_event(posting))


def request_in_another_order(world: Clean) -> None:
    effect = msgspec.structs.replace(world.receipt.effect, ordered=True)
    world.change(world.receipt.request, encode_request(effect))


def subscription_of_every_account_ignored(world: Clean) -> None:
    value = encode_subscriptions(Subscriptions((Subscription("receipt", FILE), Subscription("event", MAIL))))
    at = world.append(SUBSCRIPTIONS, 0, value, b"*")
    named = posting_at(world, world.paid.debit).notified_by
    assert named is not None
    posting = msgspec.structs.replace(
        posting_at(world, world.paid.debit),
        notified_by=msgspec.structs.replace(named, every_account=f"0:{at.offset}"),
    )
    world.change(world.paid.debit, encode_ledger_event(posting))


def notified_by_a_superseded_subscription(world: Clean) -> None:
    """The posting is a minute late for its own subscription."""
    for _ in range(2):
        world.append(SUBSCRIPTIONS, 0, encode_subscriptions(Subscriptions(())), world.alice.encode())
    record = world.at(world.paid.debit)
    log = world.logs[record.topic, record.partition]
    log[log.index(record)] = record._replace(timestamp_ms=record.timestamp_ms + LATER_MS)
