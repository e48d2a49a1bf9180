"""Break the checks one by one in worker processes, and see whether the named test notices.

Invariant: a test that finds a mutant has passed without one, in the same process and session.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

import msgspec

from tests.pipeline.mutants.mutant import Mutant, Table
from tests.pipeline.mutants.running import NotRunError, first_failure, prepare_worker

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
    """Yield the results as they come, from so many processes with a Spark session each.

    Raises:
        NotRunError: a worker process ended.
    """
    by_test: defaultdict[str, dict[str, Mutant]] = defaultdict(dict)
    for name, mutant in mutants.items():
        by_test[mutant.found_by][name] = mutant
    with TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as root:
        # Spawned: a fork would share the file descriptors of a JVM
        pool = ProcessPoolExecutor(workers, get_context("spawn"), prepare_worker, (root,))
        try:
            for task in as_completed([pool.submit(judge, test, some) for test, some in by_test.items()]):
                yield from task.result()
        except BrokenProcessPool as error:
            raise NotRunError(f"a worker process ended: {error}") from error
        finally:
            pool.shutdown(cancel_futures=True)


def judge(test: str, mutants: Table) -> list[Found]:
    """Run one test without any mutant, then with each of some."""
    if (error := _error_without_mutant(test)) is not None:
        return [Found(name, None, 0.0, error) for name in mutants]
    return [_judged(name, mutant) for name, mutant in mutants.items()]


def _error_without_mutant(test: str) -> str | None:
    try:
        failed = first_failure(None, test)
    except NotRunError as error:
        return f"without a mutant: {error}"
    return None if failed is None else f"{failed} fails without a mutant"


def _judged(name: str, mutant: Mutant) -> Found:
    begun = monotonic()
    by = error = None
    try:
        by = first_failure(mutant, mutant.found_by)
    except (NotRunError, ValueError) as raised:
        error = str(raised)
    return Found(name, by, round(monotonic() - begun, 1), error)


def exit_code(results: Sequence[Found]) -> int:
    """Return 0 where enough mutants are found, 1 where too few are, 2 where some could not be run."""
    words = [one.word for one in results]
    if "error" in words:
        return 2
    return int(words.count("found") * 100 < FOUND_PERCENT_MIN * len(words))
