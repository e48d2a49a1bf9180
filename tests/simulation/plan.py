"""What happens in a history, from its seed: how many instances, which inputs, which faults, and when."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from shared.events import catalogue
from shared.events.clients import OPERATOR, encode_submitted_by
from shared.events.effects import EVERY_ACCOUNT
from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, STATE_TOPIC, partition_of
from tests.simulation.faults import (
    NEVER_S,
    AnyFault,
    Cut,
    Delay,
    HoldMarkers,
    HoldReplication,
    Join,
    Kill,
    KillBroker,
    Leave,
    Lose,
    Move,
    Orphan,
    Pause,
    Refuse,
    Tear,
    Twin,
    Upon,
)
from tests.simulation.world import ADDRESSES, INTERNAL_PARTITIONS

PARTITIONS: Final = 3
"""Of each topic, by default: few, which keeps histories short."""
CHANGELOGS: Final = {
    "ingest": catalogue.PAYMENTS_IDENTITIES,
    "transform": catalogue.TRANSFORM_PROGRESS,
    "ledger": catalogue.LEDGER_BALANCES,
}
SERVICES: Final = tuple(CHANGELOGS)
INPUTS_S: Final = (4.0, 12.0)
FAULTS_S: Final = (3.0, 13.0)
HEALED_S: Final = 14.0
"""By then every fault is over; virtual time."""
PAYMENTS: Final = 60
BURSTS: Final = (8, 8, 60)
"""At how many moments payments come, one of these: a few at a time, or so that a transaction is always open."""

FIRST_VERSION_EVERY: Final = 2
"""One history in so many is of a cluster with version 1 of the transaction protocol."""

CLIENTS: Final = tuple(f"client-{number}" for number in range(12))
CURRENCIES: Final = ("CZK", "EUR", "JPY")

CLIENTS_EVERY: Final = 5
"""One history in so many has payments of several clients, and accounts that they open."""
OPENINGS: Final = 24
_OPERATOR: Final = encode_submitted_by(OPERATOR).decode()
SUBMITTERS: Final = (
    "alpha:0123456789abcdef",
    "alpha:0123456789abcdef",
    "beta:fedcba9876543210",
    "treasury:00112233445566aa:house",
    "treasury:00112233445566aa:house",
    "operator:0000000000000000",
    "malformed",
    None,
)
"""Headers of raw records, besides the operator's."""

_TRANSACTION_APIS: Final = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "Produce",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
)
_OTHER_APIS: Final = (
    "FindCoordinator",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupHeartbeat",
    "OffsetFetch",
    "Fetch",
    "Metadata",
    "ListOffsets",
)

_REMOVED_S: Final = (6.2, 7.7)
"""Beyond a member's session, and within its transaction's deadline."""
_LONG_S: Final = 3.0
_KILLED_S: Final = (0.2, 1.5)
_ORPHANED_S: Final = (0.03, 0.1, 0.3, 1.0, 4.0)
_OUTPUT: Final = {
    "ingest": catalogue.PAYMENTS_ACCEPTED,
    "transform": catalogue.LEDGER_TRANSFERS,
    "ledger": catalogue.LEDGER_POSTINGS,
}
_OUTPUTS: Final = (
    catalogue.PAYMENTS_ACCEPTED,
    catalogue.PAYMENTS_DEDUPLICATED,
    catalogue.LEDGER_TRANSFERS,
    catalogue.LEDGER_POSTINGS,
    catalogue.LEDGER_BALANCES,
)


class Written(msgspec.Struct, frozen=True):
    """A record that somebody outside writes.

    Attributes:
        at_s: seconds of virtual time from the beginning.
        key, value: text; no key where it is None.
        submitted_by: text of the header; no header where it is None.
    """

    at_s: float
    topic: str
    key: str | None
    value: str
    submitted_by: str | None = None


class Plan(msgspec.Struct, frozen=True):
    """A history before it is run.

    Attributes:
        instances: how many each service begins with.
        first_wait_s: the brokers' group.initial.rebalance.delay.ms, in seconds.
        transaction_version: the cluster's finalised feature.
        partitions: of each topic.
    """

    seed: int
    instances: dict[str, int]
    first_wait_s: float
    transaction_version: int
    partitions: int
    inputs: tuple[Written, ...]
    faults: tuple[AnyFault, ...]


def house_accounts(partitions: int) -> tuple[str, ...]:
    """One on each partition."""
    return tuple(f"cash@{partition}" for partition in range(partitions))


def plan(seed: int, partitions: int = PARTITIONS) -> Plan:
    """The history of a seed: most have two instances a service, 60 payments and three faults."""
    chance = random.Random(f"plan-{seed}")
    instances = {service: chance.choices((1, 2, 3), (1, 6, 1))[0] for service in SERVICES}
    payments, reference = list(_payments(chance, partitions)), list(_reference(chance))
    if seed % CLIENTS_EVERY == CLIENTS_EVERY - 2:
        payments = list(_by_clients(seed, iter(payments)))
    inputs = tuple(sorted((*payments, *reference), key=lambda one: one.at_s))
    number = chance.choices((0, 1, 2, 3, 4, 5, 6), (1, 2, 4, 6, 4, 2, 1))[0]
    faults = [fault for _ in range(number) for fault in _faults(chance, instances, partitions)]
    first_wait_s = chance.choices((0.0, 3.0), (1, 7))[0]
    version = 1 if seed % FIRST_VERSION_EVERY == 0 else 2
    faults.sort(key=lambda one: one.at_s)
    return Plan(seed, instances, first_wait_s, version, partitions, inputs, tuple(faults))


def probes(partitions: int) -> Iterator[Written]:
    """One more payment for each partition."""
    for number, debtor in enumerate(house_accounts(partitions)):
        line = {"creditor": CLIENTS[number % len(CLIENTS)], "amount_minor": 1, "currency": CURRENCIES[0]}
        yield _line(0.0, _head(number, debtor) | {"payment_id": "probe"} | line)


def _payments(chance: random.Random, partitions: int) -> Iterator[Written]:
    lines: list[dict[str, Any]] = []
    bursts = [chance.uniform(*INPUTS_S) for _ in range(chance.choice(BURSTS))]
    for number in range(chance.randint(PAYMENTS // 2, PAYMENTS * 3 // 2)):
        at_s, roll = chance.choice(bursts), chance.random()
        if roll < 0.04:
            yield _raw(at_s, None, chance.choice(("", "{", "[]", '{"debtor": 1}', '{"payment_id": "x"}')))
        elif roll < 0.16 and lines:
            yield _line(at_s, chance.choice(lines))
        elif roll < 0.20 and lines:
            yield _line(at_s, chance.choice(lines) | {"amount_minor": 1})
        elif roll < 0.28 and lines:
            reversed_line = chance.choice(lines)
            yield _line(
                at_s,
                _head(number, reversed_line["debtor"]) | {"type": "reversal", "reverses": reversed_line["payment_id"]},
            )
        else:
            lines.append(_payment(chance, number, house_accounts(partitions)))
            yield _line(at_s, lines[-1])


def _payment(chance: random.Random, number: int, house: tuple[str, ...]) -> dict[str, Any]:
    debtor = chance.choice(house if chance.random() < 0.6 else CLIENTS)
    creditor = chance.choice([one for one in CLIENTS + house if one != debtor])
    line = _head(number, debtor) | {
        "creditor": creditor,
        "amount_minor": chance.randrange(1, 50_000),
        "currency": chance.choice(CURRENCIES),
    }
    return line | ({"credit_currency": chance.choice(CURRENCIES)} if chance.random() < 0.3 else {})


def _head(number: int, debtor: str) -> dict[str, Any]:
    return {"schema_version": 2, "payment_id": f"P-{number}", "debtor": debtor, "value_date": "2026-01-05"}


def _line(at_s: float, line: dict[str, Any]) -> Written:
    return _raw(at_s, line["debtor"], json.dumps(line))


def _raw(at_s: float, key: str | None, value: str, submitted_by: str | None = _OPERATOR) -> Written:
    return Written(at_s, catalogue.PAYMENTS_RAW, key, value, submitted_by)


def _by_clients(seed: int, payments: Iterator[Written]) -> Iterator[Written]:
    """Some payments of other clients than the operator, and commands that open accounts."""
    chance = random.Random(f"clients-{seed}")
    for payment in payments:
        submitted_by = chance.choice(SUBMITTERS) if chance.random() < 0.3 else payment.submitted_by
        yield msgspec.structs.replace(payment, submitted_by=submitted_by)
    openings: list[tuple[dict[str, Any], str | None]] = []
    for number in range(OPENINGS):
        if openings and chance.random() < 0.3:
            line, submitted_by = chance.choice(openings)  # a repeat, perhaps of another client
        else:
            line = _head(number, chance.choice(CLIENTS[:4])) | {"type": "account_opening"}
            line = {name: said for name, said in line.items() if name != "value_date"}
            line |= chance.choice(({}, {}, {"overdraft_minor": 500}, {"overdraft_minor": None}))
            line |= chance.choice(({}, {"expected_version": chance.randrange(3)}))
            line |= chance.choice(({}, {}, {"owner": chance.choice(("alpha", "beta"))}))
            submitted_by = chance.choice(SUBMITTERS)
            openings.append((line | {"payment_id": f"O-{number}"}, submitted_by))
            line = openings[-1][0]
        yield _raw(chance.uniform(*INPUTS_S), line["debtor"], json.dumps(line), submitted_by)


def _reference(chance: random.Random) -> Iterator[Written]:
    """Fees, rates and subscriptions, at the beginning and while payments are under way."""
    pairs = [f"{one}/{other}" for one in CURRENCIES for other in CURRENCIES if one != other]
    changes: list[tuple[str, str, Callable[[], Any]]] = [
        *((catalogue.REFERENCE_FEES, one, lambda: {"fixed_minor": chance.randrange(50)}) for one in CURRENCIES),
        *((catalogue.REFERENCE_RATES, pair, lambda: {"rate": f"{chance.randrange(1, 400) / 100}"}) for pair in pairs),
        (catalogue.REFERENCE_SUBSCRIPTIONS, EVERY_ACCOUNT, lambda: _subscriptions(chance)),
    ]
    for topic, key, value in changes:
        yield Written(0.0, topic, key, json.dumps(value()))
    for topic, key, value in chance.sample(changes, 3):
        yield Written(chance.uniform(*INPUTS_S), topic, key, json.dumps(value()))


def _subscriptions(chance: random.Random) -> dict[str, Any]:
    destinations = chance.sample((("receipt", "file:receipts"), ("notice", "file:notices")), chance.randint(1, 2))
    return {"subscriptions": [{"kind": kind, "destination": destination} for kind, destination in destinations]}


def _faults(chance: random.Random, instances: dict[str, int], partitions: int) -> list[AnyFault]:
    """One fault, or two that belong together."""
    at_s = round(chance.uniform(*FAULTS_S), 3)
    who = chance.choice([f"{service}-{number}" for service in SERVICES for number in range(instances[service])])
    topic, partition = _place(chance, partitions)
    node = chance.randrange(len(ADDRESSES))
    lasting_s = round(chance.choice((0.2, 1.0, 3.0, 8.0)) * chance.uniform(0.8, 1.2), 3)
    api = chance.choice(_TRANSACTION_APIS if chance.random() < 0.75 else _OTHER_APIS)
    way: Any = chance.choice(("request", "answer"))
    count = chance.choice((1, 1, 2, 4))
    parties = chance.choice(((who, f"broker-{node}"), (f"broker-{node}", f"broker-{(node + 1) % len(ADDRESSES)}")))
    late_s = chance.choice((lasting_s, lasting_s, 5.0, NEVER_S))
    makers: list[tuple[int, Callable[[], list[AnyFault]]]] = [
        (5, lambda: [Kill(at_s, who, chance.randrange(400), lasting_s)]),
        (3, lambda: [Pause(at_s, who, lasting_s)]),
        (2, lambda: [Leave(at_s, who, lasting_s)]),
        (1, lambda: [Join(at_s, chance.choice(SERVICES))]),
        (2, lambda: [Twin(at_s, who, lasting_s)]),
        (2, lambda: [KillBroker(at_s, node, lasting_s)]),
        (2, lambda: [Move(at_s, topic, partition, chance.randrange(len(ADDRESSES)))]),
        (2, lambda: [Cut(at_s, *parties, lasting_s)]),
        (4, lambda: [Lose(at_s, who, api, way, count)]),
        (4, lambda: [Delay(at_s, who, api, way, count, late_s)]),
        (4, lambda: [Orphan(at_s, who, chance.choice(_TRANSACTION_APIS), 2 * count, chance.choice(_ORPHANED_S))]),
        (1, lambda: [Refuse(at_s, chance.choice(_OUTPUTS), partition, count)]),
        (1, lambda: [HoldMarkers(at_s, topic, partition, lasting_s)]),
        (1, lambda: [HoldReplication(at_s, topic, partition, lasting_s)]),
        (2, lambda: [Tear(at_s, chance.randrange(INTERNAL_PARTITIONS), chance.randrange(2))]),
        (3, lambda: _late_aborts(at_s, chance.choice(SERVICES), count)),
        (3, lambda: _late_offsets(at_s, who, count, chance)),
        (2, lambda: [Delay(at_s, who, "EndTxn", way, 1, NEVER_S)]),
        (2, lambda: [Upon(at_s, who, "AddPartitionsToTxn", Pause(0, who, round(chance.uniform(*_REMOVED_S), 3)))]),
        (2, lambda: _joined_within(at_s, chance.choice(SERVICES))),
        (3, lambda: _left_with_markers_held(at_s, who, partitions, chance)),
        (2, lambda: _torn_within(at_s, who, chance)),
    ]
    [made] = chance.choices([maker for _, maker in makers], [weight for weight, _ in makers])
    return made()


def _late_aborts(at_s: float, service: str, count: int) -> list[AnyFault]:
    """Batches of all partitions are refused, and the aborts arrive when the next transactions are open."""
    return [Refuse(at_s, _OUTPUT[service], None, 1), Orphan(at_s, f"{service}-", "EndTxn", count, 0.0, "Produce")]


def _late_offsets(at_s: float, who: str, count: int, chance: random.Random) -> list[AnyFault]:
    """Offsets arrive after those of the next transaction, and another owner finds them."""
    killed_s = round(at_s + chance.uniform(*_KILLED_S), 3)
    late = Orphan(at_s, who, "TxnOffsetCommit", 2 * count, 0.0, "TxnOffsetCommit", 2)
    return [late, Kill(killed_s, who, chance.randrange(400), 0.5)]


def _joined_within(at_s: float, service: str) -> list[AnyFault]:
    """An instance joins while the transactions of the others take long."""
    who, api = f"{service}-", "AddPartitionsToTxn"
    return [Delay(at_s, who, api, "request", 2, _LONG_S), Upon(at_s, who, api, Join(0, service))]


def _left_with_markers_held(at_s: float, who: str, partitions: int, chance: random.Random) -> list[AnyFault]:
    """An instance leaves with its last transaction's markers on their way."""
    changelog = CHANGELOGS[who.partition("-")[0]]
    topic, count = chance.choice(((changelog, partitions), (OFFSETS_TOPIC, INTERNAL_PARTITIONS)))
    held = [HoldMarkers(at_s, topic, partition, _LONG_S) for partition in range(count)]
    return [*held, Upon(at_s, who, "EndTxn", Leave(0, who, _LONG_S))]


def _torn_within(at_s: float, who: str, chance: random.Random) -> list[AnyFault]:
    """A coordinator knows a part of a transaction alone, and another one ends it."""
    api = "AddOffsetsToTxn"
    tear = Upon(at_s, who, api, Tear(0, partition_of(who, INTERNAL_PARTITIONS), chance.randrange(2)))
    return [tear, Delay(at_s, who, api, "request", 1, 0.2), Delay(at_s, who, "EndTxn", "request", 1, 1.5)]


def _place(chance: random.Random, partitions: int) -> tuple[str, int]:
    topics = [
        STATE_TOPIC,
        OFFSETS_TOPIC,
        catalogue.PAYMENTS_RAW,
        catalogue.PAYMENTS_ACCEPTED,
        catalogue.PAYMENTS_IDENTITIES,
        catalogue.LEDGER_TRANSFERS,
        catalogue.LEDGER_POSTINGS,
        catalogue.LEDGER_BALANCES,
    ]
    topic = chance.choice(topics)
    # Coordinators' topics have a number of their own
    return topic, chance.randrange(partitions if topic in catalogue.BY_NAME else min(partitions, INTERNAL_PARTITIONS))
