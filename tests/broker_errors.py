"""The client library's errors by the brokers' codes, for tests of error handling."""

import re
from typing import Final

import pytest

from shared.kafka.client.cluster import check

UNKNOWN_TOPIC: Final = 3
NOT_ENOUGH_REPLICAS: Final = 19
TOPIC_AUTHORIZATION_FAILED: Final = 29
CLUSTER_AUTHORIZATION_FAILED: Final = 31
NOT_CONTROLLER: Final = 41


def broker_error(code: int, message: str) -> Exception:
    """The error for a broker's answer with this code."""
    with pytest.raises(Exception, match=re.escape(message)) as raised:
        check(code, message)
    return raised.value
