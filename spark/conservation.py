"""Conservation: for each currency, all balances sum to 0 (I1).

What holds: a posting is in sight as a whole or not at all and balances by itself, so this holds in every cut, under way
or not. A sum that was off before and did not change is not reported again.
"""

from typing import Final

from pyspark.sql import DataFrame

from spark.breaks import frame
from spark.movements import total
from spark.night import BREAKS, Checked, Kind, Night

CHECK: Final = "conservation"


def check(night: Night, every: DataFrame) -> Checked:
    """Sum up each currency.

    Args:
        every: of `spark.movements.accounts`.
    """
    sums = every.groupBy("currency").agg(total("closing").alias("closing"), total("opening").alias("opening")).collect()
    off = [(str(row["currency"]), int(row["closing"]), int(row["opening"])) for row in sums if row["closing"] != 0]
    breaks = [
        broken(CHECK, f"all balances in {currency} sum to {closing}")
        for currency, closing, opening in sorted(off)
        if closing != opening
    ]
    return Checked(
        breaks=frame(night.spark, BREAKS, breaks), figures={"currencies": len(sums), "currencies_off": len(off)}
    )


def broken(check: str, detail: str) -> dict[str, object]:
    """A row of BREAKS about a sum, which no single record is at fault for."""
    return {"kind": Kind.AMOUNT.value, "check": check, "detail": detail}
