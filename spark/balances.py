"""The postings' fold against the changelog (I9), conservation (I1), and what is in transit (I5).

What is compared: for each account and currency, the last state in `ledger.balances` with the sum of its postings. The
two topics' ends are pinned apart, so either may show more transactions than the other. With `spark.reach`, exactly:

- K is the largest source of any state in sight on the partition, K = infinity where the changelog is stable there.
  A transaction up to K is in sight with every state that it wrote. So a posting whose source is K or less must be in
  its accounts' last states, and one above K is left out of the sum: its state may come yet.
- M is the largest source of any record of `ledger.postings` in sight on the partition, infinity where that is stable.
  All postings up to M are in sight. So a state whose source is M or less must equal the sum. One whose source is above
  M may contain postings that are not in sight: if it differs, that is in flight.
- What is left out or in flight is decided in a later run: sums and last states are carried, and so are the entries
  that were left out.

A state's source is the last record of a whole transaction, not the one that changed the account. The rule needs
no more: it bounds what the transaction covers, and a posting's source within it is never larger.

What holds: an account whose difference was reported is not reported again while the difference stays as it is; it is
counted (`accounts_off`), and nights add up to what one run over all of them finds. An error that the changelog itself
corrected before the cut is none, as it may be compacted away.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark import conservation, transit
from spark.breaks import frame, union
from spark.changelog import strays
from spark.compare import DIFFERENCES, Standing, judged, sides, unequal
from spark.localise import at_fault, without_state
from spark.movements import ACCOUNT, accounts, movements
from spark.night import Checked, Night
from spark.reach import offsets, posted


def check(night: Night) -> Checked:
    """Balances, conservation and what is in transit. Keeps small tables in memory until the session clears its cache.

    Args:
        night: of which the tables of `ledger.postings`, account_states and credit_legs are read; carried are
            account_balances (of `spark.totals`) and what this check leaves.
    """
    every = accounts(night, movements(night)).persist()
    rows = posted(night).persist()
    seen = offsets(rows)
    parts = (_balances(night, every, seen), conservation.check(night, every), transit.check(night, every, seen))
    return Checked(
        breaks=union([part.breaks for part in parts]),
        figures={name: count for part in parts for name, count in part.figures.items()},
        in_flight={name: count for part in parts for name, count in part.in_flight.items()},
        carry={"postings_reach": rows, **{name: rows for part in parts for name, rows in part.carry.items()}},
    )


def _balances(night: Night, every: DataFrame, seen: dict[int, int]) -> Checked:
    compared = sides(night, every, seen)
    differing = unequal(compared).persist()
    breaks, differences, off = [strays(night)], frame(night.spark, DIFFERENCES), 0
    waiting: list[DataFrame] = [compared.late.select("account")] if compared.covered else []
    if differing.count():
        found = judged(night, compared, differing).persist()
        unknown, there = F.col("standing") == Standing.WAITING.value, F.col("partition").isNotNull()
        # One that is known may have changed and changed back: both changes are told, as in one run over all nights
        breaks.append(at_fault(night, compared, found.where(~unknown & there)))
        breaks.append(without_state(night, found.where((F.col("standing") == Standing.NEW.value) & ~there)))
        waiting.append(found.where(unknown).select("account"))
        reported = F.when(unknown, F.col("known")).otherwise(F.col("difference")).alias("difference")
        differences = found.select(*ACCOUNT, reported).where(F.col("difference").isNotNull())
        off = found.where(~unknown).select("account").distinct().count()
    return Checked(
        breaks=union(breaks),
        figures={"accounts_off": off},
        in_flight={"balances": union(waiting).distinct().count() if waiting else 0},
        carry={"account_states": compared.last, "balance_differences": differences, "postings_late": compared.late},
    )
