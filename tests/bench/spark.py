"""The data pipeline at several sizes and heaps of the driver: seconds to land and to reconcile, and memory.

The topics are written once, untimed; a smaller size is a manifest of their first part. `python -m tests.bench.spark`
measures one manifest and prints its figures; `measure_spark` does so for each size and heap, in a process of its own.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import uvloop

from deploy.cut import take_cut
from deploy.reconciliation import spark_session
from shared.settings import ReconcileSettings
from spark.lake import Lake
from spark.land import land
from spark.manifest import decode, encode
from spark.metrics import Progress
from spark.nightly import reconcile
from spark.report import CLEAN
from tests.bench.gauges import high_water_mb, say
from tests.bulk import bulk_now, write_bulk
from tests.harness import ROOT, cluster

SHARES = (8, 4, 2, 1)
HEAPS = ("1g", "1536m", "2g")
"""Of the driver, for the largest size; all sizes have DEFAULT_HEAP."""
DEFAULT_HEAP = ReconcileSettings().spark_memory
_DEADLINE_S = 3600
_REPORT_EVERY = 250_000

Figures = dict[str, Any]


def measure_spark(directory: Path, payments: int) -> Figures:
    """Write so many payments to a cluster of its own, and reconcile an eighth, a quarter, a half and all of them.

    All of them are reconciled with each of HEAPS as well.

    Args:
        directory: for the cluster and the lakes.
        payments: records of payments.raw.

    Returns:
        `sizes`: for each size the figures of `measure`, and `ratio`, seconds a payment against those of the smallest.
        `heaps`: for each heap the same figures, and `ratio`, seconds against those with the default heap; or `failed`.

    Raises:
        subprocess.CalledProcessError: a run with the default heap failed, or was not clean.
    """
    say(f"writing {payments} payments to all topics")
    with cluster(directory / "kafka") as kafka:
        begun = time.monotonic()
        servers = kafka.bootstrap_servers
        sizes = uvloop.run(write_bulk(servers, bulk_now([payments // share for share in SHARES]), _report))
        write_s = time.monotonic() - begun
        whole = asyncio.run(take_cut(servers, None, now_ms=time.time_ns() // 1_000_000))
        found = []
        for size in sizes:
            path = directory / f"{size.payments}.json"
            path.write_bytes(encode(size.manifest(whole)))
            say(f"landing and reconciling {size.payments} payments, {size.records} records")
            found.append({"payments": size.payments, "records": size.records} | _apart(servers, path))
        heaps = [_with_heap(servers, path, heap, found[-1]["seconds"]) for heap in HEAPS]
    each = [figures["seconds"] / figures["payments"] for figures in found]
    ratios: list[Figures] = [{"ratio": round(one / each[0], 2)} for one in each]
    return {
        "cores": os.cpu_count(),
        "write_s": round(write_s, 1),
        "sizes": [figures | ratio for figures, ratio in zip(found, ratios, strict=True)],
        "heaps": heaps,
    }


def _with_heap(bootstrap_servers: str, manifest: Path, heap: str, default_s: float) -> Figures:
    say(f"landing and reconciling with a heap of {heap}")
    try:
        figures = _apart(bootstrap_servers, manifest, heap)
    except subprocess.CalledProcessError as error:  # its stderr says why
        return {"heap": heap, "failed": error.returncode}
    return {"heap": heap} | figures | {"ratio": round(figures["seconds"] / default_s, 2)}


def _apart(bootstrap_servers: str, manifest: Path, heap: str = DEFAULT_HEAP) -> Figures:
    """Measure in a process of its own, so that memory is this size's alone."""
    arguments = ["--bootstrap-servers", bootstrap_servers, "--manifest", str(manifest), "--heap", heap]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.spark", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_DEADLINE_S,
        check=True,
    )
    figures: Figures = json.loads(done.stdout)
    return figures


def measure(bootstrap_servers: str, manifest: Path, heap: str) -> Figures:
    """Land one manifest into a fresh lake and reconcile it, as `once reconcile` does.

    Args:
        bootstrap_servers: of the cluster with the manifest's offsets.
        manifest: a file with the cut.
        heap: of the driver, as Spark writes it.

    Returns:
        start_s, land_s, reconcile_s and `seconds`, their sum; the peak resident memory of the driver's JVM and of this
        process; the size of the lake.
    """
    cut = decode(manifest.read_bytes())
    lake = Lake(manifest.with_suffix(f".{heap}.lake"))
    times = [time.monotonic()]
    lake.root.mkdir(parents=True)
    with lake.lock(), spark_session(ReconcileSettings(spark_memory=heap), lake.root) as spark:
        times.append(time.monotonic())
        land(spark, cut, bootstrap_servers, lake, Progress(say))
        times.append(time.monotonic())
        report = reconcile(spark, lake, cut, progress=Progress(say))
        times.append(time.monotonic())
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        driver_mb = high_water_mb(int(jvm.java.lang.ProcessHandle.current().pid()))
    assert report.verdict == CLEAN, report.breaks
    start_s, land_s, reconcile_s = (after - before for before, after in pairwise(times))
    return {
        "start_s": round(start_s, 1),
        "land_s": round(land_s, 1),
        "reconcile_s": round(reconcile_s, 1),
        "seconds": round(times[-1] - times[0], 1),
        "rss_mb_max": {"driver": round(driver_mb), "python": round(high_water_mb(os.getpid()))},
        "lake_mb": round(sum(path.stat().st_size for path in lake.root.rglob("*.parquet")) / 1_000_000),
    }


def _report(done: int, of: int) -> None:
    if done % _REPORT_EVERY == 0:
        say(f"{done} of {of} payments written")


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap-servers", required=True)
@click.option("--manifest", type=click.Path(path_type=Path), required=True)
@click.option("--heap", default=DEFAULT_HEAP, show_default=True)
def main(bootstrap_servers: str, manifest: Path, heap: str) -> None:
    """Measure one manifest; one JSON object to stdout."""
    print(json.dumps(measure(bootstrap_servers, manifest, heap)))


if __name__ == "__main__":
    main()
