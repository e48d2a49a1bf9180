"""Loading a file into the running system: accounts and expected balances first, then the payments in file order.

Invariant: every line that is not empty becomes one record of payments.raw, mapped or unchanged; nothing is filtered.
When `load_file` returns, all in-sync replicas have all of it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from deploy.load import pkdd99
from deploy.load.files import Format, LoadError, Survey, detect, records_of, survey
from shared.events import catalogue
from shared.events.clients import SubmittedBy, encode_submitted_by
from shared.events.headers import SUBMITTED_BY
from shared.events.partitions import partition_for
from shared.events.reference import decode_expected_balance, encode_reference
from shared.events.transfers import AccountOpened, encode_transfer
from shared.events.validation import key_of
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import RecordTooLargeError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import partition_count, read_table

Arrange = Callable[[Iterable[bytes]], Iterator[bytes]]
Progress = Callable[[int, int], None]

_PROGRESS_EVERY = 500
_PACE_S = 0.02
_ACKNOWLEDGED_S = 30.0  # a load outlasts the loss of a broker


class Loaded(msgspec.Struct):
    """Result of a load.

    Attributes:
        records: written to payments.raw.
        unmapped: of those, lines of the data set that are not transactions; they were loaded unchanged.
        accounts_unexplained: see `Survey.unexplained`.
        seconds: from the first record of payments.raw to the last acknowledgement.
    """

    file: str
    format: str
    records: int
    unmapped: int
    empty_lines: int
    accounts_opened: int
    expected_balances: int
    accounts_unexplained: list[str]
    seconds: float


async def load_file(
    bootstrap_servers: Bootstrap,
    path: Path,
    submitted_by: SubmittedBy,
    *,
    file_format: Format | None = None,
    records_per_s: float | None = None,
    on_progress: Progress | None = None,
    arrange: Arrange | None = None,
    arranged_more: int = 0,
) -> Loaded:
    """Load a file, plain or gzip.

    Args:
        submitted_by: the client that submits the payments, and owns the accounts that are opened for them.
        file_format: None detects it from the first line.
        records_per_s: a steady rate not to be exceeded.
        on_progress: called now and then with records written and records in all.
        arrange: reorders the records of payments.raw, or adds `arranged_more` to them.

    Raises:
        LoadError: the file cannot be read, or holds a record larger than the topic takes.
        TopicMismatchError: the topics differ in their partition counts.
        KafkaUnavailableError: the cluster did not answer or acknowledge in time. What was written until then stays:
            load the file again, repeats are dropped.
    """
    chosen = file_format or detect(path)
    known = {}
    if chosen is Format.PKDD99:
        known = await read_table(bootstrap_servers, catalogue.REFERENCE_BALANCES, decode_expected_balance)
    found = survey(path, chosen, known)
    written = [catalogue.PAYMENTS_RAW, catalogue.LEDGER_TRANSFERS, catalogue.REFERENCE_BALANCES]
    partitions = await partition_count(bootstrap_servers, written)
    source = _Source(path, chosen, partitions)
    async with IdempotentWriter(bootstrap_servers, client_id="once-load", request_timeout_s=_ACKNOWLEDGED_S) as writer:
        await _write_reference(writer, found, submitted_by.client, partitions)
        begun = time.monotonic()
        sender = _Sender(writer, submitted_by, partitions, records_per_s, on_progress, found.records + arranged_more)
        values = source.values()
        await sender.send(values if arrange is None else arrange(values))
        await writer.flush()
    return Loaded(
        file=path.name,
        format=chosen.value,
        records=sender.sent,
        unmapped=source.unmapped,
        empty_lines=found.empty_lines,
        accounts_opened=len(found.accounts),
        expected_balances=len(found.expected),
        accounts_unexplained=found.unexplained,
        seconds=round(time.monotonic() - begun, 3),
    )


async def _write_reference(writer: IdempotentWriter, found: Survey, owner: str, partitions: int) -> None:
    """Accounts and expected balances, acknowledged before the first payment: none is declined for want of terms."""
    for account in found.accounts:
        opened = encode_transfer(AccountOpened(account, None, owner))
        await writer.write(catalogue.LEDGER_TRANSFERS, partition_for(account, partitions), account.encode(), opened)
    for account, expected in found.expected.items():
        value = encode_reference(expected)
        await writer.write(catalogue.REFERENCE_BALANCES, partition_for(account, partitions), account.encode(), value)
    await writer.flush()


class _Source:
    def __init__(self, path: Path, file_format: Format, partitions: int) -> None:
        self._path = path
        self._partitions = partitions
        self._format = file_format
        self.unmapped = 0

    def values(self) -> Iterator[bytes]:
        for line in records_of(self._path, self._format):
            if not line:
                continue
            if self._format is Format.JSONL:
                yield line
                continue
            value, mapped = pkdd99.value_of(line, self._partitions)
            self.unmapped += not mapped
            yield value


class _Sender:
    def __init__(
        self,
        writer: IdempotentWriter,
        submitted_by: SubmittedBy,
        partitions: int,
        records_per_s: float | None,
        on_progress: Progress | None,
        total: int,
    ) -> None:
        self._writer = writer
        self._headers = ((SUBMITTED_BY, encode_submitted_by(submitted_by)),)
        self._partitions = partitions
        self._records_per_s = records_per_s
        self._on_progress = on_progress
        self._total = total
        self.sent = 0

    async def send(self, values: Iterator[bytes]) -> None:
        begun = time.monotonic()
        for value in values:
            key, partition = key_of(value, self._partitions)
            try:
                await self._writer.write(catalogue.PAYMENTS_RAW, partition, key, value, self._headers)
            except RecordTooLargeError as error:
                raise LoadError(f"record {self.sent + 1}: {error}; the {self.sent} before it were loaded") from error
            self.sent += 1
            if self.sent % _PROGRESS_EVERY == 0:
                self._report()
            if self._records_per_s is not None:
                await self._pace(begun, self._records_per_s)
        self._report()

    async def _pace(self, begun: float, records_per_s: float) -> None:
        ahead_s = self.sent / records_per_s - (time.monotonic() - begun)
        if ahead_s > _PACE_S:
            await asyncio.sleep(ahead_s)

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.sent, self._total)
