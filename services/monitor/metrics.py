"""The monitor's metrics, read from the picture at each scrape, so that a series ends with the object it described."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from services.monitor.domain import Picture, oldest
from shared.telemetry import catalogue
from shared.telemetry.catalogue import Metric
from shared.telemetry.instruments import ReadGauge, Reading, at_zero, counter, gauge

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
        yield (), int(picture.run.clean)


def _breaks(picture: Picture) -> Iterable[Reading]:
    run = picture.run
    return [] if run is None else [((kind,), breaks) for kind, breaks in sorted(run.breaks.items())]


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
