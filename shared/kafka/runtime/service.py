"""What every read-process-write service's `__main__` does: a workload in the runtime, in a process."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from shared.kafka.runtime.partition import Workload
from shared.kafka.runtime.process import Process, run_process
from shared.kafka.runtime.runtime import Runtime
from shared.kafka.runtime.session import ASSIGNMENT
from shared.settings import RuntimeSettings

S = TypeVar("S", bound=RuntimeSettings)

Build = Callable[[S, AsyncExitStack], Awaitable[Workload]]


def run_service(name: str, settings_class: type[S], build: Build[S], topics: list[str]) -> int:
    """Run a service until SIGTERM or SIGINT.

    Args:
        name: the service's, also its consumer group.
        settings_class: read from the environment.
        build: makes the workload; what it must hold open goes onto the exit stack.
        topics: every topic the service touches.

    Returns:
        The exit code, as `run_process`.
    """

    async def work(settings: S, process: Process) -> int:
        workload = await build(settings, process.stack)
        return await Runtime(workload, settings, topics, process.health).run(process.stop)

    missing = {"kafka": "not connected", ASSIGNMENT: "no partitions assigned yet"}
    return run_process(name, settings_class, work, missing=missing)
