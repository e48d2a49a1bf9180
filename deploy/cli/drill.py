"""`once drill`: faults on a stack of its own, what they must show, and whether they did."""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from deploy.cli.demo import START_ERRORS
from deploy.cli.output import (
    EXIT_NOTHING,
    answer,
    console,
    failing_on,
    json_option,
    note,
    print_rows,
    table,
)
from deploy.compose.engine import Engine, EngineError
from deploy.drills.compose import run_on_compose
from deploy.drills.drill import COMPOSE, LOCAL, TARGETS, Drill, Result, Verdict, described
from deploy.drills.index import ALERTS, DRILLS, EVERY, NoSuchDrillError, find
from deploy.drills.listing import counted, listed, row, shown
from deploy.drills.recovery import Row, recover
from deploy.drills.report import write
from deploy.drills.run import in_order, run_drills
from deploy.drills.soak import soak_drill
from shared.kafka.runtime.process import stop_on_signals

_STYLES = {Verdict.AS_EXPECTED: "green", Verdict.NOT_ON_THIS_TARGET: "yellow"}
_INTERRUPTED = 130
_LISTED_CHARS = 150


@click.group()
def drill() -> None:
    """Chaos drills: each shows one claim about exactly-once semantics on real brokers.

    A control shows the failure that a protection is for: it passes only if its anomaly happens.
    """


@drill.command("list")
@json_option("Print one JSON object with all drills.")
def list_drills() -> None:
    """List all drills: those of the rows, then those of the alerts."""
    answer({"drills": [row(one) for one in EVERY]}, lambda: click.echo(listed(EVERY, console(_LISTED_CHARS).width)))
    note(f"drill: {counted(EVERY)}")


@drill.command()
@click.argument("name")
@json_option()
def show(name: str) -> None:
    """Show what a drill does; NAME is its name or row, or an alert."""
    one = _find((name,))[0]
    answer(row(one) | {"steps": described(one), "reading": list(one.reading)}, lambda: click.echo(shown(one)))


@drill.command()
@click.argument("names", nargs=-1)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help=f"Run the drills of all {len(DRILLS)} rows. Those of the {len(ALERTS)} alerts have the tag alert.",
)
@click.option("--tag", help="Run the drills with this tag.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of each drill's random choices.")
@click.option("--on", type=click.Choice(TARGETS), default=LOCAL, show_default=True, help="The target.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a page for each drill, a matrix of all and the journal to the folder `report` in this folder.",
)
@json_option()
def run(names: tuple[str, ...], *, everything: bool, tag: str | None, seed: int, on: str, keep: Path | None) -> None:
    """Run drills on a stack of their own; each of NAMES is a name or a row, such as A2, or an alert.

    Steps go to stderr. A drill that cannot run on the target is counted apart, and is neither a pass nor a failure.

    Exit codes: 0 every drill that ran showed its claim, 1 one did not, 2 wrong usage, 3 none can run on the target, 130
    interrupted: everything is healed and stopped first.
    """
    chosen = list(DRILLS) if everything else _find(names, tag)
    if not chosen:
        raise click.UsageError("name at least one drill, or give --all or --tag")
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="once-drill-") as name:
        _run_and_report(chosen, keep or Path(name), seed, on, keep)


@drill.command()
@click.option(
    "--minutes", type=click.FloatRange(min=0.5), default=30.0, show_default=True, help="How long faults are made."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the load and the faults.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".once/soak"),
    show_default=True,
    help="Folder; report, history and logs go to a folder in it that is named after the seed.",
)
@json_option()
def soak(minutes: float, seed: int, keep: Path) -> None:
    """Make random faults on a loaded stack, with quiet quarters; then heal, and let all judges look.

    The judges are a checker of histories, `once verify`, Spark's reconciliation and the view. From 15 minutes on,
    memory and open files of each service may grow by 5 % from the second to the last third. Exit codes as of `run`.
    """
    folder = keep / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    _run_and_report([soak_drill(minutes, folder)], folder, seed, LOCAL, folder)


def _run_and_report(chosen: list[Drill], directory: Path, seed: int, on: str, keep: Path | None) -> NoReturn:
    """Run drills, write their report where it is to be kept, print the results, and end the command."""
    with failing_on(*START_ERRORS, EngineError):
        results, is_complete = asyncio.run(_run(chosen, directory, seed, on))
    summary = _summary(results)
    if keep is not None and results:
        note(f"drill: the report is {write(results, {one.key: one for one in chosen}, summary, keep / 'report')}")
    if not is_complete:
        note("drill: interrupted; nothing is left running")
        sys.exit(_INTERRUPTED)
    answer(summary, lambda: _print(results))
    ran = [one for one in results if one.verdict is not Verdict.NOT_ON_THIS_TARGET]
    sys.exit((0 if all(one.passed for one in ran) else 1) if ran else EXIT_NOTHING)


@drill.command()
@click.option("--service-kills", type=click.IntRange(min=0), default=20, show_default=True, help="Of each service.")
@click.option(
    "--broker-kills",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Of each role of a broker, of Redis, and of an instance that another one replaces.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the payments.")
@json_option()
def recovery(service_kills: int, broker_kills: int, seed: int) -> None:
    """Measure the seconds from a kill to the next commit, on a stack of its own.

    Each row has the median and the worst of its kills, the smallest of the bounds that the settings imply, and how many
    kills exceeded their own. A bound grows with the time between commits without a fault, so that it holds on busy
    cores too.

    Exit codes: 0 every kill was survived within its bound, 1 one was not, 2 wrong usage.
    """
    if not service_kills + broker_kills:
        raise click.UsageError("give at least one kill")
    with tempfile.TemporaryDirectory(prefix="once-recovery-") as name, failing_on(*START_ERRORS, TimeoutError):
        rows = asyncio.run(recover(Path(name), service_kills, broker_kills, seed=seed, say=_say))
    answer(
        {"recovery": [msgspec.structs.asdict(row) | {"within_bound": row.is_within} for row in rows]},
        lambda: print_rows([msgspec.structs.asdict(row) for row in rows], Row.__struct_fields__, width_chars=100),
    )
    sys.exit(0 if all(row.is_within for row in rows) else 1)


async def _run(chosen: list[Drill], directory: Path, seed: int, on: str) -> tuple[list[Result], bool]:
    """Run drills until they are done or a signal comes: then everything is healed and stopped first.

    Returns:
        The results in the drills' order, and whether all of them are there.
    """
    stop = stop_on_signals()
    done: list[Result] = []
    running = asyncio.create_task(_run_on(chosen, directory, seed, on, done.append))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if running.done():
        return running.result(), True
    running.cancel()
    await asyncio.wait({running})
    return in_order(done, chosen), False


async def _run_on(
    chosen: list[Drill], directory: Path, seed: int, on: str, done: Callable[[Result], None]
) -> list[Result]:
    """Run drills on a target of their own, or on the deployment that is up."""
    ours = [one for one in chosen if on == COMPOSE and COMPOSE in one.targets]
    others = [one for one in chosen if one not in ours]
    results = await run_drills(others, directory, seed=seed, on=on, say=_say, done=done)
    if ours:
        results += await run_on_compose(Engine(), ours, seed=seed, done=done)
    return in_order(results, chosen)


def _find(names: tuple[str, ...], tag: str | None = None) -> list[Drill]:
    try:
        return find(names, tag=tag)
    except NoSuchDrillError as error:
        raise click.UsageError(str(error)) from error


def _summary(results: list[Result]) -> dict[str, object]:
    verdicts = Counter(one.verdict for one in results)
    return {
        "drills": len(results),
        "verdicts": {verdict.value: verdicts[verdict] for verdict in Verdict},
        **_figures(results),
        "results": msgspec.to_builtins(results),
    }


def _figures(results: list[Result]) -> dict[str, int]:
    """Return what the drills saw, in all."""
    return {
        "records": sum(one.journal.records for one in results),
        "faults": sum(len(one.journal.faults) for one in results),
        "anomalies": sum(found.count for one in results for found in one.journal.anomalies),
    }


def _print(results: list[Result]) -> None:
    made = table(("row", "drill", "verdict", "anomalies", "seconds"), right=("seconds",))
    for one in results:
        anomalies = ", ".join(f"{found.kind} {found.count}" for found in one.journal.anomalies)
        style = _STYLES.get(one.verdict, "red")
        made.add_row(one.row, one.name, f"[{style}]{one.verdict}[/]", anomalies, f"{one.seconds:.1f}")
    console(110).print(made)
    for one in results:
        if one.reason:
            note(f"drill: {one.key} {one.verdict}: {one.reason}")
    verdicts = Counter(one.verdict for one in results)
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in Verdict if verdicts[verdict])
    note(f"drill: {counts}; {', '.join(f'{count:,} {name}' for name, count in _figures(results).items())}")


def _say(text: str) -> None:
    note(f"drill: {text}")
