"""`once sql`: query the landed tables in Spark SQL."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the usual alias

from deploy.cli.reconcile import lake_option, the_lake
from deploy.local.jars import JarError
from deploy.reconciliation import spark_session
from shared import settings
from spark.job import ERRORS, explained
from spark.lake import Lake
from spark.schemas import TABLES

_FAILURES: tuple[type[Exception], ...] = (*ERRORS, JarError)
EXIT_NOTHING = 3

limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows to show."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each row, and all rows.")


@click.command()
@click.argument("statement")
@lake_option
@limit_option
@json_option
def sql(statement: str, lake_directory: Path | None, limit: int, as_json: bool) -> None:
    """Query the tables that `once reconcile` landed, in Spark SQL.

    Every table of the lake is a view of its name, with all landed cuts and nothing else. Amounts are minor units.

    Exit codes: 0 shown, 1 the statement failed, 2 wrong usage, 3 nothing has landed.
    """
    ask(statement, {}, lake_directory, limit, as_json)


def ask(statement: str, arguments: Mapping[str, object], directory: Path | None, limit: int, as_json: bool) -> None:
    """Run a statement over all tables of a lake, and print its rows.

    Args:
        statement: Spark SQL.
        arguments: values of its `:names`.
        directory: the lake; None as `the_lake` has it.
        limit: how many rows to show; all with `as_json`.
        as_json: print one object for each row.

    Raises:
        ClickException: the statement failed.
        SystemExit: nothing has landed.
    """
    chosen = settings.load(settings.ReconcileSettings)
    lake = the_lake(chosen, directory)
    try:
        if not lake.cuts():
            click.echo(f"nothing has landed in {lake.root}: run `once reconcile` first", err=True)
            sys.exit(EXIT_NOTHING)
        # Not in the lake: a run may be at work there
        with tempfile.TemporaryDirectory(prefix="once-sql-") as name, spark_session(chosen, Path(name)) as spark:
            _views(spark, lake)
            _print(spark.sql(statement, args=dict(arguments)), limit, as_json)
    except _FAILURES as error:
        raise click.ClickException(explained(error)) from error


def _views(spark: SparkSession, lake: Lake) -> None:
    cuts = lake.cuts()
    for table in TABLES:
        lake.read(spark, table, cuts).createOrReplaceTempView(table)


def _print(rows: DataFrame, limit: int, as_json: bool) -> None:
    if not as_json:
        rows.show(limit, truncate=False)
        return
    for row in rows.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"})).toLocalIterator():
        click.echo(row[0])
