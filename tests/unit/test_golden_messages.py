"""Bytes of every message and version that is sent or read, as Kafka 4.3.1's own classes write them.

`golden_messages.json` has all values that a message may carry, bytes in hex, and what they are written as by version or
range of versions. Add, never edit: brokers that speak these versions will stay.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.kafka.protocol.codec import Values, decode, encode
from shared.kafka.protocol.definitions import Definition, definition, is_present, valid_versions
from shared.kafka.protocol.headers import (
    RequestHeader,
    decode_correlation_id,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    framed,
)
from shared.kafka.txntrace import frames

GOLDEN = json.loads(Path(__file__).with_name("golden_messages.json").read_text())
TXN = {"TransactionalId": "id", "ProducerId": 4001, "ProducerEpoch": 7}


def recorded(name: str) -> dict[int, bytes]:
    """A message's bytes by version."""
    found: dict[int, bytes] = {}
    for versions, text in GOLDEN[name]["bytes"].items():
        first, _, last = versions.partition("-")
        found |= dict.fromkeys(range(int(first), int(last or first) + 1), bytes.fromhex(text))
    return found


def carried(name: str, version: int) -> Values:
    """Return the values for which this version of a message has fields."""
    message = definition(name)
    shared = {common["name"]: common["fields"] for common in message.get("commonStructs", ())}

    def of(value: Any, field: Definition, kind: str) -> Any:
        if value is None or kind in {"string", "bool"} or "int" in kind:
            return value
        if kind in {"bytes", "records", "uuid"}:
            return bytes.fromhex(value)
        if kind.startswith("[]"):
            return [of(item, field, kind[2:]) for item in value]
        return struct(value, field.get("fields") or shared[kind])

    def struct(values: Values, fields: list[Definition]) -> Values:
        return {f["name"]: of(values[f["name"]], f, f["type"]) for f in fields if is_present(f, version)}

    return struct(GOLDEN[name]["values"], message["fields"])


@pytest.mark.parametrize("name", GOLDEN)
def test_a_message_has_the_bytes_that_kafka_writes(name: str) -> None:
    for version, data in recorded(name).items():
        values = carried(name, version)
        assert encode(name, version, values) == data
        assert decode(name, version, data) == values


def test_every_version_that_a_trace_decodes_is_recorded() -> None:
    for api_key, versions in frames.VERSIONS.items():
        for name in (f"{frames.api_name(api_key)}Request", f"{frames.api_name(api_key)}Response"):
            assert set(versions) & set(valid_versions(name)) <= recorded(name).keys(), name


def test_a_request_has_the_header_of_its_version() -> None:
    for version, header in ((2, "001a0002 0000004d 00046f6e6365"), (5, "001a0005 0000004d 00046f6e6365 00")):
        request = encode_request("EndTxn", version, TXN, correlation_id=77, client_id="once")
        assert request == bytes.fromhex(header) + encode("EndTxnRequest", version, TXN)
        assert framed(request) == len(request).to_bytes(4, "big") + request
        assert decode_request_header(request) == RequestHeader(26, version, 77, "once")
        assert decode_request("EndTxn", version, request) == TXN | {"Committed": False}


@pytest.mark.parametrize(("api", "version", "tags"), [("EndTxn", 2, ""), ("EndTxn", 5, "00"), ("ApiVersions", 4, "")])
def test_a_response_has_the_header_of_its_version(api: str, version: int, tags: str) -> None:
    response = encode_response(api, version, {"ErrorCode": 35}, correlation_id=77)
    assert response.hex() == f"0000004d{tags}" + encode(f"{api}Response", version, {"ErrorCode": 35}).hex()
    assert decode_correlation_id(response) == 77
    assert decode_response(api, version, response)["ErrorCode"] == 35
