"""`once sql`: query the landed tables in Spark SQL."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the usual alias

from deploy.cli.output import as_json, failing_on, json_option, nothing
from deploy.cli.reconcile import lake_option
from deploy.local.jars import JarError
from deploy.reconciliation import cuts_up_to, spark_session
from shared import settings
from spark.job import ERRORS, explained
from spark.lake import Lake
from spark.manifest import Manifest
from spark.schemas import TABLES

rows_json_option = json_option("Print one JSON object for each row, and all rows.")
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows to show."
)


as_of_option = click.option(
    "--as-of", "as_of", metavar="CUT", help="Up to this cut: its name, its number, or the last of a day in UTC."
)


@click.command()
@click.argument("statement")
@as_of_option
@lake_option
@limit_option
@rows_json_option
def sql(statement: str, as_of: str | None, lake: Lake, limit: int) -> None:
    """Query the tables that `once reconcile` landed, in Spark SQL.

    Every table of the lake is a view of its name, with all landed cuts, or those up to --as-of, and nothing else.
    Amounts are minor units.

    Exit codes: 0 shown, 1 the statement failed, 2 wrong usage, 3 nothing has landed.
    """
    ask(statement, {}, lake, limit, as_of)


def ask(statement: str, arguments: Mapping[str, object], lake: Lake, limit: int, as_of: str | None) -> None:
    """Run a statement with values of its `:names` over all tables of a lake, and print `limit` rows, all as JSON.

    Args:
        as_of: the last cut that the tables show, as of `deploy.reconciliation.cuts_up_to`.

    Raises:
        ClickException: the statement failed.
        SystemExit: nothing has landed.
    """
    chosen = settings.load(settings.ReconcileSettings)
    with failing_on(*ERRORS, JarError, text=explained):
        cuts = lake.cuts()
        if not cuts:
            nothing(f"nothing has landed in {lake.root}: run `once reconcile` first")
        # Not in the lake: a run may be at work there
        with tempfile.TemporaryDirectory(prefix="once-sql-") as name, spark_session(chosen, Path(name)) as spark:
            _create_views(spark, lake, cuts if as_of is None else cuts_up_to(cuts, as_of))
            _print(spark.sql(statement, args=dict(arguments)), limit)


def _create_views(spark: SparkSession, lake: Lake, cuts: Sequence[Manifest]) -> None:
    for table in TABLES:
        lake.read(spark, table, cuts).createOrReplaceTempView(table)


def _print(rows: DataFrame, limit: int) -> None:
    if not as_json():
        rows.show(limit, truncate=False)
        return
    for row in rows.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"})).toLocalIterator():
        click.echo(row[0])
