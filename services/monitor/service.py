"""The monitor's rounds: query the cluster, update the picture, and report readiness.

Invariant: a round has a time limit, and a silent broker hides no other broker's answer. The monitor is ready while
rounds are answered completely; else it names who is silent. It writes nothing to the cluster.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping

import msgspec

from services.monitor import domain, metrics
from services.monitor.domain import Partition, Picture, Target
from shared.eos.open_transactions import Look, Suspicion, by_coordinator
from shared.eos.records import Record
from shared.events.catalogue import RECONCILIATION_RUNS, TOPICS
from shared.events.reconciliation import decode_run_outcome
from shared.kafka.admin.drain import PIPELINE
from shared.kafka.admin.groups import Groups
from shared.kafka.admin.transactions import look
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import read_topics
from shared.telemetry.server import Health

CLUSTER = "cluster"  # the condition of readiness
GROUPS = dict(PIPELINE)
READ_RUNS_S = 10.0  # for new outcomes: there is one record for each night

log = logging.getLogger(__name__)


class Monitor:
    """Queries the cluster, round by round. The connections are kept between rounds.

    `interval_s` is the time between the starts of two rounds; it must be above 0, or ValueError is raised. A round that
    takes longer delays the next.
    """

    def __init__(self, brokers: Brokers, health: Health, *, interval_s: float) -> None:
        if interval_s <= 0:
            raise ValueError(f"the interval between rounds is {interval_s:g} s: it must be above 0")
        self._brokers = brokers
        self._groups = Groups(brokers)
        self._health = health
        self._interval_s = interval_s
        self._shown = metrics.Shown()
        self._suspicion = Suspicion()
        self._runs_read: dict[Target, int] = {}
        self._silent: tuple[str, ...] = ()

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            begun_s = time.monotonic()
            await self.round()
            pause_s = self._interval_s - (time.monotonic() - begun_s)
            if pause_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), pause_s)

    async def round(self) -> None:
        """Query the cluster once and publish the answers."""
        try:
            unanswered = await self._ask()
        except KafkaUnavailableError as error:
            unanswered = (str(error),)
        if unanswered:
            metrics.ROUNDS.labels(metrics.FAILED).inc()
            self._health.missing(CLUSTER, "; ".join(unanswered))
        else:
            metrics.ROUNDS.labels(metrics.ANSWERED).inc()
            metrics.LAST_ROUND.set(time.time())
            self._health.met(CLUSTER)
        if unanswered and not self._silent:  # once for each outage, not for each round
            log.warning("the cluster does not answer all", extra={"reason": "; ".join(unanswered)})
        elif self._silent and not unanswered:
            log.info("the cluster answers all again")
        self._silent = unanswered

    async def _ask(self) -> tuple[str, ...]:
        """Run one round; return a description of each missing answer."""
        before = self._shown.picture
        stable_before = {target: known.stable for target, known in before.partitions.items()}
        seen = await look(self._brokers, [topic.name for topic in TOPICS], only_open=True, stable_before=stable_before)
        self._suspicion = self._suspicion.after(seen)
        partitions = _partitions(before, seen)
        committed, silent_groups = await self._groups.committed(GROUPS, sorted(seen.coordinators))
        answered = {
            group: domain.behind(offsets, {t: known for t, known in partitions.items() if t[0] == GROUPS[group]})
            for group, offsets in committed.items()
        }
        ages = {
            coordinator: {known.transactional_id: known.age_s(seen.at_ms) for known in transactions}
            for coordinator, transactions in by_coordinator(seen).items()
        }
        picture = Picture(
            asked=True,
            partitions=partitions,
            transactions=domain.keep_open(before.transactions, ages, seen.brokers),
            hanging=domain.count(one.target for one in self._suspicion.hanging),
            behind=domain.keep(before.behind, answered, GROUPS),
            run=before.run,
        )
        self._shown.picture = picture
        silent_runs = await self._read_runs(partitions)
        return (*seen.unanswered, *silent_groups, *silent_runs)

    async def _read_runs(self, partitions: Mapping[Target, Partition]) -> tuple[str, ...]:
        """Read new outcomes, if there are any; return a description of each missing answer."""
        ends = {target: known.stable for target, known in partitions.items() if target[0] == RECONCILIATION_RUNS}
        if all(self._runs_read.get(target, 0) >= end for target, end in ends.items()):
            return ()
        try:
            async with asyncio.timeout(READ_RUNS_S):
                read = await read_topics(
                    self._brokers.bootstrap_servers, [RECONCILIATION_RUNS], self._take_runs, start=self._runs_read
                )
        except (KafkaUnavailableError, TimeoutError) as error:
            return (f"topic {RECONCILIATION_RUNS} cannot be read: {error}",)
        self._runs_read = read
        return ()

    def _take_runs(self, _topic: str, partition: int, records: list[Record]) -> None:
        for record in records:
            try:
                outcome = decode_run_outcome(record.value or b"")
            except msgspec.DecodeError as error:
                # The last outcome that could be decoded stays; an alert fires when it grows old
                where = f"{RECONCILIATION_RUNS}:{partition}:{record.offset}"
                log.warning("outcome not understood", extra={"at": where, "reason": str(error)})
                continue
            run = domain.last_run(self._shown.picture.run, record.timestamp_ms, outcome)
            self._shown.picture = msgspec.structs.replace(self._shown.picture, run=run)


def _partitions(before: Picture, seen: Look) -> dict[Target, Partition]:
    now_s = time.monotonic()
    answered = {
        target: domain.follow(before.partitions.get(target), offsets.stable, offsets.end, now_s)
        for target, offsets in seen.offsets.items()
    }
    return domain.keep(before.partitions, answered, before.partitions.keys())
