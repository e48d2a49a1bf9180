"""An input partition's state, and its part of a transaction."""

import logging

import pytest

from shared.eos.progress import NEXT_OFFSET_KEY, CommittedOffset, NextOffset, TransactionId, TransactionNote
from shared.eos.records import Output
from shared.eos.sources import SeenSources
from shared.eos.store import Table
from shared.events.catalogue import PAYMENTS_ACCEPTED, TRANSFORM_PROGRESS
from shared.events.headers import SOURCE, Headers
from shared.kafka.runtime.task import Task

FIRST, SECOND = TransactionId(7, 1, 1000), TransactionId(7, 1, 2000)


class Repeat:
    def __init__(self, offset: int, source: int) -> None:
        self.offset = offset
        self.headers: Headers = ((SOURCE, b"payments.raw:2:%d" % source),)


@pytest.fixture
def counts() -> Table[int]:
    return Table(b"count/", lambda count: b"%d" % count, int, lambda count: count)


@pytest.fixture
def task(counts: Table[int]) -> Task:
    made = Task("transform", (PAYMENTS_ACCEPTED, 2), TRANSFORM_PROGRESS, counts)
    made.restored(NextOffset(10), SeenSources({"payments.raw:2": 40}), CommittedOffset(10, FIRST))
    made.next_offset = 10
    return made


def output(topic: str, partition: int) -> Output:
    return Output(topic, partition, b"key", b"value", ((SOURCE, b"payments.accepted:2:12"),))


def test_a_note_says_where_its_transaction_began_and_counts_its_own_records(task: Task, counts: Table[int]) -> None:
    task.count([output("a", 0), output("a", 1), output("a", 1), output("b", 2)])
    counts.put("seen", 1)
    [change] = task.changes(())
    assert change == Output(TRANSFORM_PROGRESS, 2, b"count/seen", b"1", ())
    assert change.key != NEXT_OFFSET_KEY
    task.begin().next_offset = 13
    noted = task.note(SECOND, 2345)
    records = {"a": {0: 1, 1: 2}, "b": {2: 1}, TRANSFORM_PROGRESS: {2: 2}}  # the change, and the note itself
    assert noted.transaction == TransactionNote(SECOND, 2345, 10, records)
    assert noted.next_offset == 13


def test_a_commit_merges_and_a_rollback_drops(task: Task, counts: Table[int]) -> None:
    for ends in ("rollback", "commit"):
        assert task.admit(Repeat(10, 41)), "what was rolled back is processed again"
        counts.put("seen", 1)
        task.begin().next_offset = 11
        task.note(SECOND, 2345)
        task.rollback() if ends == "rollback" else task.commit()
        assert task.open is None
        assert (counts.get("seen"), task.next_offset, task.last) == (
            (None, 10, FIRST) if ends == "rollback" else (1, 11, SECOND)
        )
    task.begin().next_offset = 11
    assert task.note(SECOND, 2345).sources == SeenSources({"payments.raw:2": 41})


def test_only_what_was_noted_can_be_committed(task: Task) -> None:
    with pytest.raises(AssertionError, match="has no transaction"):
        task.commit()
    task.begin()
    with pytest.raises(AssertionError, match="has no transaction"):
        task.commit()


def test_a_record_that_is_read_again_is_no_repeat(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    """As when an operator set the group's offset back."""
    assert task.admit(Repeat(9, 40))
    task.begin()
    task.note(SECOND, 2345)
    task.commit()
    assert caplog.records == []


def test_repeats_are_reported_once_their_transaction_is_committed(task: Task, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    assert not task.admit(Repeat(10, 40))
    task.begin()
    task.rollback()
    assert caplog.records == []
    assert not task.admit(Repeat(10, 40))
    task.begin()
    task.note(SECOND, 2345)
    task.commit()
    [record] = caplog.records
    assert (record.__dict__["offset"], record.__dict__["records"]) == (10, 1)


def test_a_note_names_the_torn_transaction_that_it_completes_and_no_earlier_one(task: Task) -> None:
    earliest = TransactionNote(TransactionId(7, 0, 1), 2, 4, {})
    attempt = TransactionNote(FIRST, 1001, 10, {}, earliest)
    noted = task.note(SECOND, 2345, completes=attempt)
    assert noted.transaction is not None
    assert noted.transaction.completes == TransactionNote(FIRST, 1001, 10, {})
