"""What may have been called with Redis alone knowing of it, by owners before or in a transaction that aborted. Pure.

Until an owner has worked through that, a loss of Redis makes it doubtful. What it calls itself, it knows by itself.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Risk:
    """Some of the requests from the committed offset on, and some of the waiting effects.

    Attributes:
        left: how many requests at most.
        until: the offset that they are below.
        waiting: the waiting effects, by id.
    """

    left: int = 0
    until: int = 0
    waiting: frozenset[str] = frozenset()

    def joined(self, left: int, until: int, waiting: Collection[str]) -> "Risk":
        """With what a transaction that aborted had called; arguments as the attributes."""
        return Risk(max(self.left, left), max(self.until, until), self.waiting | frozenset(waiting))

    def passed(self, requests: int, next_offset: int, settled: Collection[str], put_off: Collection[str]) -> "Risk":
        """After a transaction.

        Args:
            requests: how many it passed.
            next_offset: the offset that it committed.
            settled: the effects of it that were claimed: Kafka knows of their doubts from here on.
            put_off: of the requests that were at risk, those that were not even claimed, and wait now.
        """
        waiting = (self.waiting - frozenset(settled)) | frozenset(put_off)
        return Risk(left_of(self.left, self.until, requests, next_offset), self.until, waiting)


def left_of(left: int, until: int, passed: int, next_offset: int) -> int:
    """How many requests below an offset are left when some were passed and `next_offset` is committed."""
    return 0 if next_offset >= until else max(left - passed, 0)
