"""Which instances the page watches, from one setting. Pure."""

from typing import Final, NamedTuple

SERVICES: Final = ("gateway", "ingest", "transform", "ledger", "outbox")
"""What the picture shows beside the view itself, in the order in which records pass."""

_PORTS: Final = range(1, 65_536)


class WatchedError(ValueError):
    """The setting names no instances; the message says what to change."""


class Watched(NamedTuple):
    """One instance of a service, by the address of its telemetry."""

    service: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.service}={self.host}:{self.port}"


def parse(text: str) -> tuple[Watched, ...]:
    """Read `ingest=127.0.0.1:9101,ingest=127.0.0.1:9102,ledger=127.0.0.1:9103`; nothing at all watches nobody.

    Raises:
        WatchedError: an item is not `service=host:port`, names another service, or comes twice.
    """
    found: list[Watched] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        service, _, address = item.partition("=")
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or int(port) not in _PORTS:
            raise WatchedError(f"{item!r} is not service=host:port")
        if service not in SERVICES:
            raise WatchedError(f"{item!r} names no service that is shown; there are {', '.join(SERVICES)}")
        watched = Watched(service, host, int(port))
        if watched in found:
            raise WatchedError(f"{item!r} comes twice")
        found.append(watched)
    return tuple(found)
