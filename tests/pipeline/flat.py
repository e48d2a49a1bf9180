"""Equal small nights, and the cost of each: `python -m tests.pipeline.flat`.

A night reads what the services remember of the nights before. Windows are of one record here, so the second night has
less to read than the third, and from then on all have the same.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from pyspark.sql import SparkSession

from deploy.drills.few_rows import FOR_FEW_ROWS
from spark.checks import reversals
from spark.manifest import Settings
from spark.session import session
from tests.pipeline.costs import Cost, measured
from tests.pipeline.landings import EqualNights, Landings

GROWTH_MAX: Final = 1.05
"""Of files, paths and bytes, from the third night to the last: names and numbers become longer."""
FIRST: Final = 3
"""The night whose cost the last one is compared with."""
_RECORDS: Final = 1


def equal_nights(spark: SparkSession, root: Path, nights: int, say: Callable[[str], None]) -> Iterator[Cost]:
    """Yield the cost of each night: its landing and its run, which is clean."""
    world = EqualNights()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reversals, "_LOOK_BACK", 4 * _RECORDS)
        landings = Landings(spark, world, root, patch)
        landings.settings = Settings(identity_window=_RECORDS, reversal_window=_RECORDS)
        for number in range(1, nights + 1):
            world.night()
            begun_s = time.monotonic()
            with measured(spark, patch) as cost:
                report = landings.run(landings.cut())
            assert report.verdict == "clean", report.breaks
            say(f"night {number}: {cost}, in {time.monotonic() - begun_s:.1f} s")
            yield cost


def growths(first: Cost, last: Cost) -> list[str]:
    """Return in which respects a night costs more than one before."""
    of_both = {
        "SQL executions": (len(first.executions), len(last.executions), 1.0),
        "jobs": (first.jobs, last.jobs, 1.0),
        "paths listed": (first.listed, last.listed, GROWTH_MAX),
        "files read": (first.files, last.files, GROWTH_MAX),
        "bytes read": (first.read_bytes, last.read_bytes, GROWTH_MAX),
    }
    return [f"{name}: {was}, then {now}" for name, (was, now, most) in of_both.items() if now > was * most]


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--nights", type=click.IntRange(min=FIRST + 1), default=100, show_default=True)
def main(nights: int) -> None:
    """Print a line for each night; exit with 1 where the last one costs more than the third."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        spark = session(master="local[2]", partitions=1, memory="2g", directory=root / "spark", more=FOR_FEW_ROWS)
        costs = list(equal_nights(spark, root, nights, click.echo))
        spark.stop()
    grown = growths(costs[FIRST - 1], costs[-1])
    for line in grown:
        click.echo(line)
    raise SystemExit(bool(grown))


if __name__ == "__main__":
    main()
