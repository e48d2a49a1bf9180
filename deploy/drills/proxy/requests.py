"""Requests as rules see them: the API, the client, and the names in the request. Pure.

The names are found by the entity types in Kafka's own definitions, in every version of every API that is defined here.
A request of an API without a definition has a key and a client only.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, Final

from shared.kafka.protocol.codec import Values
from shared.kafka.protocol.definitions import DIRECTORY, Definition, definition
from shared.kafka.protocol.headers import decode_request, decode_request_header

TOPIC: Final = "topicName"
TRANSACTIONAL_ID: Final = "transactionalId"
GROUP: Final = "groupId"
_COORDINATOR_KEYS: Final = {0: GROUP, 1: TRANSACTIONAL_ID}
_REQUEST: Final = "Request"

Names = Mapping[str, frozenset[str]]
"""Names in a request, by entity type."""


@cache
def apis() -> Mapping[int, str]:
    """Return the names of the APIs that have a definition, by key."""
    names = [path.stem for path in DIRECTORY.glob(f"*{_REQUEST}.json")]
    return {definition(name)["apiKey"]: name.removesuffix(_REQUEST) for name in names}


class Request:
    """A request on its way to a broker.

    Args:
        frame: the request with its header, without the length in front.

    Attributes:
        api: Kafka's name of the API, or `API n` where it has no definition here.
        client_id: empty where the client has none.

    Raises:
        ProtocolDecodeError: the frame does not begin with a request's header.
    """

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        header = decode_request_header(frame)
        self.api = apis().get(header.api_key, f"API {header.api_key}")
        self.is_defined = header.api_key in apis()
        self.version = header.version
        self.correlation_id = header.correlation_id
        self.client_id = header.client_id or ""

    @cached_property
    def values(self) -> Values:
        """The request's fields; none for an API without a definition.

        Raises:
            ProtocolDecodeError: the frame does not match the definition, or the version is unknown.
        """
        return decode_request(self.api, self.version, self.frame) if self.is_defined else {}

    @property
    def is_answered(self) -> bool:
        """Whether brokers answer it: all but Produce with acks=0."""
        return self.api != "Produce" or self.values["Acks"] != 0

    def names(self, topic_ids: Mapping[bytes, str]) -> Names:
        """Return the names in the request.

        Args:
            topic_ids: the names of topics that newer requests carry as ids only; an unknown id has no name.
        """
        found: dict[str, set[str]] = defaultdict(set)
        if self.api == "FindCoordinator":
            keys = {self.values.get("Key", ""), *self.values.get("CoordinatorKeys", ())} - {""}
            found[_COORDINATOR_KEYS.get(self.values.get("KeyType", 0), "")] |= keys
        elif self.is_defined:
            message = definition(f"{self.api}{_REQUEST}")
            shared = {common["name"]: common["fields"] for common in message.get("commonStructs", ())}
            _collect(message["fields"], shared, self.values, topic_ids, found)
        return {kind: frozenset(names) for kind, names in found.items()}


def _collect(
    fields: list[Definition],
    shared: Mapping[str, list[Definition]],
    values: Values,
    topic_ids: Mapping[bytes, str],
    found: dict[str, set[str]],
) -> None:
    for field in fields:
        value: Any = values.get(field["name"])
        if value is None:
            continue
        kind = field["type"].removeprefix("[]")
        items = value if field["type"].startswith("[]") else [value]
        if kind == "string" and "entityType" in field:
            found[field["entityType"]].update(items)
        elif kind == "uuid":
            found[TOPIC].update(topic_ids[item] for item in items if item in topic_ids)
        elif inner := field.get("fields") or shared.get(kind):
            for item in items:
                _collect(inner, shared, item, topic_ids, found)
