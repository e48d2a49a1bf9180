"""A `tests.world.World` as one night's input, through the pipeline's own decoding and without brokers."""

from base64 import b64encode
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shared.eos.records import Record
from spark import balances, totals
from spark.checks import ALL
from spark.decode import parse
from spark.lake import Bounds
from spark.manifest import INPUTS, LANDED_TOPICS, VERSION, Manifest, Range, seal
from spark.night import Night, union
from spark.schemas import TABLES, UNDECODABLE
from spark.session import COLUMNS
from tests.partitions import PARTITIONS
from tests.pipeline.found import Found
from tests.pipeline.nights import rows_of
from tests.pipeline.records import select_table
from tests.topics import ends
from tests.world import World

_KINDS = (StringType(), IntegerType(), LongType(), TimestampType(), BinaryType(), BinaryType())
_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_RECORD = StructType([StructField(name, kind) for name, kind in zip(COLUMNS, (*_KINDS, _HEADERS), strict=True)])
"""Columns of Spark's Kafka source."""


def manifest_of(world: World, *, settled: bool = True) -> Manifest:
    """A cut over the whole world, without open transactions."""
    found = ends(world)
    last = {topic: {p: found.get((topic, p), 0) for p in range(PARTITIONS)} for topic in LANDED_TOPICS}
    topics = {topic: {p: Range(0, end, end) for p, end in of.items()} for topic, of in last.items()}
    groups = {group: {p: world.committed[group].get(p, 0) for p in range(PARTITIONS)} for group in INPUTS}
    return seal(Manifest(VERSION, 1, 1_767_686_400_000, "none", topics, groups, settled))


def night_of(spark: SparkSession, world: World, directory: Path, *, settled: bool = True) -> Night:
    """A run from the beginning.

    Args:
        directory: for the records, as files that Spark can read.
    """

    @cache
    def parsed(topic: str) -> DataFrame:
        path = directory / f"{topic}.json"
        logs = [records for (name, _), records in sorted(world.logs.items()) if name == topic]
        path.write_bytes(b"\n".join(json_line(record) for records in logs for record in records))
        # Drop the lineage: checks plan queries on it many times
        return parse(topic, read_records(spark, path)).localCheckpoint()

    @cache
    def new(table: str) -> DataFrame:
        topics = LANDED_TOPICS if table == UNDECODABLE else (TABLES[table].topic,)
        return union([select_table(topic, parsed(topic), TABLES[table]) for topic in topics])

    def history(table: str, _: Bounds, /) -> DataFrame:
        return new(table).where("false")

    return Night(spark, manifest_of(world, settled=settled), new, history, lambda _: None)


def run(night: Night) -> tuple[list[Row], dict[str, int], dict[str, int], totals.Totals]:
    """Run all checks over a night: breaks, figures, counts in flight, and the totals."""
    breaks: list[Row] = []
    figures: dict[str, int] = {}
    in_flight: dict[str, int] = {}
    for check in ALL.values():
        checked = check(night)
        breaks += rows_of(checked)
        figures |= checked.figures
        in_flight |= checked.in_flight
        night.spark.catalog.clearCache()
    summed = totals.totals(night)
    checked = balances.check(night, summed.currencies)
    breaks += rows_of(checked)
    night.spark.catalog.clearCache()
    return breaks, figures | checked.figures | summed.figures, in_flight | checked.in_flight, summed


def counted(breaks: list[Row]) -> Counter[Found]:
    """Breaks as tests compare them."""
    return Counter(Found(row.kind, row.topic, row.partition, row.offset, row.payment_id) for row in breaks)


def read_records(spark: SparkSession, path: Path) -> DataFrame:
    """Records of a file of `json_line` as Spark's Kafka source gives them."""
    return spark.read.schema(_RECORD).json(f"file://{path}").coalesce(1)


def json_line(record: Record) -> bytes:
    """A record as a line of a file that Spark can read."""
    return msgspec.json.encode(_row(record))


def _row(record: Record) -> dict[str, object]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(),
        "key": _bytes(record.key),
        "value": _bytes(record.value),
        "headers": [{"key": name, "value": _bytes(value)} for name, value in record.headers],
    }


def _bytes(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()
