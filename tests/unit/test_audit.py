"""The audit of a transaction, by its outcome in each partition and its offset."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.eos.audit import (
    Fate,
    Outcome,
    Part,
    TornTransactionError,
    outcome,
    raise_if_incomplete,
    raise_if_state_lost,
    set_by_hand,
)
from shared.eos.progress import (
    CommittedOffset,
    NextOffset,
    TransactionId,
    TransactionNote,
    committed_offset,
    decode_next_offset,
    encode_next_offset,
    offset_metadata,
)
from shared.eos.sources import SeenSources

ID = TransactionId(4, 7, 1_700_000_000_000)
NOTE = TransactionNote(ID, 1_700_000_000_100, 10, {"payments.accepted": {1: 3}, "payments.identities": {1: 4}})
ACCEPTED, IDENTITIES = ("payments.accepted", 1), ("payments.identities", 1)
WHERE = "payments.raw:1 of group ingest"


@pytest.mark.parametrize("fates", list(itertools.product(Fate, repeat=3)))
@pytest.mark.parametrize("offset", [False, True, None])
def test_a_transaction_is_torn_where_its_parts_disagree(fates: tuple[Fate, ...], offset: bool | None) -> None:
    ended = outcome([Part(fate, 1) for fate in fates], offset_committed=offset)
    proven = offset is True or Fate.COMMITTED in fates
    contradicted = offset is False or Fate.ABORTED in fates
    if not proven:
        assert ended is Outcome.ABORTED
    else:
        assert ended is (Outcome.TORN if contradicted else Outcome.COMMITTED)


def test_an_operators_offset_differs_from_an_earlier_versions_offset() -> None:
    assert set_by_hand(CommittedOffset(0, None), NOTE)
    assert set_by_hand(CommittedOffset(13, None), NOTE)
    assert not set_by_hand(CommittedOffset(10, None), NOTE)
    assert not set_by_hand(CommittedOffset(13, ID), NOTE)
    assert not set_by_hand(None, NOTE)


@pytest.mark.parametrize("metadata", [None, "", "note", "{}", '{"producer_id":1}', "[]", "0"])
def test_foreign_metadata_names_no_transaction(metadata: str | None) -> None:
    assert committed_offset(5, metadata) == CommittedOffset(5, None)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**42))
def test_metadata_names_the_transaction_that_wrote_it(producer_id: int, epoch: int, begun_ms: int) -> None:
    transaction = TransactionId(producer_id, epoch, begun_ms)
    assert committed_offset(5, offset_metadata(transaction)) == CommittedOffset(5, transaction)
    assert len(offset_metadata(transaction)) < 4096


def test_a_note_round_trips_with_the_note_that_it_completes_and_its_sources() -> None:
    again = TransactionNote(
        TransactionId(4, 9, 1_700_000_000_500), 1_700_000_000_501, 10, {"payments.identities": {1: 5}}, NOTE
    )
    noted = NextOffset(13, SeenSources({"payments.raw:1": 12}, {"a:0": ["x"]}, {"r": 3}), again)
    assert decode_next_offset(encode_next_offset(noted)) == noted
    assert decode_next_offset(b'{"next_offset":13}') == NextOffset(13)


def test_a_torn_transaction_whose_records_are_gone_is_refused_by_name() -> None:
    whole = {ACCEPTED: Part(Fate.COMMITTED, 3), IDENTITIES: Part(Fate.ABORTED, 4)}
    raise_if_incomplete(WHERE, 13, NOTE, whole)
    for gone in (Part(Fate.ABSENT, 0), Part(Fate.ABORTED, 3)):
        with pytest.raises(TornTransactionError, match=r"payments.identities:1 has \d of 4 records.*--reset-offsets"):
            raise_if_incomplete(WHERE, 13, NOTE, whole | {IDENTITIES: gone})


def test_records_compacted_in_a_committed_part_are_not_missing() -> None:
    raise_if_incomplete(WHERE, 13, NOTE, {ACCEPTED: Part(Fate.ABORTED, 3), IDENTITIES: Part(Fate.COMMITTED, 1)})


EARLIER = TransactionId(3, 9, ID.begun_ms - 1)
ZOMBIE = TransactionId(9, 0, ID.begun_ms + 1)
"""Of an owner that had lost the partition: aborted, whenever it began."""


@pytest.mark.parametrize(
    ("by", "kept", "aborted"),
    [
        (ID, None, []),
        (ID, TransactionId(4, 6, ID.begun_ms - 1), []),
        (ID, TransactionId(4, 6, ID.begun_ms + 10_000), []),  # another machine's clock
        (ID, TransactionId(4, 7, ID.begun_ms - 1), []),
        (ID, EARLIER, []),
        (ID, EARLIER, [ZOMBIE]),
        (ID, None, [ZOMBIE]),
    ],
)
def test_a_state_that_ends_before_the_offset_is_refused_by_name(
    by: TransactionId, kept: TransactionId | None, aborted: list[TransactionId]
) -> None:
    with pytest.raises(TornTransactionError, match=f"{WHERE} does not reach offset 13.*--reset-offsets"):
        raise_if_state_lost(WHERE, CommittedOffset(13, by), kept, aborted)


@pytest.mark.parametrize(
    ("committed", "kept", "aborted"),
    [
        (None, None, []),
        (None, ID, []),
        (CommittedOffset(13, None), None, []),
        (CommittedOffset(13, ID), ID, []),
        (CommittedOffset(13, ID), ID, [EARLIER, ZOMBIE]),
        (CommittedOffset(13, ID), EARLIER, [ID, ZOMBIE]),
        (CommittedOffset(13, ID), None, [ID]),
        (CommittedOffset(13, ID), TransactionId(4, 8, ID.begun_ms), []),
        (CommittedOffset(13, ID), TransactionId(4, 7, ID.begun_ms + 1), []),
        (CommittedOffset(13, ID), TransactionId(5, 0, ID.begun_ms + 1), []),
    ],
)
def test_a_state_that_reaches_the_offset_is_accepted(
    committed: CommittedOffset | None, kept: TransactionId | None, aborted: list[TransactionId]
) -> None:
    raise_if_state_lost(WHERE, committed, kept, aborted)
