"""Entry point of ingest: payments.raw in; accepted payments, repeats and dead letters out."""

import sys
from contextlib import AsyncExitStack

from services.ingest.service import IngestHandler, count_outcomes
from shared.events import catalogue
from shared.kafka.runtime.pipeline import Pipeline
from shared.kafka.runtime.runtime import run_service
from shared.settings import IngestSettings

TOPICS = [
    catalogue.PAYMENTS_RAW,
    catalogue.PAYMENTS_ACCEPTED,
    catalogue.PAYMENTS_DEDUPLICATED,
    catalogue.PAYMENTS_DEAD_LETTER,
    catalogue.PAYMENTS_IDENTITIES,
]


async def build(settings: IngestSettings, _: AsyncExitStack) -> Pipeline:
    return Pipeline(
        service="ingest",
        topic=catalogue.PAYMENTS_RAW,
        changelog=catalogue.PAYMENTS_IDENTITIES,
        hop=catalogue.PAYMENTS_ACCEPTED,
        handler=lambda partition: IngestHandler(partition, settings.window, partitions=settings.partitions),
        observe=count_outcomes,
        refuse=IngestHandler.refuse,
    )


if __name__ == "__main__":
    sys.exit(run_service("ingest", IngestSettings, build, TOPICS))
