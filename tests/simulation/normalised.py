"""Answers of brokers in a form that two brokers share: what is assigned or depends on time is left out or renamed.

Invariant: every difference that is not listed in RULES is kept.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from shared.kafka.client.batches import Batch, decode
from shared.kafka.protocol.codec import Values
from tests.simulation.symbols import Target

_LEFT_OUT: Final = object()


class Names:
    """What one broker assigned in a sequence, by order of appearance.

    Args:
        beginning: the first offset of the sequence, by partition.
        topics: by the id that the broker has given them.
    """

    def __init__(self, beginning: Mapping[Target, int], topics: Mapping[bytes, str] | None = None) -> None:
        self.beginning = beginning
        self.topics = topics or {}
        self._names: dict[str, dict[int | str, str]] = {}

    def name(self, kind: str, assigned: int | str) -> str:
        """The name of an assigned value."""
        known = self._names.setdefault(kind, {})
        return known.setdefault(assigned, f"{kind} {len(known)}")

    def knows(self, kind: str, assigned: int | str) -> bool:
        """Whether the broker has assigned it in this sequence."""
        return assigned in self._names.get(kind, {})


def _absent(_names: Names, _target: Target, _value: Any) -> Any:
    return _LEFT_OUT


def _producer(names: Names, _: Target, value: int) -> Any:
    return value if value < 0 else names.name("producer", value)


def _member(names: Names, _: Target, value: str) -> Any:
    return names.name("member", value) if value else value


def _topic(names: Names, _: Target, value: bytes) -> Any:
    return names.topics.get(value, value)


def _offset(names: Names, target: Target, value: int) -> Any:
    if value < 0:
        return value
    relative = value - names.beginning[target]
    return relative if relative >= 0 else "before the beginning"


def _batches(names: Names, target: Target, value: bytes | None) -> Any:
    return [_batch(names, target, batch) for batch in decode(value or b"")]


def _batch(names: Names, target: Target, batch: Batch) -> Values:
    return {
        "offsets": (_offset(names, target, batch.base_offset), _offset(names, target, batch.last_offset)),
        "producer": _producer(names, target, batch.producer_id),
        "epoch": batch.producer_epoch,
        "sequence": batch.base_sequence,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "marker": batch.marker.name if batch.marker is not None else None,
        "values": [] if batch.is_control else [record.value for record in batch.records(target)],
    }


def _active(names: Names, target: Target, value: list[Values]) -> Any:
    own = [one for one in value if names.knows("producer", one["ProducerId"])]
    return sorted((_normalised(names, target, one) for one in own), key=repr)


class Rule(NamedTuple):
    """A way to normalise fields, and why two brokers may differ there."""

    fields: tuple[str, ...]
    treat: Callable[[Names, Target, Any], Any]
    reason: str


RULES: Final = (
    Rule(("ProducerId",), _producer, "brokers assign producer ids in blocks of their own"),
    Rule(("MemberId", "Leader"), _member, "a member id has a random part"),
    Rule(("TopicId",), _topic, "a topic id is random"),
    Rule(
        ("BaseOffset", "Offset", "HighWatermark", "LastStableOffset", "FirstOffset", "CurrentTxnStartOffset"),
        _offset,
        "other sequences have written before",
    ),
    Rule(("Records",), _batches, "bytes have timestamps, the leader's epoch and their checksum"),
    Rule(("ActiveProducers",), _active, "other sequences' producers are known as well, in no order"),
    Rule(
        ("Timestamp", "LastTimestamp", "LogAppendTimeMs", "TransactionStartTimeMs"),
        _absent,
        "times of day, one of them virtual",
    ),
    Rule(("ThrottleTimeMs",), _absent, "depends on the load"),
    Rule(("ErrorMessage",), _absent, "words for people"),
    Rule(("RecordErrors",), _absent, "which record of a refused batch, for people"),
    Rule(("LeaderEpoch",), _absent, "depends on how often the broker was started"),
    Rule(("Host", "Port", "Rack", "ClientId", "ClientHost"), _absent, "addresses"),
    Rule(("LogStartOffset",), _absent, "the same of all sequences"),
)
_BY_FIELD: Final = {name: rule.treat for rule in RULES for name in rule.fields}
_TOPIC_FIELDS: Final = ("Name", "Topic")
_OTHER_SUBJECTS: Final = ("TopicId", "TransactionalId", "GroupId", "MemberId")
_PARTITION_FIELDS: Final = ("PartitionIndex", "Partition", "Index")


def normalised(names: Names, answer: Values) -> Values:
    """The answer as another broker could have given it."""
    found: Values = _normalised(names, ("", -1), answer)
    return found


def _normalised(names: Names, within: Target, value: Any) -> Any:
    if isinstance(value, list):
        return sorted((_normalised(names, within, one) for one in value), key=_place)
    if not isinstance(value, dict):
        return value
    topic = next((value[field] for field in _TOPIC_FIELDS if field in value), within[0])
    partition = next((value[field] for field in _PARTITION_FIELDS if field in value), within[1])
    target = topic, partition
    rules = _BY_FIELD
    if value.get("ErrorCode"):  # producer id 0 is the default of an answer without one
        rules = {name: treat for name, treat in _BY_FIELD.items() if name != "ProducerId"}
    treated = {
        name: rules[name](names, target, one) if name in rules else _normalised(names, target, one)
        for name, one in value.items()
    }
    return {name: one for name, one in treated.items() if one is not _LEFT_OUT}


def _place(value: Any) -> tuple[str, int]:
    """The subject of a part of an answer: brokers keep no order of them."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else "", value if isinstance(value, int) else 0
    topic = next((value[field] for field in (*_TOPIC_FIELDS, *_OTHER_SUBJECTS) if field in value), "")
    return topic, next((value[field] for field in _PARTITION_FIELDS if field in value), 0)


def differing(one: Any, other: Any, place: str = "") -> list[str]:
    """The innermost values that differ, each with the path to it."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [line for name in one for line in differing(one[name], other[name], f"{place}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            line
            for number, (left, right) in enumerate(zip(one, other, strict=True))
            for line in differing(left, right, f"{place}[{number}]")
        ]
    return [] if one == other else [f"{place}: model {one!r}, broker {other!r}"]
