"""A broker of the simulated cluster: requests in, answers out, by Kafka's definitions of both.

Each API is a function of the request's version and values, and returns the values of the response. A broker offers the
versions that Kafka 4.3 does, but for those of records and offsets that name topics by id, or several groups.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from typing import Final

from shared.kafka.protocol.codec import Values, encode
from shared.kafka.protocol.definitions import valid_versions
from shared.kafka.protocol.headers import api_key, decode_request, decode_request_header, encode_response
from tests.simulation.cluster import Cluster, Partition, Target
from tests.simulation.errors import NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, RefusedError

Handler = Callable[[int, Values, str], Awaitable[Values]]
"""Answers one API: version and values of the request, and the client's name."""

_FEATURES: Final = 3
"""The first version of ApiVersions that names the cluster's finalised features (KIP-584)."""
_NOT_SERVED: Final = {"Produce": 13, "Fetch": 13, "OffsetCommit": 10, "OffsetFetch": 8, "LeaveGroup": 3}
"""The first version of an API that is not served: by topic id, for several groups, or for several members."""
_GROUP_VERSION: Final = 1
"""The finalised feature: 1 has the newer consumer protocol (KIP-848)."""


class Broker:
    """One broker, at the network's end of its connections.

    Attributes:
        node: its id.
        handlers: by API; each room of the broker adds its own.
    """

    def __init__(self, cluster: Cluster, node: int) -> None:
        self.cluster = cluster
        self.node = node
        self.name = f"broker-{node}"
        self.handlers: dict[str, Handler] = {}
        self._by_key = {api_key("ApiVersions"): "ApiVersions"}

    @property
    def up(self) -> bool:
        return self.node in self.cluster.alive

    def serve(self, handlers: dict[str, Handler]) -> None:
        """Offer more APIs."""
        self.handlers |= handlers
        self._by_key |= {api_key(api): api for api in handlers}

    def led(self, target: Target) -> Partition:
        """A partition that it leads; raises RefusedError for another one."""
        if target not in self.cluster.partitions:
            raise RefusedError(UNKNOWN_TOPIC_OR_PARTITION)
        partition = self.cluster.led(target, self.node)
        if partition is None:
            raise RefusedError(NOT_LEADER_OR_FOLLOWER)
        return partition

    async def answer(self, request: bytes, client: str) -> bytes | None:
        header = decode_request_header(request)
        api = self._by_key[header.api_key]
        if api == "ApiVersions":
            offered = _offered(frozenset(self.handlers), header.version, self.cluster.transaction_version)
            return header.correlation_id.to_bytes(4, "big") + offered
        values = decode_request(api, header.version, request)
        response = await self.handlers[api](header.version, values, client)
        return encode_response(api, header.version, response, correlation_id=header.correlation_id)


@cache
def _offered(apis: frozenset[str], version: int, transaction_version: int) -> bytes:
    """The answer to ApiVersions, behind its header."""
    known = [_range(api) for api in sorted((*apis, "ApiVersions"), key=api_key)]
    levels = {"group.version": _GROUP_VERSION, "transaction.version": transaction_version}
    finalised = [{"Name": name, "MinVersionLevel": level, "MaxVersionLevel": level} for name, level in levels.items()]
    features = {"FinalizedFeaturesEpoch": 1, "FinalizedFeatures": finalised}
    return encode("ApiVersionsResponse", version, {"ApiKeys": known, **(features if version >= _FEATURES else {})})


def _range(api: str) -> Values:
    versions = valid_versions(f"{api}Request")
    newest = min(versions[-1], _NOT_SERVED.get(api, versions[-1] + 1) - 1)
    return {"ApiKey": api_key(api), "MinVersion": versions[0], "MaxVersion": newest}


def by_topic(answers: Mapping[Target, Values]) -> Iterator[tuple[str, list[Values]]]:
    """Group the answers of partitions by topic, in their order."""
    topics: dict[str, list[Values]] = {}
    for (topic, _), answer in answers.items():
        topics.setdefault(topic, []).append(answer)
    yield from topics.items()
