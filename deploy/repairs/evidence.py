"""Reading what exists of the outputs of some input records.

Invariant: after `settle`, every output that the scope's earlier owners committed was read.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from deploy.repairs.plan import Gap
from services.ledger.repair import PostedBooks
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.headers import SOURCE, Coordinates, header
from shared.events.postings import decode_ledger_event, decode_terms
from shared.events.transfers import decode_transfer
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import end_offsets, read_topics

OUTPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    "ingest": (catalogue.PAYMENTS_ACCEPTED, catalogue.PAYMENTS_DEDUPLICATED, catalogue.PAYMENTS_DEAD_LETTER),
    "transform": (catalogue.LEDGER_TRANSFERS,),
    # Its credit legs are in its input
    "ledger": (catalogue.LEDGER_POSTINGS, catalogue.LEDGER_ACCOUNTS, catalogue.EFFECTS_REQUESTS),
    "outbox": (catalogue.EFFECTS_RESULTS, catalogue.EFFECTS_DEAD_LETTER),
}
SETTLED_S = 30.0
POLL_S = 0.1


class Evidence:
    """Input records that lack outputs, and the outputs of these that exist, by the input's coordinates.

    `books` is the fold of ledger.postings by partition; only for the ledger.
    """

    def __init__(self, bootstrap_servers: Bootstrap, service: str, gaps: Iterable[Gap], partitions: int) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._wanted = {at.encode(): at for gap in gaps for at in gap.inputs()}
        self._input = next((at.topic for at in self._wanted.values()), "")
        # The input first: it names the payments to search the postings for
        self._topics = [*({self._input} - {""}), *OUTPUTS[service]]
        self._passed: dict[tuple[str, int], int] = {}
        self.inputs: dict[Coordinates, Record] = {}
        self.outputs: defaultdict[Coordinates, list[Record]] = defaultdict(list)
        self.books = {partition: PostedBooks(partition) for partition in range(partitions)}

    async def read(self) -> None:
        """Read what was committed since the last call."""
        for topic in self._topics:
            self._passed |= await read_topics(self._bootstrap_servers, [topic], self._take, start=self._passed)

    async def settle(self) -> None:
        """Read on until everything that is in the logs now was read. Call it as the only owner of the scope.

        Raises KafkaUnavailableError if a transaction stays open.
        """
        ends = await end_offsets(self._bootstrap_servers, self._topics)
        deadline = time.monotonic() + SETTLED_S
        await self.read()
        while any(self._passed[target] < end for target, end in ends.items()):
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(
                    "a transaction stays open in the topics to be repaired: see `once txn list`"
                )
            await asyncio.sleep(POLL_S)
            await self.read()

    def _take(self, topic: str, partition: int, records: list[Record]) -> None:
        books = self.books[partition]
        for record in records:
            if topic == self._input:
                self._take_input(record, books)
            if topic == catalogue.LEDGER_POSTINGS:
                books.take(decode_ledger_event(record.value or b""), record.headers)
            elif topic == catalogue.LEDGER_ACCOUNTS:
                books.followed[(record.key or b"").decode()] = decode_terms(record.value or b"")
            source = self._wanted.get(header(record.headers, SOURCE) or b"")
            if source is not None:
                self.outputs[source].append(record)

    def _take_input(self, record: Record, books: PostedBooks) -> None:
        at = Coordinates(record.topic, record.partition, record.offset)
        if at.encode() not in self._wanted:
            return
        self.inputs[at] = record
        if record.topic == catalogue.LEDGER_TRANSFERS:
            books.want(decode_transfer(record.value or b""))
