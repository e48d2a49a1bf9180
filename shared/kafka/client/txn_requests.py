"""Requests to list, describe and end transactions (KIP-664, KIP-98): wire format only.

aiokafka has none of them.

Invariant: field names and order are those of Kafka's own message definitions. Each request has one version, the lowest
that Kafka 4 takes, because the later ones only add filters.
"""

from typing import Any, Final

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
NO_TAGS: Final[dict[int, bytes]] = {}
"""Every structure of a flexible version ends in tagged fields (KIP-482); these requests have none."""


class OneVersion:
    """A request that is sent in its only version, or refused."""

    API_KEY: int
    API_VERSION: int

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Select the version; the client calls it with the versions that the broker takes.

        Raises:
            IncompatibleBrokerVersion: the broker does not take this one.
        """
        lowest, highest = versions.get(self.API_KEY, (0, -1))
        if not lowest <= self.API_VERSION <= highest:
            raise IncompatibleBrokerVersion(f"the broker takes no {type(self).__name__} v{self.API_VERSION}")
        return self


class ListTransactionsResponse(Response):  # type: ignore[misc] # the client ships no types
    """Transactions that a broker coordinates: (transactional_id, producer_id, state, tags)."""

    API_KEY = 66
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_state_filters", CompactArray(_TEXT)),
        (
            "transaction_states",
            CompactArray(
                ("transactional_id", _TEXT),
                ("producer_id", Int64),
                ("transaction_state", _TEXT),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class ListTransactionsRequest(OneVersion, RequestStruct):  # type: ignore[misc] # the same
    """All transactional.ids that a broker coordinates; empty filters take all."""

    API_KEY = 66
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ListTransactionsResponse
    SCHEMA = Schema(("state_filters", CompactArray(_TEXT)), ("producer_id_filters", CompactArray(Int64)), _TAGS)


class DescribeTransactionsResponse(Response):  # type: ignore[misc] # the same
    """Each transactional.id, with an error of its own."""

    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transaction_states",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", _TEXT),
                ("transaction_state", _TEXT),
                ("transaction_timeout_ms", Int32),
                ("transaction_start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeTransactionsRequest(OneVersion, RequestStruct):  # type: ignore[misc] # the same
    """For the coordinator of these transactional.ids."""

    API_KEY = 65
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = DescribeTransactionsResponse
    SCHEMA = Schema(("transactional_ids", CompactArray(_TEXT)), _TAGS)


class DescribeProducersResponse(Response):  # type: ignore[misc] # the same
    """The producers that each partition's leader remembers."""

    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("error_message", _TEXT),
                        (
                            "active_producers",
                            CompactArray(
                                ("producer_id", Int64),
                                ("producer_epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("current_txn_start_offset", Int64),
                                _TAGS,
                            ),
                        ),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class DescribeProducersRequest(OneVersion, RequestStruct):  # type: ignore[misc] # the same
    """For the leader of these partitions."""

    API_KEY = 61
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = DescribeProducersResponse
    SCHEMA = Schema(("topics", CompactArray(("name", _TEXT), ("partition_indexes", CompactArray(Int32)), _TAGS)), _TAGS)


class WriteTxnMarkersResponse(Response):  # type: ignore[misc] # the same
    """An error code for each partition of each marker."""

    API_KEY = 27
    API_VERSION = 1
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                (
                    "topics",
                    CompactArray(
                        ("name", _TEXT),
                        ("partitions", CompactArray(("partition_index", Int32), ("error_code", Int16), _TAGS)),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class WriteTxnMarkersRequest(OneVersion, RequestStruct):  # type: ignore[misc] # the same
    """For the leader of these partitions; needs the right to alter the cluster. transaction_result False aborts.

    Version 1: version 2 adds that the marker's epoch must be newer than the producer's (KIP-890), and an operator who
    ends a hanging transaction knows none.
    """

    API_KEY = 27
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = WriteTxnMarkersResponse
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                ("transaction_result", Boolean),
                ("topics", CompactArray(("name", _TEXT), ("partition_indexes", CompactArray(Int32)), _TAGS)),
                ("coordinator_epoch", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    )
