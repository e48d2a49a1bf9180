"""The page: the system as it is now, sent as server-sent events, and a payment's way."""

from services.balances.dashboard.observed import Watched, WatchedError, parse_watched
from services.balances.dashboard.site import Live

__all__ = ["Live", "Watched", "WatchedError", "parse_watched"]
