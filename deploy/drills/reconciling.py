"""`once reconcile` as an operator runs it, for a drill: its exit code, its report, and the bytes of its files."""

import asyncio
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from deploy import PROJECT_ROOT
from deploy.drills.few_rows import for_few_rows
from deploy.drills.stage import Stage
from deploy.local.process import ManagedProcess
from spark.job import EXIT_BREAKS, EXIT_CLEAN
from spark.lake import Lake
from spark.report import Report
from spark.runs import PAGE

_MEMORY = "1g"
_REPORT = "report.json"
_POLL_S = 0.1


class NoReportError(RuntimeError):
    """The reconciliation could not be made; the message has the end of the command's log."""


class Reconciled(NamedTuple):
    """Result of a run.

    Attributes:
        exit_code: 0 clean, 1 breaks.
        files: bytes of report and page.
    """

    exit_code: int
    report: Report
    files: dict[str, bytes]


async def reconcile(stage: Stage, lake: Path, brokers: str, *words: str) -> Reconciled:
    """Run `once reconcile`, and note its stages as steps.

    Args:
        lake: folder of the landed tables and of the runs.
        words: further options.

    Raises:
        NoReportError: the command failed.
    """
    options = ("--lake", str(lake), "--bootstrap-servers", brokers, *words)
    process = ManagedProcess(
        "reconcile",
        [sys.executable, "-m", "deploy.cli.main", "reconcile", *options],
        {"ONCE_SPARK_MEMORY": _MEMORY, **for_few_rows(stage.directory / "spark")},
        lake.with_suffix(".log"),
        cwd=PROJECT_ROOT,
    )
    # Without folders: they are the drill's own, and gone when its report is read
    stage.step(" ".join(("once reconcile", *(Path(word).name for word in words))))
    noted = len(_notes(process))  # of an earlier run on this lake
    process.start()
    try:
        while process.running:
            await asyncio.sleep(_POLL_S)
            noted = _note(stage, process, noted)
    finally:
        process.kill()
    _note(stage, process, noted)
    code = process.returncode
    if code not in {EXIT_CLEAN, EXIT_BREAKS}:
        raise NoReportError(f"once reconcile ended with {code}:\n{process.log_tail()}")
    folder = lake / "runs" / Lake(lake).cuts()[-1].cut_id
    files = {name: (folder / name).read_bytes() for name in (_REPORT, PAGE)}
    return Reconciled(code, msgspec.json.decode(files[_REPORT], type=Report), files)


def _note(stage: Stage, process: ManagedProcess, noted: int) -> int:
    """Note the lines of progress that are new, and return how many there are."""
    notes = _notes(process)
    for line in notes[noted:]:
        stage.step(line)
    return len(notes)


def _notes(process: ManagedProcess) -> list[str]:
    return [line for line in process.log_tail(10_000).splitlines() if line.startswith("reconcile: ")]
