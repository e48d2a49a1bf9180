"""Nightly reconciliation: a container that waits, runs `once reconcile`, and waits again.

Invariant: one run at a time. The next run covers a night that was missed. A run's output goes to this container's log,
its outcome to the topic that the monitor reads.
"""

import datetime as dt
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

BEAT_S: Final = 10.0
LATE_S: Final = 60.0
_POLL_S: Final = 0.2
_STOP_S: Final = 20.0
_BEAT: Final = Path("/tmp/nightly.beat")  # noqa: S108 # within the container, in memory
_COMMAND: Final = (sys.executable, "-m", "deploy.cli.main", "reconcile")


def next_run(now: dt.datetime, at: dt.time) -> dt.datetime:
    """Return the first time after `now` at the time of day `at`, both in UTC."""
    today = dt.datetime.combine(now.date(), at, dt.UTC)
    return today if today > now else today + dt.timedelta(days=1)


def beats(path: Path, now_s: float) -> bool:
    """Whether the loop touched its file within LATE_S.

    Args:
        path: the file.
        now_s: time.time().
    """
    return path.exists() and now_s - path.stat().st_mtime < LATE_S


class Nightly:
    """The loop.

    Args:
        command: what is run.
        at: when, in UTC.
        beat: the file that it touches while it goes on.
    """

    def __init__(self, command: Sequence[str], at: dt.time, beat: Path) -> None:
        self._command = command
        self._at = at
        self._beat = beat
        self._stopping = False

    def stop(self) -> None:
        """End the loop, and a run in progress: the next one does its work again."""
        self._stopping = True

    def serve(self) -> None:
        """Wait and run until stopped."""
        while not self._stopped():
            due = next_run(dt.datetime.now(dt.UTC), self._at)
            print(f"nightly: the next run is at {due:%Y-%m-%d %H:%M} UTC", flush=True)
            while not self._stopped() and dt.datetime.now(dt.UTC) < due:
                self._pause()
            if not self._stopped():
                print(f"nightly: ended with {self.run()}", flush=True)

    def run(self) -> int:
        """Make one run; returns its exit code, negative when it was stopped."""
        process = subprocess.Popen(self._command)
        while process.poll() is None and not self._stopped():
            self._pause()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        return process.wait()

    def _pause(self) -> None:
        self._beat.touch()
        deadline = time.monotonic() + BEAT_S
        while not self._stopped() and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # a signal's handler runs meanwhile, and the sleep goes on (PEP 475)

    def _stopped(self) -> bool:
        return self._stopping


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--at", type=click.DateTime(["%H:%M"]), default="02:15", metavar="HH:MM", help="When, in UTC.")
@click.option("--healthy", is_flag=True, help="Health check: whether the loop goes on.")
def main(at: dt.datetime, healthy: bool) -> None:
    """Run the reconciliation every night."""
    if healthy:
        sys.exit(int(not beats(_BEAT, time.time())))
    nightly = Nightly(_COMMAND, at.time(), _BEAT)
    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, lambda *_: nightly.stop())
    nightly.serve()


if __name__ == "__main__":
    main(prog_name="python -m deploy.compose.nightly")
