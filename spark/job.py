"""The reconciliation as a job for spark-submit:

    spark-submit spark/job.py --lake DIRECTORY --manifest FILE [--full]

The driver needs msgspec, jinja2 and prometheus_client in addition to pyspark, and this project's folder. The workers
need nothing but Spark: all work is done in their JVMs. spark-submit sets master, memory and jars. The job prints the
report's path on stdout, last, and its progress on stderr; spark-submit passes both on as its own stdout.

A cut with offsets of payments.raw that have no record is refused: `once reconcile` alone looks up why.

Exit codes: 0 clean, or each open break is explained; 1 breaks; 2 the run could not be made; 75 runs are left.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

if not __package__:
    # Started as a file: its folder is where imports are looked up, not the project's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from spark import metrics
from spark.lake import Lake, LakeError, LakeLockedError
from spark.manifest import ManifestError, decode
from spark.nightly import work
from spark.report import BREAKS, LISTED_MAX
from spark.runs import REPORT, Runs
from spark.session import Brokers, TlsBrokers, session
from spark.totals import TotalsError

SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError)
ERRORS: tuple[type[Exception], ...] = (
    *(LakeError, LakeLockedError, ManifestError, TotalsError, OSError),
    *SPARK_ERRORS,
)
"""The errors by which a run can fail."""
EXIT_CLEAN, EXIT_BREAKS, EXIT_FAILED = 0, 1, 2
EXIT_UNFINISHED: Final = 75
"""Runs are left by a bound on their number (EX_TEMPFAIL of sysexits.h): run it again."""
_MESSAGE_MAX_CHARS = 600


def explained(error: BaseException) -> str:
    """Return an error in one line: of Spark's, which hold whole stacks, the beginning."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines) if isinstance(error, LakeError | ManifestError | TotalsError) else " ".join(lines[:2])
    return text[:_MESSAGE_MAX_CHARS] or type(error).__name__


def main(arguments: Sequence[str]) -> int:
    """Parse the arguments, make the run, and return the exit code."""
    parser = argparse.ArgumentParser(prog="spark-submit spark/job.py", description="Reconcile a cut.")
    parser.add_argument("--lake", type=Path, required=True, help="folder of the tables, on driver and workers alike")
    parser.add_argument("--manifest", type=Path, required=True, help="the cut")
    parser.add_argument("--full", action="store_true", help="one run over all cuts up to it")
    parser.add_argument("--max-runs", type=_positive, help="runs to make at most, the oldest first")
    parser.add_argument("--bootstrap-servers", help="Kafka brokers, to land the cut from if it has not landed")
    parser.add_argument("--ca-file", default="", help="certificates that brokers are trusted by, PEM")
    parser.add_argument("--identity-file", default="", help="private key and certificate for the brokers, PEM")
    parser.add_argument("--listed", type=int, default=LISTED_MAX, help="how many breaks the report lists")
    try:
        return _run(parser.parse_args(arguments))
    except ERRORS as error:
        _say(explained(error))
        return EXIT_FAILED


def _run(options: argparse.Namespace) -> int:
    begun_s = time.monotonic()
    progress = metrics.Progress(_say)
    lake = Lake(options.lake)
    cut = decode(options.manifest.read_bytes())
    with lake.lock():
        spark = session(master=None)
        try:
            reports, left = work(
                spark,
                lake,
                cut,
                _brokers(options),
                full=options.full,
                listed_max=options.listed,
                runs_max=options.max_runs,
                now_ms=time.time_ns() // 1_000_000,
                uncovered=refuse_missing,
                progress=progress,
            )
        finally:
            spark.stop()
        report = reports[-1]
        directory = Runs(lake).folder(report.cut.cut_id)
        metrics.write(
            directory / metrics.FILE,
            report,
            ended_at_s=time.time(),
            duration_s=time.monotonic() - begun_s,
            stages=progress.seconds,
        )
    _say(f"verdict: {report.verdict}, {report.breaks.total} breaks, {len(report.breaks.explained)} explained")
    if left:
        _say(unfinished(len(reports), left))
    print(directory / REPORT)
    return exit_code(report.verdict, left)


def refuse_missing(topic: str, partition: int, first: int, end: int) -> NoReturn:
    """Refuse a cut with missing offsets: Kafka's Java client cannot say whether the log has lost their records."""
    raise LakeError(
        f"{topic}:{partition} has offsets without a record from {first} to before {end}, and this job cannot look up "
        "whether the log has lost records: land the cut with `once reconcile`, which keeps what was read"
    )


def exit_code(verdict: str, left: int) -> int:
    """Return the exit code after some runs. Pure.

    Args:
        verdict: of the last run that was made.
        left: runs that are still due.
    """
    return EXIT_UNFINISHED if left else EXIT_BREAKS if verdict == BREAKS else EXIT_CLEAN


def unfinished(made: int, left: int) -> str:
    """Return the message after a bounded number of runs. Pure."""
    return f"made {made} of {made + left} runs that are due, {left} left: run it again to go on"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _brokers(options: argparse.Namespace) -> Brokers | None:
    if not options.identity_file or options.bootstrap_servers is None:
        brokers: str | None = options.bootstrap_servers
        return brokers
    return TlsBrokers(options.bootstrap_servers, options.ca_file, options.identity_file)


def _say(text: str) -> None:
    print(f"reconcile: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
