"""Entry point of the ledger: transfers in; postings, credit legs, effect requests and balances out."""

import sys
from contextlib import AsyncExitStack

from services.ledger.service import LedgerHandler
from shared.events import catalogue
from shared.events.effects import decode_subscriptions
from shared.kafka.client.access import access
from shared.kafka.runtime.global_table import GlobalTable
from shared.kafka.runtime.pipeline import Pipeline
from shared.kafka.runtime.runtime import run_service
from shared.settings import LedgerSettings

TOPICS = [
    catalogue.LEDGER_TRANSFERS,
    catalogue.LEDGER_POSTINGS,
    catalogue.LEDGER_BALANCES,
    catalogue.EFFECTS_REQUESTS,
    catalogue.REFERENCE_SUBSCRIPTIONS,
]


async def build(settings: LedgerSettings, _: AsyncExitStack) -> Pipeline:
    """Build the ledger's pipeline. It follows the subscriptions as well."""
    subscriptions = GlobalTable(access(settings), catalogue.REFERENCE_SUBSCRIPTIONS, bytes.decode, decode_subscriptions)
    return Pipeline(
        service="ledger",
        topic=catalogue.LEDGER_TRANSFERS,
        changelog=catalogue.LEDGER_BALANCES,
        hop=catalogue.LEDGER_POSTINGS,
        handler=lambda partition: LedgerHandler(
            partition,
            settings.reversal_window,
            subscriptions.values,
            subscriptions.places,
            partitions=settings.partitions,
        ),
        resources=(subscriptions,),
    )


if __name__ == "__main__":
    sys.exit(run_service("ledger", LedgerSettings, build, TOPICS))
