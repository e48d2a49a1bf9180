"""Events per second as Kafka's Java client reports them, so that its dashboards and thresholds apply here as well.

The client keeps samples of a fixed length and divides their sum by the time that they span (metrics.num.samples 2,
metrics.sample.window.ms 30,000). A burst shows for 30 to 60 s and is then gone.

Invariant: the clock is an argument, and a reading changes nothing. Source: org.apache.kafka.common.metrics.stats.Rate
and SampledStat.
"""

from typing import Final

SAMPLES: Final = 2
SAMPLE_S: Final = 30.0


class Rate:
    """Events per second over the last samples.

    Args:
        now_s: a monotonic clock's time, seconds; so are all times here.
    """

    __slots__ = ("_samples",)

    def __init__(self, now_s: float) -> None:
        # (begun, events), the newest last; replaced whole, because a scrape reads it from another thread
        self._samples: tuple[tuple[float, float], ...] = ((now_s, 0.0),)

    def record(self, events: float, now_s: float) -> None:
        """Count events."""
        *older, (begun_s, counted) = self._samples
        if now_s - begun_s >= SAMPLE_S:
            self._samples = (*self._samples[1 - SAMPLES :], (now_s, events))
        else:
            self._samples = (*older, (begun_s, counted + events))

    def measure(self, now_s: float) -> float:
        """Return the current rate in events per second.

        Samples older than the whole span no longer count. An incomplete span counts as long as all samples but the
        current one would. One event right after the start is 1/30 of an event per second, not many.
        """
        live = [sample for sample in self._samples if now_s - sample[0] < SAMPLES * SAMPLE_S]
        if not live:
            return 0.0
        elapsed_s = now_s - live[0][0]
        missing = SAMPLES - 1 - int(elapsed_s // SAMPLE_S)
        return sum(events for _, events in live) / (elapsed_s + max(missing, 0) * SAMPLE_S)
