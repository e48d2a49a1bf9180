"""A seeded sample of payments: limits, declines, fees, conversions in five currencies, reversals and suspense.

Invariant: the outcome does not depend on when a credit leg arrives. The pipeline drains between the phases of a sample.
Within a phase, payers, whose cover is checked, get no credits, and accounts are opened and closed only at its start.
`tests/unit/test_model.py` checks that. Pure.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from shared.events.payments import SCHEMA_VERSION
from shared.events.reference import Fee
from shared.events.transfers import AccountClosed, AccountOpened
from tests.model import LARGEST_MINOR, Books, Intake, Line

CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY")
FEES = {
    "EUR": Fee(fixed_minor=10, basis_points=25, min_minor=15, max_minor=60),
    "USD": Fee(basis_points=25),
    "CHF": Fee(fixed_minor=20),
    "JPY": Fee(basis_points=50, min_minor=1, max_minor=40),
}
"""Pounds are free of charge; two hundred cents at 25 basis points are half a cent."""
RATES = {
    "EUR/USD": "1.0850",
    "EUR/GBP": "0.8437",
    "EUR/CHF": "0.95",
    "EUR/JPY": "162.5",
    "USD/EUR": "0.9217",
    "USD/GBP": "0.7776",
    "USD/CHF": "0.875625",
    "USD/JPY": "150",
    "GBP/EUR": "1.185",
    "GBP/USD": "1.286",
    "GBP/CHF": "1.1255",
    "GBP/JPY": "193",
    "CHF/EUR": "1.05",
    "CHF/USD": "1.142",
    "CHF/GBP": "0.8885",
    "CHF/JPY": "171.25",
    "JPY/EUR": "0.004",
    "JPY/USD": "0.0065",
    "JPY/CHF": "0.005",
}
"""JPY/GBP is missing. One yen is less than half a euro cent, and one US cent is a yen and a half."""

CLIENTS = tuple(f"client-{number}" for number in range(24))
HOUSE = ("cash@0", "cash@1", "cash@2", "cash@3", "cash@4", "cash@5", "loans@2", "interest@4", "clearing@5", "other@0")
EARLIER, LATER = CLIENTS[:12], CLIENTS[12:]
EDGE, EDGE_OVERDRAFT_MINOR = "edge", 500
"""An account that pays its whole cover, and is asked for one unit more."""


@dataclass(frozen=True)
class Phase:
    """Account events, then payments (lines of JSON), then the pipeline drains."""

    name: str
    terms: tuple[AccountOpened | AccountClosed, ...]
    lines: tuple[bytes, ...]


@dataclass(frozen=True)
class Sample:
    """The input of a pipeline, and its reference data."""

    phases: tuple[Phase, ...]
    fees: dict[str, Fee] = field(default_factory=partial(dict, FEES))
    rates: dict[str, str] = field(default_factory=partial(dict, RATES))


def generate(seed: int, payments_per_phase: int = 400) -> Sample:
    """The sample of a seed: funding, spending, then the other way round with some accounts closed, then reopened."""
    generator = _Generator(seed)
    opened = [*generator.openings(), AccountOpened(EDGE, EDGE_OVERDRAFT_MINOR)]
    closed = {EARLIER[1], EARLIER[4], EARLIER[7], LATER[2], LATER[5]}
    closings = [AccountClosed(account) for account in sorted(closed)]
    reopenings = [AccountOpened(EARLIER[4], 50_000), AccountOpened(LATER[5], 0), AccountOpened(LATER[0], 250_000)]
    still_closed = closed - {EARLIER[4], LATER[5]}
    return Sample(
        (
            Phase("funding", tuple(opened), (*generator.funding(), *generator.edge_funding())),
            Phase(
                "spending",
                (),
                (*generator.edge_spending(), *generator.phase(payments_per_phase, EARLIER, LATER, set())),
            ),
            Phase("closing", tuple(closings), tuple(generator.phase(payments_per_phase, LATER, EARLIER, closed))),
            Phase(
                "reopening",
                tuple(reopenings),
                tuple(generator.phase(payments_per_phase, EARLIER, LATER, still_closed)),
            ),
        )
    )


def expected(sample: Sample, *, credits_last: bool = False) -> tuple[Intake, Books]:
    """The expected outcome of a sample.

    Args:
        credits_last: book a phase's credit legs at its end; else each right after its debit leg.
    """
    intake, books = Intake(), Books(sample.fees, sample.rates)
    for phase in sample.phases:
        for event in phase.terms:
            if isinstance(event, AccountOpened):
                books.open(event.account, event.overdraft_minor)
            else:
                books.close(event.account)
        for value in phase.lines:
            identity = intake.take(value)
            if identity is not None:
                books.debit(intake.accepted[identity])
                if not credits_last:
                    books.settle()
        books.settle()
    return intake, books


class _Generator:
    """Makes lines, and keeps them to reverse and repeat them."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._numbers: dict[str, int] = {}
        self._payments: list[Line] = []
        self._lines: list[Line] = []

    def openings(self) -> Iterator[AccountOpened]:
        """Terms of most accounts; the others keep the default, without an overdraft."""
        for number, account in enumerate(CLIENTS):
            if number % 6 != 5:
                overdraft_minor = None if number % 8 == 3 else self._chance.choice([0, 2_000, 10_000])
                yield AccountOpened(account, overdraft_minor)

    def funding(self) -> Iterator[bytes]:
        """Money for each client, from the cash desks, in every currency."""
        for account in CLIENTS:
            for currency in CURRENCIES:
                desk = f"cash@{self._chance.randrange(6)}"
                yield self._payment(desk, account, self._chance.randrange(5_000, 60_000), currency)

    def edge_funding(self) -> Iterator[bytes]:
        """Ten thousand minor units in a currency without a fee and in one with."""
        for currency in ("GBP", "EUR"):
            yield self._payment("cash@5", EDGE, 10_000, currency)

    def edge_spending(self) -> Iterator[bytes]:
        """One unit too much, then exactly the cover, then one unit more."""
        for amount_minor, currency in (
            (10_501, "GBP"),
            (10_500, "GBP"),
            (1, "GBP"),
            (10_465, "EUR"),  # the fee is 36
            (10_464, "EUR"),
            (1, "EUR"),
        ):
            yield self._payment(EDGE, LATER[3], amount_minor, currency)

    def phase(
        self, count: int, payers: tuple[str, ...], receivers: tuple[str, ...], closed: set[str]
    ) -> Iterator[bytes]:
        """Payments, reversals, repeats and conflicts; no payer gets a credit."""
        may_be_credited = {*receivers, *HOUSE, *closed}
        yield from self._certain_cases(payers[0], receivers[0])
        for _ in range(count):
            roll = self._chance.random()
            reversible = [line for line in self._payments if line["creditor"] in may_be_credited]
            if roll < 0.80 or not reversible:
                yield self._random_payment(payers, sorted(may_be_credited))
            elif roll < 0.90:
                line = self._chance.choice(reversible)
                yield self._reversal(line["debtor"], line["payment_id"])
            elif roll < 0.92:
                yield self._reversal(self._chance.choice(payers), "never-sent")
            elif roll < 0.97:
                yield json.dumps(self._chance.choice(self._lines)).encode()
            else:
                line = self._chance.choice(self._payments)
                yield json.dumps(line | {"amount_minor": line["amount_minor"] + 1}).encode()

    def _certain_cases(self, payer: str, receiver: str) -> Iterator[bytes]:
        """Cases that chance might leave out."""
        yield self._payment("cash@0", receiver, 1, "JPY", "EUR")  # vanishes
        yield self._payment("cash@1", receiver, LARGEST_MINOR, "GBP", "USD")  # too large
        yield self._payment("cash@2", receiver, 700, "JPY", "GBP")  # no rate
        yield self._payment("cash@3", receiver, 3, "USD", "JPY")  # four yen and a half
        yield self._payment(payer, receiver, 10_000_000, "EUR")  # no cover
        yield self._reversal(payer, self._payments[-1]["payment_id"])
        yield self._payment("cash@4", receiver, 990, "CHF", "GBP")
        done = self._payments[-1]
        yield self._reversal("cash@4", done["payment_id"])
        yield self._reversal("cash@4", done["payment_id"])
        yield self._reversal("cash@4", f"{done['payment_id']}-unknown")

    def _random_payment(self, payers: tuple[str, ...], creditors: list[str]) -> bytes:
        debtor = self._chance.choice(HOUSE if self._chance.random() < 0.1 else payers)
        creditor = self._chance.choice([account for account in creditors if account != debtor])
        currency = self._chance.choice(CURRENCIES)
        bought = self._chance.choice(CURRENCIES) if self._chance.random() < 0.5 else None
        amount_minor = round(10 ** self._chance.uniform(0, 4.3))
        return self._payment(debtor, creditor, amount_minor, currency, bought)

    def _payment(
        self, debtor: str, creditor: str, amount_minor: int, currency: str, bought: str | None = None
    ) -> bytes:
        line = self._line(debtor) | {"creditor": creditor, "amount_minor": amount_minor, "currency": currency}
        if bought is not None:
            line["credit_currency"] = bought
        self._payments.append(line)
        return self._written(line)

    def _reversal(self, debtor: str, reverses: str) -> bytes:
        return self._written(self._line(debtor) | {"type": "reversal", "reverses": reverses})

    def _line(self, debtor: str) -> Line:
        """An identity is unique by debtor only: other debtors use the same payment_id."""
        number = self._numbers[debtor] = self._numbers.get(debtor, 0) + 1
        return {
            "schema_version": SCHEMA_VERSION,
            "payment_id": f"P-{number}",
            "debtor": debtor,
            "value_date": f"2026-{self._chance.randrange(1, 13):02}-{self._chance.randrange(1, 29):02}",
            "reference": self._chance.choice(["", "rent", "Müller & Söhne", "令和"]),
        }

    def _written(self, line: Line) -> bytes:
        self._lines.append(line)
        return json.dumps(line).encode()
