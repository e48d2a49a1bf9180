"""Redis' configuration, out of the local stack's. Pure.

What holds: a setting of the local Redis, secured, is this one's, but for addresses and paths.
"""

from pathlib import Path

from deploy.compose import places
from deploy.local.redis.server import redis_config, secured_config
from deploy.security.redis_users import OPERATOR


def local_settings() -> dict[str, str]:
    """What the local stack tells its Redis."""
    access = secured_config(places.REDIS_PORT, places.AS_SEEN, Path(places.USERS_FILE))
    lines = redis_config(places.REDIS_PORT, Path(places.REDIS_DATA), access=access).splitlines()
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def addresses() -> dict[str, str]:
    """What differs from the local stack: it serves its network. Nobody comes in without a certificate and a name."""
    return {"bind": "*", "protected-mode": "no"}


def config() -> str:
    """The text of redis.conf."""
    return "".join(f"{name} {value}\n" for name, value in {**local_settings(), **addresses()}.items())


def healthy() -> str:
    """The text of its health check: it lets the operator in, who may ask whether it answers."""
    own = places.OWN
    identity = places.AS_SEEN.identity_file(places.REDIS)
    return f"""\
#!/bin/sh
REDISCLI_AUTH=$(cat {own}/operator.password) && export REDISCLI_AUTH
redis-cli -h {places.REDIS} -p {places.REDIS_PORT} --user {OPERATOR.name} --no-auth-warning \\
    --tls --cacert {places.AS_SEEN.ca_file} --cert {identity} --key {identity} ping | grep -q PONG
"""
