"""A night's work on a standalone Spark whose executors are killed: `python -m tests.pipeline.lost_executors --help`.

Each executor has all blocks and shuffle files there are, and the worker starts another one. One is killed while tasks
of the landing run on it, one while tasks of a check do, and one after a check has kept rows on it for later queries.

Invariant: an executor is stopped before the tasks are submitted that it is killed with, so they cannot have ended.
"""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import DataFrame, SparkSession

from deploy.drills.few_rows import FOR_FEW_ROWS
from deploy.local.jars import spark_archive_options, spark_jars
from spark import session as spark_session
from spark.lake import Lake
from spark.manifest import decode
from spark.metrics import Progress
from spark.nightly import work
from spark.runs import Run
from spark.session import session
from tests.harness import children, wait_until
from tests.pipeline.costs import stages

LANDING, CHECK, KEPT = "landing", "check", "kept"
MOMENTS: Final = (LANDING, CHECK, KEPT)
_JOBS_BEFORE: Final = 3
_DEADLINE_S: Final = 240


class Killer:
    """Kills the executor of a worker, once for each moment.

    Args:
        worker: pid of the worker, which has one executor at a time.
    """

    def __init__(self, spark: SparkSession, worker: int) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._worker = worker
        self._lock = threading.Lock()
        self._killed: list[int] = []
        self.moments: list[str] = []

    def kill(self, moment: str) -> None:
        """Kill the executor, unless one was at this moment."""
        if self._begin(moment):
            self._kill(self._executor())

    def kill_with_tasks(self, moment: str) -> None:
        """Stop the executor, and kill it as soon as tasks that the caller is about to submit were sent to it."""
        if self._begin(moment):
            executor = self._executor()
            os.kill(executor, signal.SIGSTOP)
            threading.Thread(target=self._kill_with_tasks, args=(executor,), name=moment).start()

    def _begin(self, moment: str) -> bool:
        with self._lock:
            begun = moment not in self.moments
            self.moments += [moment] if begun else []
            return begun

    def _kill_with_tasks(self, executor: int) -> None:
        wait_until(self._is_at_work, "tasks were sent to the stopped executor", _DEADLINE_S)
        self._kill(executor)

    def _kill(self, executor: int) -> None:
        self._killed.append(executor)
        os.kill(executor, signal.SIGKILL)

    def _executor(self) -> int:
        wait_until(lambda: bool(self._executors()), "the worker has an executor", _DEADLINE_S)
        [executor] = self._executors()
        return executor

    def _executors(self) -> list[int]:
        return [pid for pid in children(self._worker) if pid not in self._killed]

    def _is_at_work(self) -> bool:
        stages = map(self._tracker.getStageInfo, self._tracker.getActiveStageIds())
        return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)


def before_a_late_job(read: Callable[..., DataFrame], killer: Killer) -> Callable[..., DataFrame]:
    """Return `spark.session.read_topic`, which kills an executor in the landing when some jobs have begun."""
    jobs: list[str] = []

    def killing(spark: SparkSession, brokers: Any, topic: str, offsets: Any) -> DataFrame:
        jobs.append(topic)
        if len(jobs) > _JOBS_BEFORE:
            killer.kill_with_tasks(LANDING)
        return read(spark, brokers, topic, offsets)

    return killing


def around(keep: Callable[[Run, DataFrame], DataFrame], killer: Killer) -> Callable[[Run, DataFrame], DataFrame]:
    """Return `Run.keep`, which kills an executor while rows are computed, and another when some are kept."""

    def killing(run: Run, rows: DataFrame) -> DataFrame:
        killer.kill_with_tasks(CHECK)
        kept = keep(run, rows)
        if not kept.isEmpty():
            killer.kill(KEPT)
        return kept

    return killing


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--master", required=True)
@click.option("--worker", type=int, required=True, help="pid of the worker")
@click.option("--lake", type=click.Path(path_type=Path), required=True)
@click.option("--manifest", type=click.Path(path_type=Path), required=True)
@click.option("--bootstrap-servers", required=True)
def main(master: str, worker: int, lake: Path, manifest: Path, bootstrap_servers: str) -> None:
    """Do a night's work; one JSON object to stdout."""
    archive = spark_archive_options()
    spark = session(
        master=master, jars=spark_jars(), partitions=1, memory="1g", java_options=archive, more=FOR_FEW_ROWS
    )
    killer = Killer(spark, worker)
    spark_session.read_topic = before_a_late_job(spark_session.read_topic, killer)
    Run.keep = around(Run.keep, killer)  # type: ignore[method-assign,assignment]
    there = Lake(lake)
    with there.lock():
        work(
            spark,
            there,
            decode(manifest.read_bytes()),
            bootstrap_servers,
            progress=Progress(lambda line: click.echo(line, err=True)),
        )
    print(
        json.dumps({"killed": killer.moments, "failed_tasks": sum(stage.numFailedTasks() for stage in stages(spark))})
    )
    spark.stop()


if __name__ == "__main__":
    main()
