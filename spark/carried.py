"""The tables that a run left for the next one: each in files of its own, the small ones all in one file of JSON.

Small ones are read once, by the driver alone: a query of Spark takes longer than they are worth.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import StringType, StructField, StructType

from spark.lake import LandedFile
from spark.night import Few

CARRY: Final = "carry"
FEW: Final = f"{CARRY}/few"
"""The folder of small tables."""


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table that a run wrote: its schema as Spark writes it in JSON, and its files, relative to the run."""

    schema: str
    files: tuple[LandedFile, ...]


class _Small(msgspec.Struct, frozen=True):
    """A line of the file of small tables."""

    name: str
    schema: str  # as Spark writes it in JSON
    rows: list[dict[str, Any]]


SMALL: Final = StructType([StructField(name, StringType()) for name in _Small.__struct_fields__])
"""The lines of the file of small tables, for a reader that does not know it."""
_decode: Final = msgspec.json.Decoder(_Small).decode


class Carried:
    """The tables that a run left.

    Args:
        directory: of the run; the frames' files are relative to it.
    """

    def __init__(self, spark: SparkSession, directory: Path, frames: Mapping[str, Frame]) -> None:
        self._spark = spark
        self._directory = directory
        self._frames = frames
        files = frames[FEW].files if FEW in frames else ()
        lines = [line for file in files for line in (directory / file.path).read_bytes().splitlines()]
        self._few = {one.name: Few(_schema(one.schema), one.rows) for one in map(_decode, lines)}

    def table(self, name: str) -> DataFrame | None:
        """Return a table; None where the run left none of that name, or one without rows."""
        frame = self._frames.get(f"{CARRY}/{name}")
        if frame is None or not frame.files:
            return None
        return read_files(self._spark, self._directory, frame.files, _schema(frame.schema))

    def few(self, name: str) -> Few | None:
        """Return a small table; None where the run left none of that name."""
        return self._few.get(name)

    def has(self, name: str) -> bool:
        """Whether the run left a table of that name, if only one without rows."""
        return f"{CARRY}/{name}" in self._frames


def encode_few(tables: Mapping[str, Few]) -> bytes:
    """Encode the small tables for the next run, by name; those without rows are left out."""
    lines = [_Small(name, few.schema.json(), [dict(row) for row in few.rows]) for name, few in sorted(tables.items())]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines if line.rows)


def read_files(spark: SparkSession, directory: Path, files: Sequence[LandedFile], schema: StructType) -> DataFrame:
    """Read files of one form."""
    if not files:
        return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in schema))
    form = Path(files[0].path).suffix.removeprefix(".")
    paths = [f"file://{directory / file.path}" for file in files]
    return spark.read.format(form).schema(schema).option("mode", "FAILFAST").load(paths)


def _schema(text: str) -> StructType:
    return StructType.fromJson(msgspec.json.decode(text))
