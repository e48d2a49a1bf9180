"""`make bench-peers`: compare this project with Kafka Streams, librdkafka and a tuned aiokafka loop.

All work on the same three brokers, one after the other, in an order that is reversed from round to round. A first round
warms everything and is not counted. Each run's output is checked. Ratios are of this project to the peer, the median of
the rounds: above 1 is faster, or uses more, or takes longer.

Not a test: figures depend on the machine. Progress and a table go to stderr, one JSON object to stdout.
"""

import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import uvloop

from deploy.local.kafka.cluster import LocalKafka
from tests.bench.gauges import say
from tests.bench.peers import sides
from tests.bench.peers.cluster import brokers, delete, load
from tests.bench.peers.running import Side, latency, throughput
from tests.bench.peers.streams import classpath
from tests.harness import ROOT

Figures = dict[str, float]
Round = dict[str, Figures]
"""Figures by run: a side's name, or `<name>-latency`."""

SOURCE, SOURCE_LONG, SOURCE_LATENCY = "peers-in", "peers-in-long", "peers-in-latency"
LONG = 1_200_000
RATIOS = {
    "pipeline_rate_ratio": ("once", "pipe1", "payments_per_s"),
    "pipeline_cpu_ratio": ("once", "pipe1", "cpu_s_per_100k"),
    "pipeline_broker_cpu_ratio": ("once", "pipe1", "broker_cpu_s_per_100k"),
    "pipeline_memory_ratio": ("once", "pipe1", "memory_mb"),
    "latency_p50_ratio": ("once-latency", "pipe1-latency", "p50_ms"),
    "latency_p99_ratio": ("once-latency", "pipe1-latency", "p99_ms"),
    "hop_vs_confluent": ("hop", "confluent", "payments_per_s"),
    "hop_vs_tuned": ("hop", "tuned", "payments_per_s"),
    "hop_vs_streams": ("hop", "streams", "payments_per_s"),
}
"""By name: numerator, denominator, and which of their figures."""


def ratios(rounds: list[Round]) -> dict[str, float]:
    """The median over the rounds of each ratio whose runs there are."""
    found = {}
    for name, (ours, theirs, figure) in RATIOS.items():
        measured = [one for one in rounds if figure in one.get(ours, {}) and figure in one.get(theirs, {})]
        pairs = [(one[ours][figure], one[theirs][figure]) for one in measured]
        if pairs:
            found[name] = round(statistics.median(a / b for a, b in pairs), 2)
    return found


def medians(rounds: list[Round]) -> Round:
    """The median of each figure of each run."""
    return {
        run: {figure: statistics.median(one[run][figure] for one in rounds) for figure in figures}
        for run, figures in rounds[0].items()
    }


def table(middle: Round) -> str:
    """One line for each run, with its figures by name."""
    return "\n".join(
        f"{run:16}" + "".join(f"  {figure} {value:g}" for figure, value in figures.items())
        for run, figures in middle.items()
    )


class Comparison:
    """All runs on one cluster.

    Args:
        path: the classpath of Kafka Streams and its topologies.
        count: payments in a run.
    """

    def __init__(self, kafka: LocalKafka, directory: Path, path: str, count: int) -> None:
        self._kafka = kafka
        self._directory = directory
        self._java = sides.java(path)
        self._count = count

    async def prepare(self) -> None:
        """Load the peers' input."""
        await load(self._kafka, SOURCE, self._count)

    async def round(self, *, backwards: bool = False, latencies: bool = True) -> Round:
        """One run of each side, in order or backwards."""
        runs: dict[str, Callable[[], Awaitable[Figures]]] = {
            "once": lambda: self._pipeline(self._count),
            "pipe1": lambda: self._streams_pipeline(SOURCE, self._count),
            "hop": lambda: self._hop("once"),
            "confluent": lambda: self._hop("confluent"),
            "tuned": lambda: self._hop("tuned"),
            "streams": lambda: self._hop("streams"),
        }
        if latencies:
            runs |= {"once-latency": self._latency, "pipe1-latency": self._streams_latency}
        found: Round = {}
        for name in reversed(runs) if backwards else runs:
            found[name] = await runs[name]()
            say(f"{name}: {found[name]}")
        return {name: found[name] for name in runs}

    async def long(self) -> Round:
        """One run of both pipelines over four times as many records."""
        await load(self._kafka, SOURCE_LONG, LONG)
        return {"once": await self._pipeline(LONG), "pipe1": await self._streams_pipeline(SOURCE_LONG, LONG)}

    async def _pipeline(self, count: int) -> Figures:
        return await self._throughput(await sides.pipeline(self._kafka, count), count)

    async def _streams_pipeline(self, source: str, count: int) -> Figures:
        side = await sides.peer(self._kafka, "pipe1", self._java, self._directory, source, count)
        return await self._throughput(side, count)

    async def _hop(self, name: str) -> Figures:
        program = sides.python if name in sides.PYTHON_HOPS else self._java
        side = await sides.peer(self._kafka, name, program, self._directory, SOURCE, self._count)
        return await self._throughput(side, self._count)

    async def _throughput(self, side: Side, count: int) -> Figures:
        figures = await throughput(self._kafka, side, self._directory, count)
        await side.close()
        return figures

    async def _latency(self) -> Figures:
        side = await sides.pipeline(self._kafka, 0)
        return await latency(self._kafka, side, self._directory, sides.project_records, sides.debit_of)

    async def _streams_latency(self) -> Figures:
        await delete(self._kafka, {SOURCE_LATENCY}.__contains__)  # records of an earlier run would come first
        await load(self._kafka, SOURCE_LATENCY, 0)
        side = await sides.peer(self._kafka, "pipe1", self._java, self._directory, SOURCE_LATENCY, 0)
        figures = await latency(self._kafka, side, self._directory, sides.peer_records, sides.event_of)
        await side.close()
        return figures


async def compare(directory: Path, count: int, rounds: int, *, long: bool) -> dict[str, object]:
    """Compile, start brokers, warm up, and run the rounds."""
    path = classpath(directory / "classes")
    async with brokers(directory / "kafka") as kafka:
        comparison = Comparison(kafka, directory, path, count)
        await comparison.prepare()
        say("warming up")
        await comparison.round(latencies=False)
        found = []
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            found.append(await comparison.round(backwards=number % 2 == 0))
        longer = await comparison.long() if long else None
    middle = medians(found)
    print(table(middle), file=sys.stderr)
    result: dict[str, object] = {**ratios(found), "payments": count, "medians": middle, "rounds": found}
    if longer is not None:
        result["long"] = {"payments": LONG, **ratios([longer]), "runs": longer}
    return result | {"machine": machine()}


def machine() -> dict[str, object]:
    """What this was measured on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "python": platform.python_version(),
        "java": java,
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--payments", type=int, default=300_000, help="in each run")
@click.option("--rounds", type=int, default=3, help="that are counted")
@click.option("--long", is_flag=True, help=f"also both pipelines over {LONG:,} payments")
def main(payments: int, rounds: int, long: bool) -> None:
    """Compare."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # new topics have no leader for a moment
    with tempfile.TemporaryDirectory(prefix="once-peers-") as name:
        result = uvloop.run(compare(Path(name), payments, rounds, long=long))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main(prog_name="make bench-peers")
