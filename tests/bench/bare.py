"""A service without its metrics, to measure their cost: `python -m tests.bench.bare SERVICE`.

Instruments do nothing, the client is not measured, and no record carries the time of its origin. For measurements only.
"""

import importlib
import sys
from typing import Any

from shared.telemetry import instruments


class Nothing:
    """An instrument that ignores every call."""

    def __init__(self, *_: object) -> None:
        pass

    def __getattr__(self, _name: str) -> Any:
        return self._nothing

    def _nothing(self, *_: object) -> "Nothing":
        return self

    def __call__(self) -> None:
        """Ignore the removal of a gauge's source."""


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
        origin = handler._origin
        handler._origin = lambda self, record: origin(self, record)[:2]
    sys.argv = [f"services.{service}"]
    importlib.import_module("runpy").run_module(f"services.{service}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
