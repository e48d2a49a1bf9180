"""The address of Redis in ONCE_REDIS_URL. Pure.

The URL is parsed here because redis-py accepts options in it that turn TLS' checks off.
"""

from typing import NamedTuple
from urllib.parse import urlsplit

_PORT = 6379
_SENTINEL_PORT = 26379
_NO_URL = (
    "ONCE_REDIS_URL is no URL such as redis://127.0.0.1:6379/0, rediss://redis:6379/0 or "
    "redis+sentinel://host:26379,host:26379/master_name/0: correct it"
)
_SCHEMES = {"redis", "rediss"}
_SENTINEL_SCHEMES = {"redis+sentinel", "rediss+sentinel"}


class Node(NamedTuple):
    """A server's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Address(NamedTuple):
    """Where Redis listens, or the sentinels that know it."""

    nodes: tuple[Node, ...]  # Redis itself, or all sentinels
    database: int  # any but 0 needs the right to SELECT
    tls: bool
    master: str = ""  # the sentinels' name of it; empty without sentinels

    def __str__(self) -> str:
        nodes = ",".join(map(str, self.nodes))
        return f"{self.master} of the sentinels {nodes}" if self.master else nodes


def address_of(url: str) -> Address:
    """Parse ONCE_REDIS_URL; ValueError, which does not show it, if it is no such URL or has a user or password."""
    scheme, _, rest = url.partition("://")
    netloc, _, path = rest.partition("/")
    if "@" in netloc:
        raise ValueError(
            "ONCE_REDIS_URL has a user or a password: name the user in ONCE_REDIS_USERNAME, write the password into a "
            "file and name that in ONCE_REDIS_PASSWORD_FILE"
        )
    sentinels = scheme in _SENTINEL_SCHEMES
    hosts = netloc.split(",") if sentinels else [netloc]
    nodes = tuple(_node_of(host, _SENTINEL_PORT if sentinels else _PORT) for host in hosts)
    master, _, database = path.partition("/") if sentinels else ("", "", path)
    named = bool(master) and master.isprintable() and not set(master) & set("?#/ ")
    number = database or "0"
    if scheme not in _SCHEMES | _SENTINEL_SCHEMES or named is not sentinels:
        raise ValueError(_NO_URL)
    if not (number.isascii() and number.isdigit()):
        raise ValueError(_NO_URL)
    return Address(nodes, int(number), scheme.startswith("rediss"), master)


def _node_of(host: str, default_port: int) -> Node:
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError:
        raise ValueError(_NO_URL) from None
    if not parts.hostname or parts.netloc != host or "," in host:
        raise ValueError(_NO_URL)
    return Node(parts.hostname, default_port if port is None else port)
