"""Reversals that the ledger declined: the payment was not booked, or had been reversed (I3).

The ledger remembers a number of payments of each partition, its setting `reversal_window`. A payment that was booked
more than so many offsets before may have been forgotten: it may be found or not. One that was booked more than so many
bookings before is forgotten, so earlier records are not read.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.transfers import DeclineReason
from spark.decisions.reference import decided
from spark.history import window_begins
from spark.lake import Bounds
from spark.night import Night, union, with_carried
from spark.places import PLACE, Log

CHECK: Final = "reversals declined"

_FAULT: Final = f"""case
    when reason = '{DeclineReason.ORIGINAL_NOT_FOUND.value}' and booked >= offset - {{window}}
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
    window = night.manifest.settings.reversal_window
    debits = union([night.new("postings"), _remembered(night, window)]).where("leg = 'debit'")
    debits = debits.selectExpr(
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
        .selectExpr("*", f"{_FAULT.format(window=window)} as fault")
    )
    at = (f"'{LEDGER_POSTINGS}'", "partition", "offset", "payment_id")
    return decided(judged.where("fault is not null"), CHECK, "fault", at=at)


def _remembered(night: Night, window: int) -> DataFrame:
    """Return postings of earlier cuts: those of payments that the ledger may remember, and all later ones."""

    def booked(bounds: Bounds) -> DataFrame:
        return night.history("postings", bounds).where("leg = 'debit' and not reversal").select("partition", "offset")

    begins = window_begins(night, LEDGER_POSTINGS, window, booked)
    ranges = night.manifest.topics[LEDGER_POSTINGS]
    return night.history("postings", {number: (begin, ranges[number].start) for number, begin in begins.items()})
