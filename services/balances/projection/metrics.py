"""The view's own metrics; what it has in common with other services is in `shared.telemetry.metrics`."""

from typing import Final

from shared.events.catalogue import LEDGER_POSTINGS
from shared.telemetry import catalogue, metrics
from shared.telemetry.instruments import ReadGauge, at_zero, counter, histogram

OVERTAKEN: Final = "overtaken"
GAP: Final = "gap"
EMPTIED: Final = "emptied"
"""Causes to begin anew."""
HOP: Final = "view"
"""The view among the hops of the end-to-end latency."""

TRANSACTION = histogram(catalogue.VIEW_TRANSACTION)
TRANSACTION_RECORDS = histogram(catalogue.VIEW_TRANSACTION_RECORDS)
BEHIND = ReadGauge(catalogue.VIEW_BEHIND)
BEGUN_ANEW = counter(catalogue.VIEW_BEGUN_ANEW)
at_zero(BEGUN_ANEW, [OVERTAKEN, GAP, EMPTIED])
at_zero(metrics.SOURCE_REPEATS, [LEDGER_POSTINGS])
DATABASE_RETRIES = counter(catalogue.VIEW_DATABASE_RETRIES)
