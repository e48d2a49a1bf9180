"""A consistent system passes in chunks of any size; it fails with any one record lost or doubled.

Only results may be there twice: a new owner writes the last one again.
"""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.events import catalogue
from shared.events.effects import EffectState
from shared.events.headers import Coordinates
from shared.events.transfers import AccountOpened
from tests.world import World
from tests.world_effects import Effects

CLIENTS = ("alice", "bob", "carol", "dave")
ACCOUNTS = st.sampled_from([*CLIENTS, "cash@0", "cash@4"])
ESSENTIAL = (
    catalogue.PAYMENTS_RAW,
    catalogue.PAYMENTS_ACCEPTED,
    catalogue.PAYMENTS_DEDUPLICATED,
    catalogue.PAYMENTS_DEAD_LETTER,
    catalogue.LEDGER_TRANSFERS,
    catalogue.LEDGER_POSTINGS,
    catalogue.EFFECTS_REQUESTS,
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pay", "fee", "convert", "decline", "repeat", "refuse", "reverse"]),
        ACCOUNTS,
        ACCOUNTS,
        st.integers(1, 2**53 - 1),
    ).filter(lambda step: step[1] != step[2]),
    min_size=1,
    max_size=12,
)


def build(steps: list[tuple[str, str, str, int]]) -> Effects:
    """A system that took these steps; a repeat or reversal is of the payment before, if there is one."""
    world = Effects()
    for client in CLIENTS:
        world.account_event(AccountOpened(client, None))
    paid: list[tuple[str, str, Coordinates]] = []
    reversed_ids: set[str] = set()
    for number, (what, debtor, creditor, amount_minor) in enumerate(steps):
        name = f"p{number}"
        if what == "decline":
            declined = world.decline(name, debtor, creditor, no_rate=True)
            notify(world, debtor, declined.debit, "decline_notice", amount_minor)
        elif what == "refuse":
            world.refuse(f"bad {number}".encode(), partition=number % 6)
        elif what == "repeat" and paid:
            world.repeat(paid[-1][2])
        elif what == "reverse" and paid and paid[-1][0] not in reversed_ids:
            trail = world.reverse(name, paid[-1][1], paid[-1][0])
            notify(world, paid[-1][1], trail.debit, "event", amount_minor)
            reversed_ids.add(paid[-1][0])
        else:
            fee_minor = amount_minor % 100 if what == "fee" and "@" not in debtor else 0
            credit_minor = round(Fraction(amount_minor, 25))
            converted = (credit_minor, "EUR", "0.04") if what == "convert" and credit_minor else None
            trail = world.pay(name, debtor, creditor, amount_minor, fee_minor=fee_minor, converted=converted)
            paid.append((name, debtor, trail.raw))
            notify(world, debtor, trail.debit, "receipt", amount_minor)
            notify(world, creditor, trail.credit, "notice", amount_minor // 8)
    return world


def notify(world: Effects, account: str, posted: Coordinates, kind: str, choice: int) -> None:
    """Notify a client in one of three ways with one of three outcomes, or not at all."""
    if "@" in account or choice % 8 == 0:
        return
    destination = ("file:receipts", "mailto:somebody@example.org", "https://example.org/hook")[choice % 3]
    world.notify(posted, kind, destination, list(EffectState)[choice % 8 % 3])


@given(steps=STEPS, chunk=st.integers(1, 50))
@settings(deadline=None)
def test_consistent_system_passes(steps: list[tuple[str, str, str, int]], chunk: int) -> None:
    verdict = build(steps).audit(chunk=chunk)
    assert verdict.violations == []
    assert verdict.verdict == "pass"
    assert verdict.drift_minor == 0
    decided = verdict.effects_delivered + verdict.effects_in_doubt + verdict.effects_failed
    assert verdict.effects_requested == decided
    assert verdict.records_in == verdict.accepted + verdict.deduplicated + verdict.dead_lettered


@given(steps=STEPS, data=st.data())
@settings(deadline=None)
def test_missing_record_is_found(steps: list[tuple[str, str, str, int]], data: st.DataObject) -> None:
    world = build(steps)
    world.remove(data.draw(st.sampled_from(places(world, (*ESSENTIAL, catalogue.EFFECTS_RESULTS)))))
    assert world.audit().verdict == "fail"


@given(steps=STEPS, data=st.data())
@settings(deadline=None)
def test_doubled_record_is_found(steps: list[tuple[str, str, str, int]], data: st.DataObject) -> None:
    world = build(steps)
    # An account event given twice changes nothing the second time, and is not posted
    once = [at for at in places(world, ESSENTIAL) if at.topic != catalogue.LEDGER_TRANSFERS or world.at(at).headers]
    world.copy(data.draw(st.sampled_from(once)))
    assert world.audit().verdict == "fail"


def places(world: World, topics: tuple[str, ...]) -> list[Coordinates]:
    """Coordinates of the records that must be there exactly once."""
    return [
        Coordinates(topic, partition, record.offset)
        for (topic, partition), records in sorted(world.logs.items())
        if topic in topics
        for record in records
    ]
