"""An event loop in virtual time: it jumps to its next timer, and a history runs the same way each time.

Invariants: nothing waits in real time, no thread is used, and what runs next depends on nothing but the order in which
it was asked for. Futures and tasks hash by that order, because the client iterates over sets of both.
"""

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, NoReturn, Protocol, Self, TypeVar, TypeVarTuple
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
        self._fate: tuple[int, Callable[[], object]] | None = None
        self._held: list[_Call] | None = None
        self._context = copy_context()
        self._context.run(PROCESS.set, self)
        loop.processes.append(self)

    def start(self, main: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine, and all tasks that it makes, as this process."""
        return self._loop.create_task(main, context=self._context.copy())

    def kill_after(self, calls: int, then: Callable[[], object]) -> None:
        """SIGKILL when it has run so many more calls of the loop, and call `then` from outside."""
        self._fate = calls, then

    def kill(self) -> None:
        """SIGKILL."""
        self._fate = None
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
        if self._held is None and self._fate is not None:
            left, then = self._fate
            self._fate = left - 1, then
            if left == 0:
                self.kill()
                self._loop.call_soon(then, context=outside())
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


def outside() -> Context:
    """A context of the cluster's or the history's, for work that a process causes and does not do."""
    context = copy_context()
    context.run(PROCESS.set, None)
    return context


class _Call(asyncio.TimerHandle):
    """A call of the process in whose context it was asked for."""

    __slots__ = ("_process",)
    _loop: "VirtualLoop"
    _context: Context

    def __init__(
        self,
        when_s: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: "VirtualLoop",
        context: Context | None,
    ) -> None:
        # As the base classes do, without what they do for debugging: there are tens of thousands of calls in a history
        self._when = when_s
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._process = self._context.get(PROCESS)

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()

    def __repr__(self) -> str:
        return f"<call of {self._callback!r}>"

    def _run(self) -> None:
        process = self._process
        if self._cancelled or (process is not None and not process.takes(self)):
            return
        try:
            self._context.run(self._callback, *self._args)  # type: ignore[arg-type] # set until cancelled
        except Exception as error:  # noqa: BLE001 # as the base class does
            if process is None:
                self._loop.failure = error
            self._loop.call_exception_handler({"message": f"Exception in {self!r}", "exception": error, "handle": self})

    def again(self) -> None:
        """Run it after all that is due."""
        self._loop._ready.append(self)


class _Ordered:
    """Hashes by the order of creation in its loop."""

    number: int

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Future(_Ordered, asyncio.Future[Any]):
    pass


class _Task(_Ordered, asyncio.Task[Any]):
    def __new__(cls, *_: object, loop: "VirtualLoop", **__: object) -> Self:
        made = super().__new__(cls)
        made.number = next(loop.numbers)  # before it is initialised, which hashes it
        return made


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

    _ready: deque[_Call]

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.connect: Connect | None = None
        self.numbers = itertools.count()
        self.processes: list[Process] = []
        self.failure: BaseException | None = None
        self._timers: list[tuple[float, int, _Call]] = []
        self.set_task_factory(lambda loop, coro, **context: _Task(coro, loop=loop, **context))

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> asyncio.Future[Any]:
        made = _Future(loop=self)
        made.number = next(self.numbers)
        return made

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        call = _Call(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self.numbers), call))
        return call

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        call = _Call(0.0, callback, args, self, context)
        self._ready.append(call)
        return call

    def _run_once(self) -> None:
        """Run all calls that are due. Where there are none, time goes on to the next one instead of being waited for.

        Raises:
            StuckError: there is no call, now or later.
        """
        if self.failure is not None:
            raise self.failure
        ready, timers = self._ready, self._timers
        self.now_s += _ROUND_S
        if not ready:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise StuckError("no call is due, now or later")
            self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= self.now_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            ready.popleft()._run()

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
def clocks(loop: VirtualLoop) -> Iterator[None]:
    """Have the whole interpreter's clocks follow a loop."""
    readings: dict[str, Callable[[], float]] = {
        "monotonic": loop.time,
        "time": lambda: EPOCH_S + loop.now_s,
        "time_ns": lambda: EPOCH_S * 10**9 + round(loop.now_s * 1e9),
    }
    with ExitStack() as stack:
        for name, reading in readings.items():
            stack.enter_context(mock.patch.object(time, name, reading))
        yield


@contextmanager
def virtual_time() -> Iterator[VirtualLoop]:
    """A loop whose time is the whole interpreter's, for one history."""
    loop = VirtualLoop()
    with clocks(loop):
        try:
            yield loop
        finally:
            _end(loop)


def _end(loop: VirtualLoop) -> None:
    """End every task, those of killed processes included. From now on they reach no other process."""
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
