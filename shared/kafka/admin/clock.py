"""The brokers' clock, and the check that refuses a clock that differs from it.

Writers stamp records, and services compare those stamps to decide what is due, late or expired. On a machine with a
wrong clock all these decisions would be wrong without any error. The leader of the controllers' quorum reports its time
in DescribeQuorum (KIP-836).
"""

import time

from shared.kafka.admin.quorum import describe_quorum
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Cluster
from shared.kafka.protocol.codec import Values


class ClockError(Exception):
    """This machine's clock and the brokers' are too far apart; the message says how far, and what to do."""


async def check_clock(bootstrap_servers: Bootstrap, skew_s_max: float) -> None:
    """Refuse a clock that differs from the controllers'.

    Args:
        skew_s_max: seconds that this machine's clock may be ahead or behind.

    Raises:
        ValueError: skew_s_max is not above 0; the message says what to set.
        ClockError: the difference is larger.
        KafkaUnavailableError: no broker answers.
    """
    if not skew_s_max > 0:  # NaN is refused as well: every clock would pass
        raise ValueError(f"ONCE_CLOCK_SKEW_S_MAX is {skew_s_max:g}: set it above 0")
    async with Cluster(bootstrap_servers) as cluster:

        async def attempt() -> tuple[float, int, float]:
            before_ms = time.time() * 1000
            quorum = await describe_quorum(cluster)
            return before_ms, _leaders_ms(quorum), time.time() * 1000

        before_ms, theirs_ms, after_ms = await cluster.retry(attempt, "the controllers' clock cannot be read")
    if theirs_ms > after_ms + skew_s_max * 1000:
        raise _refused(f"{(theirs_ms - after_ms) / 1000:.0f} s behind", skew_s_max)
    if theirs_ms < before_ms - skew_s_max * 1000:
        raise _refused(f"{(before_ms - theirs_ms) / 1000:.0f} s ahead of", skew_s_max)


def _leaders_ms(quorum: Values) -> int:
    """Return milliseconds since 1970 UTC by the leader's clock: its own timestamp is its current time."""
    [at_ms] = [
        voter["LastCaughtUpTimestamp"] for voter in quorum["CurrentVoters"] if voter["ReplicaId"] == quorum["LeaderId"]
    ]
    return int(at_ms)


def _refused(how: str, skew_s_max: float) -> ClockError:
    return ClockError(
        f"this machine's clock is {how} the brokers', and {skew_s_max:g} s are allowed (ONCE_CLOCK_SKEW_S_MAX): set "
        "the one that is wrong, best by NTP on all machines"
    )
