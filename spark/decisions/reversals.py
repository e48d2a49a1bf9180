"""Reversals that the ledger declined: the payment was not booked, or had been reversed (I3).

The ledger remembers a number of payments of each partition. A payment that was booked more than REVERSAL_WINDOW offsets
before may have been forgotten: it may be found or not.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.transfers import DeclineReason
from spark.decisions.findings import decided
from spark.night import Night, union, with_carried
from spark.places import PLACE, Log

CHECK: Final = "reversals declined"
REVERSAL_WINDOW: Final = 20_000

_FAULT: Final = f"""case
    when reason = '{DeclineReason.ORIGINAL_NOT_FOUND.value}' and booked >= offset - {REVERSAL_WINDOW}
        then concat('declined for ', reason, ', and ', reverses, ' was booked')
    when reason = '{DeclineReason.ALREADY_REVERSED.value}' and booked is null
        then concat('declined for ', reason, ', and ', reverses, ' was not booked')
    when reason = '{DeclineReason.ALREADY_REVERSED.value}' and reversed is null
        then concat('declined for ', reason, ', and ', reverses, ' was not reversed') end"""


def check(night: Night) -> DataFrame:
    """Return BREAKS of this run's declines of reversals; read history only where there are some."""
    source = Log(night.manifest, LEDGER_TRANSFERS).source()
    own = night.new("declines").where("reversal")
    own = own.selectExpr("partition", "offset", "payment_id", "debtor", "reason", f"{source} as ordered_at")
    ordered = union(
        [frame for frame, _ in with_carried(night, "transfer_reversals", "ledger_parents_transfer_reversals")]
    ).selectExpr(f"{PLACE} as at", "reverses")
    declined = own.join(ordered, on=own["ordered_at"] == ordered["at"], how="inner")
    debits = union([read("postings").where("leg = 'debit'") for read in (night.new, night.history)]).selectExpr(
        "debtor as of_debtor",
        "if(reversal, reverses, payment_id) as of_payment",
        "if(reversal, null, offset) as original",
        "if(reversal, offset, null) as reversing",
    )
    same = (debits["of_debtor"] == declined["debtor"]) & (debits["of_payment"] == declined["reverses"])
    wanted = debits.join(F.broadcast(declined.select("debtor", "reverses")), on=same, how="left_semi")
    judged = (
        declined.join(wanted, on=same, how="left")
        .groupBy("partition", "offset", "payment_id", "reason", "reverses")
        .agg(
            F.expr("max(if(original < offset, original, null)) as booked"),
            F.expr("max(if(reversing < offset, reversing, null)) as reversed"),
        )
        .selectExpr("*", f"{_FAULT} as fault")
    )
    at = (f"'{LEDGER_POSTINGS}'", "partition", "offset", "payment_id")
    return decided(judged.where("fault is not null"), CHECK, "fault", at=at)
