"""ingest against a plain model: each raw record has one outcome for any transaction boundaries."""

from hypothesis import given
from hypothesis import strategies as st

from services.ingest.service import IngestHandler
from shared.eos.records import Record
from shared.events.catalogue import (
    PAYMENTS_ACCEPTED,
    PAYMENTS_DEAD_LETTER,
    PAYMENTS_DEDUPLICATED,
    PAYMENTS_RAW,
)
from shared.events.headers import header
from shared.events.payments import Payment, encode_instruction
from tests.partitions import PARTITIONS

raw_payments = st.builds(
    lambda number, amount_minor: Payment(f"p-{number}", "cash@0", "2378", amount_minor, "CZK", 2),
    st.integers(0, 6),
    st.integers(1, 2),
)
raw_values = st.lists(raw_payments.map(encode_instruction) | st.just(b"bad") | st.none(), max_size=60)


def record(offset: int, value: bytes | None) -> Record:
    return Record(PAYMENTS_RAW, 0, offset, 0, b"cash@0", value, ())


@given(raw_values, st.integers(1, 8), st.sets(st.integers(0, 60)))
def test_each_record_has_one_outcome_for_any_transaction_boundaries(
    values: list[bytes | None], capacity: int, ends: set[int]
) -> None:
    whole, cut = IngestHandler(0, capacity, partitions=PARTITIONS), IngestHandler(0, capacity, partitions=PARTITIONS)
    for offset, value in enumerate(values):
        outputs = cut.process(record(offset, value))
        assert len(outputs) == 1
        assert outputs == whole.process(record(offset, value))
        if offset in ends:
            cut.store.commit()


@given(raw_values, st.integers(1, 8))
def test_outcomes_are_those_of_a_model(values: list[bytes | None], capacity: int) -> None:
    handler = IngestHandler(0, capacity, partitions=PARTITIONS)
    accepted: dict[bytes, bytes] = {}
    for offset, value in enumerate(values):
        [output] = handler.process(record(offset, value))
        if value is None or value == b"bad":
            assert output.topic == PAYMENTS_DEAD_LETTER
            continue
        identity = value.split(b'"payment_id":')[1].split(b",")[0]
        if identity not in accepted:
            assert output.topic == PAYMENTS_ACCEPTED
            accepted[identity] = value
            if len(accepted) > capacity:
                del accepted[next(iter(accepted))]
        elif accepted[identity] == value:
            assert output.topic == PAYMENTS_DEDUPLICATED
        else:
            assert header(output.headers, "reason") == b"identity_conflict"


@given(raw_values, st.integers(1, 8), st.integers(0, 60))
def test_a_repeated_batch_is_decided_alike_after_an_abort(
    values: list[bytes | None], capacity: int, aborted_from: int
) -> None:
    handler = IngestHandler(0, capacity, partitions=PARTITIONS)
    for offset, value in enumerate(values[:aborted_from]):
        handler.process(record(offset, value))
    handler.store.commit()
    batch = [record(offset, value) for offset, value in enumerate(values)][aborted_from:]
    first = [handler.process(each) for each in batch]
    handler.store.rollback()
    assert [handler.process(each) for each in batch] == first
