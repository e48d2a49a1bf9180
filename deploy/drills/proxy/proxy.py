"""The proxy: a listener on loopback in front of each broker.

Clients learn the listeners' addresses in place of the brokers', so all of their traffic passes here. Brokers talk to
each other past it.

    async with Proxy(kafka.bootstrap_servers) as proxy:
        lost = proxy.add(Rule(api="EndTxn", action=Drop(Part.ANSWER), first=3))
        ...  # clients work with proxy.bootstrap_servers
        await lost.done()
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from deploy.drills.proxy.addresses import Address, addresses, has_addresses, rewrite, topic_ids
from deploy.drills.proxy.connection import Connection, Fault, Traffic
from deploy.drills.proxy.frames import NotAKafkaFrameError, read_frame, write_frame
from deploy.drills.proxy.injection import Injection
from deploy.drills.proxy.requests import Request
from deploy.drills.proxy.rules import Rule
from shared.kafka.protocol.headers import decode_response, encode_request

LOOPBACK: Final = "127.0.0.1"
ANSWER_S: Final = 10.0


class ProxyError(Exception):
    """The proxy cannot pass on the traffic of these brokers, or of one of its clients."""


class Proxy:
    """A proxy in front of every broker of a cluster. Open it as an async context manager.

    Args:
        bootstrap_servers: the brokers, `host:port,...`. Others are found when a response names them.
        observe: called with every request that is read from a client, before any rule.

    Attributes:
        bootstrap_servers: the listeners in front of these brokers.
        requests: how many requests were read, by API and client id.
        failures: what could not be passed on; leaving the context raises it.

    Raises:
        ProxyError: on entering, when no broker answers, or it speaks TLS; on leaving, when there are failures.
    """

    def __init__(self, bootstrap_servers: str, observe: Callable[[Request], None] = lambda _: None) -> None:
        self._observe = observe
        self._brokers = [_address(text) for text in bootstrap_servers.split(",")]
        self._listeners: dict[Address, Address] = {}
        self._servers: list[asyncio.Server] = []
        self._opening = asyncio.Lock()
        self._injections: list[Injection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._topic_ids: dict[bytes, str] = {}
        self.requests: Counter[tuple[str, str]] = Counter()
        self.failures: list[str] = []
        self.bootstrap_servers = ""

    async def __aenter__(self) -> Self:
        await self._refuse_tls()
        try:
            for broker in self._brokers:
                await self._open(broker)
        except BaseException:
            await self._close()
            raise
        self.bootstrap_servers = ",".join("{}:{}".format(*self._listeners[broker]) for broker in self._brokers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()
        if self.failures and error is None:
            raise ProxyError("; ".join(self.failures))

    def add(self, rule: Rule) -> Injection:
        """Apply a rule from now on. Of several that are due for a request, the first one acts; all count it."""
        injection = Injection(rule)
        self._injections.append(injection)
        return injection

    def remove(self, injection: Injection) -> None:
        """Deliver what a rule holds, and apply it no longer."""
        injection.release()
        self._injections.remove(injection)

    def counts(self, client_id: str = "") -> Counter[str]:
        """Return how many requests were read by API, of clients whose id begins with `client_id`."""
        found: Counter[str] = Counter()
        for (api, client), count in self.requests.items():
            if client.startswith(client_id):
                found[api] += count
        return found

    async def _refuse_tls(self) -> None:
        """Raise ProxyError unless the first broker that can be reached answers in plaintext."""
        for broker in self._brokers:
            try:
                reader, writer = await asyncio.open_connection(*broker)
            except OSError:
                continue
            try:
                async with asyncio.timeout(ANSWER_S):
                    await write_frame(writer, encode_request("ApiVersions", 0, {}))
                    answer = await read_frame(reader)
            except (TimeoutError, NotAKafkaFrameError) as error:
                raise ProxyError(f"{_text(broker)}: {error}") from error
            finally:
                writer.close()
            if answer is None:
                raise ProxyError(f"{_text(broker)} closed the connection. A TLS listener does: not on this target")
            return
        raise ProxyError(f"none of {', '.join(map(_text, self._brokers))} can be reached")

    async def _open(self, broker: Address) -> None:
        """Listen in front of a broker, unless a listener is there."""
        async with self._opening:
            if broker in self._listeners:
                return

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                traffic = Traffic(self._inspect, self._rewrite, self._spawn)
                self._spawn(Connection((reader, writer), broker, traffic).run())

            server = await asyncio.start_server(accept, LOOPBACK, 0)
            self._servers.append(server)
            self._listeners[broker] = LOOPBACK, server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # each failure was noted when it happened

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._noted(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _noted(self, work: Awaitable[None]) -> None:
        try:
            await work
        except* Exception as group:  # noqa: BLE001 # leaving the context raises it, whatever it is
            self.failures += map(repr, group.exceptions)

    def _inspect(self, request: Request) -> Fault | None:
        self.requests[request.api, request.client_id] += 1
        self._observe(request)
        found: Fault | None = None
        for injection in self._injections:
            act = injection.note(request, self._topic_ids, may_act=found is None)
            if act is not None:
                found = Fault(injection, act)
        return found

    async def _rewrite(self, request: Request, frame: bytes) -> bytes:
        if not has_addresses(request.api, request.version):
            return frame
        values = decode_response(request.api, request.version, frame)
        if request.api == "Metadata":
            self._topic_ids |= topic_ids(values)
        for broker in addresses(values):
            await self._open(broker)
        return rewrite(request.api, request.version, frame, self._listeners)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _text(broker: Address) -> str:
    return "{}:{}".format(*broker)
