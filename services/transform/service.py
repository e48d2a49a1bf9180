"""transform as the runtime runs it: accepted payments in, transfers out, on the debtor's partition.

It has no state but its position: fees and rates come from the reference topics, and what was used is in the
event.
"""

from datetime import UTC, datetime
from functools import lru_cache

from services.transform.domain import ReferenceData, price, price_reversal, rate_ratio
from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.events.catalogue import LEDGER_TRANSFERS, PAYMENTS_ACCEPTED, REFERENCE_FEES, REFERENCE_RATES
from shared.events.currencies import MINOR_DIGITS
from shared.events.errors import InternalInputError
from shared.events.headers import ORIGIN, SOURCE, header
from shared.events.partitions import partition_for
from shared.events.payments import Payment, decode_instruction
from shared.events.reference import decode_fee, decode_rate
from shared.events.transfers import encode_transfer

_DAY_MS = 86_400_000


class TransformHandler:
    """One partition of payments.accepted; it writes the same partition of ledger.transfers."""

    def __init__(self, partition: int, reference: ReferenceData) -> None:
        """Make a handler.

        Args:
            partition: of payments.accepted.
            reference: fees and rates, read at each record; the runtime keeps it up to date
            (`update_reference`).
        """
        self._partition = partition
        self._reference = reference
        self._store = Stores()
        self._coordinates = b"%b:%d:" % (PAYMENTS_ACCEPTED.encode(), partition)

    @property
    def store(self) -> Stores:
        """Nothing: the runtime keeps the position."""
        return self._store

    def process(self, record: Record) -> list[Output]:
        """Price one accepted payment, or pass a reversal on.

        Raises:
            InternalInputError: the record is not what ingest writes.
        """
        source = self._coordinates + b"%d" % record.offset
        origin = header(record.headers, ORIGIN)
        if record.value is None or origin is None:
            raise InternalInputError(f"{source.decode()} has no value or no origin")
        try:
            instruction = decode_instruction(record.value)
        except ValueError as error:
            raise InternalInputError(f"{source.decode()}: {error}") from error
        debtor = instruction.debtor
        if partition_for(debtor) != self._partition:
            raise InternalInputError(f"{source.decode()} belongs on partition {partition_for(debtor)}")
        received_on = _utc_date(record.timestamp_ms // _DAY_MS)
        transfer = (
            price(instruction, self._reference, received_on)
            if isinstance(instruction, Payment)
            else price_reversal(instruction, received_on)
        )
        return [
            Output(
                LEDGER_TRANSFERS,
                self._partition,
                debtor.encode(),
                encode_transfer(transfer),
                ((ORIGIN, origin), (SOURCE, source)),
            )
        ]


@lru_cache(maxsize=16)
def _utc_date(day: int) -> str:
    """The date of a day counted from 1970-01-01 UTC."""
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


def update_reference(reference: ReferenceData, topic: str, key: bytes | None, value: bytes | None) -> None:
    """Take one record of a reference topic, in its order; no value takes the entry away.

    Args:
        reference: changed in place.
        topic: REFERENCE_FEES (key `EUR`) or REFERENCE_RATES (key `EUR/USD`).

    Raises:
        InternalInputError: the record is not what the commands `once fees set` and `once rates set` write.
    """
    update = _UPDATES.get(topic)
    if update is None:
        raise InternalInputError(f"{topic} is no reference topic")
    try:
        update(reference, (key or b"").decode(), value)
    except (ValueError, KeyError) as error:
        raise InternalInputError(f"{topic} {key!r}: {error}") from error


def _update_fee(reference: ReferenceData, currency: str, value: bytes | None) -> None:
    if value is None:
        reference.fees.pop(currency, None)
        return
    fee = decode_fee(value)
    if currency not in MINOR_DIGITS or (fee.max_minor is not None and fee.max_minor < fee.min_minor):
        raise ValueError("the currency is unknown, or max_minor is below min_minor")
    reference.fees[currency] = fee


def _update_rate(reference: ReferenceData, name: str, value: bytes | None) -> None:
    currency, _, credit_currency = name.partition("/")
    if value is None:
        reference.rates.pop((currency, credit_currency), None)
        return
    rate = decode_rate(value).rate
    rate_ratio(rate, currency, credit_currency)
    reference.rates[currency, credit_currency] = rate


_UPDATES = {REFERENCE_FEES: _update_fee, REFERENCE_RATES: _update_rate}
