"""Break the checks one by one in worker processes, and see whether the named test notices.

Invariant: a test that finds a mutant has passed without one, in the same process and session.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

import msgspec

from tests.pipeline.mutants.mutant import Mutant, Table
from tests.pipeline.mutants.running import NotRunError
from tests.pipeline.mutants.worker import Worker

WORKERS: Final = 2
"""Each has a JVM with a heap of 2 GB at most."""
FOUND_PERCENT_MIN: Final = 95


class Found(msgspec.Struct, frozen=True):
    """The result of one mutant.

    Attributes:
        by: the test that failed; None where it passed, and the mutant survived.
        error: why there is no result.
    """

    mutant: str
    by: str | None
    seconds: float
    error: str | None = None

    @property
    def word(self) -> str:
        """`found`, `survived` or `error`."""
        return "error" if self.error else "survived" if self.by is None else "found"


def found(mutants: Table, workers: int = WORKERS) -> Iterator[Found]:
    """Yield the results as they come, from so many processes with a Spark session each."""
    by_test: defaultdict[str, dict[str, Mutant]] = defaultdict(dict)
    for name, mutant in mutants.items():
        by_test[mutant.found_by][name] = mutant
    idle: SimpleQueue[Worker] = SimpleQueue()

    def judge_next(test: str, some: Table) -> list[Found]:
        worker = idle.get()
        try:
            return judge(worker, test, some)
        finally:
            idle.put(worker)

    with TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as root, ExitStack() as stack:
        for _ in range(workers):
            idle.put(stack.enter_context(Worker(root)))
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        tasks = [pool.submit(judge_next, test, some) for test, some in by_test.items()]
        # When the caller stops, no further one begins
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for task in as_completed(tasks):
            yield from task.result()


def judge(worker: Worker, test: str, mutants: Table) -> list[Found]:
    """Run one test without any mutant, then with each of some."""
    if (error := _error_without_mutant(worker, test)) is not None:
        return [Found(name, None, 0.0, error) for name in mutants]
    return [_judged(worker, name, mutant) for name, mutant in mutants.items()]


def _error_without_mutant(worker: Worker, test: str) -> str | None:
    try:
        failed = worker.run(None, test)
    except NotRunError as error:
        return f"without a mutant: {error}"
    return None if failed is None else f"{failed} fails without a mutant"


def _judged(worker: Worker, name: str, mutant: Mutant) -> Found:
    begun = monotonic()
    by = error = None
    try:
        by = worker.run(mutant, mutant.found_by)
    except NotRunError as raised:
        error = str(raised)
    return Found(name, by, round(monotonic() - begun, 1), error)


def exit_code(results: Sequence[Found]) -> int:
    """Return 0 where enough mutants are found, 1 where too few are, 2 where some could not be run."""
    words = [one.word for one in results]
    if "error" in words:
        return 2
    return int(words.count("found") * 100 < FOUND_PERCENT_MIN * len(words))
