"""The verdict over a test's cluster, by the command that operators use."""

import json
from collections.abc import Iterable
from typing import Any

from shared.events import catalogue
from shared.events.clients import BY_OPERATOR
from shared.events.validation import key_of
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.idempotent import IdempotentWriter
from tests.commands import once
from tests.partitions import PARTITIONS


def verdict(bootstrap_servers: str) -> dict[str, Any]:
    """Wait until drained, then `once verify --json`. The exit code agrees with the verdict or the test fails."""
    done = once("verify", "--json", "--bootstrap-servers", bootstrap_servers)
    assert done.stdout, (done.stderr, done.exception)
    result: dict[str, Any] = json.loads(done.stdout)
    assert (done.exit_code == 0) == (result["verdict"] == "pass"), (done.exit_code, result)
    return result


def assert_exactly_once(result: dict[str, Any]) -> None:
    """Check that every invariant holds, over a non-empty set of records."""
    assert result["verdict"] == "pass", result
    assert_booked_once(result)


def assert_booked_once(result: dict[str, Any]) -> None:
    """Check that every payment was booked once, over a non-empty set of records; ignore other findings."""
    assert result["accepted"] > 0
    assert (result["lost"], result["duplicated"], result["torn"], result["drift_minor"]) == (0, 0, 0, 0), result


async def send_raw(bootstrap_servers: Bootstrap, values: Iterable[bytes], partitions: int = PARTITIONS) -> None:
    """Write values to payments.raw as they are, each to the partition of its debtor."""
    async with IdempotentWriter(bootstrap_servers) as writer:
        for value in values:
            key, partition = key_of(value, partitions)
            await writer.write(catalogue.PAYMENTS_RAW, partition, key, value, BY_OPERATOR)
        await writer.flush()
