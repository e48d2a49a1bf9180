"""Addresses in responses: every response that names brokers is known, and rewritten."""

from typing import Any

import pytest

from deploy.drills.proxy.addresses import NAMING_BROKERS, addresses, has_addresses, rewrite, topic_ids
from deploy.drills.proxy.requests import apis
from shared.kafka.protocol.codec import encode
from shared.kafka.protocol.definitions import Definition, definition, valid_versions
from shared.kafka.protocol.headers import decode_correlation_id, decode_response, encode_response

BROKER, OTHER, LISTENER = ("kafka-0", 9092), ("kafka-1", 9092), ("127.0.0.1", 40_001)
LISTENERS = {BROKER: LISTENER, OTHER: ("127.0.0.1", 40_002)}
NODE = {"NodeId": 3, "Host": "kafka-0", "Port": 9092}

RESPONSES: list[tuple[str, int, dict[str, Any]]] = [
    ("Metadata", 1, {"Brokers": [NODE]}),
    ("Metadata", 13, {"Brokers": [NODE]}),
    ("FindCoordinator", 0, NODE),
    ("FindCoordinator", 3, NODE),
    ("FindCoordinator", 4, {"Coordinators": [{"Key": "g"} | NODE]}),
    ("DescribeCluster", 0, {"ClusterId": "c", "Brokers": [{"BrokerId": 3, "Host": "kafka-0", "Port": 9092}]}),
    ("Produce", 10, {"NodeEndpoints": [NODE]}),
    ("Fetch", 16, {"NodeEndpoints": [NODE]}),
    ("ShareFetch", 1, {"NodeEndpoints": [NODE]}),
    ("ShareAcknowledge", 1, {"NodeEndpoints": [NODE]}),
]


@pytest.mark.parametrize(("api", "version", "values"), RESPONSES)
def test_a_brokers_address_is_replaced_and_nothing_else(api: str, version: int, values: dict[str, Any]) -> None:
    before = encode_response(api, version, values, correlation_id=77)
    after = rewrite(api, version, before, LISTENERS)
    assert decode_correlation_id(after) == 77
    assert addresses(decode_response(api, version, before)) == {BROKER}
    assert addresses(decode_response(api, version, after)) == {LISTENER}
    assert rewrite(api, version, after, {LISTENER: BROKER}) == before


def named(fields: list[Definition], shared: dict[str, list[Definition]]) -> bool:
    names = {field["name"] for field in fields}
    inner = [f.get("fields") or shared.get(f["type"].removeprefix("[]"), []) for f in fields]
    return {"Host", "Port"} <= names or any(named(found, shared) for found in inner)


def test_every_response_with_an_address_is_known() -> None:
    found = set()
    for api in apis().values():
        message = definition(f"{api}Response")
        shared = {common["name"]: common["fields"] for common in message.get("commonStructs", ())}
        if named(message["fields"], shared):
            found.add(api)
    assert found == NAMING_BROKERS | {"DescribeQuorum"}, "DescribeQuorum names the controllers' listeners"


@pytest.mark.parametrize("api", sorted(NAMING_BROKERS))
def test_a_response_without_an_address_is_left_as_it_is_in_every_version(api: str) -> None:
    for version in valid_versions(f"{api}Response"):
        frame = encode_response(api, version, {}, correlation_id=1)
        assert rewrite(api, version, frame, {}) == frame


def test_versions_without_addresses_are_not_decoded() -> None:
    assert not has_addresses("Fetch", 15)
    assert not has_addresses("EndTxn", 5)
    assert rewrite("Fetch", 15, b"not a response", {}) == b"not a response"


def test_a_coordinator_that_was_not_found_has_no_address() -> None:
    frame = encode_response("FindCoordinator", 2, {"ErrorCode": 15, "NodeId": -1, "Port": -1}, correlation_id=1)
    assert rewrite("FindCoordinator", 2, frame, {}) == frame


def test_an_address_without_a_listener_is_an_error() -> None:
    frame = encode_response("FindCoordinator", 3, NODE, correlation_id=1)
    with pytest.raises(KeyError):
        rewrite("FindCoordinator", 3, frame, {})


def test_metadata_gives_topics_their_names() -> None:
    known = {"Topics": [{"TopicId": b"\x01" * 16, "Name": "payments"}, {"TopicId": b"\x02" * 16, "Name": None}]}
    assert encode("MetadataResponse", 12, known)
    assert topic_ids(known) == {b"\x01" * 16: "payments"}
    assert topic_ids({"Topics": [{"Name": "payments"}]}) == {}
