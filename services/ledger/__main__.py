"""Wires the ledger: transfers in; postings, credit legs and balances out."""

import sys
from contextlib import AsyncExitStack

from services.ledger.service import LedgerHandler
from shared.events import catalogue
from shared.kafka.scope import Pipeline
from shared.kafka.service import run_service
from shared.settings import LedgerSettings

TOPICS = [catalogue.LEDGER_TRANSFERS, catalogue.LEDGER_POSTINGS, catalogue.LEDGER_BALANCES]


async def build(settings: LedgerSettings, _: AsyncExitStack) -> Pipeline:
    """The pipeline of the ledger."""
    return Pipeline(
        service="ledger",
        topic=catalogue.LEDGER_TRANSFERS,
        changelog=catalogue.LEDGER_BALANCES,
        handler=lambda partition: LedgerHandler(partition, settings.reversal_window),
    )


if __name__ == "__main__":
    sys.exit(run_service("ledger", LedgerSettings, build, TOPICS))
