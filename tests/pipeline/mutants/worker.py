"""A process that runs tests on broken modules, one after the other, with one Spark session.

It is replaced where a run takes too long: a call of the JVM that was interrupted would leave its answer to the next.
"""

from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Final, Self

from tests.pipeline.mutants.mutant import Mutant
from tests.pipeline.mutants.running import NotRunError, first_failure, prepare_worker

RUN_S: Final = 240
"""Ten times what the slowest named test takes on two idle cores."""
# A fork would share the file descriptors of a JVM
_CONTEXT: Final = get_context("spawn")


class Worker:
    """A process for many runs. Its JVM ends with it.

    Args:
        root: of temporary folders.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def run(self, mutant: Mutant | None, test: str, *, within_s: float = RUN_S) -> str | None:
        """Return what `running.first_failure` does.

        Raises:
            NotRunError: the test could not be run, took longer than `within_s` seconds, or the process ended.
        """
        self._connection.send((mutant, test))
        if not self._connection.poll(within_s):
            self._replace()
            raise NotRunError(f"{test} was stopped after {within_s:.0f} s")
        try:
            failed, error = self._connection.recv()
        except EOFError as ended:
            self._replace()
            raise NotRunError(f"the process of {test} ended") from ended
        if error is not None:
            raise NotRunError(error)
        return None if failed is None else str(failed)

    def _start(self) -> None:
        self._connection, there = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(there, self._root))
        self._process.start()
        there.close()

    def _replace(self) -> None:
        self._stop()
        self._start()

    def _stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(connection: Connection, root: str) -> None:
    """Answer with the test that failed, or why there is none, until the other end is closed."""
    prepare_worker(root)
    while True:
        try:
            mutant, test = connection.recv()
        except EOFError:
            return
        failed = error = None
        try:
            failed = first_failure(mutant, test)
        except (NotRunError, ValueError) as raised:
            error = str(raised)
        connection.send((failed, error))
