"""The services' decisions pass the verifier while reference data changes, with aborts and killed processes.

Invariant: nothing but effects without an outbox is found, whatever the order of payments, account events and changes.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.checkers.verdict import Kind
from shared.events import catalogue
from shared.events.effects import EVERY_ACCOUNT, Subscription, Subscriptions
from shared.events.reference import Fee, Rate
from shared.events.transfers import AccountClosed, AccountOpened
from tests.generate import CURRENCIES
from tests.memory import Pipeline
from tests.partitions import PARTITIONS
from tests.property.test_pipeline_against_model import (
    CLIENTS,
    ENDS,
    house_accounts,
    openings,
    payments,
    raw,
    reversals,
    terms,
)

Change = tuple[str, str, Fee | Rate | Subscriptions | None]

PAIRS = [f"{one}/{other}" for one in CURRENCIES for other in CURRENCIES if one != other]
accounts = st.sampled_from(CLIENTS + house_accounts(PARTITIONS))
subscriptions = st.lists(
    st.builds(
        Subscription,
        st.sampled_from(["receipt", "notice", "decline_notice", "event"]),
        st.sampled_from(["file:a", "file:b"]),
        st.booleans(),
    ),
    max_size=3,
).map(lambda found: Subscriptions(tuple(found)))
fees = st.builds(Fee, st.integers(0, 50), st.integers(0, 300), st.integers(0, 20), st.none() | st.integers(0, 90))
changes: st.SearchStrategy[Change] = (
    st.tuples(st.just(catalogue.REFERENCE_FEES), st.sampled_from(CURRENCIES), st.none() | fees)
    | st.tuples(
        st.just(catalogue.REFERENCE_RATES),
        st.sampled_from(PAIRS),
        st.none() | st.sampled_from(["0.0004", "1.085", "25.5"]).map(Rate),
    )
    | st.tuples(
        st.just(catalogue.REFERENCE_SUBSCRIPTIONS),
        st.sampled_from([*CLIENTS, EVERY_ACCOUNT]),
        st.none() | subscriptions,
    )
)
paid = payments(accounts)
inputs = st.lists(
    paid | paid | paid | reversals(accounts) | terms | openings() | changes | st.just(b"no payment"), max_size=50
)


@given(inputs, st.integers(), st.integers(0, 90_000))
@settings(deadline=None, max_examples=60)
def test_no_decision_of_the_services_is_found_wrong(given: list[object], seed: int, pace_ms: int) -> None:
    chance = random.Random(seed)
    pipeline = Pipeline({"EUR": Fee(5)}, {"EUR/USD": "1.0850"}, {})
    for one in given:
        if isinstance(one, tuple):
            pipeline.refer(*one)
        elif isinstance(one, AccountOpened | AccountClosed):
            pipeline.order(one)
        elif isinstance(one, bytes):
            pipeline.send(one)
        elif isinstance(one, dict):
            pipeline.send(*raw(one)[:2])
        pipeline.now_ms += chance.randint(0, pace_ms)
        work(pipeline, chance, chance.randint(0, 4))
    while work(pipeline, chance, 1):
        pass
    found = pipeline.audit()
    assert [one for one in found.violations if one.kind != Kind.EFFECT_MISSING] == []
    assert found.decisions_open == 0


def work(pipeline: Pipeline, chance: random.Random, transactions: int) -> bool:
    """Run transactions of any stages that have input; False if none has."""
    for _ in range(transactions):
        waiting = pipeline.waiting()
        if not waiting:
            return False
        pipeline.transact(chance.choice(waiting), chance.randint(1, 6), chance.choice(ENDS))
    return True
