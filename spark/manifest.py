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
"""

import hashlib
from itertools import pairwise

import msgspec

VERSION = 1

LANDED_TOPICS = (
    "payments.raw",
    "payments.accepted",
    "payments.deduplicated",
    "payments.dead-letter",
    "ledger.transfers",
    "ledger.postings",
    "ledger.balances",
    "effects.requests",
    "effects.results",
    "effects.waiting",
    "effects.dead-letter",
)
"""From the first of the flow to the last; a cut is pinned in the opposite order."""

INPUTS = {
    "ingest": "payments.raw",
    "transform": "payments.accepted",
    "ledger": "ledger.transfers",
    "outbox": "effects.requests",
}
"""Consumer groups by service, and what each reads."""


class ManifestError(ValueError):
    """A manifest cannot be read, was altered, or does not follow the one before it."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offsets of one topic partition."""

    start: int  # where the cut before it ended, or where the log began
    end: int  # the offset after the last of the cut: the last stable offset
    high: int  # the high watermark, looked up after every end
    beginning: int = 0  # where the log began when the cut was taken; above `start` when records had expired unread

    @property
    def stable(self) -> bool:
        """Whether nothing was written or open beyond the end when all ends had been pinned."""
        return self.end == self.high


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cut."""

    version: int
    sequence: int  # 1 for the first cut, one more for each later one
    taken_at_ms: int  # since 1970 UTC
    cluster_id: str  # a cut follows one of the same cluster only
    topics: dict[str, dict[int, Range]]  # ranges by topic and partition, every partition of every landed topic
    groups: dict[str, dict[int, int]]  # committed offsets by group and partition; a partition without one is 0
    settled: bool  # no topic moved and nothing was open for a while
    previous: str = ""  # digest of the manifest before this one; empty for the first
    digest: str = ""  # SHA-256 over all other fields, hex

    @property
    def cut_id(self) -> str:
        """The cut's name in files: `000007-1f3a9c02`."""
        return f"{self.sequence:06d}-{self.digest[:8]}"


def seal(manifest: Manifest) -> Manifest:
    """Return the manifest with its digest."""
    return msgspec.structs.replace(manifest, digest=_digest(manifest))


def encode(manifest: Manifest) -> bytes:
    """Encode as it is stored: JSON, keys sorted, indented, one newline at the end."""
    return msgspec.json.format(_sorted_json(manifest), indent=2) + b"\n"


def decode(text: bytes) -> Manifest:
    """Read a manifest and check it.

    Raises ManifestError if it is another document, of another version, altered, or its ranges make no sense.
    """
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"this is no manifest: {error}") from error
    if manifest.version != VERSION:
        raise ManifestError(f"this manifest has version {manifest.version}, and only {VERSION} can be read")
    if manifest.digest != _digest(manifest):
        raise ManifestError(f"this manifest was altered: its digest is not {manifest.digest or 'there'}")
    if set(manifest.topics) != set(LANDED_TOPICS) or set(manifest.groups) != set(INPUTS):
        raise ManifestError("this manifest does not name every topic and group")
    for topic, ranges in manifest.topics.items():
        for partition, offsets in ranges.items():
            if not 0 <= offsets.start <= offsets.end <= offsets.high:
                raise ManifestError(f"{topic}:{partition} has offsets out of order: {offsets}")
    return manifest


def check_follows(manifest: Manifest, previous: Manifest) -> None:
    """Raise ManifestError unless a cut begins exactly where the one before it ended."""
    if manifest.previous != previous.digest or manifest.sequence != previous.sequence + 1:
        raise ManifestError(f"cut {manifest.cut_id} does not follow cut {previous.cut_id}")
    if manifest.cluster_id != previous.cluster_id:
        raise ManifestError(f"cut {manifest.cut_id} is of another cluster than cut {previous.cut_id}")
    for topic, ranges in manifest.topics.items():
        for partition, offsets in ranges.items():
            before = previous.topics[topic].get(partition)
            if before is None or offsets.start != before.end:
                raise ManifestError(
                    f"{topic}:{partition} of cut {manifest.cut_id} does not begin where the last one ended"
                )


def joined(cuts: list[Manifest]) -> Manifest:
    """Return one manifest over consecutive cuts, at least one, for a run over all of them.

    It has the starts of the first, everything else of the last. Raises ManifestError if they do not follow one another.
    """
    for before, after in pairwise(cuts):
        check_follows(after, before)
    first, last = cuts[0], cuts[-1]
    topics = {
        topic: {
            partition: msgspec.structs.replace(offsets, start=first.topics[topic][partition].start)
            for partition, offsets in ranges.items()
        }
        for topic, ranges in last.topics.items()
    }
    return seal(msgspec.structs.replace(last, topics=topics, previous=first.previous))


def _digest(manifest: Manifest) -> str:
    blank = msgspec.structs.replace(manifest, digest="")
    return hashlib.sha256(_sorted_json(blank)).hexdigest()


def _sorted_json(manifest: Manifest) -> bytes:
    # Keys are sorted as text, and only text can be
    return msgspec.json.encode(msgspec.to_builtins(manifest, str_keys=True), order="sorted")
