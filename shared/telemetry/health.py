"""Whether a service can do its work now: a set of named conditions that are not met. Pure.

It must not find out by itself: the service says so when it knows.
"""


class Health:
    """Conditions that keep a service from being ready, each with what is missing in words.

    Args:
        pending: conditions that are not met at the start, by name, each with its reason.
    """

    def __init__(self, **pending: str) -> None:
        self._reasons: dict[str, str] = dict(pending)

    @property
    def ready(self) -> bool:
        """Whether every condition is met."""
        return not self._reasons

    @property
    def reasons(self) -> dict[str, str]:
        """Name and reason of each condition that is not met."""
        return dict(self._reasons)

    def met(self, condition: str) -> None:
        """The condition holds from now on; it may be one that was never missing."""
        self._reasons.pop(condition, None)

    def missing(self, condition: str, reason: str) -> None:
        """The condition does not hold; `reason` says what is missing, for the operator."""
        self._reasons[condition] = reason
