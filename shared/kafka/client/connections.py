"""aiokafka's client, with connections that are opened independently of each other.

The library opens one connection at a time, and each attempt may take the whole request timeout. While one broker is
silent, as where its machine or its name is gone, no other broker would be connected for that long.

Invariant: nothing waits longer than SILENT_S for a broker that the process could not connect to the last time. It is
tried again in the background, and a client that is opened asks other brokers first.
"""

import asyncio
from contextlib import nullcontext
from typing import Any, Final

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import CloseReason, collect_hosts
from aiokafka.errors import KafkaConnectionError

CONNECTION_S: Final = 5.0
"""Seconds until a connection that is not established has failed, its name's resolution and its handshakes included."""
FIRST_S: Final = 1.0
"""The same at first, for a client that is opened: any broker will do."""
SILENT_S: Final = 0.1
"""Seconds to wait for a broker that could not be reached the last time."""
UNKNOWING_PAUSE_S: Final = 0.1
"""Seconds until a broker that named none is asked again."""
_silent: Final = set[tuple[str, int]]()
"""Host and port of each broker that no client of this process could reach the last time."""


class Client(AIOKafkaClient):  # type: ignore[misc] # the client ships no types
    """The library's client. Its arguments are the same."""

    _request_timeout_ms: int
    hosts: Any = ()
    """What the library's `bootstrap` asks, one after the other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.prepare()

    def prepare(self) -> None:
        """Begin without connections."""
        self._opening: dict[tuple[Any, Any], asyncio.Task[Any]] = {}

    @classmethod
    def adopt(cls, client: AIOKafkaClient) -> None:
        """Make a client one of this class: the library's producers and consumers make their own, and take no other."""
        client.__class__ = cls
        client.prepare()

    @property
    def _get_conn_lock(self) -> nullcontext[None]:
        return nullcontext()  # it is the library's, for all connections

    async def bootstrap(self) -> None:
        """Get the metadata from the first broker that knows any, each within FIRST_S, and then within CONNECTION_S.

        They are asked in random order, but silent ones last. Those that answer and name no broker are asked again until
        CONNECTION_S has passed: the controllers count no broker as alive that is starting, or that was paused.

        Raises:
            KafkaConnectionError: none does.
        """
        request_timeout_ms = self._request_timeout_ms
        hosts = sorted(collect_hosts(self._bootstrap_servers), key=lambda host: host[:2] in _silent)
        now = asyncio.get_running_loop().time
        deadline = now() + CONNECTION_S
        try:
            for within_s in (FIRST_S, CONNECTION_S):
                self._request_timeout_ms = min(request_timeout_ms, int(within_s * 1000))
                if await self._has_metadata_of_any(hosts):
                    return
            while now() < deadline and (answering := [host for host in hosts if host[:2] not in _silent]):
                await asyncio.sleep(UNKNOWING_PAUSE_S)
                if await self._has_metadata_of_any(answering):
                    return
        finally:
            self._request_timeout_ms = request_timeout_ms
        raise KafkaConnectionError(f"none of {hosts} answers and names a broker")

    async def _has_metadata_of_any(self, hosts: list[tuple[str, int, Any]]) -> bool:
        for host in hosts:
            if await self._has_metadata_of(host):
                return True
        return False

    async def _has_metadata_of(self, host: tuple[str, int, Any]) -> bool:
        self.hosts = [host]
        try:
            await super().bootstrap()
        except KafkaConnectionError:
            _silent.add(host[:2])
            return False
        _silent.discard(host[:2])
        unknowing = self._conns.pop(("bootstrap", ConnectionGroup.DEFAULT), None)
        if unknowing is None:
            return True
        # The broker names none. The library would rely on this connection until one does
        unknowing.close()
        return False

    async def close(self) -> None:
        """Close all connections, those included that are being opened."""
        for opening in self._opening.values():
            opening.cancel()
        await super().close()

    async def _get_conn(self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, **_: object) -> Any | None:
        """Return the connection to a broker, opened if there is none; None where that fails, or takes too long."""
        key = node_id, group
        connection = self._conns.get(key)
        if connection is not None and connection.connected():
            if not connection._writer.transport.is_closing():  # noqa: SLF001 # no public access
                return connection
            # Its reset is not read yet. uvloop takes no more for it, with an error that the library does not know
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.create_task(self._open(node_id, group))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        timeout_s = SILENT_S if self._address(node_id) in _silent else None
        await asyncio.wait({opening}, timeout=timeout_s)  # neither ends it with this caller, nor this caller with it
        return opening.result() if opening.done() and not opening.cancelled() else None

    async def _open(self, node_id: Any, group: Any) -> Any | None:
        connection, address = None, self._address(node_id)
        try:
            async with asyncio.timeout(CONNECTION_S):
                connection = await super()._get_conn(node_id, group=group)
        except TimeoutError:
            self.force_metadata_update()
        if address is not None:
            (_silent.add if connection is None else _silent.discard)(address)
        return connection

    def _address(self, node_id: Any) -> tuple[str, int] | None:
        broker = self.cluster.broker_metadata(node_id)
        return None if broker is None else (broker.host, broker.port)
