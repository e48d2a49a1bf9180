"""Programs in the containers other than services: the health check and the nightly loop."""

import datetime as dt
import os
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from deploy.compose import healthy, nightly
from deploy.compose.nightly import Nightly, main, next_run
from deploy.local.ports import free_ports

AT = dt.time(2, 15)


class Answers(BaseHTTPRequestHandler):
    """Answers /readyz with 200 and other paths with 503 and a reason."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 503)
        self.end_headers()
        self.wfile.write(b"kafka: not connected")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the base class names it so
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_health_is_the_answer_of_the_path(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert healthy.main(port, "/readyz") == 0
    assert capsys.readouterr().out == ""
    assert healthy.main(port, "/other") == 1
    assert "not connected" in capsys.readouterr().out


def test_a_port_without_a_listener_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert healthy.main(free_ports(1)[0], "/readyz") == 1
    assert "does not answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-03-01T02:14:59", "2026-03-01T02:15"),
        ("2026-03-01T02:15:00", "2026-03-02T02:15"),
        ("2026-02-28T23:00:00", "2026-03-01T02:15"),
        ("2026-12-31T12:00:00", "2027-01-01T02:15"),
    ],
)
def test_the_next_run_is_at_the_next_occurrence_of_the_time_of_day(now: str, expected: str) -> None:
    def utc(text: str) -> dt.datetime:
        return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)

    assert next_run(utc(now), AT) == utc(expected)


@pytest.mark.parametrize("text", ["24:00", "2", "noon", ""])
def test_an_invalid_time_of_day_is_refused(text: str) -> None:
    refused = CliRunner().invoke(main, ["--at", text])
    assert refused.exit_code == 2
    assert "does not match the format '%H:%M'" in refused.stderr


def test_the_health_check_reports_whether_the_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beat = tmp_path / "beat"
    monkeypatch.setattr(nightly, "_BEAT", beat)
    assert CliRunner().invoke(main, ["--healthy"]).exit_code == 1
    beat.touch()
    assert CliRunner().invoke(main, ["--healthy"]).exit_code == 0


def test_a_run_ends_with_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "BEAT_S", 0.1)  # the loop looks once in each beat
    beat = tmp_path / "beat"
    # A run that ends before the loop looks at it needs no beat. Without one, it ends too, and the test fails
    wait = f"while not pathlib.Path({str(beat)!r}).exists() and time.monotonic() < end_s: time.sleep(0.01)"
    ends = f"import pathlib, time\nend_s = time.monotonic() + 30\n{wait}\nraise SystemExit(3)"
    assert Nightly([sys.executable, "-c", ends], AT, beat).run() == 3
    assert nightly.beats(beat, time.time())
    os.utime(beat, (0, 0))
    assert not nightly.beats(beat, time.time())
    assert not nightly.beats(tmp_path / "none", time.time())


def test_a_run_is_stopped_with_the_loop(tmp_path: Path) -> None:
    loop = Nightly([sys.executable, "-c", "import signal; signal.pause()"], AT, tmp_path / "beat")
    stopper = threading.Timer(0.5, loop.stop)
    stopper.start()
    assert loop.run() == -15
    loop.serve()  # it has been stopped: it ends at once
    stopper.join()
