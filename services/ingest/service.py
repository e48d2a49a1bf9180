"""The record handler of ingest: raw records in; accepted payments, repeats and dead letters out."""

from services.ingest.domain import Novelty, first_offset, novelty, remember
from shared.eos.records import Output, Record
from shared.eos.window import Window
from shared.events.catalogue import PAYMENTS_ACCEPTED, PAYMENTS_DEAD_LETTER, PAYMENTS_DEDUPLICATED, PAYMENTS_RAW
from shared.events.clients import decode_submitted_by
from shared.events.dead_letters import Reason
from shared.events.headers import (
    DETAIL,
    ORIGIN,
    ORIGIN_TIME,
    REASON,
    SERVICE,
    SOURCE,
    SUBMITTED_BY,
    Coordinates,
    Headers,
    header,
)
from shared.events.identity import content_digest, identity_digest
from shared.events.partitions import partition_for
from shared.events.payments import Instruction, Repeat, encode_accepted, encode_repeat
from shared.events.validation import InvalidPaymentError, decode_payment
from shared.telemetry import metrics
from shared.telemetry.instruments import at_zero

at_zero(metrics.DEAD_LETTERS, [reason.value for reason in Reason])


def count_outcomes(outputs: list[Output]) -> None:
    """Count the repeats and the dead letters among a committed transaction's outputs."""
    repeats = 0
    for output in outputs:
        if output.topic == PAYMENTS_DEAD_LETTER:
            metrics.DEAD_LETTERS.labels((header(output.headers, REASON) or b"unknown").decode()).inc()
        elif output.topic == PAYMENTS_DEDUPLICATED:
            repeats += 1
    if repeats:
        metrics.DEDUPLICATED.inc(repeats)


IDENTITY_PREFIX = b"identity/"
TIMED_EVERY = 8
"""One raw record in this many carries its origin time. The choice depends on the offset alone, so that an aborted batch
is processed the same way again. A header on every record would cost each hop more than all other metrics."""


class IngestHandler:
    """One of the partitions of payments.raw; `window_capacity` accepted identities are remembered.

    Each record gives exactly one output, on its own partition number, so that identities stay together.
    """

    def __init__(self, partition: int, window_capacity: int, *, partitions: int) -> None:
        self._partition = partition
        self._partitions = partitions
        self._window = Window(IDENTITY_PREFIX, window_capacity)
        self._coordinates = b"%b:%d:" % (PAYMENTS_RAW.encode(), partition)

    @property
    def store(self) -> Window:
        return self._window

    def process(self, record: Record) -> list[Output]:
        try:
            instruction = decode_payment(record.value, self._partitions)
            self._check_partition(instruction)
            return [self._decide(record, instruction)]
        except InvalidPaymentError as refusal:
            return [self._dead_letter(record, refusal)]

    def refuse(self, record: Record, why: str) -> list[Output]:
        """Return the dead letter of a record that cannot be accepted for the size of its output."""
        return [self._dead_letter(record, InvalidPaymentError(Reason.TOO_LARGE, f"{why}: send a smaller payment"))]

    def _check_partition(self, instruction: Instruction) -> None:
        partition = partition_for(instruction.debtor, self._partitions)
        if partition != self._partition:
            raise InvalidPaymentError(
                Reason.WRONG_PARTITION,
                f"the debtor's partition is {partition}, not {self._partition}: "
                "use murmur2 of the debtor account, or the gateway",
            )

    def _decide(self, record: Record, instruction: Instruction) -> Output:
        identity = identity_digest(instruction.debtor, instruction.payment_id)
        content = content_digest(instruction)
        remembered = self._window.get(identity)
        if remembered is not None and first_offset(remembered) == record.offset:
            remembered = None  # the entry of this very record, whose output was lost: `once repair` writes it again
        match novelty(content, remembered), remembered:
            case Novelty.REPEAT, bytes(known):
                repeat = Repeat(instruction.payment_id, instruction.debtor, str(self._first(known)))
                return self._output(PAYMENTS_DEDUPLICATED, record, instruction, encode_repeat(repeat))
            case Novelty.CONFLICT, bytes(known):
                raise InvalidPaymentError(
                    Reason.IDENTITY_CONFLICT,
                    f"this payment_id of this debtor came with other content as {self._first(known)}: "
                    "send another payment under a payment_id of its own",
                )
        self._window.put(identity, remember(content, record.offset))
        submitted_by = decode_submitted_by(header(record.headers, SUBMITTED_BY))
        value = encode_accepted(instruction, record.timestamp_ms, submitted_by)
        return self._output(PAYMENTS_ACCEPTED, record, instruction, value)

    def _output(self, topic: str, record: Record, instruction: Instruction, value: bytes) -> Output:
        return Output(topic, self._partition, instruction.debtor.encode(), value, self._origin(record))

    def _dead_letter(self, record: Record, refusal: InvalidPaymentError) -> Output:
        value, detail = record.value, refusal.detail
        if value is None and record.key is None:
            # A record must have a key or a value
            value, detail = b"", f"{detail} (written as an empty value, as it has no key either)"
        notes: Headers = (REASON, refusal.reason.encode()), (DETAIL, detail.encode()), (SERVICE, b"ingest")
        submitted_by = header(record.headers, SUBMITTED_BY)
        if submitted_by is not None and decode_submitted_by(submitted_by) is not None:  # else of any length
            notes = (*notes, (SUBMITTED_BY, submitted_by))
        return Output(PAYMENTS_DEAD_LETTER, self._partition, record.key, value, (*notes, *self._origin(record)))

    def _origin(self, record: Record) -> Headers:
        coordinates = self._coordinates + b"%d" % record.offset
        links = (ORIGIN, coordinates), (SOURCE, coordinates)
        return links if record.offset % TIMED_EVERY else (*links, (ORIGIN_TIME, b"%d" % record.timestamp_ms))

    def _first(self, remembered: bytes) -> Coordinates:
        return Coordinates(PAYMENTS_RAW, self._partition, first_offset(remembered))
