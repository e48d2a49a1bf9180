"""The page and what it shows: the system as it is now, told by server-sent events, and a payment's way."""

from services.balances.dashboard.site import Live
from services.balances.dashboard.watched import Watched, WatchedError, parse

__all__ = ["Live", "Watched", "WatchedError", "parse"]
