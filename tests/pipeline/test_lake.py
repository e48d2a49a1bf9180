"""The lake: when a cut counts as landed, how alterations are detected, and no trace of a killed landing."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark import lake as lake_module
from spark.lake import Lake, LakeError, LakeLockedError, Landed, LandedTable, Span, write_atomically
from spark.land import read_back
from spark.manifest import INPUTS, LANDED_TOPICS, PARTITIONS_MAX, VERSION, Manifest, Range, seal
from spark.schemas import TABLES
from spark.staging import Staging
from tests.harness import ROOT

FIRST, SECOND = "2026-01-05", "2026-01-06"
ROWS = {"payments": 3, "postings": 5}


def cut(previous: Manifest | None = None, end: int = 10) -> Manifest:
    start, sequence = (0, 1) if previous is None else (previous.topics["payments.raw"][0].end, previous.sequence + 1)
    topics = {topic: {0: Range(start, start + end, start + end)} for topic in LANDED_TOPICS}
    digest = "" if previous is None else previous.digest
    groups: dict[str, dict[int, int]] = {group: {} for group in INPUTS}
    return seal(Manifest(VERSION, sequence, 5, "kafka", topics, groups, settled=True, previous=digest))


def written(lake: Lake, manifest: Manifest) -> Staging:
    """A staged cut as Spark's tasks leave it: names unique to the run, and files that are not data."""
    staging = Staging(lake, manifest)
    job = os.urandom(4).hex()
    for table, part, day, task, content in (
        ("payments", 1, FIRST, 1, b"first day, second task"),
        ("payments", 1, FIRST, 0, b"first day, first task"),
        ("payments", 1, SECOND, 0, b"second day"),
        ("postings", 4, FIRST, 11, b"postings, last task"),
        ("postings", 4, FIRST, 2, b"postings, first task"),
        ("postings", 3, FIRST, 12, b"postings, of an earlier job"),
    ):
        folder = staging.directory(table, part) / f"day={day}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{task:05d}-{job}.c000.snappy.parquet").write_bytes(content)
        (folder / f".part-{task:05d}-{job}.c000.snappy.parquet.crc").write_bytes(b"checksum")
        (folder.parent / "_SUCCESS").touch()
    return staging


def landing(root: Path, previous: Manifest | None = None) -> tuple[Lake, Manifest, Landed]:
    lake, manifest = Lake(root), cut(previous)
    return lake, manifest, written(lake, manifest).publish(ROWS)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_cut_is_published_under_names_that_say_cut_and_order(tmp_path: Path) -> None:
    lake, manifest, landed = landing(tmp_path)
    assert {path: content for path, content in tree(tmp_path).items() if path.startswith("tables")} == {
        f"tables/payments/day={FIRST}/{manifest.cut_id}-00000.parquet": b"first day, first task",
        f"tables/payments/day={FIRST}/{manifest.cut_id}-00001.parquet": b"first day, second task",
        f"tables/payments/day={SECOND}/{manifest.cut_id}-00000.parquet": b"second day",
        f"tables/postings/day={FIRST}/{manifest.cut_id}-00000.parquet": b"postings, of an earlier job",
        f"tables/postings/day={FIRST}/{manifest.cut_id}-00001.parquet": b"postings, first task",
        f"tables/postings/day={FIRST}/{manifest.cut_id}-00002.parquet": b"postings, last task",
    }
    assert lake.cuts() == [manifest]
    assert lake.landed(manifest) == landed
    assert landed.rows == {**dict.fromkeys(TABLES, 0), **ROWS}
    assert [file.path for file in landed.files] == [path for path in tree(tmp_path) if path.startswith("tables")]
    lake.verify([manifest])
    assert not list(tmp_path.glob(".staging/*"))


def test_a_second_landing_leaves_the_same_bytes(tmp_path: Path) -> None:
    landing(tmp_path / "a")
    landing(tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    landing(tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


class KilledError(BaseException):
    """In place of SIGKILL: no code may handle it."""


def test_a_landing_killed_at_any_step_does_not_count_and_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, whole = landing(tmp_path / "whole")
    steps = 0

    def killed_after(name: str, original: Callable[..., object], left: int) -> Callable[..., object]:
        def step(*args: object, **named: object) -> object:
            nonlocal left
            if not left:
                raise KilledError(name)
            left -= 1
            return original(*args, **named)

        return step

    for name in ("replace", "fsync"):
        original = getattr(os, name)
        for left in range(100):
            lake, manifest = Lake(tmp_path / f"{name}-{left}"), cut()
            staging = written(lake, manifest)
            with monkeypatch.context() as patched:
                patched.setattr(os, name, killed_after(name, original, left))
                try:
                    staging.publish(ROWS)
                    break
                except KilledError:
                    steps += 1
            # The last step follows the list: then the cut has landed, and is complete
            if lake.cuts():
                lake.verify([manifest])
            assert written(lake, manifest).publish(ROWS) == whole
            assert tree(lake.root) == tree(tmp_path / "whole")
        else:
            pytest.fail("it never ended")
    renamed, folders = 6 + 2, 7 + 2  # files, evidence and list; three days in two tables, and their parent folders
    assert steps == renamed + renamed + folders


def test_only_leftovers_of_killed_landings_are_removed(tmp_path: Path) -> None:
    lake, first, _ = landing(tmp_path)
    before = tree(tmp_path)
    second = cut(first)
    day = tmp_path / "tables" / "payments" / f"day={FIRST}"
    stale = day / f"{second.cut_id}-00002.parquet", day / "000002-00000000-00000.parquet"
    stranger = day / "by-hand.parquet"
    for path in (*stale, stranger):
        path.write_bytes(b"of a try with more tasks, of a cut that was taken again, of another program")
    (tmp_path / ".staging").mkdir()
    (tmp_path / ".staging" / "000002-00000000.publishing").touch()
    staging = written(lake, cut(first, end=20))
    written(lake, second).publish(ROWS)
    assert not any(path.exists() for path in stale)
    assert stranger.exists()
    assert before.items() <= tree(tmp_path).items()
    lake.verify(lake.cuts())
    with pytest.raises(LakeError, match="in 0 files"):
        staging.publish(ROWS)


def test_rows_without_files_and_files_without_rows_are_refused(tmp_path: Path) -> None:
    for rows in ({**ROWS, "payments": 0}, {**ROWS, "declines": 1}):
        lake, manifest = Lake(tmp_path), cut()
        with pytest.raises(LakeError, match="rows of"):
            written(lake, manifest).publish(rows)
        assert lake.cuts() == []
        with pytest.raises(LakeError, match="has not landed"):
            lake.landed(manifest)


def test_every_file_that_is_gone_altered_or_unlisted_is_named(tmp_path: Path) -> None:
    lake, manifest, landed = landing(tmp_path)
    gone, altered, longer = (tmp_path / landed.files[number].path for number in (0, 2, 5))
    gone.unlink()
    altered.write_bytes(b"Second day")
    longer.write_bytes(longer.read_bytes() + b"\0")
    unlisted = tmp_path / "tables" / "declines" / f"day={FIRST}" / f"{manifest.cut_id}-00000.parquet"
    unlisted.parent.mkdir(parents=True)
    unlisted.touch()
    with pytest.raises(LakeError) as raised:
        lake.verify([manifest])
    assert str(raised.value).split("; ") == [
        f"{gone.relative_to(tmp_path)} is gone",
        f"{altered.relative_to(tmp_path)} was altered",
        f"{longer.relative_to(tmp_path)} was altered",
        f"{unlisted.relative_to(tmp_path)}: not listed by its cut",
    ]


def test_cuts_are_a_chain_without_a_gap(tmp_path: Path) -> None:
    lake, first, _ = landing(tmp_path)
    _, second, _ = landing(tmp_path, first)
    _, third, _ = landing(tmp_path, second)
    assert lake.cuts() == [first, second, third]

    second_list = lake.cut_directory(second) / "landed.json"
    text = second_list.read_bytes()
    second_list.unlink()
    with pytest.raises(LakeError, match=f"no chain: cut {third.cut_id} does not follow"):
        lake.cuts()
    write_atomically(second_list, text)
    (lake.cut_directory(first) / "landed.json").unlink()
    with pytest.raises(LakeError, match=f"the cut before {second.cut_id} is missing"):
        lake.cuts()


def test_an_altered_manifest_or_list_is_noticed(tmp_path: Path) -> None:
    lake, first, landed = landing(tmp_path)
    folder = lake.cut_directory(first)
    manifest, text = (folder / "manifest.json").read_bytes(), (folder / "landed.json").read_bytes()

    (folder / "manifest.json").write_bytes(manifest.replace(b'"settled": true', b'"settled": false'))
    with pytest.raises(LakeError, match="was altered"):
        lake.cuts()
    (folder / "manifest.json").unlink()
    with pytest.raises(LakeError, match="is gone"):
        lake.cuts()
    write_atomically(folder / "manifest.json", manifest)

    other = msgspec.json.encode(msgspec.structs.replace(landed, manifest="0" * 64))
    for altered, error in ((text[:-3], "was altered"), (b"\xff", "was altered"), (other, "is not the list of cut")):
        (folder / "landed.json").write_bytes(altered)
        with pytest.raises(LakeError, match=error):
            lake.verify([first])

    folder.rename(folder.with_name("000001-00000000"))
    with pytest.raises(LakeError, match="is the manifest of cut"):
        lake.cuts()


def test_one_run_at_a_time_holds_the_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "new")
    program = (
        f"from pathlib import Path; from spark.lake import Lake; Lake(Path({str(lake.root)!r})).lock().__enter__()"
    )
    with lake.lock():
        other = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        assert LakeLockedError.__name__ in other.stderr
        assert "wait until it ends, or stop it" in other.stderr
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    with lake.lock():
        pass


ACCOUNTS = "account_closings"


def account_rows(spark: SparkSession, lake: Lake, manifest: Manifest, rows: dict[int, list[int]]) -> Landed:
    """Land rows by their offsets, by partition, in a file for each."""
    staging, schema = Staging(lake, manifest), TABLES[ACCOUNTS].schema
    topic, day = TABLES[ACCOUNTS].topic, date(2026, 1, 5)
    for partition, offsets in rows.items():
        at = {"topic": topic, "partition": partition, "day": day}
        blank = [{**at, "offset": offset, "account": f"{partition}-{offset}"} for offset in offsets]
        frame = spark.createDataFrame(blank, schema).coalesce(1)
        frame.write.partitionBy("day").parquet(f"file://{staging.directory(ACCOUNTS, partition)}")
    files = read_back(spark, staging.files())
    return staging.publish({ACCOUNTS: sum(map(len, rows.values()))}, {path: file.spans for path, file in files.items()})


def test_a_bounded_read_opens_only_files_with_such_rows_and_passes_the_bounds_to_parquet(
    tmp_path: Path, spark: SparkSession
) -> None:
    lake, first = Lake(tmp_path / "with space % and +"), cut()
    landed = account_rows(spark, lake, first, {0: [1, 2, 3], 1: [5, 9], 2: [7]})
    assert [file.spans for file in landed.files] == [
        {"ledger.transfers": {0: Span(3, 1, 3)}},
        {"ledger.transfers": {1: Span(2, 5, 9)}},
        {"ledger.transfers": {2: Span(1, 7, 7)}},
    ]

    def read(bounds: dict[int, tuple[int, int]]) -> DataFrame:
        return lake.read(spark, ACCOUNTS, [first], bounds=bounds)

    def accounts(bounds: dict[int, tuple[int, int]]) -> tuple[list[str], int]:
        rows = read(bounds)
        return sorted(row.account for row in rows.collect()), len(rows.inputFiles())

    assert accounts({0: (2, 4)}) == (["0-2", "0-3"], 1)
    assert accounts({0: (0, 2), 1: (5, 9), 3: (0, 9)}) == (["0-1", "1-5"], 2)
    assert accounts({0: (1, 4), 1: (1, 4)}) == (["0-1", "0-2", "0-3"], 1)
    assert accounts({1: (6, 9)}) == ([], 1)
    assert accounts({0: (4, 9), 2: (7, 7)}) == ([], 0)
    assert accounts({}) == ([], 0)
    many = {number: (number, number + 5) for number in range(PARTITIONS_MAX)}
    assert accounts(many) == (["0-1", "0-2", "0-3", "1-5"], 2)
    pushed = pushed_filters(spark, read({0: (2, 4), 1: (5, 9)}))
    assert "GreaterThanOrEqual(offset,2)" in pushed
    assert "LessThan(offset,9)" in pushed
    assert "EqualTo(partition,1)" in pushed


def pushed_filters(spark: SparkSession, rows: DataFrame) -> str:
    spark.conf.set("spark.sql.maxMetadataStringLength", "10000")
    try:
        plan: str = rows._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.maxMetadataStringLength")
    return plan.split("PushedFilters: ")[1].split("ReadSchema", maxsplit=1)[0]


def test_reading_many_files_starts_no_job_before_an_action(tmp_path: Path, spark: SparkSession) -> None:
    lake, first = Lake(tmp_path), cut()
    [file] = account_rows(spark, lake, first, {0: [1]}).files
    path = tmp_path / file.path
    many = [file.path.replace("-00000", f"-{number:05d}") for number in range(40)]  # from 33 on, Spark lists in a job
    for name in many[1:]:
        (tmp_path / name).write_bytes(path.read_bytes())
    listed = lake.landed(first)
    files = tuple(msgspec.structs.replace(file, path=name) for name in many)
    changed = msgspec.structs.replace(listed, tables={ACCOUNTS: LandedTable(40, files)})
    (lake.cut_directory(first) / "landed.json").write_bytes(msgspec.json.encode(changed))

    def jobs(group: str) -> int:
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))

    threshold = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    configured = spark.conf.get(threshold)
    try:
        spark.sparkContext.setJobGroup("by name", "as configured")
        rows = lake.read(spark, ACCOUNTS, [first])
        assert jobs("by name") == 0
        assert rows.count() == 40
        assert jobs("by name") == 1
        spark.conf.set(threshold, "32")
        spark.sparkContext.setJobGroup("listing", "Spark's default")
        lake.read(spark, ACCOUNTS, [first])
        assert jobs("listing") == 1
    finally:
        spark.conf.set(threshold, str(configured))
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type] # clears it


def test_a_list_is_decoded_once_and_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, first, landed = landing(tmp_path)
    decoded = []

    def decode(text: bytes) -> Landed:
        decoded.append(text)
        return msgspec.json.decode(text, type=Landed)

    monkeypatch.setattr(lake_module, "_list", decode)
    assert lake.landed(first) == lake.landed(first) == landed
    assert len(decoded) == 1
    path = lake.cut_directory(first) / "landed.json"
    path.write_bytes(path.read_bytes() + b"\n")
    assert lake.landed(first) == landed
    lake.verify([first])  # compares what is on disk, whatever was read before
    assert len(decoded) == 3


def test_a_lake_of_the_version_before_is_read_and_continued(tmp_path: Path) -> None:
    lake, first, landed = landing(tmp_path)
    of_version_1 = {
        "version": 1,
        "cut_id": first.cut_id,
        "manifest": first.digest,
        "tables": {
            name: {"rows": table.rows, "files": [msgspec.to_builtins(file) for file in table.files]}
            for name, table in landed.tables.items()
        },
    }
    (lake.cut_directory(first) / "landed.json").write_bytes(msgspec.json.encode(of_version_1))
    (lake.cut_directory(first) / "evidence.json").unlink()
    assert lake.landed(first).files == landed.files
    assert lake.landed(first).counts == {}
    second = cut(first)
    written(lake, second).publish(ROWS)
    lake.verify([first, second])


def test_a_cut_that_was_taken_is_kept_until_it_has_landed_or_is_dropped(tmp_path: Path) -> None:
    lake, first, _ = landing(tmp_path)
    assert lake.pending() is None
    second, other = cut(first), cut(first, end=20)
    Staging(lake, second)
    assert lake.pending() == second
    assert lake.cuts() == [first]
    later = seal(msgspec.structs.replace(other, taken_at_ms=other.taken_at_ms + 1))
    Staging(lake, later)
    assert lake.pending() == later
    lake.drop(later)
    written(lake, second).publish(ROWS)
    assert lake.pending() is None
    with pytest.raises(LakeError, match="has landed"):
        lake.drop(second)


def test_a_finished_job_is_kept_unless_its_files_changed(tmp_path: Path) -> None:
    lake, manifest = Lake(tmp_path), cut()
    staging = written(lake, manifest)
    done = staging.finish(1, {"payments": 3})
    assert [file.path.split("/")[1] for file in done.files] == ["table=payments"] * 3
    again = Staging(lake, manifest)
    assert (again.job(1), again.job(4)) == (done, None)
    assert {path.parents[2].name for path in again.files()} == {"00000001"}
    for path, content in ((again.files()[0], b"altered"), (again.root / "00000001.json", b"{")):
        path.write_bytes(content)
        redone = Staging(lake, manifest)
        assert redone.job(1) is None
        assert redone.files() == []
        written(lake, manifest).finish(1, {"payments": 3})
        again = Staging(lake, manifest)
        assert again.job(1) is not None
    staging = written(lake, cut(end=20))  # another cut took its place
    assert Staging(lake, manifest).files() == []
    assert not staging.root.exists()


def test_only_listed_files_are_read(tmp_path: Path, spark: SparkSession) -> None:
    lake, table = Lake(tmp_path), TABLES["account_closings"]
    first = cut()
    second = cut(first)

    def write(manifest: Manifest, rows: list[tuple[str, int, date]]) -> None:
        staging = Staging(lake, manifest)
        blank = [{"account": account, "offset": offset, "day": day} for account, offset, day in rows]
        frame = spark.createDataFrame(blank, table.schema).coalesce(1)
        frame.write.partitionBy("day").parquet(f"file://{staging.directory(table.name, 0)}")
        staging.publish({table.name: len(rows)})

    write(first, [("a", 1, date(2026, 1, 5)), ("b", 2, date(2026, 1, 6))])
    write(second, [("c", 3, date(2026, 1, 6))])
    (tmp_path / "tables" / table.name / "day=2026-01-06" / "stray.parquet").write_bytes(b"not read")

    def accounts(*cuts: Manifest) -> list[tuple[str, int, date]]:
        frame = lake.read(spark, table.name, cuts)
        assert frame.schema == table.schema
        return [(row.account, row.offset, row.day) for row in frame.orderBy("offset").collect()]

    assert accounts(first, second) == [
        ("a", 1, date(2026, 1, 5)),
        ("b", 2, date(2026, 1, 6)),
        ("c", 3, date(2026, 1, 6)),
    ]
    assert accounts(second) == [("c", 3, date(2026, 1, 6))]
    assert accounts() == []
    assert lake.read(spark, "postings", [first, second]).count() == 0
    with pytest.raises(LakeError, match="has not landed"):
        lake.read(spark, table.name, [cut(second)])
