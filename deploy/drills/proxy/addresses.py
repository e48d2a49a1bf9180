"""Brokers' addresses in responses, replaced by those of the proxy's listeners. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shared.kafka.protocol.codec import Values
from shared.kafka.protocol.headers import decode_correlation_id, decode_response, encode_response

Address = tuple[str, int]
"""A host and a port."""

NAMING_BROKERS: Final = frozenset(
    {"DescribeCluster", "Fetch", "FindCoordinator", "Metadata", "Produce", "ShareAcknowledge", "ShareFetch"}
)
"""APIs whose responses have addresses that clients connect to."""

_ENDPOINTS_SINCE: Final = {"Produce": 10, "Fetch": 16}
"""Versions from which these responses name new leaders (KIP-951). Older ones are not decoded: they are the bulk."""
_NO_ID: Final = bytes(16)


def has_addresses(api: str, version: int) -> bool:
    """Whether a response of this version may name brokers."""
    return api in NAMING_BROKERS and version >= _ENDPOINTS_SINCE.get(api, 0)


def addresses(response: Values) -> set[Address]:
    """Return the brokers' addresses in a response."""
    return {(node["Host"], node["Port"]) for node in _nodes(response)}


def rewrite(api: str, version: int, frame: bytes, listeners: Mapping[Address, Address]) -> bytes:
    """Replace the addresses in a response; other responses are returned as they are.

    Args:
        frame: the response with its header, without the length in front.
        listeners: where to connect to instead, for every address in the response.

    Raises:
        ProtocolDecodeError: the frame does not match the definition, or the version is unknown.
        KeyError: an address has no listener.
    """
    if not has_addresses(api, version):
        return frame
    values = decode_response(api, version, frame)
    nodes = list(_nodes(values))
    for node in nodes:
        node["Host"], node["Port"] = listeners[node["Host"], node["Port"]]
    if not nodes:
        return frame
    return encode_response(api, version, values, correlation_id=decode_correlation_id(frame))


def topic_ids(metadata: Values) -> dict[bytes, str]:
    """Return the names of topics by id, from a Metadata response."""
    named = [(topic.get("TopicId", _NO_ID), topic["Name"]) for topic in metadata["Topics"]]
    return {topic_id: name for topic_id, name in named if topic_id != _NO_ID and name is not None}


def _nodes(value: Any) -> Iterator[Values]:
    """Yield the structs with an address, except those of a coordinator that was not found."""
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item)
    elif isinstance(value, dict):
        if "Port" in value and value["Host"] and value["Port"] >= 0:
            yield value
        for item in value.values():
            yield from _nodes(item)
