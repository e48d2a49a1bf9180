"""Ingest, with a report of its first record: `python -m tests.bench.peers.programs.first`."""

import runpy
from typing import Any

from services.ingest.service import IngestHandler
from shared.eos.records import Output, Record
from tests.bench.peers.programs.work import report_first


def main() -> None:
    """Run ingest as its `__main__` does."""
    handler: Any = IngestHandler
    process = handler.process

    def first(self: IngestHandler, record: Record) -> list[Output]:
        handler.process = process
        report_first()
        outputs: list[Output] = process(self, record)
        return outputs

    handler.process = first
    runpy.run_module("services.ingest", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
