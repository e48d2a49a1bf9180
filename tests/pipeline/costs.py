"""What work of Spark costs: SQL executions, jobs, files and bytes, from Spark's own status store.

Invariant: no listener runs in Python, so measuring changes nothing.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from pyspark.sql import DataFrameReader, SparkSession

_FILES_READ: Final = "number of files read"
_NUMBER: Final = re.compile(r"[\d,]+")


@dataclass
class Cost:
    """The cost of a piece of work."""

    executions: list[str] = field(default_factory=list)  # what each SQL execution was for
    plans: list[str] = field(default_factory=list)  # of each SQL execution, as Spark describes it, where asked for
    jobs: int = 0
    listed: int = 0  # paths that a reader was given
    files: int = 0  # that were opened
    read_bytes: int = 0

    def __str__(self) -> str:
        return (
            f"{len(self.executions)} executions, {self.jobs} jobs, {self.listed} paths listed, "
            f"{self.files} files and {self.read_bytes} bytes read"
        )


@contextmanager
def measured(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, plans: bool = False) -> Iterator[Cost]:
    """Measure what is done in the context.

    Args:
        plans: whether to keep them too, which takes a second for a night.
    """
    cost = Cost()
    executions, jobs = _executions(spark), _jobs(spark)
    with monkeypatch.context() as patch:
        _count_paths(patch, cost)
        yield cost
    new_executions = [one for number, one in _executions(spark).items() if number not in executions]
    new_jobs = [one for number, one in _jobs(spark).items() if number not in jobs]
    # One that another made is a part of it
    cost.executions = [one.description() for one in new_executions if one.executionId() == one.rootExecutionId()]
    cost.plans = [one.physicalPlanDescription() for one in new_executions if plans]
    cost.jobs = len(new_jobs)
    cost.files = sum(_files(spark, one.executionId()) for one in new_executions)
    of_jobs = {number for job in new_jobs for number in _each(job.stageIds())}
    cost.read_bytes = sum(one.inputBytes() for one in stages(spark) if one.stageId() in of_jobs)


def _count_paths(patch: pytest.MonkeyPatch, cost: Cost) -> None:
    for name in ("parquet", "load", "json"):
        original = getattr(DataFrameReader, name)

        def counted(self: DataFrameReader, *paths: Any, _original: Any = original, **options: Any) -> Any:
            cost.listed += sum(len(path) if isinstance(path, list) else 1 for path in paths)
            return _original(self, *paths, **options)

        patch.setattr(DataFrameReader, name, counted)


def _executions(spark: SparkSession) -> dict[int, Any]:
    _settle(spark)
    return {one.executionId(): one for one in _each(_sql(spark).executionsList())}


def _jobs(spark: SparkSession) -> dict[int, Any]:
    return {one.jobId(): one for one in _each(_core(spark).jobsList(None))}


def stages(spark: SparkSession) -> Iterator[Any]:
    """Yield all attempts of all stages, as Spark's status store has them."""
    _settle(spark)
    gateway: Any = spark.sparkContext._gateway
    none = gateway.new_array(gateway.jvm.double, 0)
    return _each(_core(spark).stageList(None, False, False, none, None))


def _files(spark: SparkSession, execution: int) -> int:
    """Return how many files the scans of one execution opened; each scan is counted once, however often it is shown."""
    values = _sql(spark).executionMetrics(execution)
    ids = {
        metric.accumulatorId()
        for node in _each(_sql(spark).planGraph(execution).allNodes())
        for metric in _each(node.metrics())
        if metric.name() == _FILES_READ
    }
    texts = (values.get(number) for number in ids)
    return sum(int(_NUMBER.findall(text.get())[0].replace(",", "")) for text in texts if text.isDefined())


def _settle(spark: SparkSession) -> None:
    """Wait until the status store has heard of everything."""
    context: Any = spark.sparkContext._jsc  # Python has no status store
    context.sc().listenerBus().waitUntilEmpty()


def _sql(spark: SparkSession) -> Any:
    session: Any = spark._jsparkSession
    return session.sharedState().statusStore()


def _core(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext._jsc
    return context.sc().statusStore()


def _each(found: Any) -> Iterator[Any]:
    """Iterate over a collection of Scala's."""
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()
