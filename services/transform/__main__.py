"""Entry point of transform: payments.accepted in, priced transfers out."""

import sys
from contextlib import AsyncExitStack

from services.transform.domain import ReferenceData
from services.transform.service import TransformHandler
from shared.events import catalogue
from shared.events.reference import decode_fee, decode_rate
from shared.kafka.client.access import access
from shared.kafka.runtime.global_table import GlobalTable
from shared.kafka.runtime.pipeline import Pipeline
from shared.kafka.runtime.runtime import run_service
from shared.settings import RuntimeSettings

TOPICS = [
    catalogue.PAYMENTS_ACCEPTED,
    catalogue.LEDGER_TRANSFERS,
    catalogue.TRANSFORM_PROGRESS,
    catalogue.REFERENCE_FEES,
    catalogue.REFERENCE_RATES,
]


async def build(settings: RuntimeSettings, _: AsyncExitStack) -> Pipeline:
    """Build transform's pipeline. It follows the fees and rates as well."""
    fees = GlobalTable(access(settings), catalogue.REFERENCE_FEES, bytes.decode, decode_fee)
    rates = GlobalTable(access(settings), catalogue.REFERENCE_RATES, bytes.decode, decode_rate)
    reference = ReferenceData(fees.values, rates.values, fees.places, rates.places)
    return Pipeline(
        service="transform",
        topic=catalogue.PAYMENTS_ACCEPTED,
        changelog=catalogue.TRANSFORM_PROGRESS,
        hop=catalogue.LEDGER_TRANSFERS,
        handler=lambda partition: TransformHandler(partition, reference, partitions=settings.partitions),
        resources=(fees, rates),
    )


if __name__ == "__main__":
    sys.exit(run_service("transform", RuntimeSettings, build, TOPICS))
