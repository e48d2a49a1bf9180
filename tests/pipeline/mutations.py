"""Errors of every class for a `Volume`, each with exactly the breaks that it must lead to.

Each mutation takes payments of its own, so many can be planted in one system. Its effect on sums is not stated here:
`tests.pipeline.sums` computes it from the records.
"""

from collections.abc import Iterator

from shared.events import catalogue
from spark.night import Kind
from tests.pipeline import planted_records as records
from tests.pipeline import planted_values as values
from tests.pipeline.found import Found, Mutation, found
from tests.pipeline.worlds import Volume

ALL: tuple[Mutation, ...] = (
    records.reversed_twice,  # these two go all the way through: before anything that must stay in flight
    records.identity_twice,
    values.states_altered,  # of accounts without further postings
    records.accepted_missing,
    records.transfer_missing,
    records.reversal_missing,
    records.payment_lost_in_ledger,
    records.credit_missing,
    records.decline_missing,
    records.repeat_missing,
    records.dead_letter_missing,
    records.accepted_twice,
    records.transfer_twice,
    records.debit_twice,
    records.credit_twice,
    records.leg_twice,
    records.decline_twice,
    records.repeat_twice,
    records.accepted_and_refused,
    values.accepted_altered,
    values.time_of_receipt_altered,
    values.fee_altered,
    values.rate_altered,
    values.currency_altered,
    values.posting_altered,
    values.posting_unbalanced,
    values.leg_altered,
    values.creditor_altered,
    values.request_altered,
    values.decline_of_nothing,
    values.origin_of_another,
    values.accepted_without_source,
    values.repeat_of_nothing,
    values.leg_and_credit_missing,
    values.debit_missing,
    values.raw_aborted,
    values.leg_aborted,
    values.repeat_aborted,
    values.result_missing,
    values.request_missing,
    values.result_of_nothing,
    values.posting_unreadable,
)


def passed(world: Volume) -> Iterator[Found]:
    """Records of mutations without an outcome: missing once the service has consumed them."""
    service = {catalogue.PAYMENTS_ACCEPTED: "transform", catalogue.LEDGER_TRANSFERS: "ledger"}
    for at in world.unanswered:
        if at.offset < world.committed[service[at.topic]][at.partition]:
            yield found(Kind.MISSING, at, world)
