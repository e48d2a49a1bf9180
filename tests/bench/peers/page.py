"""The tables of docs/performance.md, from committed results: `python -m tests.bench.peers.page` prints them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.peers.__main__ import RATIOS

RESULTS = Path(__file__).with_name("results")
_RUNS = ("once", "pipe1", "hop", "confluent", "tuned", "streams")


def results() -> dict[str, Mapping[str, Any]]:
    """The committed results by name, the oldest first."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def ratios_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """One column for each result."""
    rows = [[f"`{name}`", *(f"{result[name]:g}" for result in found.values())] for name in RATIOS]
    return _table(["ratio", *found], rows)


def figures_table(result: Mapping[str, Any]) -> str:
    """The medians of one result."""
    figures = ("payments_per_s", "cpu_s_per_100k", "broker_cpu_s_per_100k", "memory_mb")
    rows = [[f"`{run}`", *(f"{result['medians'][run][figure]:,g}" for figure in figures)] for run in _RUNS]
    return _table(["run", *figures], rows)


def latency_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Latency and CPU at a steady rate, of each result."""
    figures = ("p50_ms", "p99_ms", "cpu_s_per_s", "broker_cpu_s_per_s")
    rows = [
        [f"`{name}`", f"`{run}`", *(f"{result['medians'][f'{run}-latency'][figure]:,g}" for figure in figures)]
        for name, result in found.items()
        for run in ("once", "pipe1")
    ]
    return _table(["result", "run", *figures], rows)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


if __name__ == "__main__":
    committed = results()
    print(ratios_table(committed))
    print(figures_table(committed[max(committed)]))
    print(latency_table(committed))
