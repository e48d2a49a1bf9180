"""Rules of the proxy: the requests that they select, and when they act."""

import asyncio
from typing import Any

import pytest

from deploy.drills.proxy.injection import Injection, NotInjectedError
from deploy.drills.proxy.requests import GROUP, TOPIC, TRANSACTIONAL_ID, Names, Request, apis
from deploy.drills.proxy.rules import Count, Drop, Evidence, Hold, Part, Rule, error_codes
from shared.kafka.protocol.definitions import valid_versions
from shared.kafka.protocol.headers import encode_request

IDS = {b"\x01" * 16: "payments"}
TXN = {"TransactionalId": "hop", "ProducerId": 1, "ProducerEpoch": 0}
OLD_TXN = {"V3AndBelowTransactionalId": "hop", "V3AndBelowTopics": [{"Name": "payments", "Partitions": [0]}]}
LOST = Drop(Part.REQUEST)


def request(api: str, values: dict[str, Any], version: int = 0, client_id: str | None = "client-1") -> Request:
    return Request(encode_request(api, version, values, correlation_id=7, client_id=client_id))


def names(**found: str) -> Names:
    kinds = {"topic": TOPIC, "transactional_id": TRANSACTIONAL_ID, "group": GROUP}
    return {kinds[kind]: frozenset({name}) for kind, name in found.items()}


NAMED: list[tuple[str, int, dict[str, Any], Names]] = [
    (
        "Produce",
        3,
        {"TransactionalId": "hop", "TopicData": [{"Name": "payments"}]},
        names(topic="payments", transactional_id="hop"),
    ),
    ("Produce", 13, {"TransactionalId": None, "TopicData": [{"TopicId": b"\x01" * 16}]}, names(topic="payments")),
    ("Fetch", 12, {"Topics": [{"Topic": "payments"}]}, names(topic="payments")),
    ("Fetch", 17, {"Topics": [{"TopicId": b"\x01" * 16}, {"TopicId": b"\x02" * 16}]}, names(topic="payments")),
    ("AddPartitionsToTxn", 3, OLD_TXN, names(topic="payments", transactional_id="hop")),
    ("AddOffsetsToTxn", 0, TXN | {"GroupId": "g"}, names(transactional_id="hop", group="g")),
    (
        "TxnOffsetCommit",
        5,
        TXN | {"GroupId": "g", "Topics": [{"Name": "payments"}]},
        names(topic="payments", transactional_id="hop", group="g"),
    ),
    ("EndTxn", 5, TXN | {"Committed": True}, names(transactional_id="hop")),
    ("InitProducerId", 0, {"TransactionalId": "hop"}, names(transactional_id="hop")),
    ("FindCoordinator", 1, {"Key": "hop", "KeyType": 1}, names(transactional_id="hop")),
    ("FindCoordinator", 4, {"CoordinatorKeys": ["g"], "KeyType": 0}, names(group="g")),
    ("JoinGroup", 2, {"GroupId": "g"}, names(group="g")),
    ("ConsumerGroupHeartbeat", 0, {"GroupId": "g"}, names(group="g")),
]


@pytest.mark.parametrize(("api", "version", "values", "expected"), NAMED)
def test_the_names_in_a_request_are_found(api: str, version: int, values: dict[str, Any], expected: Names) -> None:
    found = request(api, values, version).names(IDS)
    assert {kind: named for kind, named in found.items() if named} == expected


@pytest.mark.parametrize("api", sorted(apis().values()))
def test_every_version_of_every_api_can_be_asked_for_its_names(api: str) -> None:
    for version in valid_versions(f"{api}Request"):
        read = request(api, {}, version)
        assert (read.api, read.version, read.correlation_id) == (api, version, 7)
        assert not any(name for found in read.names(IDS).values() for name in found)


def test_a_request_of_an_unknown_api_has_a_client_and_no_names() -> None:
    frame = bytearray(encode_request("EndTxn", 0, TXN, client_id="client-1"))
    frame[0:2] = (999).to_bytes(2, "big")
    read = Request(bytes(frame))
    assert (read.api, read.client_id, read.names(IDS), read.is_answered) == ("API 999", "client-1", {}, True)


def test_produce_without_acknowledgements_is_not_answered() -> None:
    assert not request("Produce", {"Acks": 0}, 3).is_answered
    assert request("Produce", {"Acks": -1}, 3).is_answered


@pytest.mark.parametrize(
    ("selected", "conditions"),
    [
        (True, {}),
        (True, {"client_id": "client", "transactional_id": "hop", "group": "g"}),
        (False, {"client_id": "lient"}),
        (False, {"transactional_id": "ho"}),
        (False, {"transactional_id": "hop", "group": "another"}),
        (False, {"topic": "payments"}),
    ],
)
def test_a_rule_selects_by_client_and_names(selected: bool, conditions: dict[str, str]) -> None:
    read = request("AddOffsetsToTxn", TXN | {"GroupId": "g"})
    assert Rule(api="AddOffsetsToTxn", action=LOST, **conditions).selects(read, IDS) is selected  # type: ignore[arg-type]
    assert not Rule(api="EndTxn", action=LOST).selects(read, IDS)


def test_a_client_without_an_id_is_selected_by_no_prefix() -> None:
    read = request("EndTxn", TXN, client_id=None)
    assert Rule(api="EndTxn", action=LOST).selects(read, {})
    assert not Rule(api="EndTxn", action=LOST, client_id="c").selects(read, {})


@pytest.mark.parametrize(
    ("first", "times_max", "expected"), [(1, 1, [1]), (3, 1, [3]), (2, 2, [2, 3]), (2, None, [2, 3, 4, 5])]
)
def test_a_rule_acts_from_its_first_match_as_often_as_it_may(
    first: int, times_max: int | None, expected: list[int]
) -> None:
    rule, evidence = Rule(api="EndTxn", action=LOST, first=first, times_max=times_max), Evidence()
    read = request("EndTxn", TXN)
    acted = [number for number in range(1, 6) if evidence.note(rule, read, float(number)) is not None]
    assert acted == expected
    assert [act.at_s for act in evidence.acts] == [float(number) for number in expected]
    assert {(act.client_id, act.correlation_id, act.is_done) for act in evidence.acts} == {("client-1", 7, False)}
    assert (evidence.matches, evidence.done) == (5, 0)


def test_a_rule_waits_for_its_next_match_while_another_one_acts() -> None:
    rule, evidence = Rule(api="EndTxn", action=LOST), Evidence()
    read = request("EndTxn", TXN)
    assert evidence.note(rule, read, 1.0, may_act=False) is None
    assert evidence.note(rule, read, 2.0) is not None


def test_a_count_never_acts() -> None:
    evidence = Evidence()
    assert evidence.note(Rule(api="EndTxn", action=Count()), request("EndTxn", TXN), 1.0) is None
    assert evidence == Evidence(matches=1)


def test_a_rule_of_an_unknown_api_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'EndTransaction': use one of .*EndTxn"):
        Rule(api="EndTransaction", action=LOST)


@pytest.mark.parametrize(("first", "times_max"), [(0, 1), (1, 0)])
def test_a_rule_that_could_never_act_is_refused(first: int, times_max: int) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        Rule(api="EndTxn", action=LOST, first=first, times_max=times_max)


def test_error_codes_are_found_at_any_depth() -> None:
    answer = {"ErrorCode": 0, "Topics": [{"Partitions": [{"ErrorCode": 51}, {"PartitionErrorCode": 48}]}]}
    assert error_codes(answer) == {0, 48, 51}


async def test_an_injection_that_matched_nothing_is_noticed() -> None:
    injection = Injection(Rule(api="EndTxn", action=Hold(Part.REQUEST)))
    for wait in (injection.matched, injection.acted, injection.done):
        with pytest.raises(NotInjectedError, match="matches=0"):
            await wait(1, 0.01)
    with pytest.raises(NotInjectedError, match="EndTxn"):
        injection.raise_if_idle()


async def test_an_injection_is_done_when_all_of_its_acts_are() -> None:
    injection = Injection(Rule(api="EndTxn", action=Hold(Part.REQUEST)))
    act = injection.note(request("EndTxn", TXN), {}, may_act=True)
    assert act is not None
    await injection.acted()
    with pytest.raises(NotInjectedError, match="is_done=False"):
        injection.raise_if_idle()
    waiting = asyncio.ensure_future(injection.done())
    injection.finish(act, {"ErrorCode": 0})
    await waiting
    injection.raise_if_idle()
    assert injection.evidence.acts[0].answer == {"ErrorCode": 0}
