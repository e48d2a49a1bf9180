"""All services at work with their transactions, and cuts through them, without brokers.

The handlers are the services' own. The end of a transaction reaches the partitions that it wrote to, and its group's
offset, one after the other; an aborted one leaves offsets behind and no records. A cut may fall anywhere between. The
outbox is simulated: only its records matter.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from services.ingest.service import IngestHandler
from services.ledger.service import LedgerHandler
from services.transform.domain import ReferenceData
from services.transform.service import TransformHandler
from shared.eos.records import Handler, Output, Record
from shared.events import catalogue as topics
from shared.events.effects import (
    EffectRequest,
    EffectResult,
    EffectState,
    Resolution,
    Subscription,
    Subscriptions,
    Waiting,
    decode_request,
    encode_request,
    encode_result,
    encode_waiting,
)
from shared.events.headers import ORIGIN, SOURCE, Coordinates, header
from shared.events.payments import SCHEMA_VERSION, Payment, Reversal, encode_instruction
from shared.events.reference import Fee, Rate
from shared.events.transfers import AccountClosed, AccountOpened, encode_transfer
from shared.events.validation import decode_payment
from spark.manifest import INPUTS, LANDED_TOPICS, Manifest
from tests.partitions import PARTITIONS, partition_for, partition_for_bytes
from tests.pipeline.nights import manifest
from tests.world import World

Log = tuple[str, int]

_REFERENCE = ReferenceData(
    {"CZK": Fee(fixed_minor=5, basis_points=10)},
    {"CZK/EUR": Rate("0.0405"), "EUR/CZK": Rate("24.5"), "CZK/JPY": Rate("6.15"), "JPY/CZK": Rate("0.000000000001")},
)
_SUBSCRIPTIONS = Subscriptions(
    (
        Subscription("receipt", "file:receipts"),
        Subscription("event", "https://example.org/hook"),
        Subscription("decline_notice", "mailto:somebody@example.org"),
    )
)
_CLIENTS = tuple(f"client-{number}" for number in range(10))
_CURRENCIES = ("CZK", "CZK", "EUR", "JPY", "USD")


@dataclass
class Stage:
    """One service's work on one partition of its input.

    Attributes:
        handler: None for the outbox.
        next: the next input offset.
        due: partitions that its transaction's end has not reached, with their first offset in it.
        offset_due: whether the end has not reached the group's offset.
    """

    service: str
    partition: int
    handler: Handler | None
    next: int = 0
    due: dict[Log, int] = field(default_factory=dict)
    offset_due: bool = False

    @property
    def log(self) -> Log:
        """The partition that it reads."""
        return INPUTS[self.service], self.partition


class Flow(World):
    """The whole system at work.

    Args:
        seed: of all random choices.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self._numbers = 0
        self._sent: list[tuple[str, str]] = []
        self._values: list[bytes] = []
        self._tried: dict[int, list[tuple[EffectRequest, Record]]] = {number: [] for number in range(PARTITIONS)}
        self._doubtful: list[tuple[EffectRequest, int]] = []
        self.stages = [
            Stage(service, number, handler)
            for number in range(PARTITIONS)
            for service, handler in (
                ("ingest", IngestHandler(number, 10_000, partitions=PARTITIONS)),
                ("transform", TransformHandler(number, _REFERENCE, partitions=PARTITIONS)),
                ("ledger", LedgerHandler(number, 10_000, {"*": _SUBSCRIPTIONS}, partitions=PARTITIONS)),
                ("outbox", None),
            )
        ]

    def end(self, log: Log) -> int:
        """The last stable offset."""
        return min((stage.due[log] for stage in self.stages if log in stage.due), default=self._next[log])

    def write(self, output: Output) -> int:
        """Append a record; its offset."""
        log = (output.topic, output.partition)
        offset = self._next[log]
        self._next[log] += 1
        self.logs[log].append(Record(*log, offset, 1_767_600_000_000, output.key, output.value, output.headers))
        return offset

    def work(self, stage: Stage, records: int, *, aborts: bool = False) -> bool:
        """Run one transaction, whose end has not reached any partition; an aborted one leaves only offsets."""
        seen = [one for one in self.logs[stage.log] if stage.next <= one.offset < self.end(stage.log)]
        if stage.due or stage.offset_due or not seen:
            return False
        taken = seen[:records]
        if stage.handler is None:
            outputs = [output for record in taken for output in self._results(record)]
        else:
            outputs = [output for record in taken for output in stage.handler.process(record)]
        if aborts and stage.handler is not None:
            stage.handler.store.rollback()
            for log in {(output.topic, output.partition) for output in outputs}:
                self._next[log] += 1 + sum((output.topic, output.partition) == log for output in outputs)
            return False
        if stage.handler is not None:
            stage.handler.store.commit()
        for output in outputs:
            stage.due.setdefault((output.topic, output.partition), self.write(output))
        stage.next, stage.offset_due = taken[-1].offset + 1, True
        return True

    def deliver(self, stage: Stage, log: Log | None = None) -> None:
        """Let the end of a transaction reach a partition, or, without one, the group's offset."""
        if log is None:
            stage.offset_due = False
            self.committed[stage.service][stage.partition] = stage.next
        else:
            del stage.due[log]
            self._next[log] += 1  # the marker's offset

    def drain(self) -> None:
        """Work until nothing is left to do."""
        while True:
            for stage in self.stages:
                for log in list(stage.due):
                    self.deliver(stage, log)
                if stage.offset_due:
                    self.deliver(stage)
            if not sum(self.work(stage, 100) for stage in self.stages):
                return

    def bustle(self, steps: int) -> None:
        """Do random steps of every kind."""
        for _ in range(steps):
            stage = self.random.choice(self.stages)
            match self.random.randrange(6):
                case 0:
                    self.send()
                case 1 | 2:
                    self.work(stage, self.random.randrange(1, 6), aborts=self.random.random() < 0.1)
                case _:
                    ends = [*stage.due, *([None] if stage.offset_due else [])]
                    for log in ends:
                        if self.random.random() < 0.7:
                            self.deliver(stage, log)

    def cut(self, previous: Manifest | None = None, *, settled: bool = False, steps: int = 12) -> Manifest:
        """Pin a cut while work goes on: groups, then ends from the last topic to the first, then high watermarks."""
        groups = {service: dict(committed) for service, committed in self.committed.items()}
        stops: dict[Log, int] = {}
        for topic in reversed(LANDED_TOPICS):
            self.bustle(0 if settled else steps)
            stops |= {(topic, number): self.end((topic, number)) for number in range(PARTITIONS)}
        self.bustle(0 if settled else steps)
        highs = {log: self._next[log] for log in stops}
        return manifest(self, stops=stops, highs=highs, groups=groups, settled=settled, previous=previous)

    def send(self) -> None:
        """Write a record to payments.raw, or an operator's command."""
        self._numbers += 1
        name, (debtor, creditor) = f"p-{self._numbers}", self.random.sample(_CLIENTS, 2)
        match self.random.randrange(12):
            case 0 if self._values:
                self._raw(self.random.choice(self._values))
            case 1 if self._sent:
                owner, reverses = self.random.choice(self._sent)
                self._raw(encode_instruction(Reversal(name, owner, reverses, SCHEMA_VERSION)))
            case 2:
                self._raw(b"no payment %d" % self._numbers)
            case 3:
                terms = self.random.choice((AccountOpened(debtor, 0), AccountOpened(debtor, 90), AccountClosed(debtor)))
                self.write(Output(topics.LEDGER_TRANSFERS, partition_for(debtor), None, encode_transfer(terms), ()))
            case 4 if self._doubtful:
                self._resolve(*self._doubtful.pop())
            case _:
                payer = self.random.choice((debtor, f"cash@{self.random.randrange(PARTITIONS)}"))
                currency, asked = self.random.choice(_CURRENCIES), self.random.choice((*_CURRENCIES, None))
                amount = self.random.randrange(1, 5_000)
                payment = Payment(name, payer, creditor, amount, currency, SCHEMA_VERSION, asked, None, f"for {name}")
                self._raw(encode_instruction(payment))
                self._sent.append((payer, name))

    def _raw(self, value: bytes) -> None:
        try:
            partition = partition_for(decode_debtor(value))
            self._values.append(value)
        except ValueError:
            partition = partition_for_bytes(value)
        self.write(Output(topics.PAYMENTS_RAW, partition, None, value, ()))

    def _resolve(self, request: EffectRequest, partition: int) -> None:
        decision = Resolution(request.effect_id, 1, "confirm", request)
        headers = ((ORIGIN, b"payments.raw:0:0"),)
        self.write(Output(topics.EFFECTS_REQUESTS, partition, None, encode_request(decision), headers))

    def _results(self, record: Record) -> list[Output]:
        """The outbox's records for a request; a waiting request ends with a later one."""
        decoded, late = decode_request(record.value or b""), self._tried[record.partition]
        outputs = []
        while late and self.random.random() < 0.5:
            request, asked = late.pop(0)
            key = b"waiting/" + request.effect_id.encode()
            outputs += [
                self._result(request, asked, EffectState.SENT, resends=1),
                Output(topics.EFFECTS_WAITING, record.partition, key, None, ()),
            ]
        if isinstance(decoded, Resolution):
            return [*outputs, self._result(decoded.request, record, EffectState.SENT, revision=2)]
        state = self.random.choice((EffectState.SENT, EffectState.SENT, EffectState.FAILED, EffectState.IN_DOUBT, None))
        if state is None:
            late.append((decoded, record))
            value = encode_waiting(Waiting(decoded, "", "", 1, 1, 1, 1))
            return [
                *outputs,
                Output(topics.EFFECTS_WAITING, record.partition, b"waiting/" + decoded.effect_id.encode(), value, ()),
            ]
        if state is EffectState.IN_DOUBT:
            self._doubtful.append((decoded, record.partition))
        outputs.append(self._result(decoded, record, state))
        if state is EffectState.FAILED:
            outputs.append(outputs[-1]._replace(topic=topics.EFFECTS_DEAD_LETTER, value=encode_request(decoded)))
        return outputs

    def _result(self, request: EffectRequest, asked: Record, state: str, **more: Any) -> Output:
        headers = (
            (ORIGIN, header(asked.headers, ORIGIN) or b""),
            (SOURCE, Coordinates(asked.topic, asked.partition, asked.offset).encode()),
        )
        value = encode_result(EffectResult(request.effect_id, state, 1, 1, **more))
        return Output(topics.EFFECTS_RESULTS, asked.partition, request.effect_id.encode(), value, headers)


def decode_debtor(value: bytes) -> str:
    """The debtor of a payment or reversal.

    Raises:
        ValueError: the value is neither.
    """
    return decode_payment(value, PARTITIONS).debtor
