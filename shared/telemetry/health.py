"""Readiness of a service: a set of named conditions that are not met. Pure.

The service reports its conditions; this module checks none by itself.
"""


class Health:
    """Conditions that keep a service from being ready, each with its reason.

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
        """Mark a condition as met; it need not have been missing."""
        self._reasons.pop(condition, None)

    def missing(self, condition: str, reason: str) -> None:
        """Mark a condition as not met; `reason` says what is missing, for the operator."""
        self._reasons[condition] = reason
