"""Growth of this process's own metrics: counters have earlier drills' and tests' events as well."""

from typing import Any, Final

from prometheus_client import REGISTRY

RETRIES: Final = "kafka_producer_record_retry_total"


class Figures:
    """The growth of metrics since this object was made."""

    def __init__(self) -> None:
        self._before: dict[Any, float] = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
        }

    def grown(self, name: str, **labels: str) -> float:
        """Return by how much a series has grown; by its whole value where it is new."""
        value = REGISTRY.get_sample_value(name, labels) or 0.0
        return value - self._before.get((name, *sorted(labels.items())), 0.0)


def figure(name: str, **labels: str) -> float:
    """Return a series' value; 0 where it does not exist."""
    return REGISTRY.get_sample_value(name, labels) or 0.0
