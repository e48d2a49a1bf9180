"""Requests of the page: /readyz and /metrics of each watched instance, and the state of the cluster, read-only.

Invariant: each request has a bound. A silent instance delays no other; one that was killed or stopped is known to be
silent within INSTANCE_PERIOD_S + INSTANCE_ANSWER_S. A cluster that does not answer is a failure in words, and the next
request opens a new connection.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import aiohttp
import msgspec

from services.balances.dashboard.observed import Answer, ClusterLook, Instance, Run, Scrape, Watched, parse_scrape
from services.balances.dashboard.stages import READERS
from shared.eos.records import Record
from shared.events.catalogue import RECONCILIATION_RUNS
from shared.events.operations import decode_run_outcome
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import LATEST, Cluster, Target
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import committed_offsets, read_topics

# A busy service on a busy machine answers in a few tenths of a second, and a loss must show within two seconds
INSTANCE_PERIOD_S: Final = 0.5
INSTANCE_ANSWER_S: Final = 1.0
BODY_MAX: Final = 4 * 1024 * 1024
_REASON_MAX: Final = 200

OnInstance = Callable[[Instance], None]


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=INSTANCE_ANSWER_S), auto_decompress=False)


async def watch(client: aiohttp.ClientSession, watched: Watched, on_instance: OnInstance) -> None:
    loop = asyncio.get_running_loop()
    while True:
        begun_s = loop.time()
        on_instance(await ask(client, watched))
        await asyncio.sleep(max(begun_s + INSTANCE_PERIOD_S - loop.time(), 0.0))


async def ask(client: aiohttp.ClientSession, watched: Watched) -> Instance:
    base = f"http://{watched.host}:{watched.port}"
    (answer, reasons), scrape = await asyncio.gather(_readyz(client, base), _metrics(client, base))
    return Instance(watched, answer, reasons, scrape)


async def _readyz(client: aiohttp.ClientSession, base: str) -> tuple[Answer, dict[str, str]]:
    try:
        status, body = await _get(client, f"{base}/readyz")
    except (aiohttp.ClientError, TimeoutError) as error:
        why = f"no answer within {INSTANCE_ANSWER_S:g} s" if isinstance(error, TimeoutError) else "no connection"
        return Answer.SILENT, {"address": why}
    if status == 200:
        return Answer.READY, {}
    return Answer.NOT_READY, _reasons(body)


def _reasons(body: bytes) -> dict[str, str]:
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return {}
    reasons = answer.get("reasons") if isinstance(answer, dict) else None
    if not isinstance(reasons, dict):
        return {}
    return {str(name): str(reason)[:_REASON_MAX] for name, reason in reasons.items()}


async def _metrics(client: aiohttp.ClientSession, base: str) -> Scrape | None:
    try:
        status, body = await _get(client, f"{base}/metrics")
        return parse_scrape(body.decode()) if status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):  # the text is not what Prometheus reads
        return None


async def _get(client: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    """Status and body, bounded in size and time."""
    async with client.get(url) as response:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > BODY_MAX:
                raise aiohttp.ClientPayloadError(f"{url} has more than {BODY_MAX} bytes")
        return response.status, bytes(body)


CLUSTER_PERIOD_S: Final = 1.0
CLUSTER_ANSWER_S: Final = 3.0  # a failover takes a little longer, and is shown meanwhile
READ_RUNS_S: Final = 20.0  # for new outcomes: one record for each night

Silent = Callable[[], Collection[str]]
OnLook = Callable[[ClusterLook | None, str], None]
OnRuns = Callable[[tuple[Run, ...]], None]

log = logging.getLogger(__name__)


class ClusterWatch:
    """Looks at the cluster again and again.

    Args:
        silent: names the services that do not answer now.
        on_look: takes each look, or None and the failure.
        on_runs: takes all known outcomes, the first time and when there are new ones.
    """

    def __init__(self, bootstrap_servers: Bootstrap, silent: Silent, on_look: OnLook, on_runs: OnRuns) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._silent = silent
        self._on_look = on_look
        self._on_runs = on_runs
        self._runs: list[Run] = []
        self._runs_read: dict[Target, int] | None = None

    async def watch(self) -> None:
        while True:
            try:
                await self._connected()
            except KafkaUnavailableError as error:
                self._on_look(None, str(error))
            except TimeoutError:
                self._on_look(None, f"no answer from the brokers within {CLUSTER_ANSWER_S:g} s")
            await asyncio.sleep(CLUSTER_PERIOD_S)

    async def _connected(self) -> None:
        """Look over one connection, until it fails."""
        async with Cluster(self._bootstrap_servers, client_id="balances-page", deadline_s=CLUSTER_ANSWER_S) as cluster:
            targets = await cluster.partitions([*READERS, RECONCILIATION_RUNS])
            while True:
                async with asyncio.timeout(CLUSTER_ANSWER_S):
                    stable, look = await self._look(cluster, targets)
                self._on_look(look, "")
                if self._runs_read is None or any(
                    stable[target] > self._runs_read.get(target, 0)
                    for target in targets
                    if target[0] == RECONCILIATION_RUNS
                ):
                    await self._read_runs()
                await asyncio.sleep(CLUSTER_PERIOD_S)

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
        self._on_runs(tuple(self._runs))

    def _take_runs(self, _topic: str, partition: int, records: list[Record]) -> None:
        for record in records:
            try:
                self._runs.append(Run(record.timestamp_ms, decode_run_outcome(record.value or b"")))
            except msgspec.DecodeError as error:
                where = f"{RECONCILIATION_RUNS}:{partition}:{record.offset}"
                log.warning("outcome not understood", extra={"at": where, "reason": str(error)})
