"""Stop a process by signals."""

import asyncio
import signal


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set, in the running loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
