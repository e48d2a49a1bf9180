"""Break the checks one by one, and see whether their tests notice."""

import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tests.pipeline.mutants.mutant import Mutant
from tests.pipeline.mutants.running import NotRunError, first_failure


class Found(msgspec.Struct, frozen=True):
    """What became of one mutant.

    Attributes:
        by: the test that failed; None where all passed, and the mutant survived.
        error: why there is no result.
    """

    mutant: str
    by: str | None
    seconds: float
    error: str | None = None


def found(mutants: Mapping[str, Mutant]) -> Iterator[Found]:
    """Run the tests of each mutant's check until one fails, beginning with the named test."""
    for name, mutant in mutants.items():
        begun = time.monotonic()
        by = error = None
        try:
            by = first_failure(mutant, [mutant.found_by]) or first_failure(mutant, [mutant.tests], but=mutant.found_by)
        except (NotRunError, ValueError) as raised:
            error = str(raised)
        yield Found(name, by, round(time.monotonic() - begun, 1), error)


def raise_if_failing(tests: Iterable[str]) -> None:
    """Raise NotRunError if one of the tests fails without any mutant: then it finds nothing."""
    wanted = sorted(set(tests))
    if wanted and (failed := first_failure(None, wanted)) is not None:
        raise NotRunError(f"{failed} fails without a mutant")
