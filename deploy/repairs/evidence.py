"""Reading what exists of the outputs of some input records.

Invariant: after `settle`, every output that the scope's earlier owners committed was read.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from deploy.checkers.offsets import NONE, Expiry, parse_place, place
from deploy.repairs.plan import Gap
from services.ledger.posted import PostedBooks
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.codec import InternalInputError
from shared.events.effects import decode_request, decode_result
from shared.events.headers import ORIGIN, REPAIR, SOURCE, Coordinates, header
from shared.events.postings import decode_ledger_event, decode_terms
from shared.events.transfers import decode_transfer
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import beginning_offsets, end_offsets, read_topics

OUTPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    "ingest": (catalogue.PAYMENTS_ACCEPTED, catalogue.PAYMENTS_DEDUPLICATED, catalogue.PAYMENTS_DEAD_LETTER),
    "transform": (catalogue.LEDGER_TRANSFERS,),
    # Its credit legs are in its input. Results show which of its requests existed
    "ledger": (
        catalogue.LEDGER_POSTINGS,
        catalogue.LEDGER_ACCOUNTS,
        catalogue.EFFECTS_REQUESTS,
        catalogue.EFFECTS_RESULTS,
    ),
    "outbox": (catalogue.EFFECTS_RESULTS, catalogue.EFFECTS_DEAD_LETTER),
}
_DECODERS: Final[Mapping[str, Mapping[str, Callable[[bytes], object]]]] = {
    "ledger": {
        catalogue.LEDGER_TRANSFERS: decode_transfer,
        catalogue.LEDGER_POSTINGS: decode_ledger_event,
        catalogue.EFFECTS_REQUESTS: decode_request,
    },
    "outbox": {catalogue.EFFECTS_REQUESTS: decode_request, catalogue.EFFECTS_RESULTS: decode_result},
}
"""Of the inputs and outputs that a service's mender decodes."""
_TRANSFERS_PREFIX: Final = f"{catalogue.LEDGER_TRANSFERS}:".encode()
SETTLED_S = 30.0
POLL_S = 0.1

V = TypeVar("V")


class Evidence:
    """Input records that lack outputs, and the outputs of these that exist, by the input's coordinates.

    Args:
        partitions: of each topic.
        reversal_window: how many booked payments the ledger remembers for each partition.

    Attributes:
        books: the fold of ledger.postings by partition; only for the ledger.
        left: why inputs were left as they are; set by the repair.
    """

    def __init__(
        self,
        bootstrap_servers: Bootstrap,
        service: str,
        gaps: Iterable[Gap],
        partitions: int,
        reversal_window: int,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._wanted = {at.encode(): at for gap in gaps for at in gap.inputs()}
        self._input = next((at.topic for at in self._wanted.values()), "")
        # The input first: it names the payments to search the postings for
        self._topics = [*({self._input} - {""}), *OUTPUTS[service]]
        self._decoders = _DECODERS.get(service, {})
        self._passed: dict[tuple[str, int], int] = {}
        self.inputs: dict[Coordinates, Record] = {}
        self.outputs: defaultdict[Coordinates, list[Record]] = defaultdict(list)
        self.left: dict[Coordinates, str] = {}
        self.books = {partition: PostedBooks(partition, reversal_window) for partition in range(partitions)}
        self._origins: set[bytes] = set()  # of the ledger's inputs
        self._decided: set[bytes | None] = set()  # the effect_id of each result with such an origin
        self._expiry = Expiry()
        self._beginnings: Mapping[int, int] = {}  # of effects.requests, by partition
        self._faults: dict[int, str] = {}  # by partition

    async def read(self) -> None:
        """Read what was committed since the last call."""
        for topic in self._topics:
            self._passed |= await read_topics(self._bootstrap_servers, [topic], self._take, start=self._passed)
        if catalogue.EFFECTS_REQUESTS in self._topics:
            # After the reading: what ended before it must show
            beginnings = await beginning_offsets(self._bootstrap_servers, [catalogue.EFFECTS_REQUESTS])
            self._beginnings = {partition: offset for (_, partition), offset in beginnings.items()}

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

    def raise_if_unreadable(self, partition: int) -> None:
        """Raise InternalInputError if a record that this partition's repair needs cannot be decoded."""
        if partition in self._faults:
            raise InternalInputError(self._faults[partition])

    def may_have_expired(self, source: Coordinates, topic: str, effect_id: str) -> bool:
        """Whether a missing output is a request that may have been made, and ended with its topic's retention.

        One whose source has no other output and whose effect has no result was not made.
        """
        if topic != catalogue.EFFECTS_REQUESTS:
            return False
        if not self._expiry.may_include(place(source.partition, source.offset), self._beginnings):
            return False
        return source in self.outputs or effect_id.encode() in self._decided

    def _take(self, topic: str, partition: int, records: list[Record]) -> None:
        books = self.books[partition]
        for record in records:
            if topic == self._input:
                self._take_input(record, books)
            if topic == catalogue.LEDGER_POSTINGS:
                event = self._decoded(decode_ledger_event, record, partition)
                if event is not None:
                    books.take(event, record.headers)
            elif topic == catalogue.LEDGER_ACCOUNTS:
                followed = self._decoded(decode_terms, record, partition)
                if followed is not None:
                    books.followed[(record.key or b"").decode(errors="replace")] = followed
            elif topic == catalogue.EFFECTS_REQUESTS:
                self._take_request(record)
            elif topic == catalogue.EFFECTS_RESULTS and header(record.headers, ORIGIN) in self._origins:
                self._decided.add(record.key)
            source = self._wanted.get(header(record.headers, SOURCE) or b"")
            if source is not None:
                self._decoded(self._decoders.get(topic, bytes), record, source.partition)
                self.outputs[source].append(record)
        # Here, and not when the topic was read: a broker may fail in between, and the next call reads on
        self._passed[topic, partition] = records[-1].offset + 1

    def _take_input(self, record: Record, books: PostedBooks) -> None:
        at = Coordinates(record.topic, record.partition, record.offset)
        if at.encode() not in self._wanted:
            return
        self.inputs[at] = record
        event = self._decoded(self._decoders.get(record.topic, bytes), record, record.partition)
        if record.topic == catalogue.LEDGER_TRANSFERS:
            books.want(event)
            self._origins.add(header(record.headers, ORIGIN) or at.encode())  # a command is its own origin

    def _take_request(self, record: Record) -> None:
        source = parse_place(header(record.headers, SOURCE), _TRANSFERS_PREFIX)
        if source != NONE:  # an operator's decision has another source
            self._expiry.note(source, repaired=header(record.headers, REPAIR) is not None)

    def _decoded(self, decode: Callable[[bytes], V], record: Record, scope: int) -> V | None:
        """Decode a record that the repair of a partition needs; None where it cannot be, which ends that repair."""
        try:
            return decode(record.value or b"")
        except msgspec.DecodeError as error:
            at = Coordinates(record.topic, record.partition, record.offset)
            self._faults.setdefault(scope, f"{at} cannot be decoded: {error}")
            return None
