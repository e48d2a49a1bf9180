"""Landing cuts of a real cluster: exactly what was committed below the ends, once, with the same bytes each time."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from deploy.cut import take_cut
from shared.eos.records import Output, Record
from shared.events import catalogue
from shared.events.headers import Coordinates
from shared.events.installation import OWNERSHIP_KEY
from shared.kafka.runtime.producer import TransactionalProducer
from spark import land as land_module
from spark import session
from spark.lake import Lake, LakeError
from spark.land import land, slices
from spark.manifest import LANDED_TOPICS, Manifest, ManifestError, Range, seal
from spark.metrics import Progress
from spark.schemas import TABLES, UNDECODABLE
from tests.harness import cluster
from tests.pipeline.worlds import Volume
from tests.tiers import full
from tests.topics import Topics, producing

pytestmark = pytest.mark.timeout(600)

SKIPPED_KEYS = (b"next_offset", b"trust/redis")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster for this module alone: a cut covers whole topics."""
    with cluster(tmp_path_factory.mktemp("landing")) as kafka:
        yield kafka.bootstrap_servers


class Night:
    """A world on the brokers, and its cuts."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self.world = Volume(rounds=2)
        self.world.remove(self.world.take("plain").debit)
        self.world.open("opening", "opened", overdraft_minor=None)
        self.strange = self.world.outcome(
            catalogue.PAYMENTS_ACCEPTED, self.world.raw(b"\xff", 3), b"between services, a defect"
        )
        self.repeated = self.world.outcome(catalogue.PAYMENTS_DEDUPLICATED, self.world.raw(b"{", 3), b"{}")
        self.topics = Topics(brokers, self.world)
        asyncio.run(self.topics.write())
        self.cuts: list[Manifest] = []
        self.cut()

    def cut(self) -> Manifest:
        previous = self.cuts[-1] if self.cuts else None
        self.cuts.append(asyncio.run(take_cut(self.brokers, previous, now_ms=1, settle_s=0.1)))
        return self.cuts[-1]

    def grow(self) -> Manifest:
        """Add a round of payments, and take a cut."""
        self.world.round()
        asyncio.run(self.topics.write())
        return self.cut()

    def land(self, spark: SparkSession, lake: Lake, *cuts: Manifest) -> list[str]:
        said: list[str] = []
        for cut in cuts:
            land(spark, cut, self.brokers, lake, Progress(said.append))
        return said

    def committed(self, cut: Manifest) -> Counter[Coordinates]:
        """Coordinates of every record that a cut covers."""
        return Counter(
            Coordinates(topic, partition, record.offset)
            for (topic, partition), records in self.world.logs.items()
            for record in records
            if landed(record) and covers(cut.topics[topic][partition], record.offset)
        )


def landed(record: Record) -> bool:
    wanted = record.key == OWNERSHIP_KEY if record.topic == catalogue.INSTALLATION else record.key not in SKIPPED_KEYS
    return record.topic in LANDED_TOPICS and wanted


def covers(offsets: Range, offset: int) -> bool:
    return offsets.start <= offset < offsets.end


def found(spark: SparkSession, lake: Lake, *cuts: Manifest) -> Counter[Coordinates]:
    """Coordinates of every row of every table."""
    return Counter(
        Coordinates(row.topic, row.partition, row.offset)
        for table in TABLES
        for row in lake.read(spark, table, cuts).select("topic", "partition", "offset").collect()
    )


def tree(lake: Lake) -> dict[str, bytes]:
    return {str(path.relative_to(lake.root)): path.read_bytes() for path in lake.root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def night(brokers: str) -> Night:
    return Night(brokers)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, night: Night) -> Lake:
    """The first cut, landed."""
    made = Lake(tmp_path_factory.mktemp("lake"))
    assert {line.split()[1].rstrip(":") for line in night.land(spark, made, night.cuts[0])} == set(LANDED_TOPICS)
    return made


def test_every_committed_record_is_one_row(spark: SparkSession, night: Night, lake: Lake) -> None:
    cut = night.cuts[0]
    committed = night.committed(cut)
    assert len(committed) > 300
    assert found(spark, lake, cut) == committed
    landed_rows = lake.landed(cut)
    assert sum(landed_rows.rows.values()) == committed.total()
    by_partition = Counter((at.topic, at.partition) for at in committed.elements())
    counted = {(topic, number): one for topic, of in landed_rows.counts.items() for number, one in of.items()}
    assert {at: one.rows for at, one in counted.items() if one.rows} == by_partition
    assert all(one.rows <= one.offsets == cut.topics[at[0]][at[1]].end for at, one in counted.items())
    empty = {name for name, rows in lake.landed(cut).rows.items() if not rows}
    assert empty == {"effect_resolutions"}
    lake.verify([cut])


def test_aborted_records_are_left_out_and_undecodable_ones_kept(spark: SparkSession, night: Night, lake: Lake) -> None:
    removed = set(night.world.removed)
    assert removed
    assert not removed & set(found(spark, lake, night.cuts[0]))
    rows = lake.read(spark, UNDECODABLE, night.cuts[:1]).collect()
    kept = {Coordinates(row.topic, row.partition, row.offset): bytes(row.value) for row in rows}
    assert kept == {night.strange: b"between services, a defect", night.repeated: b"{}"}
    assert lake.landed(night.cuts[0]).rows[UNDECODABLE] == 2


def test_a_small_cut_has_one_file_for_each_table_and_day(night: Night, lake: Lake) -> None:
    files = lake.landed(night.cuts[0]).files
    # Records of requests are as old as the test, all others as old as the world
    per_table = Counter(file.path.split("/")[1] for file in files)
    assert set(per_table.values()) == {1, 2}
    assert per_table[UNDECODABLE] == 2  # of two topics
    assert all(file.path.endswith(("-00000.parquet", "-00001.parquet")) for file in files)


def test_only_values_that_are_often_the_same_have_a_dictionary(spark: SparkSession, night: Night, lake: Lake) -> None:
    columns = {name for table in TABLES.values() for name in table.schema.names}
    assert set(land_module._DISTINCT) < columns, "Parquet ignores what is said of other names"
    of_payments = next(file for file in lake.landed(night.cuts[0]).files if "/payments/" in file.path)
    with land_module.parquet_reader(spark, lake.root / of_payments.path) as reader:
        chunks = reader.getFooter().getBlocks().get(0).getColumns()
        found = {chunk.getPath().toDotString() for chunk in chunks if chunk.hasDictionaryPage()}
    # All timestamps of this world are the same, so that they would have one
    assert {"topic", "debtor"} <= found
    assert found.isdisjoint(land_module._DISTINCT)


def test_landing_again_verifies_and_writes_nothing(spark: SparkSession, night: Night, lake: Lake) -> None:
    times = {path: path.stat().st_mtime_ns for path in lake.root.rglob("*")}
    assert night.land(spark, lake, night.cuts[0]) == []
    assert {path: path.stat().st_mtime_ns for path in lake.root.rglob("*")} == times
    file = lake.root / lake.landed(night.cuts[0]).files[0].path
    content = file.read_bytes()
    try:
        file.write_bytes(content[:-1])
        with pytest.raises(LakeError, match="altered"):
            night.land(spark, lake, night.cuts[0])
    finally:
        file.write_bytes(content)


class KilledError(BaseException):
    """In place of SIGKILL: no code may handle it."""


@full
def test_a_landing_killed_on_the_way_and_one_elsewhere_give_the_same_bytes(
    spark: SparkSession, night: Night, lake: Lake, tmp_path: Path
) -> None:
    other = Lake(tmp_path)

    def die(line: str) -> None:
        raise KilledError(line)

    with pytest.raises(KilledError):
        land(spark, night.cuts[0], night.brokers, other, Progress(die))
    assert list(tmp_path.glob(".staging/*/*"))
    assert other.cuts() == []
    night.land(spark, other, night.cuts[0])
    first = {path: content for path, content in tree(lake).items() if night.cuts[0].cut_id in path}
    assert {path: content for path, content in tree(other).items() if not path.startswith(".")} == first


@full
def test_a_landing_that_failed_keeps_the_jobs_that_have_finished(
    spark: SparkSession, night: Night, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = msgspec.structs.replace(night.cuts[0].settings, records_max=50)
    cut = seal(msgspec.structs.replace(night.cuts[0], settings=settings))
    other, said, original = Lake(tmp_path), list[str](), session.read_topic

    def lost(
        spark: SparkSession, brokers: session.Brokers, topic: str, pinned: dict[int, tuple[int, int]]
    ) -> DataFrame:
        if topic == catalogue.EFFECTS_RESULTS:
            raise ConnectionError(topic)
        return original(spark, brokers, topic, pinned)

    with monkeypatch.context() as patch:
        patch.setattr(session, "read_topic", lost)
        with pytest.raises(ConnectionError):
            land(spark, cut, night.brokers, other, Progress(said.append))
    assert other.cuts() == []
    assert other.pending() == cut
    landed_first = [line.split(":")[0].removeprefix("landed ") for line in said]
    assert len(landed_first) > len(set(landed_first)), "topics have several jobs"
    # Jobs that had not begun when the first failure was seen do not begin
    assert catalogue.EFFECTS_RESULTS not in landed_first
    said.clear()
    land(spark, cut, night.brokers, other, Progress(said.append))
    kept = [line.split(":")[0].removeprefix("kept ") for line in said if line.startswith("kept ")]
    assert sorted(kept) == sorted(landed_first)
    landed = [line.split(":")[0].removeprefix("landed ") for line in said if line.startswith("landed ")]
    assert sorted(kept + landed) == sorted(job.topic for job in slices(cut))
    assert found(spark, other, cut) == night.committed(cut)
    assert other.landed(cut).rows == lake.landed(night.cuts[0]).rows


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("doubled", r"rows of part-.* of payments_raw have an offset that was landed before"),
        ("lost", r"rows of payments_raw were parsed, and \d+ are on disk"),
        ("footer", r"of payments_raw has \d+ rows, and \d+ by its footer"),
        ("elsewhere", r"of payments_raw has payments.raw:\d from \d+ to \d+, and the cut from"),
    ],
)
def test_a_landing_whose_rows_are_not_those_that_were_read_does_not_count(
    spark: SparkSession, night: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    first, other = night.cuts[0], Lake(tmp_path)
    only = {topic: dict.fromkeys(ranges, Range(0, 0, 0)) for topic, ranges in first.topics.items()}
    topics = {**only, catalogue.PAYMENTS_RAW: first.topics[catalogue.PAYMENTS_RAW]}
    cut = seal(msgspec.structs.replace(first, topics=topics))
    original = land_module.read_back

    def harmed(spark: SparkSession, paths: list[Path]) -> dict[Path, land_module.FileRows]:
        """Change a written file before it is read back."""
        [path] = paths
        rows = spark.read.parquet(f"file://{path}")
        if fault == "doubled":
            write_over(path, rows.union(rows))
        elif fault == "lost":
            write_over(path, rows.limit(rows.count() - 1))
        elif fault == "elsewhere":
            write_over(path, rows.withColumn("offset", rows["offset"] + 1_000_000))
        else:
            count = rows.count() - 1
            monkeypatch.setattr(land_module, "footer_rows", lambda _spark, _path: count)
        return original(spark, paths)

    with monkeypatch.context() as patch:
        patch.setattr(land_module, "read_back", harmed)
        with pytest.raises(LakeError, match=message):
            land(spark, cut, night.brokers, other, Progress(print))
    monkeypatch.undo()
    assert other.cuts() == []
    land(spark, cut, night.brokers, other, Progress(print))
    counts = other.landed(cut).counts
    assert {topic: sum(count.rows for count in of.values()) for topic, of in counts.items()} == {
        catalogue.PAYMENTS_RAW: night.committed(cut).total()
    }
    assert all(count.missing == count.offsets - count.rows for of in counts.values() for count in of.values())


def write_over(path: Path, rows: DataFrame) -> None:
    """Replace a file by one with other rows, in one folder entry as a task would leave it."""
    folder = path.with_name("other")
    rows.coalesce(1).write.parquet(f"file://{folder}")
    [part] = folder.glob("part-*.parquet")
    part.replace(path)
    path.with_name(f".{path.name}.crc").unlink()  # Hadoop's own checksum, which nothing reads once a file is published
    shutil.rmtree(folder)


@full
def test_files_are_split_alike_whenever_there_is_more_to_read(
    spark: SparkSession, night: Night, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "RECORDS_AT_ONCE", 0)
    monkeypatch.setattr(session, "RECORDS_PER_TASK", 20)
    lakes = [Lake(tmp_path / name) for name in ("one", "two")]
    for split in lakes:
        night.land(spark, split, night.cuts[0])
    assert tree(lakes[0]) == tree(lakes[1])
    assert len(lakes[0].landed(night.cuts[0]).files) > 2 * len(lake.landed(night.cuts[0]).files)
    assert lakes[0].landed(night.cuts[0]).rows == lake.landed(night.cuts[0]).rows
    assert found(spark, lakes[0], night.cuts[0]) == night.committed(night.cuts[0])


def test_the_next_cut_adds_each_new_record_once(spark: SparkSession, night: Night, lake: Lake) -> None:
    before = tree(lake)
    second = night.grow()
    nothing_new = night.cut()
    night.land(spark, lake, second, nothing_new)
    assert lake.cuts() == night.cuts[:3]
    assert lake.landed(nothing_new).files == []
    assert found(spark, lake, second) == night.committed(second)
    everything = found(spark, lake, *night.cuts)
    assert everything == night.committed(night.cuts[0]) + night.committed(second)
    assert set(everything.values()) == {1}
    assert before.items() <= tree(lake).items()
    lake.verify(night.cuts)


@pytest_asyncio.fixture
async def open_producer(brokers: str) -> AsyncIterator[TransactionalProducer]:
    producer = await producing(brokers)
    try:
        yield producer
    finally:
        await producer.discard()


async def test_records_of_an_open_transaction_come_with_the_cut_after_it_has_ended(
    spark: SparkSession, night: Night, lake: Lake, open_producer: TransactionalProducer
) -> None:
    topic, previous = catalogue.PAYMENTS_DEAD_LETTER, night.cuts[-1]
    await open_producer.begin()
    open_producer.append([Output(topic, 2, b"open", b"{", ())], 1)
    await open_producer.flush()
    during = await take_cut(night.brokers, previous, now_ms=2, settle_s=0.1, deadline_s=0.3)
    assert not during.settled
    assert not during.topics[topic][2].stable
    await open_producer.commit()
    after = await take_cut(night.brokers, during, now_ms=3, settle_s=0.1)
    for cut, count in ((during, 0), (after, 1)):
        await asyncio.to_thread(night.land, spark, lake, cut)
        assert lake.landed(cut).rows == {**dict.fromkeys(TABLES, 0), **({"dead_letters": count} if count else {})}
    night.cuts += [during, after]


def test_a_cut_that_does_not_follow_is_refused(spark: SparkSession, night: Night, lake: Lake, tmp_path: Path) -> None:
    last = night.cuts[-1]
    stranger = seal(msgspec.structs.replace(last, sequence=last.sequence + 2, previous=last.digest))
    with pytest.raises(ManifestError, match="does not follow"):
        night.land(spark, lake, stranger)
    with pytest.raises(LakeError, match="land them first"):
        night.land(spark, Lake(tmp_path), last)


@full
def test_a_missing_record_fails_the_landing(
    spark: SparkSession, night: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "POLL_TIMEOUT_MS", 5000)
    first, topic = night.cuts[0], catalogue.LEDGER_POSTINGS
    beyond = {number: Range(0, offsets.end + 10_000, 2**40) for number, offsets in first.topics[topic].items()}
    manifest = seal(msgspec.structs.replace(first, topics={**first.topics, topic: beyond}))
    lake = Lake(tmp_path)
    with pytest.raises((PySparkException, Py4JError), match="may have been lost"):
        night.land(spark, lake, manifest)
    assert lake.cuts() == []


def test_ranges_are_clipped_to_records_that_have_not_expired() -> None:
    ranges = {
        0: Range(5, 9, 9, beginning=0),
        1: Range(5, 9, 9, beginning=7),
        2: Range(5, 9, 9, beginning=9),
        3: Range(5, 9, 20, beginning=12),
        4: Range(9, 9, 9),
    }
    assert session.offsets_to_read(ranges) == {0: (5, 9), 1: (7, 9)}
