"""Structured logs: one JSON object per line on stderr.

A line has time, level, service, instance, logger and event; what a caller passes as `extra={...}` becomes
further fields. What holds: every line is one JSON object, whatever its arguments are. Callers must not pass
payloads or secrets: coordinates, reasons and counts say enough.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON.

    Args:
        service: name of the service, as in the topology.
        instance: which of the service's processes.
    """

    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._service = service
        self._instance = instance

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object without line breaks; an exception is in `error` and `traceback`."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "instance": self._instance,
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in line:
                line[name] = value
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = repr(record.exc_info[1])
            line["traceback"] = self.formatException(record.exc_info)
        return _to_text(line)


def _to_text(line: dict[str, object]) -> str:
    try:
        return _encode(line).decode()
    except (TypeError, ValueError):
        # A key that is no string, a lone surrogate: the line must come out all the same
        return _encode({name: ascii(value) for name, value in line.items()}).decode()


def configure(service: str, instance: str, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send all of the process's logs, the libraries' included, to `stream` (stderr) as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service, instance))
    logging.basicConfig(level=level, handlers=[handler], force=True)
