"""Runs the reconciliation every night: a container that waits, runs `once reconcile`, and waits again.

What holds here: one run at a time; a night that was missed is in the next run, so none is made up for; what a run says
goes to this container's log, and its outcome to the topic that the monitor watches. `--healthy` is the health check: it
says whether the loop goes on.
"""

import argparse
import datetime as dt
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BEAT_S: Final = 10.0
LATE_S: Final = 60.0
_POLL_S: Final = 0.2
_STOP_S: Final = 20.0
_BEAT: Final = Path("/tmp/nightly.beat")  # noqa: S108 # within the container, in memory
_COMMAND: Final = (sys.executable, "-m", "deploy.cli.main", "reconcile")


def next_run(now: dt.datetime, at: dt.time) -> dt.datetime:
    """The next time after `now` at which it is `at`. Both in UTC."""
    today = dt.datetime.combine(now.date(), at, dt.UTC)
    return today if today > now else today + dt.timedelta(days=1)


def clock(text: str) -> dt.time:
    """A time of day in UTC, HH:MM.

    Raises:
        ValueError: it is none.
    """
    return dt.datetime.strptime(text, "%H:%M").replace(tzinfo=dt.UTC).time()


def beats(path: Path, now_s: float) -> bool:
    """Whether the loop has written this file lately.

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
        beat: the file that shows that it goes on.
    """

    def __init__(self, command: Sequence[str], at: dt.time, beat: Path) -> None:
        self._command = command
        self._at = at
        self._beat = beat
        self._stopping = False

    def stop(self) -> None:
        """End after this beat; a run under way is stopped, and made again the next time."""
        self._stopping = True

    def serve(self) -> None:
        """Wait and run, until it is stopped."""
        while not self._stopped():
            due = next_run(dt.datetime.now(dt.UTC), self._at)
            print(f"nightly: the next run is at {due:%Y-%m-%d %H:%M} UTC", flush=True)
            while not self._stopped() and dt.datetime.now(dt.UTC) < due:
                self._rest()
            if not self._stopped():
                print(f"nightly: ended with {self.run()}", flush=True)

    def run(self) -> int:
        """Make one run; returns its exit code, negative when it was stopped."""
        process = subprocess.Popen(self._command)
        while process.poll() is None and not self._stopped():
            self._rest()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
        return process.wait()

    def _rest(self) -> None:
        self._beat.touch()
        deadline = time.monotonic() + BEAT_S
        while not self._stopped() and time.monotonic() < deadline:
            time.sleep(_POLL_S)  # a signal's handler runs meanwhile, and the sleep goes on (PEP 475)

    def _stopped(self) -> bool:
        return self._stopping


def main(words: Sequence[str]) -> int:
    """Serve, or answer the health check."""
    parser = argparse.ArgumentParser(prog="python -m deploy.compose.nightly", description=__doc__)
    parser.add_argument("--at", type=clock, default=clock("02:15"), metavar="HH:MM", help="when, in UTC")
    parser.add_argument("--healthy", action="store_true", help="say whether the loop goes on")
    options = parser.parse_args(words)
    if options.healthy:
        return int(not beats(_BEAT, time.time()))
    nightly = Nightly(_COMMAND, options.at, _BEAT)
    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, lambda *_: nightly.stop())
    nightly.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
