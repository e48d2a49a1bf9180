"""In the place of the node exporter: the file of a reconciliation's metrics, and Prometheus scrapes it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import yaml

from deploy.local.ports import LOOPBACK
from deploy.local.process import ManagedProcess
from spark import metrics
from spark.manifest import VERSION, Manifest, seal
from spark.report import Totals, breaks_of, report_of

STAGES: Final = {"land:payments.raw": 2.0, "check:ledger": 3.5, "totals": 1.5}
_CONFIG: Final = "--config.file="


@contextmanager
def scraped_textfile(prometheus: ManagedProcess, directory: Path) -> Iterator[None]:
    """Let Prometheus scrape the file of a clean run, as a further target.

    Args:
        directory: for the file.
    """
    path = directory / metrics.FILE
    clean = report_of(
        seal(Manifest(VERSION, 1, 1, "cluster", {}, {}, True)), {}, {}, breaks_of([], [], [], 0), Totals("", (), (), ())
    )
    metrics.write(path, clean, ended_at_s=1.0, duration_s=7.0, stages=STAGES)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(path.read_bytes())

        def log_message(self, *_: object) -> None:
            """Say nothing on stderr."""

    config = next(Path(word.removeprefix(_CONFIG)) for word in prometheus.argv if word.startswith(_CONFIG))
    before = config.read_text()
    with ThreadingHTTPServer((LOOPBACK, 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        document = yaml.safe_load(before)
        target = {"targets": [f"{LOOPBACK}:{server.server_port}"], "labels": {"instance": "node-0"}}
        document["scrape_configs"].append({"job_name": "node", "static_configs": [target]})
        try:
            _configure(prometheus, config, yaml.safe_dump(document))
            yield
        finally:
            _configure(prometheus, config, before)
            server.shutdown()


def _configure(prometheus: ManagedProcess, config: Path, text: str) -> None:
    config.write_text(text)
    assert prometheus.pid is not None
    os.kill(prometheus.pid, signal.SIGHUP)
