"""The ledger's changelog as the pipeline compares it: each account's last state, and what its records sum to.

What holds: of each account only the last record counts, as earlier ones may be compacted away. A state without a
readable source is kept, and compared where that needs none. It must not know what a balance should be.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark.breaks import union
from spark.night import BREAKS, Kind, Night
from spark.reach import sourced

STATE: Final = ("account", "partition", "offset", "source_offset", "balances")


def states(night: Night) -> DataFrame:
    """This run's states, all of them.

    Returns:
        account, partition, offset, source_offset (null where the source is none), balances.
    """
    source = F.when(sourced(night), F.col("source_offset")).alias("source_offset")
    return night.new("account_states").select("account", "partition", "offset", source, "balances")


def last_states(night: Night) -> DataFrame:
    """Every account's last state, of this run or carried. To be carried as `account_states`.

    Returns:
        account, partition, offset, source_offset, balances.
    """
    rows = [states(night)]
    before = night.carried("account_states")
    if before is not None:
        rows.append(before.select(*STATE))
    last = F.max_by(F.struct("offset", "source_offset", "balances"), F.col("offset")).alias("last")
    return union(rows).groupBy("account", "partition").agg(last).select("account", "partition", "last.*").select(*STATE)


def logged(last: DataFrame) -> DataFrame:
    """The balances of states.

    Args:
        last: with the columns of `last_states`.

    Returns:
        account, currency, logged (minor units), one row for each currency of each state.
    """
    return last.select("account", F.explode("balances").alias("currency", "logged"))


def strays(night: Night) -> DataFrame:
    """States whose source names no record that can have existed: ORPHAN.

    Returns:
        with the schema BREAKS.
    """
    named = F.col("source_topic").isNotNull() | F.col("source_offset").isNotNull()
    where = [F.col(f"source_{part}").cast("string") for part in ("topic", "partition", "offset")]
    source = F.concat_ws(":", *where)
    detail = F.concat(F.col("account"), F.lit(": its source "), source, F.lit(" is no record of its partition"))
    return (
        night.new("account_states")
        .where(named & ~sourced(night))
        .select(
            F.lit(Kind.ORPHAN.value).alias("kind"),
            F.lit("balances").alias("check"),
            "topic",
            "partition",
            "offset",
            F.lit(None).cast("string").alias("payment_id"),
            detail.alias("detail"),
        )
        .select(*BREAKS.fieldNames())
    )
