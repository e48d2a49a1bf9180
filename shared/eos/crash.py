"""Named points at which a test makes the process die or stop. Pure: the caller passes the action.

A point is armed by a setting and counted per process, so a failure is repeatable: the third commit is the third one.
"""

from collections.abc import Callable
from typing import Final

BEFORE_SEND = "before_send"
AFTER_SEND = "after_send"
AFTER_OFFSETS = "after_offsets"
END_TXN_SENT = "end_txn_sent"
END_TXN_ACKNOWLEDGED = "end_txn_acknowledged"

AFTER_CLAIM = "after_claim"
BEFORE_CALL = "before_call"
AFTER_CALL = "after_call"
AFTER_MARK = "after_mark"

BEFORE_DATABASE_COMMIT = "before_database_commit"
AFTER_DATABASE_COMMIT = "after_database_commit"
TAKING_OVER = "taking_over"

EFFECT_POINTS = (AFTER_CLAIM, BEFORE_CALL, AFTER_CALL, AFTER_MARK)
"""Points of the outbox, around a call to a destination."""

VIEW_POINTS = (BEFORE_DATABASE_COMMIT, AFTER_DATABASE_COMMIT, TAKING_OVER)
"""Points of the view: a database transaction, and partitions that are assigned and not read yet."""

CRASH_POINTS = (BEFORE_SEND, AFTER_SEND, AFTER_OFFSETS, END_TXN_SENT, END_TXN_ACKNOWLEDGED)
"""Points of every transaction."""

ACTIONS = ("kill", "stop")


class CrashPoints:
    """The armed point, if any. Raises ValueError for a setting that cannot be used.

    Args:
        setting: `POINT=ACTION:N`, N at least 1, or empty for none.
        act: called with "kill" or "stop" when the point is reached for the N-th time.
    """

    def __init__(self, setting: str, act: Callable[[str], None]) -> None:
        self._act = act
        self._point, self._action, self._left = "", "", 0
        if not setting:
            return
        self._point, _, rest = setting.partition("=")
        self._action, _, count = rest.partition(":")
        self._left = int(count or "1")
        points = (*CRASH_POINTS, *EFFECT_POINTS, *VIEW_POINTS)
        if self._point not in points or self._action not in ACTIONS or self._left < 1:
            raise ValueError(
                f"{setting!r} is not a crash point: use POINT=ACTION:N with a point of {', '.join(points)} "
                f"and an action of {', '.join(ACTIONS)}"
            )

    def armed(self, point: str) -> bool:
        """Whether the next `reach` of the point acts."""
        return point == self._point and self._left == 1

    def reach(self, point: str) -> None:
        """Count the point; act if it is the armed one and this is the N-th time."""
        if point != self._point or self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            self._act(self._action)


NO_CRASHES: Final = CrashPoints("", lambda _: None)
"""No point is armed."""
