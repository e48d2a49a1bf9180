"""The whole pipeline in memory: the services' real handlers for each partition, and lists in the place of topics.

The caller decides which partition works next, on how many records, and whether that transaction commits, aborts, or
loses its process. Invariant, as in Kafka: outputs, changelog and position are committed together or not at all, and
each partition in its order. It must not know expected outcomes.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final

import msgspec

from deploy.checkers.audit import INPUTS, TOPICS, Audit
from deploy.checkers.verdict import Verdict
from services.ingest.service import IngestHandler
from services.ledger.service import LedgerHandler
from services.transform.domain import ReferenceData
from services.transform.service import TransformHandler
from shared.eos.progress import NEXT_OFFSET_KEY, NextOffset, encode_next_offset
from shared.eos.records import Handler, Record
from shared.eos.store import Change
from shared.events import catalogue
from shared.events.catalogue import (
    EFFECTS_REQUESTS,
    LEDGER_BALANCES,
    LEDGER_POSTINGS,
    LEDGER_TRANSFERS,
    PAYMENTS_ACCEPTED,
    PAYMENTS_IDENTITIES,
    PAYMENTS_RAW,
    REFERENCE_FEES,
    REFERENCE_RATES,
    REFERENCE_SUBSCRIPTIONS,
    TRANSFORM_PROGRESS,
)
from shared.events.clients import BY_OPERATOR
from shared.events.effects import EffectRequest, Subscriptions, decode_request
from shared.events.headers import Headers
from shared.events.installation import (
    OWNERSHIP_KEY,
    Installation,
    Ownership,
    encode_installation,
    encode_ownership,
)
from shared.events.partitions import partition_for
from shared.events.postings import LedgerEvent, decode_ledger_event
from shared.events.reference import Fee, Rate
from shared.events.transfers import AccountClosed, AccountOpened, encode_transfer
from shared.events.validation import key_of
from tests.installation import INSTALLATION
from tests.partitions import PARTITIONS
from tests.stores import commit, restore

REFERENCE: Final = (REFERENCE_FEES, REFERENCE_RATES, REFERENCE_SUBSCRIPTIONS)
CHANGELOGS: Final = {
    "ingest": PAYMENTS_IDENTITIES,
    "transform": TRANSFORM_PROGRESS,
    "ledger": LEDGER_BALANCES,
}


class End(Enum):
    """How a transaction ends."""

    COMMIT = "commit"
    ABORT = "abort"
    KILL = "kill"


@dataclass
class Stage:
    """One service's work on one input partition."""

    topic: str
    partition: int
    make: Callable[[], Handler]
    handler: Handler
    changelog: list[Change]
    next_offset: int = 0


class Pipeline:
    """ingest, transform and ledger.

    Args:
        fees, rates, subscriptions: the first reference data; `refer` changes it.

    Attributes:
        stages: all partitions of all services.
        logs: committed records by topic and partition.
        now_ms: timestamp of the records that follow.
    """

    def __init__(
        self,
        fees: Mapping[str, Fee],
        rates: Mapping[str, str],
        subscriptions: Mapping[str, Subscriptions],
        partitions: int = PARTITIONS,
    ) -> None:
        self._partitions = partitions
        self.now_ms = 0
        self.logs: defaultdict[tuple[str, int], list[Record]] = defaultdict(list)
        self._tables: dict[str, tuple[dict[str, Any], dict[str, str]]] = {topic: ({}, {}) for topic in REFERENCE}
        made = encode_installation(Installation(INSTALLATION, 0))
        self._append(catalogue.INSTALLATION, 0, INSTALLATION.encode(), made, ())
        enforced = encode_ownership(Ownership((0,) * partitions, 0))
        self._append(catalogue.INSTALLATION, 0, OWNERSHIP_KEY, enforced, ())
        for topic, values in (
            (REFERENCE_FEES, fees),
            (REFERENCE_RATES, {pair: Rate(rate) for pair, rate in rates.items()}),
            (REFERENCE_SUBSCRIPTIONS, subscriptions),
        ):
            for key, value in values.items():
                self.refer(topic, key, value)
        (fees_now, fee_places), (rates_now, rate_places) = self._tables[REFERENCE_FEES], self._tables[REFERENCE_RATES]
        reference = ReferenceData(fees_now, rates_now, fee_places, rate_places)
        subscribed, places = self._tables[REFERENCE_SUBSCRIPTIONS]
        self.stages: list[Stage] = []
        ingest = partial(IngestHandler, window_capacity=10_000, partitions=partitions)
        transform = partial(TransformHandler, reference=reference, partitions=partitions)
        ledger = partial(
            LedgerHandler,
            reversal_window=10_000,
            subscriptions=subscribed,
            subscription_places=places,
            partitions=partitions,
            installation=INSTALLATION,
        )
        for partition in range(partitions):
            self._add(PAYMENTS_RAW, partition, partial(ingest, partition))
            self._add(PAYMENTS_ACCEPTED, partition, partial(transform, partition))
            self._add(LEDGER_TRANSFERS, partition, partial(ledger, partition))

    def _add(self, topic: str, partition: int, make: Callable[[], Handler]) -> None:
        self.stages.append(Stage(topic, partition, make, make(), []))

    def send(self, value: bytes, headers: Headers = BY_OPERATOR) -> None:
        """Append a payment to payments.raw."""
        key, partition = key_of(value, self._partitions)
        self._append(PAYMENTS_RAW, partition, key, value, headers)

    def refer(self, topic: str, key: str, value: Fee | Rate | Subscriptions | None) -> None:
        """Append a record of reference data, None to delete it; all services follow at once."""
        values, places = self._tables[topic]
        self._append(topic, 0, key.encode(), None if value is None else msgspec.json.encode(value), ())
        if value is None:
            values.pop(key, None)
            places.pop(key, None)
        else:
            values[key] = value
            places[key] = f"0:{len(self.logs[topic, 0]) - 1}"

    def order(self, event: AccountOpened | AccountClosed) -> None:
        """Append an account event to ledger.transfers."""
        account = event.account
        partition = partition_for(account, self._partitions)
        self._append(LEDGER_TRANSFERS, partition, account.encode(), encode_transfer(event), ())

    def _append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        log = self.logs[topic, partition]
        log.append(Record(topic, partition, len(log), self.now_ms, key, value, headers))

    def waiting(self) -> list[Stage]:
        """Stages with input left."""
        return [stage for stage in self.stages if stage.next_offset < len(self.logs[stage.topic, stage.partition])]

    def transact(self, stage: Stage, records: int, end: End) -> list[Record]:
        """Run one transaction over the next records of a stage.

        Returns:
            Its consumed records; none unless it committed.
        """
        log = self.logs[stage.topic, stage.partition]
        taken = log[stage.next_offset : stage.next_offset + records]
        outputs = [output for record in taken for output in stage.handler.process(record)]
        if end is End.ABORT:
            stage.handler.store.rollback()
            return []
        if end is End.KILL:
            stage.handler = stage.make()
            restore(stage.handler.store, stage.changelog)
            return []
        commit(stage.handler.store, stage.changelog)
        stage.next_offset += len(taken)
        for output in outputs:
            self._append(*output)
        return taken

    def events(self) -> list[LedgerEvent]:
        """All of ledger.postings."""
        return [
            decode_ledger_event(record.value or b"")
            for partition in range(self._partitions)
            for record in self.logs[LEDGER_POSTINGS, partition]
        ]

    def requests(self) -> list[tuple[int, EffectRequest]]:
        """All of effects.requests, with their partitions."""
        decoded = [
            (partition, decode_request(record.value or b""))
            for partition in range(self._partitions)
            for record in self.logs[EFFECTS_REQUESTS, partition]
        ]
        return [(partition, request) for partition, request in decoded if isinstance(request, EffectRequest)]

    def audit(self) -> Verdict:
        """Judge all committed records, as `once verify` does."""
        ends = {at: len(log) for at, log in self.logs.items()}
        judged = Audit(ends, partitions=self._partitions)
        committed: dict[str, dict[int, int]] = {service: {} for service in INPUTS}
        changelogs: dict[tuple[str, int], list[Record]] = {}
        for stage in self.stages:
            service = next(service for service, topic in INPUTS.items() if topic == stage.topic)
            committed[service][stage.partition] = stage.next_offset
            next_offset = NEXT_OFFSET_KEY, encode_next_offset(NextOffset(stage.next_offset))
            topic = CHANGELOGS[service]
            changelogs[topic, stage.partition] = [
                Record(topic, stage.partition, number, self.now_ms, key, value, ())
                for number, (key, value) in enumerate([*stage.changelog, next_offset])
            ]
        for topic in TOPICS:
            for partition in range(self._partitions):
                judged.feed(topic, partition, changelogs.get((topic, partition)) or self.logs[topic, partition])
        return judged.finish(committed)

    def ledgers(self) -> list[LedgerHandler]:
        """The ledger's handlers."""
        return [stage.handler for stage in self.stages if isinstance(stage.handler, LedgerHandler)]
