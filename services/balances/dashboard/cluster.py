"""Looks at the cluster for the page: brokers alive, what open transactions hold back, who lags without saying so, and
what reconciliations came to.

What holds: each look has a bound; a cluster that does not answer is a failure in words, and the next look connects
anew. Nothing is written to it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from services.balances.dashboard.observed import ClusterLook, Run
from services.balances.dashboard.stages import READERS
from shared.eos.records import Record
from shared.events.catalogue import RECONCILIATION_RUNS
from shared.events.reconciliation import decode_run_outcome
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import LATEST, Cluster, Target
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import committed_offsets, read_topics

PERIOD_S: Final = 1.0
ANSWER_S: Final = 3.0
"""Seconds for one look; a broker's loss is over in some more, and told of meanwhile."""
READ_RUNS_S: Final = 20.0
"""Seconds for reading new outcomes: one record for each night."""

Silent = Callable[[], Collection[str]]
Told = Callable[[ClusterLook | None, str], None]
ToldRuns = Callable[[tuple[Run, ...]], None]

log = logging.getLogger(__name__)


class ClusterWatch:
    """Looks again and again.

    Args:
        bootstrap_servers: brokers, comma separated, or an `Access`.
        silent: names the services that do not answer for themselves now.
        tell: takes each look, or None and what failed.
        tell_runs: takes all outcomes that are known, when there are new ones, and the first time.
    """

    def __init__(self, bootstrap_servers: Bootstrap, silent: Silent, tell: Told, tell_runs: ToldRuns) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._silent = silent
        self._tell = tell
        self._tell_runs = tell_runs
        self._runs: list[Run] = []
        self._runs_read: dict[Target, int] | None = None

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            try:
                await self._connected()
            except KafkaUnavailableError as error:
                self._tell(None, str(error))
            except TimeoutError:
                self._tell(None, f"no answer from the brokers within {ANSWER_S:g} s")
            await asyncio.sleep(PERIOD_S)

    async def _connected(self) -> None:
        """Look over one connection, until it fails."""
        async with Cluster(self._bootstrap_servers, client_id="balances-page", deadline_s=ANSWER_S) as cluster:
            targets = await cluster.partitions([*READERS, RECONCILIATION_RUNS])
            while True:
                async with asyncio.timeout(ANSWER_S):
                    stable, look = await self._look(cluster, targets)
                self._tell(look, "")
                if self._runs_read is None or any(
                    stable[target] > self._runs_read.get(target, 0)
                    for target in targets
                    if target[0] == RECONCILIATION_RUNS
                ):
                    await self._read_runs()
                await asyncio.sleep(PERIOD_S)

    async def _look(self, cluster: Cluster, targets: list[Target]) -> tuple[Mapping[Target, int], ClusterLook]:
        await cluster.refresh()
        # The stable offsets first: what moves in between shows as held back for a moment, never as less than nothing
        stable = await cluster.offsets(targets, LATEST, committed=True)
        ends = await cluster.offsets(targets, LATEST)
        lso_lag: dict[str, int] = {}
        for target in targets:
            lso_lag[target[0]] = lso_lag.get(target[0], 0) + max(ends[target] - stable[target], 0)
        silent, behind = self._silent(), {}
        for topic, reader in READERS.items():
            if reader in silent:
                committed = await committed_offsets(cluster, reader, topic)
                at = {target: committed.get(target[1], 0) for target in targets if target[0] == topic}
                behind[reader] = sum(max(stable[target] - offset, 0) for target, offset in at.items())
        return stable, ClusterLook(len(cluster.brokers), lso_lag, behind)

    async def _read_runs(self) -> None:
        async with asyncio.timeout(READ_RUNS_S):
            self._runs_read = await read_topics(
                self._bootstrap_servers, [RECONCILIATION_RUNS], self._take_runs, start=self._runs_read
            )
        self._tell_runs(tuple(self._runs))

    def _take_runs(self, _topic: str, partition: int, records: list[Record]) -> None:
        for record in records:
            try:
                self._runs.append(Run(record.timestamp_ms, decode_run_outcome(record.value or b"")))
            except msgspec.DecodeError as error:
                where = f"{RECONCILIATION_RUNS}:{partition}:{record.offset}"
                log.warning("outcome not understood", extra={"at": where, "reason": str(error)})
