"""Many histories: run in parallel, each shrunk to the fewest faults that still fail."""

import gc
import hashlib
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from multiprocessing.pool import Pool
from typing import Final

import msgspec

from tests.simulation.histories import FAIL, PASS, Result, run
from tests.simulation.mutants import MUTANTS, broken
from tests.simulation.plan import PARTITIONS, Plan, plan
from tests.simulation.printed import rows, table

MUTANT_SEEDS: Final = 200
"""Within them every mutant must be found."""


class Outcome(msgspec.Struct, frozen=True):
    """A history's verdict, without the history.

    Attributes:
        verdict: pass, fail or unknown.
        findings: what is wrong.
        faults: numbers of the faults that are enough for it to fail, in the order of the plan.
        booked_s: virtual time from the healing until everything was booked.
        digest: of everything that was sent, logged and noted.
        cpu_s: what it took, without shrinking.
        history: the table of a history that fails, after shrinking.
    """

    seed: int
    verdict: str
    findings: list[str]
    faults: list[int]
    booked_s: float
    digest: str
    cpu_s: float
    history: str = ""


def reduced(planned: Plan, faults: Iterable[int]) -> Plan:
    """The plan with these faults only."""
    return msgspec.structs.replace(planned, faults=tuple(planned.faults[number] for number in faults))


def outcome(
    seed: int,
    only: Sequence[int] | None = None,
    mutant: str | None = None,
    partitions: int = PARTITIONS,
    *,
    shrink: bool = True,
) -> Outcome:
    """Run the history of a seed, and shrink it where it fails.

    Args:
        only: numbers of the faults to keep; None for all.
        mutant: breaks the runtime.
        partitions: of each topic.
        shrink: whether a history that fails is run again with fewer faults.
    """
    with broken(mutant) if mutant is not None else nullcontext():
        return _outcome(plan(seed, partitions), only, shrink=shrink)


def _outcome(planned: Plan, only: Sequence[int] | None, *, shrink: bool) -> Outcome:
    faults = list(range(len(planned.faults))) if only is None else list(only)
    begun_s = time.process_time()
    result = run(reduced(planned, faults))
    cpu_s = time.process_time() - begun_s
    digest = digest_of(result)
    history = ""
    if result.verdict != PASS:
        if shrink:
            faults, result = _shrunk(planned, faults, result)
        history = table(rows(result.frames, result.notes))
    gc.collect()
    return Outcome(planned.seed, result.verdict, result.findings, faults, result.booked_s, digest, cpu_s, history)


class Found(msgspec.Struct, frozen=True):
    """The first history that finds a mutant.

    Attributes:
        seed: None where none does.
        breaks: invariants and promises that the history finds broken.
    """

    mutant: str
    seed: int | None = None
    breaks: list[str] = []


def first_found(mutant: str, seeds: int = MUTANT_SEEDS) -> Found:
    """Run the histories of a mutant until one fails."""
    with broken(mutant):
        for seed in range(1, seeds + 1):
            result = run(plan(seed))
            gc.collect()
            if result.verdict == FAIL:
                return Found(
                    mutant, seed, sorted({finding.split(maxsplit=1)[0].strip(":") for finding in result.findings})
                )
    return Found(mutant)


def all_found(jobs: int) -> Iterator[Found]:
    """Find every mutant, each in one of so many processes."""
    with _processes(jobs) as pool:
        yield from pool.imap(first_found, MUTANTS)


def digest_of(result: Result) -> str:
    """A digest of everything that was sent, logged and noted, with its time."""
    digest = hashlib.sha256()
    for one in (*result.frames, *result.notes):
        digest.update(repr(tuple(one)).encode())
    return digest.hexdigest()


def _shrunk(planned: Plan, faults: list[int], result: Result) -> tuple[list[int], Result]:
    """Leave out one fault after the other, as long as the verdict stays."""
    kept = list(faults)
    for fault in faults:
        fewer = [number for number in kept if number != fault]
        tried = run(reduced(planned, fewer))
        if tried.verdict == result.verdict:
            kept, result = fewer, tried
    return kept, result


def outcomes(
    seeds: Iterable[int], jobs: int, mutant: str | None = None, partitions: int = PARTITIONS, *, shrink: bool = True
) -> Iterator[Outcome]:
    """Run histories, each in one of so many processes; they come in the order of the seeds."""
    with _processes(jobs) as pool:
        yield from pool.imap(partial(outcome, mutant=mutant, partitions=partitions, shrink=shrink), seeds)


def _processes(jobs: int) -> Pool:
    # Forked, so that each has what this one set. What is imported is frozen: a history's garbage is collected after it
    return multiprocessing.get_context("fork").Pool(jobs, initializer=gc.freeze)
