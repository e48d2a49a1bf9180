"""The monitor's rounds: query the cluster, update the picture, and report readiness.

Invariant: a round has a time limit, and a silent broker hides no other broker's answer. The monitor is ready while
rounds are answered completely; else it names who is silent. It writes nothing to the cluster.

Metrics are read from the picture at each scrape, so that a series ends with the object it described.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from services.monitor import domain
from services.monitor.domain import BREAKS, Partition, Picture, Target, oldest
from shared.eos.open_transactions import Look, Suspicion, by_coordinator
from shared.eos.records import Record
from shared.events.catalogue import RECONCILIATION_RUNS, TOPICS
from shared.events.operations import decode_run_outcome
from shared.kafka.admin.groups import PIPELINE, Groups
from shared.kafka.admin.transactions import look
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import read_topics
from shared.telemetry import catalogue
from shared.telemetry.catalogue import Metric
from shared.telemetry.instruments import ReadGauge, Reading, at_zero, counter, gauge
from shared.telemetry.server import Health

ANSWERED: Final = "answered"
FAILED: Final = "failed"

ROUNDS = counter(catalogue.MONITOR_ROUNDS)
at_zero(ROUNDS, [ANSWERED, FAILED])
LAST_ROUND = gauge(catalogue.MONITOR_LAST_ROUND)


def _ongoing(picture: Picture) -> Iterable[Reading]:
    if picture.asked:
        yield (), sum(map(len, picture.transactions.values()))


def _open(picture: Picture) -> Iterable[Reading]:
    return [((name,), age_s) for name, age_s in oldest(picture.transactions)]


def _hanging(picture: Picture) -> Iterable[Reading]:
    # Every partition, so that an alert on the sum has a 0 to resolve to
    return [
        ((topic, str(partition)), picture.hanging.get((topic, partition), 0)) for topic, partition in picture.partitions
    ]


def _lso_lag(picture: Picture) -> Iterable[Reading]:
    return [
        ((topic, str(partition)), max(known.end - known.stable, 0))
        for (topic, partition), known in picture.partitions.items()
    ]


def _lso_stuck(picture: Picture) -> Iterable[Reading]:
    return [((topic, str(partition)), known.stuck_s) for (topic, partition), known in picture.partitions.items()]


def _behind(picture: Picture) -> Iterable[Reading]:
    return [
        ((group, topic, str(partition)), offsets)
        for group, by_partition in picture.behind.items()
        for (topic, partition), offsets in by_partition.items()
    ]


def _last_run(picture: Picture) -> Iterable[Reading]:
    if picture.run is not None:
        yield (), picture.run.at_ms / 1000


def _clean(picture: Picture) -> Iterable[Reading]:
    if picture.run is not None:
        yield (), int(picture.run.outcome.verdict != BREAKS)


def _explained(picture: Picture) -> Iterable[Reading]:
    if picture.run is not None:
        yield (), picture.run.outcome.explained


def _oldest(picture: Picture) -> Iterable[Reading]:
    if picture.run is not None:
        yield (), (picture.run.outcome.oldest_at_ms or 0) / 1000


def _at_risk(picture: Picture) -> Iterable[Reading]:
    run = picture.run
    at_risk = {} if run is None else run.outcome.at_risk_minor
    return [((currency,), float(minor)) for currency, minor in sorted(at_risk.items())]


def _breaks(picture: Picture) -> Iterable[Reading]:
    run = picture.run
    return [] if run is None else [((kind,), breaks) for kind, breaks in sorted(run.outcome.breaks.items())]


READINGS: Final[Mapping[Metric, Callable[[Picture], Iterable[Reading]]]] = {
    catalogue.TRANSACTIONS_ONGOING: _ongoing,
    catalogue.TRANSACTION_OPEN: _open,
    catalogue.TRANSACTIONS_HANGING: _hanging,
    catalogue.PARTITION_LSO_LAG: _lso_lag,
    catalogue.PARTITION_LSO_STUCK: _lso_stuck,
    catalogue.GROUP_OFFSETS_BEHIND: _behind,
    catalogue.RECONCILE_LAST_RUN: _last_run,
    catalogue.RECONCILE_CLEAN: _clean,
    catalogue.RECONCILE_BREAKS: _breaks,
    catalogue.RECONCILE_EXPLAINED: _explained,
    catalogue.RECONCILE_OLDEST: _oldest,
    catalogue.RECONCILE_AT_RISK: _at_risk,
}
"""Function that reads each gauge from a picture."""


class Shown:
    """The picture that a scrape sees; `picture` is replaced whole."""

    def __init__(self) -> None:
        self.picture = Picture()
        for row, read in READINGS.items():
            ReadGauge(row).add(partial(self._read, read))

    def _read(self, read: Callable[[Picture], Iterable[Reading]]) -> Iterable[Reading]:
        return read(self.picture)


CLUSTER = "cluster"  # the condition of readiness
GROUPS = dict(PIPELINE)
READ_RUNS_S = 10.0  # for new outcomes: there is one record for each night

log = logging.getLogger(__name__)


class Monitor:
    """Queries the cluster, round by round. The connections are kept between rounds.

    It publishes to `shown`. `interval_s` is the time between the starts of two rounds; it must be above 0, or
    ValueError is raised. A round that takes longer delays the next.
    """

    def __init__(self, brokers: Brokers, health: Health, shown: Shown, *, interval_s: float) -> None:
        if interval_s <= 0:
            raise ValueError(f"the interval between rounds is {interval_s:g} s: it must be above 0")
        self._brokers = brokers
        self._groups = Groups(brokers)
        self._health = health
        self._interval_s = interval_s
        self._shown = shown
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
            ROUNDS.labels(FAILED).inc()
            self._health.missing(CLUSTER, "; ".join(unanswered))
        else:
            ROUNDS.labels(ANSWERED).inc()
            LAST_ROUND.set(time.time())
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
            brokers=len(seen.brokers),
            partitions=partitions,
            transactions=domain.keep_open(before.transactions, ages, seen.brokers),
            hanging=dict(Counter(one.target for one in self._suspicion.hanging)),
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
    return {**before.partitions, **answered}
