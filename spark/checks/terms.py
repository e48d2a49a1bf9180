"""Account events that nothing came of: right if they changed nothing, for the ledger posts only what does.

The terms that were in force are those of the account's last event before. An account without any is open, without an
overdraft, a house account without a limit; whether it was there already, postings alone would tell, so an opening with
just these terms may go either way.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark.breaks import breaks, finding, together, union
from spark.links import SILENT, Joined
from spark.night import Checked, Kind, Night

_CHECK = "terms"
_UNCHANGED = """case
    when last is null then p_kind = 'opening'
        and p_overdraft <=> if(instr(p_account, '@') > 0, cast(null as bigint), 0L)
    when last.closed then p_kind = 'closing'
    else p_kind = 'opening' and last.overdraft <=> p_overdraft end"""


def check(night: Night, joined: Joined, hidden: str) -> Checked:
    """Find account events that would have changed the terms, and did not.

    Args:
        night: the run's input.
        joined: the ledger's link.
        hidden: whether what came of a record may stand above the cut.
    """
    if not joined.count(SILENT):
        return Checked(together(night.spark, []))
    silent = joined.rest.where(f"state = '{SILENT}' and not {hidden}").select(
        "p_partition", "p_offset", "p_kind", "p_account", "p_overdraft"
    )
    known = _events(night)
    wanted = known.join(silent.select("p_account"), on=known["account"] == F.col("p_account"), how="left_semi")
    before = (silent["p_account"] == wanted["account"]) & (silent["p_partition"] == wanted["partition"])
    earlier = before & (wanted["source_offset"] < silent["p_offset"])
    last = (
        silent.join(wanted, on=earlier, how="left")
        .groupBy(*silent.columns)
        .agg(F.expr("max_by(if(account is null, null, struct(closed, overdraft)), source_offset)").alias("last"))
    )
    found = finding(
        Kind.MISSING,
        _CHECK,
        "the {event} of {account} changes its terms, and nothing came of it",
        event="p_kind",
        account="p_account",
    )
    rows = last.where(f"not ({_UNCHANGED})")
    broken = breaks(rows, found, "'ledger.transfers'", "p_partition", "p_offset", "null").persist()
    return Checked(together(night.spark, [broken] if broken.count() else []))


def _events(night: Night) -> DataFrame:
    """Every change of an account's terms so far; one for each change that a person made, so there are few."""
    parts = []
    for read in (night.new, night.history):
        for table, closed, overdraft in (
            ("accounts_opened", "false", "overdraft_minor"),
            ("accounts_closed", "true", "cast(null as bigint)"),
        ):
            columns = ("account", "partition", "source_offset", f"{closed} as closed", f"{overdraft} as overdraft")
            parts.append(read(table).selectExpr(*columns))
    return union(parts)
