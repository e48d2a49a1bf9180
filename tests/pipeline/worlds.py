"""A consistent system with volume: payments of every kind, several rounds of them, for the mutations to be planted in.

Invariant: no two trails share a record, so errors planted on several do not hide one another. Amounts of one currency
are near 2^63, above the limit for raw payments: no service would write the legs of those payments.
"""

from collections import defaultdict
from collections.abc import Generator
from itertools import count

from shared.eos.progress import NEXT_OFFSET_KEY, NextOffset, encode_next_offset
from shared.events import catalogue
from shared.events.clients import OPERATOR, encode_submitted_by
from shared.events.effects import EffectState
from shared.events.headers import SUBMITTED_BY, Coordinates
from shared.events.payments import SCHEMA_VERSION, Payment, encode_accepted, encode_instruction
from shared.events.postings import ACCOUNT_PREFIX, DEBIT, Entry, Posting, encode_account
from shared.events.transfers import AccountClosed, AccountOpened, CreditLeg, Transfer, encode_transfer
from tests.partitions import PARTITIONS, partition_for
from tests.planted import FILE, MAIL, WEBHOOK, Clean
from tests.world import DATE, Trail
from tests.world_effects import EffectTrail

LARGE, LARGE_MINOR = "JPY", 2**63 - 1_000
CLIENTS = tuple(f"client-{number}" for number in range(12))
ROUNDS = 8

Stages = Generator[None]
"""A payment under way; each step takes it one service further."""


class Volume(Clean):
    """Many payments and effects, at rest.

    Args:
        rounds: of payments; each has one of every kind.
        newest: hand out the last ones first, some of them the last records of their partitions.

    Attributes:
        trails: by kind, those not yet taken by a mutation.
        pairs: raw records and their outcomes, likewise; effects: by state, likewise.
        large: accounts that move once, in the large currency, one on each partition.
        unanswered: records of mutations without an outcome.
    """

    def __init__(self, rounds: int = ROUNDS, *, newest: bool = False) -> None:
        super().__init__()
        self._place = -1 if newest else 0
        self.trails: defaultdict[str, list[Trail]] = defaultdict(list)
        self.effects: defaultdict[str, list[EffectTrail]] = defaultdict(list)
        self.pairs: defaultdict[str, list[tuple[Coordinates, Coordinates]]] = defaultdict(list)
        self.unanswered: list[Coordinates] = []
        self._numbers = count(1)
        for client in CLIENTS:
            self.account_event(AccountOpened(client, None))
        self.account_event(AccountOpened("closed", 0))
        self.account_event(AccountClosed("closed"))
        self._pay_large()
        for _ in range(rounds):
            self.round()

    def round(self) -> None:
        """One payment of every kind, and effects of every outcome."""
        number = next(self._numbers)
        debtor, creditor, other = (CLIENTS[(number + step) % len(CLIENTS)] for step in (0, 5, 7))
        make, trails = self._named(number), self.trails
        trails["plain"].append(self.pay(next(make), debtor, creditor, 1000 + number))
        trails["charged"].append(self.pay(next(make), creditor, other, 2500 + number, fee_minor=30))
        converted = (100 + number, "EUR", "0.04")
        amount = 25 * (100 + number)
        trails["converted"].append(self.pay(next(make), debtor, other, amount, fee_minor=30, converted=converted))
        house = f"cash@{number % PARTITIONS}"
        trails["house"].append(self.pay(next(make), house, debtor, 70_000))
        trails["suspense"].append(self.pay(next(make), house, "closed", 700, to_suspense=True))
        declined = self.decline(next(make), BROKE, creditor)
        trails["declined"].append(self.decline(next(make), BROKE, creditor))
        reversible = next(make)
        self.pay(reversible, other, debtor, 333, fee_minor=3)
        trails["reversed"].append(self.reverse(next(make), other, reversible))
        self.pairs["repeat"].append(self.repeat(self.pay(next(make), other, creditor, 5).raw))
        self.pairs["refused"].append(self.refuse(b"no payment %d" % number, number % PARTITIONS))
        self._notify_of_round(self.pay(next(make), creditor, debtor, 4000), declined)

    def take(self, kind: str) -> Trail:
        """Take a payment for one mutation alone."""
        return self.trails[kind].pop(self._place)

    def take_pair(self, kind: str) -> tuple[Coordinates, Coordinates]:
        """Take a raw record and its outcome, likewise."""
        return self.pairs[kind].pop(self._place)

    def take_effect(self, state: str) -> EffectTrail:
        """Take an effect, likewise."""
        return self.effects[state].pop(self._place)

    def _log(self, accounts: set[str], source: Coordinates) -> None:
        """Write the changelog as the ledger does: each record names the last transfer that it includes."""
        for account in sorted(accounts):
            state = encode_account(self._state(account))
            key = ACCOUNT_PREFIX + account.encode()
            self.append(catalogue.LEDGER_BALANCES, source.partition, state, key, source=source)
        progress = encode_next_offset(NextOffset(source.offset + 1))
        self.append(catalogue.LEDGER_BALANCES, source.partition, progress, NEXT_OFFSET_KEY, source=source)

    def _named(self, number: int) -> Generator[str]:
        yield from (f"v{number}-{index}" for index in count())

    def _notify_of_round(self, paid: Trail, declined: Trail) -> None:
        effects = self.effects
        effects["sent"].append(self.notify(paid.debit, "receipt", FILE))
        effects["sent"].append(self.notify(paid.credit, "notice", MAIL))
        effects["failed"].append(self.notify(paid.debit, "event", WEBHOOK, EffectState.FAILED, reason="refused"))
        effects["in_doubt"].append(self.notify(declined.debit, "decline_notice", MAIL, EffectState.IN_DOUBT))
        effects["waiting"].append(self._ask(paid.credit, "event", WEBHOOK))
        late = self._ask(declined.debit, "event", WEBHOOK)
        key = b"waiting/" + late.effect_id.encode()
        self.append(catalogue.EFFECTS_WAITING, late.request.partition, None, key=key)
        late.result = self.decide(late.effect, late.request.partition, EffectState.SENT)
        effects["late"].append(late)

    def _ask(self, posted: Coordinates, kind: str, destination: str) -> EffectTrail:
        """Request an effect that waits for a retry."""
        trail = self.notify(posted, kind, destination)
        self._retract(trail.result)
        trail.result = trail.letter = self.wait(trail.effect, posted.partition)
        return trail

    def _retract(self, where: Coordinates) -> None:
        """Take back the last record of a partition, as if it had never been written."""
        self.logs[where.topic, where.partition].pop()
        self._next[where.topic, where.partition] = where.offset

    def _pay_large(self) -> None:
        """One payment in the large currency from each partition to the next: no balance leaves 64 bits."""
        homes: dict[int, str] = {}
        for number in count():
            homes.setdefault(partition_for(f"large-{number}"), f"large-{number}")
            if len(homes) == PARTITIONS:
                break
        self.large = [homes[partition] for partition in range(PARTITIONS)]
        for partition, debtor in sorted(homes.items()):
            self.account_event(AccountOpened(debtor, None))
            creditor, amount = homes[(partition + 1) % PARTITIONS], LARGE_MINOR + partition
            finish([self.slowly(f"large-{partition}", debtor, creditor, amount, LARGE)])

    def turnover_large(self) -> int:
        """Sum of payments in the large currency, in minor units: more than 64 bits hold."""
        return sum(LARGE_MINOR + partition for partition in range(PARTITIONS))

    def slowly(self, payment_id: str, debtor: str, creditor: str, amount_minor: int, currency: str = "CZK") -> Stages:
        """Make a payment step by step. Payments begun earlier on a partition must move on first."""
        p, q = partition_for(debtor), partition_for(creditor)
        payment = Payment(payment_id, debtor, creditor, amount_minor, currency, SCHEMA_VERSION, None, DATE)
        value = encode_instruction(payment)
        raw = self.append(catalogue.PAYMENTS_RAW, p, value)
        self.add_header(raw, SUBMITTED_BY, encode_submitted_by(OPERATOR).decode())
        yield
        self.committed["ingest"][p] = raw.offset + 1
        accepted = self.outcome(catalogue.PAYMENTS_ACCEPTED, raw, encode_accepted(payment, -1, OPERATOR))
        yield
        self.committed["transform"][p] = accepted.offset + 1
        transfer = encode_transfer(
            Transfer(
                *(payment_id, debtor, creditor, amount_minor, currency, amount_minor, currency, DATE),
                submitted_by=OPERATOR,
            )
        )
        ordered = self.append(catalogue.LEDGER_TRANSFERS, p, transfer, origin=raw, source=accepted)
        yield
        self.committed["ledger"][p] = ordered.offset + 1
        entries = (Entry(debtor, currency, -amount_minor), Entry(f"in-transit@{p}", currency, amount_minor))
        debit = Posting(payment_id, DEBIT, debtor, creditor, entries, DATE, submitted_by=OPERATOR)
        self._post(debit, raw, ordered)
        leg = CreditLeg(payment_id, debtor, creditor, amount_minor, currency, DATE)
        sent = self.append(catalogue.LEDGER_TRANSFERS, q, encode_transfer(leg), origin=raw, source=ordered)
        yield
        self.committed["ledger"][q] = sent.offset + 1
        entries = (Entry(f"in-transit@{q}", currency, -amount_minor), Entry(creditor, currency, amount_minor))
        self._post(Posting(payment_id, "credit", debtor, creditor, entries, DATE), raw, sent)

    def begin_slowly(self) -> list[Stages]:
        """Begin payments under way, one after each service, the furthest first."""
        begun = []
        for steps in (4, 3, 2, 1):
            number = next(self._numbers)
            stages = self.slowly(f"v{number}-slow", CLIENTS[number % len(CLIENTS)], CLIENTS[(number + 3) % 12], number)
            for _ in range(steps):
                next(stages)
            begun.append(stages)
        return begun


def finish(begun: list[Stages]) -> None:
    """Take payments under way to their end, in their order."""
    for stages in begun:
        for _ in stages:
            pass


BROKE = "broke"
"""A client without cover."""
