"""A service without its metrics, to measure what they cost: `python -m tests.bench.bare SERVICE`.

Instruments do nothing, the client is not looked at, and no record tells the time of its origin. Never to be run for
anything else: a service that nobody can see is not to be trusted.
"""

import importlib
import sys
from typing import Any

from shared.telemetry import instruments


class Nothing:
    """Takes every call of an instrument and does nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def __getattr__(self, _name: str) -> Any:
        return self._nothing

    def _nothing(self, *_: object) -> "Nothing":
        return self

    def __call__(self) -> None:
        """What takes a source out of a gauge again."""


def main(service: str) -> None:
    """Run a service as its `__main__` does."""
    replaced: Any = instruments
    for name in ("counter", "gauge", "histogram", "ReadGauge", "at_zero"):
        setattr(replaced, name, Nothing)
    measured: Any = importlib.import_module("shared.kafka.client.measured")
    measured.measure_client = Nothing
    figures: Any = importlib.import_module("shared.kafka.runtime.partition_metrics").PartitionMetrics
    figures.changed = lambda *_: None
    if service == "ingest":
        handler: Any = importlib.import_module("services.ingest.service").IngestHandler
        told = handler._origin
        handler._origin = lambda self, record: told(self, record)[:2]
    sys.argv = [f"services.{service}"]
    importlib.import_module("runpy").run_module(f"services.{service}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
