"""ingest, transform and ledger in memory against the plain model, in random order, with aborts and killed processes.

Several clients send payments, from accounts of their own and of others, and open accounts.

Whether a payment has cover may depend on which record the ledger processes first, so the model gets the order of the
commits; it computes all else. Every client is notified of its debits and credits.
"""

import json
import random
from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shared.events.catalogue import LEDGER_ACCOUNTS, LEDGER_TRANSFERS, PAYMENTS_DEAD_LETTER, PAYMENTS_DEDUPLICATED
from shared.events.effects import EVERY_ACCOUNT, Subscription, Subscriptions
from shared.events.headers import SUBMITTED_BY, Headers
from shared.events.partitions import partition_for
from shared.events.postings import Account, AccountTerms, decode_terms
from shared.events.transfers import AccountClosed, AccountOpened, CreditLeg, decode_transfer
from tests import observed
from tests.generate import CURRENCIES, FEES, RATES, expected, generate
from tests.memory import End, Pipeline
from tests.model import LARGEST_MINOR, Books, Client, Intake, Line, client_of
from tests.partitions import PARTITIONS
from tests.tiers import mostly_full

CLIENTS = ["anna", "berta", "carla", "dora"]
LIMITS_MINOR = [0, 500, 5000]
ENDS = [End.COMMIT, End.COMMIT, End.COMMIT, End.ABORT, End.KILL]

SUBSCRIPTIONS = {
    EVERY_ACCOUNT: Subscriptions((Subscription("receipt", "file:receipts"), Subscription("notice", "file:notices")))
}

payment_ids = st.integers(0, 12).map(str)
amounts_minor = st.integers(1, 3000) | st.sampled_from(
    [200, 600, *(limit + 1 for limit in LIMITS_MINOR), LARGEST_MINOR]
)
currencies = st.sampled_from(CURRENCIES)
days = st.sampled_from(["2026-01-05", "2026-02-28"])
owners = st.just("operator") | st.sampled_from(["alpha", "beta"])
versions = st.none() | st.integers(0, 3)
terms: st.SearchStrategy[AccountOpened | AccountClosed] = st.builds(
    AccountOpened,
    st.sampled_from(CLIENTS),
    st.none() | st.sampled_from(LIMITS_MINOR),
    owners,
    expected_version=versions,
) | st.builds(AccountClosed, st.sampled_from(CLIENTS))
# Mostly the operator, so that most payments are decided by their cover
submitters = st.just("operator::house") | st.sampled_from(
    ["alpha:0123456789abcdef", "beta:fedcba9876543210", "alpha:00112233445566aa:house", "operator:", "malformed", None]
)
RECEIVED_ON = "1970-01-01"  # the pipeline's clock stands still


def house_accounts(partitions: int) -> list[str]:
    """On the first and the last partition, and on one between them."""
    return ["cash@0", f"cash@{partitions - 1}" if partitions > 1 else "fees@0", f"loans@{partitions // 3}"]


@st.composite
def payments(draw: st.DrawFn, accounts: st.SearchStrategy[str]) -> Line:
    """A payment; few identities, so that repeats and conflicts come up."""
    debtor, creditor = draw(st.lists(accounts, min_size=2, max_size=2, unique=True))
    line = {
        "schema_version": 2,
        "payment_id": draw(payment_ids),
        "debtor": debtor,
        "creditor": creditor,
        "amount_minor": draw(amounts_minor),
        "currency": draw(currencies),
        "value_date": draw(days),
        "by": draw(submitters),
    }
    bought = draw(st.none() | currencies)
    return line if bought is None else line | {"credit_currency": bought}


def reversals(accounts: st.SearchStrategy[str]) -> st.SearchStrategy[Line]:
    return st.builds(
        lambda payment_id, debtor, reverses, day, by: {
            "schema_version": 2,
            "type": "reversal",
            "payment_id": payment_id,
            "debtor": debtor,
            "reverses": reverses,
            "value_date": day,
            "by": by,
        },
        st.integers(8, 20).map(str),
        accounts,
        payment_ids,
        days,
        submitters,
    )


@st.composite
def openings(draw: st.DrawFn) -> Line:
    """A command to open an account; its identity may be a payment's."""
    line = {
        "schema_version": 2,
        "type": "account_opening",
        "payment_id": draw(payment_ids),
        "debtor": draw(st.sampled_from(CLIENTS)),
        "by": draw(submitters),
    }
    if draw(st.booleans()):
        line["overdraft_minor"] = draw(st.none() | st.sampled_from(LIMITS_MINOR))
    if draw(st.booleans()):
        line["expected_version"] = draw(versions)
    return line | ({"owner": draw(st.none() | owners)} if draw(st.booleans()) else {})


def raw(line: Line) -> tuple[bytes, Headers, Client | None]:
    """The raw record of a line, and who sent it: the operator where the line does not say."""
    sent = {name: said for name, said in line.items() if name != "by"}
    by = line.get("by", "operator::house")
    headers = () if by is None else ((SUBMITTED_BY, by.encode()),)
    return json.dumps(sent).encode(), headers, client_of(by)


def inputs(partitions: int) -> st.SearchStrategy["list[Line | AccountOpened | AccountClosed]"]:
    accounts = st.sampled_from(CLIENTS + house_accounts(partitions))
    paid = payments(accounts)
    return st.lists(paid | paid | paid | reversals(accounts) | terms | openings(), min_size=15, max_size=60)


class Checked:
    """The pipeline, and the model with the order of the ledger's commits."""

    def __init__(self, chance: random.Random, partitions: int = PARTITIONS) -> None:
        self.partitions = partitions
        self.pipeline = Pipeline(FEES, RATES, SUBSCRIPTIONS, partitions)
        self.intake = Intake()
        self.books = Books(FEES, RATES, partitions)
        self._chance = chance

    def give(self, given: "Line | AccountOpened | AccountClosed") -> None:
        """Send one input."""
        if isinstance(given, AccountOpened | AccountClosed):
            self.pipeline.order(given)
            return
        value, headers, client = raw(given)
        self.pipeline.send(value, headers)
        self.intake.take(value, client)

    def work(self) -> bool:
        """Run one transaction of any stage that has input; False if none has."""
        waiting = self.pipeline.waiting()
        if not waiting:
            return False
        stage = self._chance.choice(waiting)
        consumed = self.pipeline.transact(stage, self._chance.randint(1, 6), self._chance.choice(ENDS))
        if stage.topic == LEDGER_TRANSFERS:
            for record in consumed:
                self._apply(record.value or b"")
        return True

    def _apply(self, value: bytes) -> None:
        transfer = decode_transfer(value)
        if isinstance(transfer, AccountOpened) and transfer.command_id:
            identity = transfer.account, transfer.command_id
            self.books.command(self.intake.accepted[identity], self.intake.clients[identity], RECEIVED_ON)
        elif isinstance(transfer, AccountOpened):
            self.books.open(transfer.account, transfer.overdraft_minor, transfer.owner, transfer.expected_version)
        elif isinstance(transfer, AccountClosed):
            self.books.close(transfer.account)
        elif isinstance(transfer, CreditLeg):
            self.books.credit((transfer.debtor, transfer.payment_id))
        else:
            identity = transfer.debtor, transfer.payment_id
            self.books.debit(self.intake.accepted[identity], self.intake.clients[identity])

    def assert_alike(self) -> None:
        """Check that the model and the pipeline agree in full."""
        pipeline = self.pipeline
        assert observed.outcomes(pipeline.events()) == self.books.outcomes
        assert set(self.books.outcomes) == set(self.intake.accepted)
        states = [item for ledger in pipeline.ledgers() for item in ledger.accounts.items()]
        assert observed.balances(states) == self.books.balances
        clients = {name: state for name, state in states if "@" not in name}
        assert {name for name, state in clients.items() if state.closed} == self.books.closed
        assert {name: state.overdraft_minor for name, state in clients.items()} == {
            name: self.books.limits_minor.get(name, 0) for name in clients
        }
        for name, state in clients.items():
            assert (state.owner, state.version) == (self.books.owners[name], self.books.versions[name]), name
        self._assert_followed(clients)
        counts = [
            sum(len(pipeline.logs[topic, partition]) for partition in range(self.partitions))
            for topic in (PAYMENTS_DEDUPLICATED, PAYMENTS_DEAD_LETTER)
        ]
        assert counts == [self.intake.repeats, self.intake.conflicts]
        self._assert_effects()

    def _assert_followed(self, clients: dict[str, Account]) -> None:
        """Check that the last records of ledger.accounts are the accounts that were opened or closed.

        The opening of an account that has had money, for the operator and without overdraft, changes nothing.
        """
        followed = {
            (record.key or b"").decode(): decode_terms(record.value or b"")
            for partition in range(self.partitions)
            for record in self.pipeline.logs[LEDGER_ACCOUNTS, partition]
        }
        assert followed == {
            name: AccountTerms(state.owner, state.version, state.overdraft_minor, state.closed)
            for name, state in clients.items()
            if state.version or name in followed
        }

    def _assert_effects(self) -> None:
        """Check that each committed leg that changed a client's balance requests one effect, and nothing else does."""
        asked = self.pipeline.requests()
        assert all(partition == partition_for(request.account, self.partitions) for partition, request in asked)
        assert len({request.effect_id for _, request in asked}) == len(asked)
        actual = [
            (r.kind, r.debtor, r.payment_id, r.account, r.currency, r.amount_minor, r.destination) for _, r in asked
        ]
        expected = [
            (kind, debtor, payment_id, account, currency, amount_minor, f"file:{kind}s")
            for (debtor, payment_id), outcome in self.books.outcomes.items()
            for kind, entries in (("receipt", outcome.debit), ("notice", outcome.credit))
            for account, currency, amount_minor in entries
            if "@" not in account
        ]
        assert Counter(actual) == Counter(expected)


@pytest.mark.parametrize("partitions", mostly_full([1, 3, PARTITIONS, 12], [1, 12]))
@given(st.data(), st.integers(0, 2**32), st.floats(0, 1))
def test_the_pipeline_agrees_with_the_model(partitions: int, data: st.DataObject, seed: int, patience: float) -> None:
    chance = random.Random(seed)
    checked = Checked(chance, partitions)
    for item in data.draw(inputs(partitions)):
        checked.give(item)
        while chance.random() < patience and checked.work():
            pass
    while checked.work():
        pass
    checked.assert_alike()


@settings(
    max_examples=5, deadline=None, phases=[Phase.reuse, Phase.generate]
)  # a smaller seed does not make a smaller sample
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_the_generated_sample_has_one_outcome_in_any_order_of_work(sample_seed: int, seed: int) -> None:
    sample = generate(sample_seed, payments_per_phase=60)
    checked = Checked(random.Random(seed))
    for phase in sample.phases:
        for event in phase.terms:
            checked.give(event)
        for line in phase.lines:
            checked.give(json.loads(line))
        while checked.work():
            pass
    checked.assert_alike()
    _, books = expected(sample)
    assert checked.books.outcomes == books.outcomes
    assert checked.books.balances == books.balances
