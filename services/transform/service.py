"""The record handler of transform: accepted payments in, transfers out, on the debtor's partition.

Its only state is its position. Fees and rates come from the reference topics, and the event names the records used.
Fields that a later version of ingest adds are passed on.
"""

from services.transform.domain import ReferenceData, opened, price, price_reversal
from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.events.catalogue import LEDGER_TRANSFERS, PAYMENTS_ACCEPTED
from shared.events.codec import InternalInputError, with_extra
from shared.events.headers import lineage
from shared.events.partitions import partition_for
from shared.events.payments import AcceptedPayment, AcceptedReversal, decode_accepted, received_on
from shared.events.transfers import AccountOpened, Transfer, TransferReversal, encode_transfer


class TransformHandler:
    """One of the partitions of payments.accepted; it writes the same partition of ledger.transfers.

    The fees and rates are read at each record and kept up to date by the caller.
    """

    def __init__(self, partition: int, reference: ReferenceData, *, partitions: int) -> None:
        self._partition = partition
        self._partitions = partitions
        self._reference = reference
        self._store = Stores()
        self._coordinates = b"%b:%d:" % (PAYMENTS_ACCEPTED.encode(), partition)

    @property
    def store(self) -> Stores:
        """Return an empty store: the runtime keeps the position."""
        return self._store

    def process(self, record: Record) -> list[Output]:
        """Price an accepted payment, or pass on a reversal or the opening of an account.

        Raises InternalInputError for another schema.
        """
        source = self._coordinates + b"%d" % record.offset
        headers = lineage(record.headers, source)
        if record.value is None or headers is None:
            raise InternalInputError(f"{source.decode()} has no value or no origin")
        try:
            instruction, extra = decode_accepted(record.value)
        except ValueError as error:
            raise InternalInputError(f"{source.decode()}: {error}") from error
        debtor = instruction.debtor
        home = partition_for(debtor, self._partitions)
        if home != self._partition:
            raise InternalInputError(f"{source.decode()} belongs on partition {home}")
        day = received_on(instruction, record.timestamp_ms)
        if isinstance(instruction, AcceptedPayment):
            ordered: Transfer | TransferReversal | AccountOpened = price(
                instruction, self._reference, day, instruction.submitted_by
            )
        elif isinstance(instruction, AcceptedReversal):
            ordered = price_reversal(instruction, day)
        else:
            ordered = opened(instruction, day)
        value = encode_transfer(ordered)
        if extra:
            value = with_extra(value, extra, ordered.__struct_fields__)
        return [Output(LEDGER_TRANSFERS, self._partition, debtor.encode(), value, headers)]
