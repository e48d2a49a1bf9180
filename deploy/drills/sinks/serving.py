"""Runs a test's server as a process: it prints its port once it listens, and ends with SIGTERM."""

import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol


class Listening(AbstractAsyncContextManager[Any], Protocol):
    """A server that listens while it is open."""

    port: int


async def serve(server: Listening) -> None:
    """Serve until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with server:
        print(server.port, flush=True)
        await stopped.wait()
