"""The job on a real standalone master with a worker, submitted as an operator does, gives the report of a local run.

So does a night whose executors are killed."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from deploy.cut import offsets_uncovered, take_cut
from deploy.drills.few_rows import FOR_FEW_ROWS
from deploy.local.jars import spark_jars
from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import LOOPBACK
from spark.lake import Lake
from spark.land import land
from spark.manifest import Manifest, encode, seal
from spark.metrics import Progress
from spark.nightly import work
from spark.runs import Runs
from tests.harness import ROOT, cluster, wait_until
from tests.pipeline import lost_executors
from tests.pipeline.worlds import Volume
from tests.standalone_spark import LocalSpark, spark_home
from tests.tiers import full
from tests.topics import Topics

pytestmark = [full, pytest.mark.timeout(900)]

NO_PYTHON = "/nonexistent/python"
"""Not an interpreter: a worker that needs Python fails."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster with a small system at rest."""
    with cluster(tmp_path_factory.mktemp("kafka")) as running:
        asyncio.run(Topics(running.bootstrap_servers, Volume(rounds=2)).write())
        yield running


@pytest.fixture(scope="module")
def cut(brokers: LocalKafka) -> Manifest:
    return asyncio.run(take_cut(brokers.bootstrap_servers, None, now_ms=1_767_600_000_000))


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSpark]:
    running = LocalSpark(tmp_path_factory.mktemp("standalone"))
    running.start()
    try:
        running.wait_ready(120)
        yield running
    finally:
        running.kill()


def submit(master: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """spark-submit, from another folder than the project's and without its variables."""
    conf = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.memory": "1g",
        **FOR_FEW_ROWS,
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": NO_PYTHON,
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
    }
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    environment = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "JAVA_HOME", "LANG"}}
    return subprocess.run(
        [
            str(spark_home() / "bin" / "spark-submit"),
            "--master",
            master,
            *options,
            str(ROOT / "spark" / "job.py"),
            *arguments,
        ],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_submitted_job_gives_the_report_of_a_local_run(
    spark: SparkSession, brokers: LocalKafka, cut: Manifest, standalone: LocalSpark, tmp_path: Path
) -> None:
    here = Lake(tmp_path / "here")
    with here.lock():
        [expected], _ = work(spark, here, cut, brokers.bootstrap_servers, progress=Progress())
    manifest, there = tmp_path / "manifest.json", tmp_path / "there"
    manifest.write_bytes(encode(cut))
    servers = brokers.bootstrap_servers
    options = ("--lake", str(there), "--manifest", str(manifest), "--bootstrap-servers", servers)
    # In payments.raw, the markers of transactions are offsets without a record
    refused, kept = submit(standalone.url, *options), list[str]()
    assert refused.returncode == 2, refused.stderr
    assert "land the cut with `once reconcile`" in refused.stdout.splitlines()[-1]
    with Lake(there).lock():
        land(
            spark,
            cut,
            servers,
            Lake(there),
            Progress(kept.append),
            lambda *where: asyncio.run(offsets_uncovered(servers, *where)),
        )
    assert kept
    assert all(line.startswith("kept ") for line in kept), "the submitted job's files are landed"
    done = submit(standalone.url, *options)
    assert done.returncode == 0, done.stderr
    report = Runs(Lake(there)).folder(cut.cut_id) / "report.json"
    said = done.stdout.splitlines()
    assert said[-1] == str(report)
    assert report.read_bytes() == (Runs(here).folder(cut.cut_id) / "report.json").read_bytes()
    assert (report.with_suffix(".html")).read_bytes() == (Runs(here).folder(cut.cut_id) / "report.html").read_bytes()
    assert expected.verdict == "clean"
    assert expected.figures["records_in"] > 0
    assert f"reconcile: reconciling cut {cut.cut_id}" in said
    wait_until(lambda: len(standalone.applications()) > 1, "the master knows that both have ended")
    assert [application["name"] for application in standalone.applications()] == ["once", "once"]
    assert report.with_name("metrics.prom").read_text().count("once_reconcile_clean 1.0") == 1


@pytest.mark.timeout(1800)
def test_a_night_survives_its_executors(
    spark: SparkSession, brokers: LocalKafka, cut: Manifest, standalone: LocalSpark, tmp_path: Path
) -> None:
    # Outputs of records that the ledger did not commit are breaks: a check has rows to keep
    none_committed = dict.fromkeys(cut.groups["ledger"], 0)
    torn = seal(structs.replace(cut, groups={**cut.groups, "ledger": none_committed}, digest=""))
    here = Lake(tmp_path / "here")
    with here.lock():
        [expected] = work(spark, here, torn, brokers.bootstrap_servers, progress=Progress()).reports
    manifest, there = tmp_path / "manifest.json", Lake(tmp_path / "there")
    manifest.write_bytes(encode(torn))
    options = {
        "--master": standalone.url,
        "--worker": str(standalone.worker.process.pid),
        "--lake": str(there.root),
        "--manifest": str(manifest),
        "--bootstrap-servers": brokers.bootstrap_servers,
    }
    done = subprocess.run(
        [sys.executable, "-m", lost_executors.__name__, *(word for option in options.items() for word in option)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": NO_PYTHON},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["killed"] == list(lost_executors.MOMENTS)
    assert said["failed_tasks"] >= 2  # of the two that were killed with tasks
    assert expected.breaks.total > 0
    for name in ("report.json", "report.html"):
        assert (Runs(there).folder(torn.cut_id) / name).read_bytes() == (
            Runs(here).folder(torn.cut_id) / name
        ).read_bytes()
    assert there.landed(torn).rows == here.landed(torn).rows


def test_a_job_that_cannot_run_reports_why(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text("{}")
    done = submit("local[1]", "--lake", str(tmp_path / "lake"), "--manifest", str(manifest))
    assert done.returncode == 2
    [line] = done.stdout.splitlines()
    assert line.startswith("reconcile: this is no manifest")
