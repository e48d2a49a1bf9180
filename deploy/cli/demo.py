"""`once demo`: real transactions under faults, then the verdict, twice."""

import asyncio
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from deploy.checkers.verdict import FIGURES
from deploy.cli.output import answer, console, failing_on, json_option, note, progress, table
from deploy.demo.run import DemoResult, demonstrate
from deploy.drills.opinions import COMPARED, ViewBehindError
from deploy.local.jars import JarError
from deploy.local.prerequisites import PrerequisiteError
from deploy.local.supervisor import stack
from shared.kafka.runtime.process import stop_on_signals
from spark.job import SPARK_ERRORS, explained
from spark.lake import LakeError
from spark.manifest import ManifestError

START_ERRORS = (*stack.START_ERRORS, stack.StackNotReadyError, PrerequisiteError, ViewBehindError)
RECONCILIATION_ERRORS: tuple[type[Exception], ...] = (JarError, LakeError, ManifestError, *SPARK_ERRORS)
SHOWN = ("verdict", "reconciliation", "view_matches", *FIGURES, "faults_injected", "seconds")
_STYLES = {"pass": "bold green", "clean": "bold green", "fail": "bold red", "breaks": "bold red"}


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="Of the planted records and the faults.")
@click.option("--watch", is_flag=True, help="Leave the stack up at the end, with its page, until Ctrl-C.")
@json_option()
def demo(seed: int, *, watch: bool) -> None:
    """Replay 28,205 real bank transactions under faults, on a fresh stack, and verify.

    50 repeats and 10 bad records are planted among them, and every payment causes a receipt in a file. ingest,
    transform, the ledger, the outbox and one broker are each killed with SIGKILL, and Redis is flushed, while there is
    input left. At the end the same topics are reconciled in Spark, and what both count must be equal; so must the
    balances that the view shows. The address of its page is printed at the beginning: watch it there. The stack is
    taken down then, and its data deleted.

    Exit codes: 0 all holds, 1 something does not, 2 wrong usage.
    """

    async def done(result: DemoResult) -> None:
        if not watch:
            _report(result)
            return
        stop = stop_on_signals()  # before the message that Ctrl-C stops it
        _report(result)
        _say("the stack and its page keep running: Ctrl-C stops them")
        await stop.wait()

    with (
        tempfile.TemporaryDirectory(prefix="once-demo-") as name,
        failing_on(*START_ERRORS),
        failing_on(
            *RECONCILIATION_ERRORS, text=lambda error: f"the reconciliation could not be made: {explained(error)}"
        ),
        progress("loading", "records") as on_progress,
    ):
        result = asyncio.run(demonstrate(Path(name), seed, _say, on_progress, done))
    sys.exit(0 if result.passed else 1)


def _say(text: str) -> None:
    note(f"demo: {text}")


def _report(result: DemoResult) -> None:
    flat = _flatten(result)
    answer(flat, lambda: _show(flat, result))
    for text in result.missing:
        _say(text)


def _flatten(result: DemoResult) -> dict[str, object]:
    """One flat object: the audit's verdict, and what the demonstration adds; reconciliation and view are within."""
    flat: dict[str, object] = msgspec.to_builtins(result.verdict)
    return flat | {
        "verdict": "pass" if result.passed else "fail",
        "reconciliation": msgspec.to_builtins(result.reconciliation),
        "view": msgspec.to_builtins(result.view),
        "view_matches": result.view_matches,
        "missing": result.missing,
        "faults_injected": len(result.faults),
        "faults": msgspec.to_builtins(result.faults),
        "seconds": result.seconds,
    }


def _show(flat: dict[str, object], result: DemoResult) -> None:
    made = table(("", "once verify", "Spark"), pad_edge=True)
    figures = result.reconciliation.figures
    for name in SHOWN:
        value = result.reconciliation.verdict if name == "reconciliation" else flat[name]
        counted = f"{figures[COMPARED[name]]:,}" if COMPARED.get(name) in figures else ""
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value).lower()
        made.add_row(name, shown, counted, style=_STYLES.get(str(value), ""))
    for fault in result.faults:
        made.add_row(f"{fault.action} {fault.target}", f"with {fault.remaining:,} records left for {fault.watched}")
    console().print(made)
