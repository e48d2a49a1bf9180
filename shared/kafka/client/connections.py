"""aiokafka's client, with connections that are opened independently of each other.

The library opens one connection at a time, and each attempt may take the whole request timeout. While one broker is
silent, as where its machine or its name is gone, no other broker would be connected for that long.
"""

import asyncio
from collections import defaultdict
from contextlib import nullcontext
from typing import Any, Final

from aiokafka.client import AIOKafkaClient, ConnectionGroup

CONNECTION_S: Final = 5.0
"""Seconds until a connection that is not established has failed, its name's resolution and its handshakes included."""


class Client(AIOKafkaClient):  # type: ignore[misc] # the client ships no types
    """The library's client. Its arguments are the same."""

    _request_timeout_ms: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._connecting: defaultdict[tuple[Any, Any], asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def _get_conn_lock(self) -> nullcontext[None]:
        return nullcontext()  # it is the library's, for all connections

    async def bootstrap(self) -> None:
        """Get the metadata from the first broker that answers, each within CONNECTION_S.

        Raises:
            KafkaConnectionError: none did.
        """
        request_timeout_ms = self._request_timeout_ms
        self._request_timeout_ms = min(request_timeout_ms, int(CONNECTION_S * 1000))
        try:
            await super().bootstrap()
        finally:
            self._request_timeout_ms = request_timeout_ms

    async def _get_conn(
        self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False
    ) -> Any | None:
        """Return the connection to a broker, opened if there is none; None where that fails."""
        connection = self._conns.get((node_id, group))
        if connection is not None and connection.connected():
            return connection
        async with self._connecting[node_id, group]:
            try:
                async with asyncio.timeout(CONNECTION_S):
                    return await super()._get_conn(node_id, group=group, no_hint=no_hint)
            except TimeoutError:
                self.force_metadata_update()
                return None
