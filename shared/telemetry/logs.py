"""Structured logs on stderr: one JSON object per line; on a terminal, one readable line.

A line has time, level, service, instance, logger, event and event_id. The event_id is the event without its arguments,
as one word, to search and count by. Fields of `extra={...}` become further fields. A line that the Kafka client repeats
within ten seconds is counted in the next one, in `repeats`.

Invariant: every line is one JSON object, whatever its arguments are. Callers must not pass payloads or secrets:
coordinates, reasons and counts suffice.
"""

import logging
import math
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TextIO

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_NO_WORD = re.compile(r"[^A-Za-z0-9]+")
_CLIENT = "aiokafka"
_REPEATS_S = 10.0
_TEXTS_MAX = 256
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON without line breaks; an exception is in `error` and `traceback`."""

    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._service = service
        self._instance = instance

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "instance": self._instance,
            "logger": record.name,
            "event": record.getMessage(),
            "event_id": _NO_WORD.sub("-", str(record.msg)).strip("-").lower(),
        }
        line.update((name, value) for name, value in _fields(record) if name not in line)
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = repr(record.exc_info[1])
            line["traceback"] = self.formatException(record.exc_info)
        return _to_text(line)


class TerminalFormatter(logging.Formatter):
    """Formats a log record as one line for a person: time, level, event, further fields. An exception follows it."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{name}={value}" for name, value in _fields(record))
        line = f"{time} {record.levelname.lower():<7} {record.getMessage()}  {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in vars(record).items() if name not in _STANDARD)


def _to_text(line: dict[str, object]) -> str:
    try:
        return _encode(line).decode()
    except (TypeError, ValueError):
        # A key that is not a string, or a lone surrogate: the line must be written all the same
        return _encode({name: ascii(value) for name, value in line.items()}).decode()


class _Repeats:
    """Passes a line of the Kafka client once in ten seconds: it logs each attempt to reach a broker that is away."""

    def __init__(self) -> None:
        self._passed: dict[str, tuple[float, int]] = {}  # by text: the time of its last line, and its repeats since

    def __call__(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] != _CLIENT:
            return True
        text = str((record.msg, record.args))  # not formatted: a line that cannot be must not fail its caller
        passed_s, repeats = self._passed.get(text, (-math.inf, 0))
        if abs(record.created - passed_s) < _REPEATS_S:
            self._passed[text] = passed_s, repeats + 1
            return False
        if repeats:
            record.repeats = repeats
        if len(self._passed) >= _TEXTS_MAX:
            self._passed.clear()
        self._passed[text] = record.created, 0
        return True


def configure(service: str, instance: str, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send all of the process's logs, the libraries' included, to `stream` (stderr): JSON unless it is a terminal."""
    chosen = stream or sys.stderr
    handler = logging.StreamHandler(chosen)
    handler.setFormatter(TerminalFormatter() if chosen.isatty() else JsonFormatter(service, instance))
    handler.addFilter(_Repeats())
    logging.basicConfig(level=level, handlers=[handler], force=True)
