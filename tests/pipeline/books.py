"""A ledger with its transactions, and cuts through them, without brokers.

The handlers are the ledger's own. Each `work` is one transaction of one partition, as the runtime makes them; its end
may reach the partitions that it wrote to one after the other, and a cut may fall between.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any

from msgspec import structs
from pyspark.sql import DataFrame, SparkSession

from services.ledger.service import LedgerHandler
from shared.eos.records import Output, Record
from shared.events.catalogue import LEDGER_BALANCES, LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.clients import OPERATOR
from shared.events.headers import Coordinates, Headers, header
from shared.events.postings import ACCOUNT_PREFIX, Account, decode_account, decode_ledger_event, encode_account
from shared.events.transfers import AccountOpened, Transfer, TransferReversal, decode_transfer, encode_transfer
from spark.manifest import VERSION, Manifest, Range, seal
from spark.night import Night
from spark.schemas import TABLES, tables_of
from tests.installation import INSTALLATION
from tests.partitions import PARTITIONS, partition_for
from tests.pipeline.nights import places

TOPICS = (LEDGER_BALANCES, LEDGER_POSTINGS, LEDGER_TRANSFERS)
"""In the order in which a cut pins their ends."""
BEGIN_MS = 1_767_600_000_000  # 2026-01-05 08:00 UTC
DATE = "2026-01-05"

Log = tuple[str, int]


class Books:
    """Six partitions of the ledger, and those of the topics that it reads and writes that say what accounts have.

    Attributes:
        now_ms: time of arrival of the next record.
    """

    def __init__(self) -> None:
        self.now_ms = BEGIN_MS
        self.logs: defaultdict[Log, dict[int, Record]] = defaultdict(dict)
        self._high: defaultdict[Log, int] = defaultdict(int)
        self._handlers = [
            LedgerHandler(partition, 1000, {}, partitions=PARTITIONS, installation=INSTALLATION)
            for partition in range(PARTITIONS)
        ]
        self._next = [0] * PARTITIONS
        self._committed = [0] * PARTITIONS
        self._open: dict[int, dict[Log, int]] = {}

    def pay(self, payment_id: str, debtor: str, creditor: str, amount_minor: int, **more: Any) -> None:
        """Order a payment, by default in EUR."""
        terms = {"currency": "EUR", "credit_minor": amount_minor, "value_date": DATE, **more}
        terms.setdefault("credit_currency", terms["currency"])
        self.order(Transfer(payment_id, debtor, creditor, amount_minor, **terms), partition_for(debtor))

    def order(self, event: Transfer | TransferReversal | AccountOpened, partition: int) -> None:
        """Write a record to ledger.transfers: an operator's payment, or an operator's command."""
        headers: Headers = ()
        if not isinstance(event, AccountOpened):
            event = structs.replace(event, submitted_by=OPERATOR)
            headers = (("origin", b"payments.raw:%d:%d" % (partition, self._high[LEDGER_TRANSFERS, partition])),)
        self._append(Output(LEDGER_TRANSFERS, partition, None, encode_transfer(event), headers))

    def work(self, partition: int, records: int = 1000) -> bool:
        """Run one transaction of a partition, whose end has not reached any topic. False without input."""
        log = (LEDGER_TRANSFERS, partition)
        seen = (offset for offset in sorted(self.logs[log]) if self._next[partition] <= offset < self.end(log))
        offsets = [offset for offset, _ in zip(seen, range(records), strict=False)]
        if partition in self._open or not offsets:
            return False
        handler = self._handlers[partition]
        made = (output for offset in offsets for output in handler.process(self.logs[log][offset]))
        outputs = [output for output in made if output.topic in TOPICS]
        source = (("source", Coordinates(*log, offsets[-1]).encode()),)
        outputs += [
            Output(LEDGER_BALANCES, partition, key, value, source)
            for key, value in handler.store.changes()
            if key.startswith(ACCOUNT_PREFIX)
        ]
        handler.store.commit()
        begun: dict[Log, int] = {}
        for output in outputs:
            at = self._append(output)
            begun.setdefault((output.topic, output.partition), at)
        self._open[partition] = begun
        self._next[partition] = offsets[-1] + 1
        return True

    def deliver(self, partition: int, log: Log | None = None) -> None:
        """Let the end of a partition's transaction reach a topic's partition, or all of them."""
        due = self._open.get(partition, {})
        for reached in [log] if log else list(due):
            if due.pop(reached, None) is not None:
                self._high[reached] += 1  # the marker's offset
        if not due:
            self._open.pop(partition, None)
            self._committed[partition] = self._next[partition]

    def open(self, partition: int) -> list[Log]:
        """Partitions that the end of a partition's transaction has not reached."""
        return sorted(self._open.get(partition, {}))

    def drain(self) -> None:
        """Work until there is nothing left to do."""
        for partition in list(self._open):
            self.deliver(partition)
        busy = True
        while busy:
            busy = sum(self.work(partition) for partition in range(PARTITIONS)) > 0
            for partition in list(self._open):
                self.deliver(partition)

    def end(self, log: Log) -> int:
        """The last stable offset."""
        return min((due[log] for due in self._open.values() if log in due), default=self._high[log])

    def change(self, at: Coordinates, **changes: Any) -> None:
        """Give a record another value or other headers."""
        log = self.logs[at.topic, at.partition]
        log[at.offset] = log[at.offset]._replace(**changes)

    def state_of(self, account: str, state: Account, source: Coordinates) -> None:
        """Write a state that the ledger did not write."""
        key, partition = f"account/{account}".encode(), partition_for(account)
        self._append(Output(LEDGER_BALANCES, partition, key, encode_account(state), (("source", source.encode()),)))

    def last(self, topic: str, partition: int, key: str) -> Coordinates:
        """The last record of a key."""
        log = self.logs[topic, partition]
        return Coordinates(topic, partition, max(at for at, record in log.items() if record.key == key.encode()))

    def state(self, account: str) -> Coordinates:
        """An account's last record in the changelog."""
        return self.last(LEDGER_BALANCES, partition_for(account), f"account/{account}")

    def misstate(self, account: str, by: int) -> Coordinates:
        """Alter an account's last state, in EUR."""
        at = self.state(account)
        state: Account = event_of(self.logs[at.topic, at.partition][at.offset])
        changed = {**state.balances, "EUR": state.balances.get("EUR", 0) + by}
        self.change(at, value=encode_account(structs.replace(state, balances=changed)))
        return at

    def cut(self, previous: Manifest | None = None, between: Callable[[], None] = lambda: None) -> Manifest:
        """Pin a cut as `once` does: groups first, then each topic's ends, then every high watermark.

        Args:
            previous: the cut before.
            between: called between the steps.
        """
        committed = dict(enumerate(self._committed))
        ends: dict[Log, int] = {}
        for topic in TOPICS:
            between()
            ends |= {(topic, partition): self.end((topic, partition)) for partition in range(PARTITIONS)}
        between()
        topics: dict[str, dict[int, Range]] = {topic: {} for topic in TOPICS}
        for (topic, partition), end in ends.items():
            start = previous.topics[topic][partition].end if previous else 0
            topics[topic][partition] = Range(start, end, self._high[topic, partition])
        sequence, digest = (previous.sequence + 1, previous.digest) if previous else (1, "")
        groups = {"ledger": committed}
        return seal(Manifest(VERSION, sequence, self.now_ms, "books", topics, groups, settled=False, previous=digest))

    def night(self, spark: SparkSession, cut: Manifest, carried: Mapping[str, DataFrame] | None = None) -> Night:
        """A run's input over a cut; without carried tables, from the beginning."""
        starts = {(topic, number): range_.start for topic, of in cut.topics.items() for number, range_ in of.items()}
        ends = {(topic, number): range_.end for topic, of in cut.topics.items() for number, range_ in of.items()}
        new: dict[str, DataFrame] = {}

        def table(name: str) -> DataFrame:
            if name not in new:
                new[name] = self._table(spark, name, starts, ends)
            return new[name]

        return Night(spark, cut, table, lambda name, _=None: self._table(spark, name, {}, starts), (carried or {}).get)

    def _append(self, output: Output) -> int:
        log = (output.topic, output.partition)
        offset = self._high[log]
        self._high[log] += 1
        self.logs[log][offset] = Record(*log, offset, self.now_ms, output.key, output.value, output.headers)
        return offset

    def _table(self, spark: SparkSession, name: str, starts: Mapping[Log, int], ends: Mapping[Log, int]) -> DataFrame:
        rows = [
            row(record)
            for log, records in sorted(self.logs.items())
            for offset, record in sorted(records.items())
            if starts.get(log, 0) <= offset < ends[log] and table_of(record) == name
        ]
        return spark.createDataFrame(rows, TABLES[name].schema)


def table_of(record: Record) -> str:
    """The table that a record is landed in."""
    tables = tables_of(record.topic)
    tag = "" if record.topic == LEDGER_BALANCES else type(event_of(record)).__struct_config__.tag
    return next(table.name for table in tables if table.tag == tag)


def event_of(record: Record) -> Any:
    """A record's event."""
    decode = {LEDGER_POSTINGS: decode_ledger_event, LEDGER_TRANSFERS: decode_transfer, LEDGER_BALANCES: decode_account}
    return decode[record.topic](record.value or b"{}")


def row(record: Record) -> tuple[Any, ...]:
    """A record as its table has it."""
    event = event_of(record)
    key = (record.key or b"").decode()
    values: dict[str, Any] = {name: getattr(event, name) for name in event.__struct_fields__}
    if "entries" in values:
        values["entries"] = [(entry.account, entry.currency, entry.amount_minor) for entry in event.entries]
    values |= places(values)
    if record.topic == LEDGER_POSTINGS:
        values["repair"] = None
    if record.topic == LEDGER_BALANCES:
        balances = {currency: Decimal(amount) for currency, amount in event.balances.items()}
        values |= {"account": key.removeprefix("account/"), "balances": balances, "deleted": record.value is None}
    arrived = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
    links = [place for name in ("origin", "source") for place in _place(header(record.headers, name))]
    where = [record.topic, record.partition, record.offset, arrived, key, *links]
    return (*where, *(values[column.name] for column in TABLES[table_of(record)].columns), arrived.date())


def _place(value: bytes | None) -> tuple[str | None, int | None, int | None]:
    if value is None:
        return None, None, None
    place = Coordinates.decode(value)
    return place.topic, place.partition, place.offset


def kept(rows: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Tables that a run carries over, written and read back."""
    return {name: frame.sparkSession.createDataFrame(frame.collect(), frame.schema) for name, frame in rows.items()}


def bustle(books: Books, random: Random, steps: int) -> None:
    """Make traffic: payments, transactions, and transaction ends that arrive one by one."""
    accounts = [f"client-{number}" for number in range(8)] + ["cash@2"]
    if not books.logs:
        for account in accounts:
            books.order(AccountOpened(account, None), partition_for(account))
    for step in range(steps):
        partition = random.randrange(PARTITIONS)
        match random.randrange(4):
            case 0:
                debtor, creditor = random.sample(accounts, 2)
                more = {"credit_currency": "USD", "credit_minor": 7, "rate": "0.5"} if random.random() < 0.2 else {}
                books.pay(f"p-{books.now_ms}-{step}", debtor, creditor, random.randrange(1, 90), **more)
            case 1 | 2:
                books.work(partition, random.randrange(1, 6))
            case _:
                for log in books.open(partition):
                    if random.random() < 0.6:
                        books.deliver(partition, log)
        books.now_ms += random.randrange(900_000)
