"""Addresses that webhooks may be sent to: public ones over https, and any in the networks that a setting lists.

Invariant: a connection goes only to an address that was checked for it. A name is resolved once for each connection,
and what passes the check is what aiohttp connects to: a later, different answer of the DNS has no effect on it. An
address in a URL is checked before the call, because aiohttp does not resolve it. A proxy resolves names by itself, so
behind one only addresses in URLs are checked here.

A lookup that a DNS does not answer takes many seconds, cannot be cancelled, and outlives its call. So each has a thread
of its own, which the process does not wait for when it ends.
"""

import asyncio
import errno
import ipaddress
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from aiohttp import ClientConnectionError, TCPConnector, ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from shared.addresses import Network, is_within, why_not_public

LOOKUPS_MAX: Final = 64  # under way at once; there is one for each name, however many calls wait for it
ANSWERS_MAX: Final = 100
_ALLOW = "ONCE_WEBHOOK_ALLOWED_NETWORKS"


class DestinationRefusedError(OSError):
    """No address of the destination may be called."""


class _Lookups:
    """Lookups of names, as ThreadedResolver asks an event loop for them.

    The loop itself has few threads: with uvloop, two names whose DNS hangs would keep all others from being resolved,
    those of brokers and Redis included.
    """

    def __init__(self) -> None:
        self._free = threading.Semaphore(LOOKUPS_MAX)

    async def getaddrinfo(self, host: str, port: int, **options: int) -> list[Any]:
        if not self._free.acquire(blocking=False):
            raise OSError(errno.EAGAIN, f"{LOOKUPS_MAX} other names are being resolved")
        found: Future[list[Any]] = Future()
        found.set_running_or_notify_cancel()  # from here on, a caller can leave, but not cancel it
        look_up = partial(socket.getaddrinfo, host, port, **options)
        threading.Thread(target=self._run, args=(look_up, found), name="lookup", daemon=True).start()
        return await asyncio.wrap_future(found)

    def _run(self, look_up: Callable[[], list[Any]], found: Future[list[Any]]) -> None:
        try:
            answer = look_up()
        except (OSError, UnicodeError) as error:  # UnicodeError: an empty or overlong label
            found.set_exception(error)
        else:
            found.set_result(answer)
        finally:
            self._free.release()

    async def getnameinfo(self, address: tuple[Any, ...], flags: int) -> tuple[str, str]:
        return socket.getnameinfo(address, flags)  # with numbers only: nothing is asked


def name_resolver() -> ThreadedResolver:
    """Return aiohttp's resolver, with a thread for each lookup."""
    return ThreadedResolver(cast("asyncio.AbstractEventLoop", _Lookups()))


@dataclass(frozen=True, slots=True)
class Egress:
    """The rule for destinations.

    Attributes:
        allowed: networks whose addresses may be private, and called over plain http.
        proxy: URL of an HTTP proxy for all calls; empty for none.
        resolver: makes the resolver of names, in the event loop.
    """

    allowed: tuple[Network, ...] = ()
    proxy: str = ""
    resolver: Callable[[], AbstractResolver] = name_resolver

    def refusal(self, url: URL) -> str | None:
        """Why a URL must not be called, as far as it can be said without resolving a name; None where it may be."""
        host = url.raw_host or ""
        try:
            return self.address_refusal(host, url.scheme)
        except ValueError:
            # aiohttp takes these for addresses and has no resolver check them; the system may resolve them all the same
            if ":" in host or host.replace(".", "").isdigit():
                return f"{host} is no IP address"
            if self.proxy and url.scheme != "https":
                return f"plain http to {host} through a proxy: use https"
            return None  # a name

    def address_refusal(self, host: str, scheme: str) -> str | None:
        """Why this address must not be called over http or https; None where it may be. ValueError for a name."""
        address = ipaddress.ip_address(host)
        if is_within(address, self.allowed):
            return None
        kind = why_not_public(address)
        if kind is not None:
            return f"{host} is {kind} address; allow its network in {_ALLOW}"
        if scheme != "https":
            return f"plain http to {host}: use https, or allow its network in {_ALLOW}"
        return None

    def connector(self, scheme: str, connections_max: int, keepalive_s: float) -> TCPConnector:
        """A connector for the calls over one scheme, which connects to no address that must not be called."""
        resolver = self.resolver()
        if not self.proxy:
            resolver = _CheckedResolver(resolver, lambda address: self.address_refusal(address, scheme))
        connector = TCPConnector(limit=connections_max, keepalive_timeout=keepalive_s, resolver=resolver)
        answers = cast("partial[ResponseHandler]", partial(_Answers, asyncio.get_running_loop()))
        connector._factory = answers  # noqa: SLF001 # there is no public way
        return connector


class _Answers(ResponseHandler):
    """A connection's answers, of which at most ANSWERS_MAX wait to be read.

    aiohttp passes over any number of interim answers (1xx), and makes objects of all that have arrived. A quarter of a
    megabyte of them would hold up the event loop.
    """

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if len(self) > ANSWERS_MAX:
            self.close()
            self.set_exception(ClientConnectionError("too many answers to one request"))


class _CheckedResolver(AbstractResolver):
    """Leaves out the addresses that must not be called; DestinationRefusedError if none is left.

    A name without an address is another OSError. aiohttp's cache would fail on an empty list.
    """

    def __init__(self, resolver: AbstractResolver, refusal: Callable[[str], str | None]) -> None:
        self._resolver = resolver
        self._refusal = refusal

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
        passed = [each for each in found if self._refusal(each["host"]) is None]
        if not passed:
            raise DestinationRefusedError(f"{host}: {self._refusal(found[0]['host'])}")
        return passed

    async def close(self) -> None:
        await self._resolver.close()
