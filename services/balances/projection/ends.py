"""Where the partitions of ledger.postings begin and end, asked of the brokers, and whether a position fits in between.

It must not know what is done with positions.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from services.balances.projection.domain import Position
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.partitions import PARTITIONS
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster

SETTLE_S: Final = 10.0
"""How long a partition's end may be behind a position: a new leader knows what is committed a moment later."""
_PAUSE_S: Final = 0.5
_TARGETS: Final = [(LEDGER_POSTINGS, partition) for partition in range(PARTITIONS)]


class LostRecordsError(Exception):
    """The topic no longer has what the view needs next, or has not what the view was made from."""


class Ends:
    """Asks the brokers.

    Args:
        cluster: an open connection that knows the topic.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def stable(self) -> dict[int, int]:
        """The last stable offset of each partition.

        Raises:
            KafkaUnavailableError: the brokers do not answer.
        """
        found = await self._cluster.offsets(_TARGETS, LATEST, committed=True)
        return {partition: offset for (_, partition), offset in found.items()}

    async def check(self, positions: Mapping[int, Position]) -> None:
        """Refuse positions that the topic does not have.

        Raises:
            LostRecordsError: says what to do.
            KafkaUnavailableError: the brokers do not answer.
        """
        beginnings = await self._cluster.offsets(_TARGETS, EARLIEST)
        for partition, position in positions.items():
            beginning = beginnings[LEDGER_POSTINGS, partition]
            if position.next_offset < beginning:
                raise LostRecordsError(
                    f"the view has {LEDGER_POSTINGS}:{partition} up to {position.next_offset}, and its log begins at "
                    f"{beginning}: the records between have expired. Restore the topic or the view's database from a "
                    f"backup, and set the topic's retention.ms to -1"
                )
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while beyond := await self._beyond(positions):
            if asyncio.get_running_loop().time() > deadline:
                raise LostRecordsError(
                    f"the view has more than the topic: {beyond}. The view was made from another one of this name: "
                    "make it again with `python -m services.balances --rebuild`"
                )
            await asyncio.sleep(_PAUSE_S)

    async def _beyond(self, positions: Mapping[int, Position]) -> str:
        ends = await self._cluster.offsets(_TARGETS, LATEST)
        return ", ".join(
            f"{LEDGER_POSTINGS}:{partition} up to {position.next_offset} of {ends[LEDGER_POSTINGS, partition]}"
            for partition, position in positions.items()
            if position.next_offset > ends[LEDGER_POSTINGS, partition]
        )
