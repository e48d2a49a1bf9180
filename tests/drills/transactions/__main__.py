"""Faults of every request of a transaction, against four programs: `python -m tests.drills.transactions`.

Each program takes records from a topic to three partitions of another one, exactly once, through a proxy that loses,
repeats or delays one request; or the broker is killed before or after it. aiokafka is the control: its loop is the
documented one, and it duplicates records.

A Markdown table goes to stdout (with --json, a JSON object), progress to stderr. A cell has the anomalies, the exit
codes of a program that ended, requests per transaction, how many of the matching requests had the fault, and the
brokers' answer to what was late.

Exit codes: 0 passed; 1 an anomaly of this project's programs, a fault that was not made, or none found in the control;
2 wrong usage.
"""

import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import click
import uvloop

from tests.bench.gauges import say
from tests.bench.peers.cluster import create, delete
from tests.bench.peers.streams import classpath
from tests.drills.transactions.brokers import start
from tests.drills.transactions.cell import Cell, Outcome, topics
from tests.drills.transactions.faults import APIS, FAULTS, Fault, Kind
from tests.drills.transactions.hop import PROGRAMS, Program
from tests.drills.transactions.table import findings, markdown

SOURCES = Path(__file__).with_name("programs")

Task = tuple[Program, Fault | None]


async def measure(directory: Path, logs: Path, tasks: Iterable[Task], lanes: int) -> list[Outcome]:
    """Run all cells, so many at a time; those that kill a broker one at a time.

    Args:
        directory: for the brokers, empty.
        logs: folder for the programs' logs.
    """
    numbered = list(enumerate(tasks))
    count = len(numbered)
    found: dict[int, Outcome] = {}
    async with AsyncExitStack() as stack:
        versions = sorted({program.transaction_version for _, (program, _) in numbered})
        clusters = {version: await start(directory, version, stack) for version in versions}
        uses_java = any(program.module is None for _, (program, _) in numbered)
        path = classpath(directory / "classes", SOURCES) if uses_java else ""

        async def lane(waiting: list[tuple[int, Task]]) -> None:
            while waiting:
                number, (program, fault) = waiting.pop(0)
                tag = f"txn-{number}"
                kafka = clusters[program.transaction_version]
                await create(kafka, list(topics(tag)))
                log = logs / f"{tag}.log"
                found[number] = await Cell(kafka, program, fault, tag, program.argv(path), log).run()
                await delete(kafka, frozenset(topics(tag)).__contains__)
                outcome = found[number]
                say(
                    f"[{len(found)}/{count}] {program.name}, {fault or 'no fault'}: {outcome.anomalies}; "
                    f"{outcome.evidence}; ends {outcome.ends}; {outcome.seconds} s"
                )

        def kills(task: Task) -> bool:
            return task[1] is not None and task[1].kills

        together = [one for one in numbered if not kills(one[1])]
        async with asyncio.TaskGroup() as group:
            for _ in range(lanes):
                group.create_task(lane(together))
        await lane([one for one in numbered if kills(one[1])])
    return [found[number] for number in sorted(found)]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--program", "names", multiple=True, type=click.Choice([program.name for program in PROGRAMS]))
@click.option("--api", "apis", multiple=True, type=click.Choice(APIS))
@click.option("--fault", "kinds", multiple=True, type=click.Choice([kind.value for kind in Kind]))
@click.option("--lanes", default=3, type=click.IntRange(1), help="cells at a time; most of a cell's time is a wait")
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="folder for the programs' logs")
@click.option("--json", "as_json", is_flag=True)
def main(
    names: tuple[str, ...], apis: tuple[str, ...], kinds: tuple[str, ...], lanes: int, logs: Path | None, as_json: bool
) -> None:
    """Measure the table, or a part of it."""
    programs = [program for program in PROGRAMS if not names or program.name in names]
    chosen = [f for f in FAULTS if (not apis or f.api in apis) and (not kinds or f.kind.value in kinds)]
    tasks = [(program, fault) for fault in [None, *chosen] for program in programs]
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # new topics have no leader for a moment
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="once-transactions-") as name:
        found = uvloop.run(measure(Path(name), logs or Path(name), tasks, lanes))
    seconds = round(time.monotonic() - begun_s)
    say(f"{len(found)} cells in {seconds} s")
    if as_json:
        print(json.dumps({"seconds": seconds, "cells": [one.plain() for one in found]}, indent=2))
    else:
        print(markdown(found))
    wrong = findings(found)
    for line in wrong:
        say(line)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(prog_name="python -m tests.drills.transactions")
