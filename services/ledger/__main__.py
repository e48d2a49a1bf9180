"""Entry point of the ledger: transfers in; postings, credit legs, effect requests and balances out."""

import sys
from contextlib import AsyncExitStack

from services.ledger.service import LedgerHandler
from shared.events import catalogue
from shared.events.effects import decode_subscriptions
from shared.kafka.admin.installation import installation_id, ownership
from shared.kafka.admin.topics import check_topics
from shared.kafka.client.access import access
from shared.kafka.runtime.global_table import GlobalTable
from shared.kafka.runtime.pipeline import Pipeline
from shared.kafka.runtime.runtime import run_service
from shared.settings import LedgerSettings

TOPICS = [
    catalogue.INSTALLATION,
    catalogue.LEDGER_TRANSFERS,
    catalogue.LEDGER_POSTINGS,
    catalogue.LEDGER_BALANCES,
    catalogue.LEDGER_ACCOUNTS,
    catalogue.EFFECTS_REQUESTS,
    catalogue.REFERENCE_SUBSCRIPTIONS,
]


async def build(settings: LedgerSettings, _: AsyncExitStack) -> Pipeline:
    """Build the ledger's pipeline. It follows the subscriptions as well.

    Raises TopicMismatchError: the installation has no id, or does not say from where on ownership is enforced.
    """
    await check_topics(access(settings), [catalogue.INSTALLATION], settings.partitions)
    installation = await installation_id(access(settings))
    raw_from = (await ownership(access(settings))).raw_from
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
            installation=installation,
            raw_from=raw_from[partition],
        ),
        resources=(subscriptions,),
    )


if __name__ == "__main__":
    sys.exit(run_service("ledger", LedgerSettings, build, TOPICS))
