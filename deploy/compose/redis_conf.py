"""Redis' configuration, out of the local stack's. Pure.

What holds: a setting of the local Redis is this one's, but for addresses and paths.
"""

from pathlib import Path

from deploy.compose import places
from deploy.local.redis import redis_config


def local_settings() -> dict[str, str]:
    """What the local stack tells its Redis."""
    lines = redis_config(places.REDIS_PORT, Path(places.REDIS_DATA)).splitlines()
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def addresses() -> dict[str, str]:
    """What differs from the local stack: it serves its own network, and nobody else is on it."""
    return {"bind": "*", "protected-mode": "no"}


def config() -> str:
    """The text of redis.conf."""
    return "".join(f"{name} {value}\n" for name, value in {**local_settings(), **addresses()}.items())
