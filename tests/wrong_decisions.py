"""The planted wrong decisions, each with the check of Spark and the kind of `once verify` that must find it.

docs/reconciliation.md shows this table, and a test compares them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deploy.checkers.verdict import Kind
from shared.events import catalogue
from shared.events.headers import Coordinates
from tests import planted_decisions as planted
from tests import planted_owners as owners
from tests.planted import AWAY, HOME, Clean
from tests.world import end, last_state

CASH = f"cash@{AWAY}"

Where = Callable[[Clean], Coordinates]


@dataclass(frozen=True)
class Wrong:
    """A wrong decision.

    Attributes:
        check: of `spark.decisions`, or another check of Spark.
        kind: of `once verify`.
        where: the record at fault, once it is planted.
        verified_at: the record that `once verify` names, if it is another one.
    """

    plant: Callable[[Clean], None]
    check: str
    kind: Kind
    where: Where
    verified_at: Where | None = None

    @property
    def name(self) -> str:
        return self.plant.__name__.replace("_", " ")

    @property
    def at(self) -> Where:
        return self.verified_at or self.where


def transfer(world: Clean) -> Coordinates:
    return end(world, catalogue.LEDGER_TRANSFERS, HOME)


def posted(world: Clean) -> Coordinates:
    return end(world, catalogue.LEDGER_POSTINGS, HOME)


def posted_away(world: Clean) -> Coordinates:
    return end(world, catalogue.LEDGER_POSTINGS, AWAY)


def letter(world: Clean) -> Coordinates:
    return end(world, catalogue.PAYMENTS_DEAD_LETTER, HOME)


def credited_to_carol(world: Clean) -> Coordinates:
    return end(world, catalogue.LEDGER_POSTINGS, world.home(world.carol))


def paid(world: Clean) -> Coordinates:
    return world.paid.debit


def paid_by(world: Clean) -> Coordinates:
    return world.paid.transfer


def _of(check: str, kind: Kind, where: Where, *plants: Callable[[Clean], None]) -> Iterator[Wrong]:
    return (Wrong(plant, check, kind, where) for plant in plants)


OWNERS: tuple[Wrong, ...] = (
    *_of(
        "cover",
        Kind.UNAUTHORISED,
        posted,
        owners.debited_by_another_client,
        owners.debited_by_no_client,
        owners.debited_by_a_former_owner,
        owners.reversed_by_another_client,
        owners.house_debited_without_the_scope,
        owners.owner_changed_by_another_client,
        owners.opened_with_an_overdraft,
        owners.opened_for_another_client,
        owners.opened_by_no_client,
        owners.account_of_the_operator_taken,
        owners.closed_account_opened_by_its_client,
    ),
    *_of(
        "cover",
        Kind.WRONG_DECLINE,
        posted,
        owners.declined_as_unauthorised,
        owners.owner_declined_as_unauthorised,
        owners.house_declined_with_the_scope,
        owners.declined_for_funds_though_unauthorised,
        owners.declined_without_a_rate_though_unauthorised,
        owners.opening_declined_without_a_cause,
        owners.opening_declined_as_stale_at_its_version,
        owners.command_declined_at_its_version,
    ),
    *_of(
        "cover",
        Kind.WRONG_ACCOUNT_EVENT,
        posted,
        owners.opened_at_a_stale_version,
        owners.command_done_at_a_stale_version,
        owners.version_skipped,
        owners.version_kept_though_changed,
    ),
    *_of("accounts", Kind.OWNER_DIFFERS, owners.last_listed, owners.account_listed_with_another_owner),
)
"""Those on ownership."""

ALL: tuple[Wrong, ...] = (
    *_of(
        "prices",
        Kind.WRONG_PRICE,
        transfer,
        planted.fee_too_high,
        planted.fee_not_charged,
        planted.share_rounded_up,
        planted.fee_beyond_its_bound,
        planted.fee_of_the_house,
        planted.rate_of_another_record,
        planted.declined_with_a_rate,
        planted.fee_of_no_version_that_may_have_been_used,
    ),
    *_of(
        "prices",
        Kind.WRONG_REFERENCE,
        transfer,
        planted.priced_by_a_superseded_fee,
        planted.priced_by_a_later_fee,
        planted.priced_by_no_record,
        planted.priced_by_the_record_of_another_currency,
        planted.priced_by_nothing_though_a_fee_was_in_force,
        planted.a_rate_without_a_conversion,
    ),
    *_of("cover", Kind.WRONG_DECLINE, posted, planted.declined_without_a_limit, planted.house_declined_as_closed),
    *_of(
        "cover",
        Kind.WRONG_DECLINE,
        posted_away,
        planted.declined_with_cover,
        planted.declined_as_closed,
        planted.declined_for_funds_though_closed,
    ),
    *_of(
        "cover",
        Kind.WRONG_DEBIT,
        posted_away,
        planted.booked_beyond_the_limit,
        planted.booked_one_beyond_the_limit,
    ),
    *_of("cover", Kind.WRONG_DEBIT, posted, planted.booked_though_closed),
    *_of("cover", Kind.WRONG_RECEIVER, credited_to_carol, planted.credited_though_closed),
    *_of(
        "cover",
        Kind.WRONG_RECEIVER,
        posted_away,
        planted.credited_to_suspense_though_open,
        planted.house_credited_to_suspense,
    ),
    *_of(
        "cover",
        Kind.WRONG_RECEIVER,
        posted,
        planted.reversed_to_suspense_though_open,
        planted.house_reversed_to_suspense,
    ),
    *_of(
        "reversals declined",
        Kind.WRONG_DECLINE,
        posted,
        planted.original_found_and_not_reversed,
        planted.original_not_reversed_before,
        planted.original_reversed_and_not_found,
        planted.original_unknown_and_reversed,
    ),
    *OWNERS,
    *_of("terms", Kind.TERMS_DIFFER, lambda world: last_state(world, world.bob), planted.state_with_other_terms),
    *_of("terms", Kind.TERMS_DIFFER, lambda world: last_state(world, CASH), planted.state_of_a_closed_house_account),
    *_of(
        "refusals",
        Kind.WRONG_REFUSAL,
        letter,
        planted.refuse("field_invalid"),
        planted.refuse("amount_not_positive", currency="XYZ"),
        planted.refuse("currency_unknown", amount_minor=0),
        planted.refuse("wrong_partition"),
        planted.refuse("identity_conflict"),
        planted.refuse("no_such_reason"),
        planted.refused_as_a_conflict_of_equal_content,
        planted.refused_for_another_partition,
    ),
    *_of(
        "refusals", Kind.WRONG_ACCEPTANCE, lambda world: world.paid.accepted, planted.accepted_without_a_known_currency
    ),
    Wrong(
        planted.request_and_result_lost,
        "subscribed",
        Kind.EFFECT_NOT_AS_SUBSCRIBED,
        lambda world: world.last.debit,
        lambda world: world.last.transfer,
    ),
    Wrong(planted.request_without_a_subscription, "subscribed", Kind.EFFECT_NOT_AS_SUBSCRIBED, paid, paid_by),
    Wrong(planted.request_in_another_order, "subscribed", Kind.EFFECT_NOT_AS_SUBSCRIBED, paid, paid_by),
    Wrong(planted.subscription_of_every_account_ignored, "subscribed", Kind.EFFECT_NOT_AS_SUBSCRIBED, paid, paid_by),
    Wrong(planted.notified_by_a_superseded_subscription, "subscribed", Kind.WRONG_REFERENCE, paid),
)

QUICK = (
    planted.fee_too_high,
    planted.declined_with_cover,
    planted.original_found_and_not_reversed,
    planted.request_and_result_lost,
    owners.owner_changed_by_another_client,
)
"""One of each of Spark's slower checks, for `make test`."""


def rows() -> list[str]:
    """Return the table as the documentation has it."""
    return [f"| {one.name} | `{one.check}` | `{one.kind.value}` |" for one in ALL]
