"""The pinned cut: which offsets of which topics a night's run covers. Pure.

Invariant: everything that a run reads is in its manifest, so one manifest always gives one report. A manifest names
the digest of the one before it, and its own digest is over all of it: no part of the chain can be changed unnoticed.

How a cut is read (KIP-98, KIP-447):
- Below `end`, the last stable offset, every transaction has ended. A record of a transaction that was committed later
  is not in this cut, although its siblings in other partitions may be.
- `high` is the high watermark, looked up after every `end`. Where it is larger than `end`, the tail was not stable:
  records there may be siblings of records that are in the cut.
- The groups' offsets were looked up before every `end`, and the topics were pinned from the last of the flow to the
  first. So a record's source is in the cut as well, or above `end` and below `high`.
- `settled` says that no topic moved and no transaction was open for a while. Then nothing is in flight.

Lost, replaced or repartitioned topics make a cut impossible: `check_follows` refuses it. Committed offsets that are
absent or moved backwards are facts of the cluster: a manifest holds them, and a check reports them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from shared.events import catalogue

VERSION = 3
"""Version 2 has fewer settings. Version 1 has no settings, topic ids, leader epochs, evidence or explanations, and an
absent committed offset is 0 in it."""

DEFAULT_TIME_ZONE: Final = "UTC"

PARTITIONS_MAX: Final = 1024
"""The bound of `spark.places`: a partition number has 10 bits in a place."""

OFFSETS_MAX: Final = 1 << 53
"""Likewise: an offset has 53 bits."""

LANDED_TOPICS = (
    catalogue.INSTALLATION,
    *catalogue.REFERENCE_TOPICS,
    "payments.raw",
    "payments.accepted",
    "payments.deduplicated",
    "payments.dead-letter",
    "ledger.transfers",
    "ledger.postings",
    "ledger.balances",
    catalogue.LEDGER_ACCOUNTS,
    "effects.requests",
    "effects.results",
    "effects.waiting",
    "effects.dead-letter",
)
"""From the first of the flow to the last; a cut is pinned in the opposite order. So a reference record is in each cut
that has a record which names it."""

INPUTS = {
    "ingest": "payments.raw",
    "transform": "payments.accepted",
    "ledger": "ledger.transfers",
    "outbox": "effects.requests",
}
"""Consumer groups by service, and what each reads."""

CONTIGUOUS: Final = frozenset({catalogue.PAYMENTS_RAW})
"""Topics that only producers without transactions write, and that are not compacted: each offset holds a record."""

KEPT_FOR_EVER: Final = frozenset(
    topic.name for topic in catalogue.TOPICS if topic.compacted or topic.settings()["retention.ms"] == "-1"
)
"""Topics whose logs always begin where they began first: no record of theirs may expire."""

ADDED_TOPICS: Final = (*catalogue.REFERENCE_TOPICS, catalogue.INSTALLATION, catalogue.LEDGER_ACCOUNTS)
"""Landed topics that older manifests do not name, in the order in which they were added."""


class ManifestError(ValueError):
    """A manifest cannot be read, was altered, or does not follow the one before it."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offsets of one topic partition."""

    start: int  # where the cut before it ended, or where the log began
    end: int  # the offset after the last of the cut: the last stable offset
    high: int  # the high watermark, looked up after every end
    beginning: int = 0  # where the log began when the cut was taken; above `start` when records had expired unread
    leader_epoch: int = -1  # of the log at `end`, as its leader gave it; -1 where unknown

    @property
    def stable(self) -> bool:
        """Whether nothing was written or open beyond the end when all ends had been pinned."""
        return self.end == self.high

    @property
    def first(self) -> int:
        """The first offset that can be read: records below `beginning` had expired."""
        return max(self.start, self.beginning)

    @property
    def expired(self) -> int:
        """Offsets of the cut that were gone when it was taken."""
        return max(0, min(self.beginning, self.end) - self.start)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings that a run's result depends on."""

    identity_window: int = 100_000  # accepted identities that ingest remembers for each partition
    reversal_window: int = 20_000  # booked payments that the ledger remembers for each partition
    superseded_kept_ms: int = catalogue.SUPERSEDED_KEPT_MS  # the reference topics keep a superseded record so long
    late_after_cuts: int = 3  # cuts after which a record that is still in flight is late
    records_max: int = 20_000_000  # offsets of one topic that a job of the landing reads at most
    time_zone: str = DEFAULT_TIME_ZONE  # IANA name, of business days; a manifest without it means UTC


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pipeline's code."""

    version: str = ""  # of the installed package; empty for a checkout that is not installed
    sha256: str = ""  # over the pipeline's source files, hex


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Digests of what was on disk when the cut was taken."""

    landed: str = ""  # SHA-256 of the landed.json of the cut before; empty for the first cut
    runs: dict[str, str] = {}  # SHA-256 of each run.json that no earlier manifest names, by cut_id
    code: Code = Code()  # that took the cut


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cut."""

    version: int
    sequence: int  # 1 for the first cut, one more for each later one
    taken_at_ms: int  # since 1970 UTC
    cluster_id: str  # a cut follows one of the same cluster only
    topics: dict[str, dict[int, Range]]  # ranges by topic and partition, every partition of every landed topic
    groups: Mapping[str, Mapping[int, int | None]]  # committed offsets by group and partition; None where there is none
    settled: bool  # no topic moved and nothing was open for a while
    previous: str = ""  # digest of the manifest before this one; empty for the first
    digest: str = ""  # SHA-256 over all other fields, hex
    topic_ids: dict[str, str] = {}  # by topic, as Kafka's tools print them
    settings: Settings = Settings()
    evidence: Evidence = Evidence()
    explanations: str = ""  # digest of the newest explanation of a break; empty without any

    @property
    def cut_id(self) -> str:
        """The cut's name in files: `000007-1f3a9c02`."""
        return f"{self.sequence:06d}-{self.digest[:8]}"

    def committed(self, group: str) -> dict[int, int]:
        """Return a group's committed offsets by partition, 0 where there is none."""
        return {partition: offset or 0 for partition, offset in self.groups[group].items()}


_SINCE_VERSION_2: Final = ("topic_ids", "settings", "evidence", "explanations")
_SETTINGS_SINCE_VERSION_3: Final = ("reversal_window", "superseded_kept_ms", "time_zone")


def seal(manifest: Manifest) -> Manifest:
    """Return the manifest with its digest."""
    return msgspec.structs.replace(manifest, digest=_digest(manifest))


def encode(manifest: Manifest) -> bytes:
    """Encode as it is stored: JSON, keys sorted, indented, one newline at the end."""
    return msgspec.json.format(_sorted_json(manifest), indent=2) + b"\n"


def decode(text: bytes) -> Manifest:
    """Read a manifest of any version and check it.

    Raises ManifestError if it is another document, of a later version, altered, or its ranges make no sense.
    """
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"this is no manifest: {error}") from error
    if not 1 <= manifest.version <= VERSION:
        raise ManifestError(f"this manifest has version {manifest.version}, and only 1 to {VERSION} can be read")
    if manifest.digest != _digest(manifest) or msgspec.json.decode(text) != _document(manifest):
        raise ManifestError(f"this manifest was altered: its digest is not {manifest.digest or 'there'}")
    if not set(LANDED_TOPICS) - set(ADDED_TOPICS) <= set(manifest.topics) <= set(LANDED_TOPICS) or set(
        manifest.groups
    ) != set(INPUTS):
        raise ManifestError("this manifest does not name every topic and group")
    for topic, ranges in manifest.topics.items():
        for partition, offsets in ranges.items():
            if not 0 <= offsets.start <= offsets.end <= offsets.high:
                raise ManifestError(f"{topic}:{partition} has offsets out of order: {offsets}")
    return manifest


def check_follows(manifest: Manifest, previous: Manifest) -> None:
    """Raise ManifestError unless a cut begins exactly where the one before it ended, in the same topics."""
    cut = f"cut {manifest.cut_id}"
    if manifest.previous != previous.digest or manifest.sequence != previous.sequence + 1:
        raise ManifestError(f"{cut} does not follow cut {previous.cut_id}")
    if manifest.cluster_id != previous.cluster_id:
        raise ManifestError(f"{cut} is of another cluster than cut {previous.cut_id}")
    if manifest.version < previous.version:
        raise ManifestError(f"{cut} has version {manifest.version}, the one before {previous.version}: update `once`")
    check_topics(manifest, previous)
    for topic, ranges in manifest.topics.items():
        for partition, before in previous.topics.get(topic, {}).items():
            if ranges[partition].start != before.end:
                raise ManifestError(f"{topic}:{partition} of {cut} does not begin where the last one ended")


def check_topics(manifest: Manifest, previous: Manifest) -> None:
    """Raise ManifestError unless the topics of the cut before are still the same: ids, partitions, and logs."""
    for topic, before in previous.topics.items():
        ranges, known = manifest.topics.get(topic), previous.topic_ids.get(topic)
        if ranges is None or (known is not None and topic not in manifest.topic_ids):
            raise ManifestError(f"cut {manifest.cut_id} does not name {topic}")
        if known is not None and manifest.topic_ids[topic] != known:
            raise ManifestError(
                f"{topic} was deleted and created again: its id is {manifest.topic_ids[topic]}, that of the cut before "
                f"{known}. {_NEW_LAKE}"
            )
        if ranges.keys() != before.keys():
            raise ManifestError(
                f"{topic} has {_numbers(ranges)}, the cut before has {_numbers(before)}. Partitions cannot be added or "
                f"removed: accounts live on them. {_NEW_LAKE}"
            )
        for partition in ranges:
            _check_log(f"{topic}:{partition}", topic, ranges[partition], before[partition])


_NEW_LAKE: Final = "Restore the topic, or begin a new lake with ONCE_LAKE"


def _check_log(name: str, topic: str, offsets: Range, before: Range) -> None:
    """Raise ManifestError if a partition's log is an older one, or another one, than in the cut before.

    The beginning of a topic with a retention may move backwards: a new leader may not have deleted its segments yet.
    """
    for field, now, then in (
        ("end", offsets.end, before.end),
        ("leader epoch", offsets.leader_epoch, before.leader_epoch),
        ("beginning", offsets.beginning, before.beginning if topic in KEPT_FOR_EVER else 0),
    ):
        if now < then and now >= 0:
            raise ManifestError(
                f"the {field} of {name} is {now}, and was {then} in the cut before: the cluster has lost records. "
                f"{_NEW_LAKE}"
            )


def check_bounds(manifest: Manifest) -> None:
    """Raise ManifestError if a topic has more partitions than a place can name."""
    for topic, ranges in manifest.topics.items():
        if max(ranges, default=0) >= PARTITIONS_MAX:
            raise ManifestError(f"{topic} has {len(ranges)} partitions: the reconciliation takes {PARTITIONS_MAX}")


def _numbers(partitions: Iterable[int]) -> str:
    numbers = sorted(partitions)
    whole = numbers == list(range(len(numbers)))
    return f"{len(numbers)} partitions" if whole else f"partitions {', '.join(map(str, numbers))}"


def joined(cuts: list[Manifest]) -> Manifest:
    """Return one manifest over consecutive cuts, at least one, for a run over all of them.

    It has the starts of the first, everything else of the last. Raises ManifestError if they do not follow one another.
    """
    for before, after in pairwise(cuts):
        check_follows(after, before)
    first, last = cuts[0], cuts[-1]
    starts = {
        (topic, partition): offsets.start
        for cut in reversed(cuts)  # a topic that a later cut added starts there
        for topic, ranges in cut.topics.items()
        for partition, offsets in ranges.items()
    }
    topics = {
        topic: {
            partition: msgspec.structs.replace(offsets, start=starts[topic, partition])
            for partition, offsets in ranges.items()
        }
        for topic, ranges in last.topics.items()
    }
    return seal(msgspec.structs.replace(last, topics=topics, previous=first.previous))


def sorted_json(value: object) -> bytes:
    """Encode with keys sorted, as all documents of the chain are; keys are sorted as text."""
    return msgspec.json.encode(msgspec.to_builtins(value, str_keys=True), order="sorted")


def _digest(manifest: Manifest) -> str:
    blank = msgspec.structs.replace(manifest, digest="")
    return hashlib.sha256(_sorted_json(blank)).hexdigest()


def _sorted_json(manifest: Manifest) -> bytes:
    return sorted_json(_document(manifest))


def _document(manifest: Manifest) -> dict[str, Any]:
    """Return the fields that a manifest of its version has."""
    document: dict[str, Any] = msgspec.to_builtins(manifest, str_keys=True)
    if manifest.version < VERSION:
        for name in _SETTINGS_SINCE_VERSION_3:
            del document["settings"][name]
    if manifest.version == 1:
        for name in _SINCE_VERSION_2:
            del document[name]
        for ranges in document["topics"].values():
            for offsets in ranges.values():
                del offsets["leader_epoch"]
    return document
