"""A TCP relay whose other end can be changed: the fixed address that clients have when a server is failed over."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

LOOPBACK = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024


class Relay:
    """Passes bytes on to a port of this machine. Open it as an async context manager.

    Args:
        target: the port to pass on to.

    Attributes:
        port: to connect to.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    def switch(self, target: int) -> None:
        """Pass on to another port; every connection breaks."""
        self._target = target
        for writer in self._open:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.switch(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with suppress(OSError):
                there, onward = await asyncio.open_connection(LOOPBACK, self._target)
                self._open.add(onward)
                try:
                    await asyncio.gather(_pump(reader, onward), _pump(there, writer))
                finally:
                    self._open.discard(onward)
                    onward.transport.abort()
        finally:
            self._open.discard(writer)
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until either side closes; then close both."""
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    finally:
        writer.transport.abort()
