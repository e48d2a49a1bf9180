"""The job of a hop that runs as a process: it is passed in the environment."""

import os
from collections.abc import Mapping
from typing import NamedTuple, Self

OUTPUT_PARTITIONS = 3


class Job(NamedTuple):
    """Take each record of `source` to one of the three partitions of `sink`, exactly once.

    Attributes:
        changelog: of the runtime's hop, which has no state of its own.
        instance: unique in the group; the same again after a restart.
    """

    bootstrap_servers: str
    source: str
    sink: str
    changelog: str
    group: str
    request_timeout_ms: int
    transaction_timeout_ms: int
    instance: str = "0"

    @property
    def transactional_id(self) -> str:
        """Return the transactional.id of an instance that keeps it over restarts."""
        return f"{self.group}-{self.instance}"

    @classmethod
    def from_environment(cls) -> Self:
        """Read the job; KeyError where a variable is missing."""
        of = os.environ
        timeouts = int(of["REQUEST_TIMEOUT_MS"]), int(of["TRANSACTION_TIMEOUT_MS"])
        topics = of["IN"], of["OUT"], of["CHANGELOG"]
        return cls(of["BOOTSTRAP"], *topics, of["GROUP"], *timeouts, of.get("ONCE_INSTANCE", "0"))

    def environment(self) -> Mapping[str, str]:
        """Return the environment of a process that does it."""
        return {
            "BOOTSTRAP": self.bootstrap_servers,
            "IN": self.source,
            "OUT": self.sink,
            "CHANGELOG": self.changelog,
            "GROUP": self.group,
            "REQUEST_TIMEOUT_MS": str(self.request_timeout_ms),
            "TRANSACTION_TIMEOUT_MS": str(self.transaction_timeout_ms),
            "ONCE_BOOTSTRAP_SERVERS": self.bootstrap_servers,
            "ONCE_INSTANCE": self.instance,
            "ONCE_TRANSACTION_TIMEOUT_MS": str(self.transaction_timeout_ms),
            "ONCE_LOG_LEVEL": "WARNING",
        }


def partition_of(value: bytes) -> int:
    """Return the output partition of a record, whose value is its number."""
    return int(value) % OUTPUT_PARTITIONS
