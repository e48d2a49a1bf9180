"""Kills: what runs in a container ends by SIGKILL, and its restart policy has to bring it back.

After `docker kill` the engine leaves a container down. Here the processes are killed from within, as the kernel
does when memory runs out: the first process, which only watches, then ends as well.
"""

import time
from typing import Final

from tests.compose.engine import Engine, VerifyError, say

VICTIMS: Final = ("ledger", "broker-1", "redis")
_BACK_S: Final = 240.0
_POLL_S: Final = 1.0


def kill(engine: Engine, service: str) -> int:
    """Kill what runs in a service's container; returns how often it had been restarted before.

    Raises:
        VerifyError: it has no container, or nothing could be killed.
    """
    before = restarts(engine, service)
    say(f"killing {service}")
    # -1 spares its own shell; the container may be gone before that shell has ended
    try:
        engine.compose("exec", "--no-TTY", service, "sh", "-c", "kill -9 -1")
    except VerifyError as error:
        if "137" not in str(error):
            raise
    return before


def wait_back(engine: Engine, service: str, before: int) -> None:
    """Wait until a service that was killed has been restarted, and is healthy.

    Raises:
        VerifyError: not so in time.
    """
    deadline = time.monotonic() + _BACK_S
    while True:
        state = engine.container(service)["State"]
        if restarts(engine, service) > before and state.get("Health", {}).get("Status") == "healthy":
            say(f"{service} is back")
            return
        if time.monotonic() > deadline:
            raise VerifyError(f"{service} is {state['Status']} {_BACK_S:g} s after it was killed")
        time.sleep(_POLL_S)


def restarts(engine: Engine, service: str) -> int:
    """Number of times that the engine restarted a service's container."""
    return int(engine.container(service)["RestartCount"])
