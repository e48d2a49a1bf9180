"""A history as a table for people: virtual time, who, request, answer, and the states that follow."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from shared.kafka.protocol.codec import Values
from shared.kafka.protocol.headers import api_key, decode_request, decode_request_header, decode_response
from tests.simulation import errors
from tests.simulation.cluster import Note
from tests.simulation.network import Frame

_SERVED: Final = (
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "ConsumerGroupHeartbeat",
    "EndTxn",
    "Fetch",
    "FindCoordinator",
    "Heartbeat",
    "InitProducerId",
    "JoinGroup",
    "LeaveGroup",
    "ListOffsets",
    "OffsetCommit",
    "OffsetFetch",
    "Produce",
    "SyncGroup",
    "TxnOffsetCommit",
)
"""Requests that are printed; the others ask for versions, metadata and settings."""
_SHOWN: Final = frozenset(
    {
        "BaseOffset",
        "Committed",
        "CommittedOffset",
        "FetchOffset",
        "GenerationId",
        "GenerationIdOrMemberEpoch",
        "GroupId",
        "HighWatermark",
        "Index",
        "LastStableOffset",
        "Leader",
        "MemberEpoch",
        "MemberId",
        "Name",
        "NodeId",
        "Offset",
        "Partition",
        "PartitionIndex",
        "Partitions",
        "ProducerEpoch",
        "ProducerId",
        "Topic",
        "TransactionalId",
    }
)
_NAMES: Final = {code: name for name, code in vars(errors).items() if name.isupper() and isinstance(code, int)}
_WIDTH: Final = 100


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        at_s: virtual time.
    """

    at_s: float
    who: str
    request: str = ""
    answer: str = ""
    state: str = ""


def rows(frames: Iterable[Frame], notes: Iterable[Note]) -> list[Row]:
    """The history in order of time. What is asked all the time and answered with nothing new is left out."""
    noted = (
        Row(note.at_s, note.who, state=note.text) if note.state else Row(note.at_s, note.who, note.text)
        for note in notes
    )
    return sorted(chain(noted, _exchanges(frames)), key=lambda row: row.at_s)


def table(found: Iterable[Row]) -> str:
    """The rows as text."""
    return "\n".join(
        f"{row.at_s:9.4f}  {row.who:16}  {' -> '.join(filter(None, (row.request, row.answer)))}"
        f"{'  => ' if row.state else ''}{row.state}".rstrip()
        for row in found
    )


def _exchanges(frames: Iterable[Frame]) -> Iterator[Row]:
    names = {api_key(api): api for api in _SERVED}
    waiting: defaultdict[tuple[str, str, bytes], deque[float]] = defaultdict(deque)
    for frame in frames:
        key = frame.client, frame.node, frame.request
        api = names.get(int.from_bytes(frame.request[:2], "big"))
        if api is None:
            continue
        if frame.answer is None:
            waiting[key].append(frame.at_s)
            continue
        at_s = waiting[key].popleft()
        row = _exchange(api, frame, at_s)
        if row is not None:
            yield row
    for (client, node, request), times in waiting.items():
        header = decode_request_header(request)
        api = names[header.api_key]
        asked = _text(decode_request(api, header.version, request))
        for at_s in times:
            yield Row(at_s, client, f"{node} {api} {asked}"[:_WIDTH], "no answer")


def _exchange(api: str, frame: Frame, at_s: float) -> Row | None:
    version = decode_request_header(frame.request).version
    answered = decode_response(api, version, frame.answer or b"")
    if api in {"Fetch", "Heartbeat"} and not _codes(answered) and not _records(answered):
        return None
    asked = _text(decode_request(api, version, frame.request))
    took = f"{_text(answered)} {' '.join(sorted(_codes(answered)))}".strip()
    return Row(at_s, frame.client, f"{frame.node} {api} {asked}"[:_WIDTH], f"{took[:_WIDTH]} at {frame.at_s:.4f}")


def _scalars(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _scalars(value, key)
    elif isinstance(values, list):
        for value in values:
            yield from _scalars(value, name)
    else:
        yield name.removeprefix("V3AndBelow"), values


def _text(values: Values) -> str:
    return " ".join(f"{value}" for name, value in _scalars(values) if name in _SHOWN and value not in {None, "", -1})


def _codes(values: Values) -> set[str]:
    found = (value for name, value in _scalars(values) if name.endswith("ErrorCode"))
    return {_NAMES.get(code, str(code)) for code in found if code != errors.NONE}


def _records(values: Values) -> bool:
    return any(name == "Records" and value for name, value in _scalars(values))
