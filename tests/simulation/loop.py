"""An event loop in virtual time: it jumps to its next timer, and a history runs the same way each time.

Invariants: nothing waits in real time, no thread is used, and what runs next depends on nothing but the order in which
it was asked for. Futures and tasks hash by that order, because the client iterates over sets of both.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, NoReturn, Protocol, TypeVar, TypeVarTuple
from unittest import mock

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

EPOCH_S: Final = 1_767_571_200
"""time.time() at the beginning, in seconds since 1970: a Monday in January 2026, 00:00 UTC."""


_ROUND_S: Final = 1e-9
"""What a round of the loop takes. If it took nothing, a caller that waits for the rest of a time would wait for ever
once the rest is too little to be added to the clock."""
_END_S: Final = 600.0
_END_ROUNDS: Final = 3


class StuckError(RuntimeError):
    """Nothing is left that could ever happen, and the history has not ended."""


class Socket(Protocol):
    """What a process loses when it is killed."""

    def die(self) -> None:
        """End without a call of the owner's."""


class Process:
    """Tasks that are killed, paused and resumed together.

    A killed process loses its sockets first and then never runs again, so none of its `finally` blocks reaches anybody.

    Attributes:
        name: for the history.
        alive: False from the kill on.
        sockets: those that are open, in the order of their opening.
    """

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.alive = True
        self.sockets: dict[Socket, None] = {}
        self._loop = loop
        self._held: list[_Call] | None = None
        self._context = copy_context()
        self._context.run(PROCESS.set, self)
        loop.processes.append(self)

    def start(self, main: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine, and all tasks that it makes, as this process."""
        return self._loop.create_task(main, context=self._context.copy())

    def kill(self) -> None:
        """SIGKILL."""
        for socket in list(self.sockets):
            socket.die()
        self.alive = False
        self.pause()

    def pause(self) -> None:
        """SIGSTOP: what arrives and what falls due waits."""
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """SIGCONT."""
        if self.alive:
            self.release()

    def takes(self, call: "_Call") -> bool:
        """Whether it runs a call now; otherwise the call is kept."""
        if self._held is not None:
            self._held.append(call)
        return self._held is None

    def release(self) -> None:
        """Run what waits."""
        held, self._held = self._held, None
        for call in held or []:
            call.again()


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
"""The process whose code runs; None for the cluster's and the history's."""


class _Call(asyncio.Handle):
    """A call of the process in whose context it was asked for."""

    _loop: "VirtualLoop"
    _context: Context

    def _run(self) -> None:
        process = self._context.get(PROCESS)
        if process is None or process.takes(self):
            super()._run()

    def again(self) -> None:
        """Run it after all that is due."""
        if not self.cancelled():
            self._loop._ready.append(self)


class _TimedCall(_Call, asyncio.TimerHandle):
    pass


class _Ordered:
    """Hashes by the order of creation in its loop."""

    _number: int

    def __new__(cls, *_: object, loop: "VirtualLoop", **__: object) -> Any:
        made = super().__new__(cls)
        made._number = next(loop.numbers)
        return made

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(_Ordered, asyncio.Future[Any]):
    pass


class _Task(_Ordered, asyncio.Task[Any]):
    pass


class _Jump:
    """A selector of nothing: instead of waiting, time goes on."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> Sequence[NoReturn]:
        if self._loop.failure is not None:
            raise self._loop.failure
        if timeout is None:
            raise StuckError("no call is due, now or later")
        self._loop.now_s += max(timeout, _ROUND_S)
        return ()


Connect = Callable[[Callable[[], asyncio.BaseProtocol], str, int], Any]
"""Opens a connection; see asyncio's `create_connection`."""


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of one history.

    Attributes:
        now_s: seconds since the beginning.
        connect: opens connections; the network sets it.
        numbers: of futures and tasks.
        processes: all that were started.
        failure: of the simulation itself; it ends the history.
    """

    _ready: Any
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.connect: Connect | None = None
        self.numbers = itertools.count()
        self.processes: list[Process] = []
        self.failure: BaseException | None = None
        self._selector = _Jump(self)
        self._clock_resolution = 0.0
        self.set_task_factory(lambda loop, coro, **context: _Task(coro, loop=loop, **context))

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> asyncio.Future[Any]:
        made: asyncio.Future[Any] = _Future(loop=self)
        return made

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        call = _TimedCall(when, callback, args, self, context)
        heapq.heappush(self._scheduled, call)
        call._scheduled = True  # type: ignore[attr-defined] # as the base class does
        return call

    def _call_soon(
        self, callback: Callable[..., object], args: Sequence[Any], context: Context | None
    ) -> asyncio.Handle:
        call = _Call(callback, args, self, context)
        self._ready.append(call)
        return call

    def _process_events(self, _: Sequence[NoReturn]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    async def create_connection(  # type: ignore[override] # of all its parameters, clients use these
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, ssl: object = None
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if self.connect is None or ssl is not None:
            raise OSError(f"no network here that leads to {host}:{port}")
        made: tuple[asyncio.Transport, asyncio.BaseProtocol] = await self.connect(protocol_factory, host, port)
        return made

    def run_in_executor(self, *_: object) -> NoReturn:
        raise RuntimeError("a thread would run in real time")


@contextmanager
def virtual_time() -> Iterator[VirtualLoop]:
    """A loop whose time is the whole interpreter's, for one history."""
    loop = VirtualLoop()
    clocks: dict[str, Callable[[], float]] = {
        "monotonic": loop.time,
        "time": lambda: EPOCH_S + loop.now_s,
        "time_ns": lambda: EPOCH_S * 10**9 + round(loop.now_s * 1e9),
    }
    with ExitStack() as stack:
        for name, clock in clocks.items():
            stack.enter_context(mock.patch.object(time, name, clock))
        try:
            yield loop
        finally:
            _end(loop)


def _end(loop: VirtualLoop) -> None:
    """End every task, now that nobody looks: those of killed processes as well, which reach nobody."""
    loop.connect = loop.failure = None
    for process in loop.processes:
        process.release()
    for _ in range(_END_ROUNDS):  # what ends may begin something in order to end
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_END_S))
    loop.close()
