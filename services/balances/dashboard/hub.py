"""Who watches, and what is handed to them: of each, the newest message only.

What holds: the number of clients is bounded, and so is what waits for each, by one: a slow client gets the newest
message next, never those that it missed. It must not know what a message says.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final


class TooManyClientsError(Exception):
    """No place is free."""


class Client:
    """One that watches; `Hub.client` makes it."""

    def __init__(self, newest: bytes | None) -> None:
        self._message = newest
        self._changed = asyncio.Event()
        self.closed = False
        if newest is not None:
            self._changed.set()

    def offer(self, message: bytes) -> None:
        """Take the place of what was not taken yet."""
        self._message = message
        self._changed.set()

    def close(self) -> None:
        """Let it go."""
        self.closed = True
        self._changed.set()

    async def next(self, timeout_s: float) -> bytes | None:
        """The newest message that it did not have yet; None after `timeout_s` seconds without one, or when closed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return None
        message, self._message = self._message, None
        if not self.closed:
            self._changed.clear()
        return None if self.closed else message


class Hub:
    """All clients.

    Args:
        clients_max: at once.
        on_watched: called when the first one has come, with True, and when the last one has gone, with False.
    """

    def __init__(self, clients_max: int, on_watched: Callable[[bool], None]) -> None:
        self._clients_max: Final = clients_max
        self._on_watched: Final = on_watched
        self._clients: set[Client] = set()
        self._newest: bytes | None = None

    @property
    def clients(self) -> int:
        """How many watch."""
        return len(self._clients)

    def publish(self, message: bytes) -> None:
        """Hand it to all, and keep it for who comes next."""
        self._newest = message
        for client in self._clients:
            client.offer(message)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Watch while the context is open.

        Raises:
            TooManyClientsError: no place is free.
        """
        if len(self._clients) >= self._clients_max:
            raise TooManyClientsError(f"{self._clients_max} clients watch already")
        client = Client(self._newest)
        self._clients.add(client)
        try:
            if len(self._clients) == 1:
                self._on_watched(True)
            yield client
        finally:
            self._clients.discard(client)
            if not self._clients:
                self._newest = None  # whoever comes next is not shown what was long ago
                self._on_watched(False)

    def close(self) -> None:
        """Let all go."""
        for client in self._clients:
            client.close()
