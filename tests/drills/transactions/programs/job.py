"""The job of a program, from its environment."""

import os
from typing import NamedTuple

OUTPUT_PARTITIONS = 3


class Job(NamedTuple):
    """Topics, group and timeouts; the transactional.id of the one producer begins with the group."""

    bootstrap_servers: str
    source: str
    sink: str
    group: str
    request_timeout_ms: int
    transaction_timeout_ms: int


def job() -> Job:
    """Read the job; KeyError where a variable is missing."""
    of = os.environ
    timeouts = int(of["REQUEST_TIMEOUT_MS"]), int(of["TRANSACTION_TIMEOUT_MS"])
    return Job(of["BOOTSTRAP"], of["IN"], of["OUT"], of["GROUP"], *timeouts)


def partition_of(value: bytes) -> int:
    """Return the output partition of a record, whose value is its number."""
    return int(value) % OUTPUT_PARTITIONS
