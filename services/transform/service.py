"""The record handler of transform: accepted payments in, transfers out, on the debtor's partition.

Its only state is its position. Fees and rates come from the reference topics, and the event names those used.
"""

from datetime import UTC, datetime
from functools import lru_cache

from services.transform.domain import ReferenceData, price, price_reversal
from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.events.catalogue import LEDGER_TRANSFERS, PAYMENTS_ACCEPTED
from shared.events.codec import InternalInputError
from shared.events.headers import lineage
from shared.events.partitions import partition_for
from shared.events.payments import Payment, decode_instruction
from shared.events.transfers import encode_transfer

_DAY_MS = 86_400_000


class TransformHandler:
    """One partition of payments.accepted; it writes the same partition of ledger.transfers.

    The fees and rates are read at each record and kept up to date by the caller.
    """

    def __init__(self, partition: int, reference: ReferenceData) -> None:
        self._partition = partition
        self._reference = reference
        self._store = Stores()
        self._coordinates = b"%b:%d:" % (PAYMENTS_ACCEPTED.encode(), partition)

    @property
    def store(self) -> Stores:
        """Return an empty store: the runtime keeps the position."""
        return self._store

    def process(self, record: Record) -> list[Output]:
        """Price an accepted payment, or pass a reversal on; raise InternalInputError for another schema."""
        source = self._coordinates + b"%d" % record.offset
        headers = lineage(record.headers, source)
        if record.value is None or headers is None:
            raise InternalInputError(f"{source.decode()} has no value or no origin")
        try:
            instruction = decode_instruction(record.value)
        except ValueError as error:
            raise InternalInputError(f"{source.decode()}: {error}") from error
        debtor = instruction.debtor
        if partition_for(debtor) != self._partition:
            raise InternalInputError(f"{source.decode()} belongs on partition {partition_for(debtor)}")
        received_on = _utc_date(record.timestamp_ms // _DAY_MS)
        if isinstance(instruction, Payment):
            value = encode_transfer(price(instruction, self._reference, received_on))
        else:
            value = encode_transfer(price_reversal(instruction, received_on))
        return [Output(LEDGER_TRANSFERS, self._partition, debtor.encode(), value, headers)]


@lru_cache(maxsize=16)
def _utc_date(day: int) -> str:
    """The date of a day counted from 1970-01-01 UTC."""
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
