"""The parts of a webhook's URL that matter here. Pure."""

from functools import lru_cache
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=4096)  # asked for at each call, for few destinations
def origin_of(destination: str) -> str:
    """The origin of a URL as `scheme://host:port`, its port always shown (RFC 6454, section 4).

    Raises:
        ValueError: it is no http or https URL with a host and a possible port.
    """
    parts = urlsplit(destination)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{destination!r} is no webhook's URL: give https://host/path")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    return f"{parts.scheme}://{host}:{port}"


def endpoint_of(destination: str) -> str:
    """Origin and path of a URL, without its query: what tells one subscriber from another.

    Raises:
        ValueError: as for `origin_of`.
    """
    return origin_of(destination) + (urlsplit(destination).path or "/")
