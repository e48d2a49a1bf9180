"""The largest valid payment fits every topic behind payments.raw: there, a record that is too large is a defect."""

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from services.ingest.service import IngestHandler
from services.ledger.service import LedgerHandler
from services.transform.domain import ReferenceData
from services.transform.service import TransformHandler
from shared.eos.records import Output, Record
from shared.eos.store import Stores
from shared.eos.window import Window
from shared.events.catalogue import (
    BY_NAME,
    EFFECTS_DEAD_LETTER,
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    EFFECTS_WAITING,
    LEDGER_BALANCES,
    LEDGER_POSTINGS,
    LEDGER_TRANSFERS,
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_IDENTITIES,
    PAYMENTS_RAW,
)
from shared.events.clients import SubmittedBy, encode_submitted_by
from shared.events.effects import (
    ANSWER_MAX_CHARS,
    ATTEMPTS_KEPT,
    DESTINATION_MAX_CHARS,
    EVERY_ACCOUNT,
    Attempt,
    EffectKind,
    EffectRequest,
    EffectResult,
    Subscription,
    Subscriptions,
    Waiting,
    decode_request,
    encode_result,
    encode_waiting,
)
from shared.events.headers import SUBMITTED_BY
from shared.events.payments import MAX_AMOUNT_MINOR, MAX_PAYMENT_ID_CHARS, MAX_REFERENCE_CHARS
from shared.events.postings import CREDIT, DEBIT, Account
from shared.events.reference import MINOR_DIGITS, Fee, Rate
from shared.kafka.client.plain_producer import MESSAGE_BYTES_MAX
from shared.kafka.runtime.outgoing import BATCH_BYTES, OpenBatch
from tests.installation import INSTALLATION
from tests.partitions import PARTITIONS, partition_for

OFFSET: Final = 2**63 - 8  # a multiple of 8: the record carries its time
TIME_MS: Final = 253_402_300_799_999
DEBTOR, CREDITOR = "d" * 64, "c" * 64
P = partition_for(DEBTOR)
CLIENT: Final = SubmittedBy("k" * 64, "f" * 16, True)
PAYMENT_ID: Final = "\U0001f4b6" * MAX_PAYMENT_ID_CHARS  # four bytes each
CONTROL: Final = "\x01"  # six bytes in JSON: no character has more
PAYMENT: Final[dict[str, Any]] = {
    "schema_version": 2,
    "type": "payment",
    "payment_id": PAYMENT_ID,
    "debtor": DEBTOR,
    "creditor": CREDITOR,
    "amount_minor": MAX_AMOUNT_MINOR,
    "currency": "EUR",
    "credit_currency": "USD",
    "value_date": "9999-12-31",
    "reference": CONTROL * MAX_REFERENCE_CHARS,
}
REVERSAL: Final[dict[str, Any]] = {
    "schema_version": 2,
    "type": "reversal",
    "payment_id": PAYMENT_ID[1:] + "r",
    "debtor": DEBTOR,
    "reverses": PAYMENT_ID,
    "value_date": "9999-12-31",
    "reference": CONTROL * MAX_REFERENCE_CHARS,
}
PLACE: Final = f"{PARTITIONS - 1}:{OFFSET}"
REFERENCE: Final = ReferenceData(
    {"EUR": Fee(fixed_minor=MAX_AMOUNT_MINOR)},
    {"EUR/USD": Rate("0.999999999999")},
    {"EUR": PLACE},
    {"EUR/USD": PLACE},
)
DESTINATION: Final = "https://example.org/".ljust(DESTINATION_MAX_CHARS, "\U0001f4b6")
SUBSCRIPTIONS: Final = {
    account: Subscriptions(tuple(Subscription(kind.value, DESTINATION, ordered=True) for kind in EffectKind))
    for account in (EVERY_ACCOUNT, DEBTOR, CREDITOR)
}
PLACES: Final = dict.fromkeys(SUBSCRIPTIONS, PLACE)
REACHED: Final = {
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_IDENTITIES,
    LEDGER_TRANSFERS,
    LEDGER_POSTINGS,
    LEDGER_BALANCES,
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    EFFECTS_WAITING,
    EFFECTS_DEAD_LETTER,
}


def changelog(store: Stores | Window, topic: str, partition: int) -> Iterator[Output]:
    """Commit a store's open transaction, and return the records of its changelog."""
    changes = list(store.changes())
    store.commit()
    return (Output(topic, partition, key, value, ()) for key, value in changes)


class Pipeline:
    """The handlers of ingest, transform and ledger; `written` has all records of their topics."""

    def __init__(self) -> None:
        self.written: list[Output] = []
        self._ingest = IngestHandler(P, 10, partitions=PARTITIONS)
        self._transform = TransformHandler(P, REFERENCE, partitions=PARTITIONS)
        self._ledgers = [
            LedgerHandler(number, 10, SUBSCRIPTIONS, PLACES, partitions=PARTITIONS, installation=INSTALLATION)
            for number in range(PARTITIONS)
        ]
        for account in (DEBTOR, CREDITOR):
            balances = dict.fromkeys(MINOR_DIGITS, -MAX_AMOUNT_MINOR)
            terms = Account(balances, None, owner=CLIENT.client, version=MAX_AMOUNT_MINOR)
            self._ledgers[partition_for(account)].accounts.put(account, terms)

    def send(self, instruction: dict[str, Any], offset: int) -> None:
        """Process a raw record, and everything that follows from it."""
        submitted_by = (SUBMITTED_BY, encode_submitted_by(CLIENT))
        waiting = deque([Output(PAYMENTS_RAW, P, DEBTOR.encode(), msgspec.json.encode(instruction), (submitted_by,))])
        while waiting:
            topic, partition, key, value, headers = waiting.popleft()
            record = Record(topic, partition, offset, TIME_MS, key, value, headers)
            if topic == PAYMENTS_RAW:
                outputs = self._ingest.process(record)
                changes = changelog(self._ingest.store, PAYMENTS_IDENTITIES, partition)
            elif topic == PAYMENTS_ACCEPTED:
                outputs, changes = self._transform.process(record), iter(())
            else:
                outputs = self._ledgers[partition].process(record)
                changes = changelog(self._ledgers[partition].store, LEDGER_BALANCES, partition)
            self.written += [*outputs, *changes]
            waiting += [one for one in outputs if one.topic in {PAYMENTS_ACCEPTED, LEDGER_TRANSFERS}]


def of_the_outbox(output: Output) -> Iterator[Output]:
    """Return the records that the outbox makes of a request: as long as they become, with every call kept."""
    request = decode_request(output.value or b"")
    assert isinstance(request, EffectRequest)
    answer = CONTROL * ANSWER_MAX_CHARS
    tried = (Attempt(TIME_MS, TIME_MS, answer),) * ATTEMPTS_KEPT
    place = f"payments.raw:{PARTITIONS - 1}:{OFFSET}"
    waiting = Waiting(request, place, place, OFFSET, TIME_MS, TIME_MS, OFFSET, detail=answer, tried=tried)
    result = EffectResult(
        request.effect_id, "in_doubt", TIME_MS, OFFSET, OFFSET, OFFSET, answer, answer, request, tried
    )
    yield output._replace(topic=EFFECTS_DEAD_LETTER)
    yield output._replace(topic=EFFECTS_WAITING, value=encode_waiting(waiting))
    yield output._replace(topic=EFFECTS_RESULTS, value=encode_result(result))


def size(output: Output) -> int:
    """Return the bytes of a batch with one record, which is what a topic's limit applies to."""
    batch = OpenBatch()
    assert batch.append(TIME_MS, output.key, output.value, output.headers)
    return len(batch.number(OFFSET, 2**15 - 1, 2**31 - 1).data)


@pytest.fixture(scope="module")
def written() -> list[Output]:
    pipeline = Pipeline()
    for number, instruction in enumerate((PAYMENT, REVERSAL, PAYMENT)):
        pipeline.send(instruction, OFFSET - 8 * number)
    return pipeline.written


def test_the_largest_payment_and_its_reversal_are_booked(written: list[Output]) -> None:
    postings = [msgspec.json.decode(one.value or b"") for one in written if one.topic == LEDGER_POSTINGS]
    legs = [(one["payment_id"], one.get("leg")) for one in postings]
    assert legs == [(one["payment_id"], leg) for one in (PAYMENT, REVERSAL) for leg in (DEBIT, CREDIT)]


def test_every_record_of_the_largest_payment_fits_its_topic_and_a_batch(written: list[Output]) -> None:
    made = [*written, *(made for one in written if one.topic == EFFECTS_REQUESTS for made in of_the_outbox(one))]
    limits = {
        topic: min(int(BY_NAME[topic].config.get("max.message.bytes", MESSAGE_BYTES_MAX)), BATCH_BYTES)
        for topic in {one.topic for one in made}
    }
    assert limits.keys() == REACHED
    assert [(one.topic, size(one)) for one in made if size(one) > limits[one.topic]] == []
