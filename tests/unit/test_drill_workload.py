"""The drills' payments, the time to the next commit, and the bounds of a recovery."""

from collections import Counter
from itertools import islice

import msgspec

from deploy.checkers.verdict import Violation
from deploy.drills.clients.record_batches import TRANSACTIONAL, record_batch
from deploy.drills.drill import Anomaly
from deploy.drills.judge import anomalies_of, is_commit
from deploy.drills.recovery import IDLE_COMMIT_S, Row, allowed_s, row_of
from deploy.drills.workload import payments
from shared.events.validation import InvalidPaymentError, decode_payment
from shared.kafka.client.batches import Marker
from tests.batches import end_marker

PARTITIONS = 6


def test_payments_repeat_by_their_seed() -> None:
    first, again, other = (list(islice(payments("p", seed, PARTITIONS), 500)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_payments_are_skewed_with_repeats_and_bad_records() -> None:
    values = list(islice(payments("p", 7, PARTITIONS), 10_000))
    refused, creditors = 0, Counter[str]()
    for value in values:
        try:
            creditors[msgspec.to_builtins(decode_payment(value, PARTITIONS))["creditor"]] += 1
        except InvalidPaymentError:
            refused += 1
    assert 50 < refused < 200
    assert 200 < len(values) - len(set(values)) < 400
    [(_, most), *_, (_, least)] = creditors.most_common()
    assert most > 20 * least


def test_payments_without_faults_are_valid_and_distinct() -> None:
    values = list(islice(payments("p", 7, PARTITIONS, repeated=0, bad=0), 1_000))
    assert len({decode_payment(value, PARTITIONS).payment_id for value in values}) == len(values)


def data(producer_id: int, timestamp_ms: int, attributes: int = TRANSACTIONAL):  # type: ignore[no-untyped-def]
    return record_batch([(None, b"value")], producer_id, 0, 0, attributes=attributes, timestamp_ms=timestamp_ms)


def test_only_the_commit_of_records_made_later_is_progress() -> None:
    later: set[int] = set()
    before = [data(1, 900), end_marker(Marker.COMMIT, 1, 0, coordinator_epoch=0, timestamp_ms=1_100)]
    assert not any(is_commit(batch, 1_000, later) for batch in before)
    aborted = [data(1, 1_200), end_marker(Marker.ABORT, 1, 0, coordinator_epoch=0, timestamp_ms=1_300)]
    assert not any(is_commit(batch, 1_000, later) for batch in aborted)
    other = [data(2, 1_400), data(3, 1_400, 0), end_marker(Marker.COMMIT, 3, 0, coordinator_epoch=0)]
    assert not any(is_commit(batch, 1_000, later) for batch in other)
    assert is_commit(end_marker(Marker.COMMIT, 2, 0, coordinator_epoch=0, timestamp_ms=1_500), 1_000, later)


def test_violations_are_anomalies_by_their_kind() -> None:
    kinds = ("lost", "duplicate_debit", "torn_changelog", "wrong_price", "no_outcome")
    found = anomalies_of([Violation("", kind, f"t:0:{at}", "") for at, kind in enumerate(kinds)])
    assert found == {
        Anomaly.LOSS: ["lost t:0:0", "no_outcome t:0:4"],
        Anomaly.DUPLICATE: ["duplicate_debit t:0:1"],
        Anomaly.TORN: ["torn_changelog t:0:2"],
    }


def test_what_is_allowed_grows_with_the_usual_time_between_commits() -> None:
    assert allowed_s(3.0, IDLE_COMMIT_S / 2) == 3.0
    assert allowed_s(3.0, 2 * IDLE_COMMIT_S) == 6.0


def test_each_kill_has_a_bound_of_its_own() -> None:
    assert row_of("ledger", [(1.0, 5.0), (6.0, 6.0)]) == Row("ledger", 2, 3.5, 6.0, 5.0, 0)
    assert row_of("ledger", [(1.0, 5.0), (6.0, 6.0)]).is_within
    assert not row_of("ledger", [(1.0, 9.0), (6.0, 5.9)]).is_within
