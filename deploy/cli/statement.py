"""`once statement`: the bookings of one account, from the landed tables."""

from datetime import datetime

import click

from deploy.cli.reconcile import lake_option
from deploy.cli.sql import as_of_option, ask, limit_option, rows_json_option
from spark.lake import Lake
from spark.movements import STATEMENT_OF_DAYS_SQL

_DAY = click.DateTime(["%Y-%m-%d"])


@click.command()
@click.argument("account")
@click.option("--from", "first", type=_DAY, help="First day in UTC; balances include earlier bookings.")
@click.option("--to", "last", type=_DAY, help="Last day in UTC.")
@as_of_option
@lake_option
@limit_option
@rows_json_option
def statement(
    account: str, first: datetime | None, last: datetime | None, as_of: str | None, lake: Lake, limit: int
) -> None:
    """Print an account's statement: each booking, with its counterparty and the balance after it.

    It is as of the last cut that `once reconcile` landed, or of --as-of. Amounts are minor units. House accounts are
    named with their partition, such as fees@3. An account that has no booking has no line.

    Exit codes: 0 shown, 1 it failed, 2 wrong usage, 3 nothing has landed.
    """
    days = {"first": first.date() if first else None, "last": last.date() if last else None}
    ask(STATEMENT_OF_DAYS_SQL, {"account": account, **days}, lake, limit, as_of)
