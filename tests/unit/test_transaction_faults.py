"""The judge of the transaction drills against planted anomalies, and its view of the client's intentions."""

import random
from pathlib import Path
from typing import Any

import pytest

from deploy.drills.proxy.requests import Request
from deploy.drills.proxy.rules import Close, Delay, Drop, Repeat, RepeatLate
from deploy.local.kafka.cluster import LocalKafka
from shared.kafka.client.batches import Marker, decode
from shared.kafka.protocol.headers import encode_request
from tests.drills.transactions import mix
from tests.drills.transactions.cell import Outcome
from tests.drills.transactions.faults import ACTIONS, APIS, FAULTS, MOMENTS, Kind
from tests.drills.transactions.hop import PROGRAMS, Hop
from tests.drills.transactions.intentions import BatchKey, Intentions, key_of
from tests.drills.transactions.judge import Anomalies, Written, judge, written
from tests.drills.transactions.mix import OTHER_APIS, Mix, request_fault
from tests.drills.transactions.table import findings, markdown
from tests.unit.test_kafka_batches import TRANSACTIONAL, data, marker
from tests.unit.test_kafka_batches import encode as encode_batch

ID = "hop-0"
FIRST, SECOND = BatchKey(0, 7, 3, 0), BatchKey(1, 7, 3, 0)
KEPT = {FIRST: True, SECOND: True}


def output(*, first: bool | None = True, second: bool | None = True) -> list[Written]:
    return [Written(FIRST, [0, 2], first), Written(SECOND, [1, 3], second)]


def test_one_committed_output_for_each_input_is_no_anomaly() -> None:
    found = judge(range(4), output(), KEPT, passed=range(4))
    assert found == Anomalies(0, 0, 0, 0)
    assert str(found) == "none"


def test_an_input_without_output_is_lost_once_the_offset_is_past_it() -> None:
    assert judge(range(4), output(second=False), KEPT, passed=range(4)) == Anomalies(2, 0, 0, 0)
    assert judge(range(4), output(second=False), KEPT, passed=range(2)) == Anomalies(1, 0, 0, 1)
    assert judge(range(4), output(second=False), KEPT, passed=range(0)) == Anomalies(0, 0, 0, 2)


def test_records_of_an_open_transaction_are_pending() -> None:
    found = judge(range(4), output(second=None), KEPT, passed=range(0))
    assert found == Anomalies(0, 0, 0, 2)
    assert str(found) == "hang (2 pending)"


def test_each_further_committed_output_is_a_duplicate() -> None:
    again = Written(FIRST._replace(base_sequence=2), [0, 2, 0], True)
    found = judge(range(4), [*output(), again], KEPT | {again.key: True}, passed=range(4))
    assert found == Anomalies(0, 3, 0, 0)


def test_a_repeat_in_an_aborted_transaction_is_none() -> None:
    again = Written(FIRST._replace(base_sequence=2), [0, 2], False)
    assert judge(range(4), [*output(), again], KEPT, passed=range(4)) == Anomalies(0, 0, 0, 0)


def test_a_committed_batch_that_the_client_aborted_or_never_ended_is_an_aborted_read() -> None:
    assert judge(range(4), output(), {FIRST: True, SECOND: False}, passed=range(4)) == Anomalies(0, 0, 2, 0)
    found = judge(range(4), output(), {FIRST: True}, passed=range(4))
    assert found == Anomalies(0, 0, 2, 0)
    assert str(found) == "2 aborted read"


def test_a_batch_ends_with_the_next_marker_of_its_producer() -> None:
    log = [
        data(0, producer=7, count=2),
        data(2, producer=8),
        marker(3, Marker.ABORT, producer=8),
        marker(4, Marker.COMMIT, producer=7),
        data(5, producer=8),
    ]
    found = written(2, log, {0: [0, 1], 2: [2], 5: [2]})
    assert [(one.key.producer_id, one.values, one.is_committed) for one in found] == [
        (7, [0, 1], True),
        (8, [2], False),
        (8, [2], None),
    ]


BATCH = encode_batch(0, count=2, producer=7, epoch=3, attributes=TRANSACTIONAL)
KEY = key_of(1, decode(BATCH)[0])
TXN = {"TransactionalId": ID, "ProducerId": 7, "ProducerEpoch": 3}


def observe(intentions: Intentions, api: str, values: dict[str, Any]) -> None:
    intentions.observe(Request(encode_request(api, 3, values)))


def produce(intentions: Intentions, transactional_id: str = ID) -> None:
    topic = {"Name": "out", "PartitionData": [{"Index": 1, "Records": BATCH}]}
    observe(intentions, "Produce", {"TransactionalId": transactional_id, "Acks": -1, "TopicData": [topic]})


def test_a_batch_belongs_to_the_transaction_that_the_client_ends_next() -> None:
    for committed in (True, False):
        intentions = Intentions(ID)
        produce(intentions)
        assert intentions.commits == {}
        observe(intentions, "EndTxn", TXN | {"Committed": committed})
        observe(intentions, "EndTxn", TXN | {"Committed": not committed})
        assert intentions.commits == {KEY: committed}
        assert (intentions.transactions, intentions.requests_per_transaction) == (1, 3.0)
        assert intentions.requests == {"Produce": 1, "EndTxn": 2}


def test_requests_of_another_producer_are_left_out() -> None:
    intentions = Intentions(ID)
    produce(intentions, "another")
    observe(intentions, "EndTxn", TXN | {"TransactionalId": "another", "Committed": True})
    observe(intentions, "InitProducerId", {"TransactionalId": ID})
    assert (intentions.commits, intentions.requests.total(), intentions.requests_per_transaction) == ({}, 0, 0.0)


def test_what_a_killed_process_left_open_is_not_a_part_of_the_next_transaction() -> None:
    intentions = Intentions(ID)
    produce(intentions)
    observe(intentions, "InitProducerId", {"TransactionalId": ID})
    observe(intentions, "EndTxn", TXN | {"Committed": True})
    assert (intentions.commits, intentions.transactions) == ({}, 0)


def test_a_mix_has_every_fault_of_every_request() -> None:
    chance = random.Random(1)
    rules = [request_fault(chance) for _ in range(2_000)]
    assert {rule.api for rule in rules} == {*APIS, *OTHER_APIS}
    assert {type(rule.action) for rule in rules} == {Close, Delay, Drop, Repeat, RepeatLate}
    assert {rule.transactional_id for rule in rules} == {None, "mix-0", "mix-1"}
    again = random.Random(1)
    assert [request_fault(again) for _ in rules] == rules


class Hanging(Mix):
    """A mix whose records never pass, and whose transactions never end."""

    async def _drained(self) -> bool:
        return False

    _settled = _drained


async def test_a_mix_that_hangs_gets_a_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mix, "HEALED_S", 0.0)
    await Hanging(LocalKafka(tmp_path, 1), 1, tmp_path)._finish()


async def test_a_mix_leaves_out_a_fault_of_an_instance_that_was_killed_just_now(tmp_path: Path) -> None:
    mixed = Mix(LocalKafka(tmp_path, 1), 3, tmp_path)  # the first fault of this seed is a pause
    mixed._hops = [Hop(["true"], {}, tmp_path / "hop.log")]
    await mixed._fault_process()
    assert mixed.faults == {}


def test_every_request_has_every_fault_and_a_moment() -> None:
    assert len(FAULTS) == len(set(FAULTS)) == len(APIS) * len(Kind)
    assert ACTIONS.keys() == set(Kind)
    assert MOMENTS.keys() == set(APIS)
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)


def outcome(program: str, fault: str | None, **changes: Any) -> Outcome:
    plain = Outcome(program, fault, fault is not None, "", Anomalies(0, 0, 0, 0), [], 5.0, {}, 1.0)
    for name, value in changes.items():
        setattr(plain, name, value)
    return plain


def test_the_table_shows_anomalies_and_faults_that_were_not_made() -> None:
    found = [
        outcome("a", None),
        outcome("b", None),
        outcome("a", "EndTxn, copy late", anomalies=Anomalies(0, 9, 0, 0), ends=[1], evidence="1 of 2; NoError"),
        outcome("b", "EndTxn, copy late", is_injected=False, evidence="1 of 1"),
        outcome("b", "AddOffsetsToTxn, request lost", is_injected=False, evidence="not sent"),
    ]
    assert markdown(found).splitlines() == [
        "| fault | a | b |",
        "| --- | --- | --- |",
        "| no fault | none; 5.0 req | none; 5.0 req |",
        "| EndTxn, copy late | **9 duplicated**; ends 1; 5.0 req; 1 of 2; NoError | NOT INJECTED: 1 of 1 |",
        "| AddOffsetsToTxn, request lost |  | not sent |",
    ]


def test_a_run_fails_by_an_anomaly_of_ours_and_a_fault_that_was_not_made() -> None:
    assert findings([outcome("once v2", None), outcome("Java", "EndTxn, copy late")]) == []
    assert findings([outcome("Java", None, anomalies=Anomalies(1, 0, 0, 0))]) == []
    for fault in ("EndTxn, copy late", "EndTxn, request late"):
        aborted = Anomalies(0, 0, 9, 0)
        assert findings([outcome("once v1", fault, anomalies=aborted)]) == []
        [line] = findings([outcome("once v2", fault, anomalies=aborted)])
        assert line.endswith("9 aborted read")
    assert len(findings([outcome("once v1", "EndTxn, answer lost", anomalies=aborted)])) == 1
    assert len(findings([outcome("once v1", None, anomalies=aborted)])) == 1
    for anomalies in (Anomalies(1, 0, 0, 0), Anomalies(0, 1, 0, 0), Anomalies(0, 0, 0, 1)):
        assert len(findings([outcome("once v1", None, anomalies=anomalies)])) == 1
    assert findings([outcome("Java", "EndTxn, copy late", is_injected=False, evidence="not sent")]) == []
    assert len(findings([outcome("Java", "EndTxn, copy late", is_injected=False, evidence="1 of 1")])) == 1


def test_a_run_fails_where_the_control_shows_nothing() -> None:
    for fault in ("TxnOffsetCommit, copy late", "EndTxn, request late"):
        assert findings([outcome("aiokafka", fault, anomalies=Anomalies(0, 9, 0, 0))]) == []
        [line] = findings([outcome("aiokafka", fault)])
        assert line.endswith("the drill proves nothing")
    assert findings([outcome("aiokafka", "EndTxn, answer lost")]) == []
