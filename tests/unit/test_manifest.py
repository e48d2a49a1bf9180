"""The pinned cut: its digest covers all of it, and cuts form a chain without a gap."""

import msgspec
import pytest

from shared.events.catalogue import TOPICS
from shared.kafka.admin.groups import PIPELINE
from spark.manifest import (
    INPUTS,
    LANDED_TOPICS,
    VERSION,
    Manifest,
    ManifestError,
    Range,
    check_follows,
    decode,
    encode,
    joined,
    seal,
)


def cut(sequence: int = 1, start: int = 0, end: int = 10, high: int = 10, **fields: object) -> Manifest:
    topics = {topic: {number: Range(start, end, high) for number in range(6)} for topic in LANDED_TOPICS}
    groups = {group: dict.fromkeys(range(6), end) for group in INPUTS}
    blank = Manifest(VERSION, sequence, 1_767_686_400_000, "kafka", topics, groups, settled=True)
    return seal(msgspec.structs.replace(blank, **fields))


def after(before: Manifest, start: int = 10, end: int = 20, **fields: object) -> Manifest:
    return cut(before.sequence + 1, start, end, end, **({"previous": before.digest} | fields))


def with_range(manifest: Manifest, topic: str, partition: int, offsets: Range) -> Manifest:
    changed = {**manifest.topics, topic: {**manifest.topics[topic], partition: offsets}}
    return seal(msgspec.structs.replace(manifest, topics=changed))


def test_a_stored_manifest_round_trips() -> None:
    manifest = cut()
    text = encode(manifest)
    assert decode(text) == manifest
    assert encode(decode(text)) == text
    assert text.endswith(b"}\n")
    assert manifest.cut_id == f"000001-{manifest.digest[:8]}"


def test_partitions_beyond_ten_round_trip() -> None:
    topics = {topic: {number: Range(0, number, number) for number in range(12)} for topic in LANDED_TOPICS}
    manifest = seal(msgspec.structs.replace(cut(), topics=topics))
    assert decode(encode(manifest)) == manifest


@pytest.mark.parametrize(
    "change",
    [
        (b'"settled": true', b'"settled": false'),
        (b'"taken_at_ms": 1767686400000', b'"taken_at_ms": 1767686400001'),
        (b'"cluster_id": "kafka"', b'"cluster_id": "other"'),
        (b'"end": 10', b'"end": 9'),
        (b'"sequence": 1', b'"sequence": 2'),
    ],
)
def test_a_change_of_any_field_is_noticed(change: tuple[bytes, bytes]) -> None:
    text = encode(cut())
    altered = text.replace(*change, 1)
    assert altered != text
    with pytest.raises(ManifestError, match="was altered"):
        decode(altered)


def test_an_invalid_manifest_is_refused() -> None:
    for text in (b"", b"{}", b"\xff", b"[]", encode(cut()).replace(b'"version"', b'"unknown": 1, "version"')):
        with pytest.raises(ManifestError, match="no manifest"):
            decode(text)
    with pytest.raises(ManifestError, match="version 2"):
        decode(encode(cut(version=2)))
    unsealed = msgspec.structs.replace(cut(), digest="")
    with pytest.raises(ManifestError, match="digest is not there"):
        decode(encode(unsealed))


def test_a_manifest_without_a_topic_or_group_or_with_offsets_out_of_order_is_refused() -> None:
    manifest = cut()
    fewer = seal(msgspec.structs.replace(manifest, topics=dict(list(manifest.topics.items())[1:])))
    without_groups = seal(msgspec.structs.replace(manifest, groups={}))
    for incomplete in (fewer, without_groups):
        with pytest.raises(ManifestError, match="every topic and group"):
            decode(encode(incomplete))
    for offsets in (Range(-1, 10, 10), Range(11, 10, 10), Range(0, 10, 9)):
        with pytest.raises(ManifestError, match=r"ledger\.postings:3 has offsets out of order"):
            decode(encode(with_range(manifest, "ledger.postings", 3, offsets)))
    # Records that expired unread show in the beginning, and are not a reason to refuse
    expired = with_range(manifest, "effects.requests", 3, Range(0, 10, 10, beginning=4))
    assert decode(encode(expired)) == expired


def test_a_range_is_stable_when_nothing_was_open_beyond_its_end() -> None:
    assert Range(0, 10, 10).stable
    assert not Range(0, 10, 11).stable


def test_a_cut_follows_the_one_whose_ends_are_its_starts() -> None:
    first = cut()
    check_follows(after(first), first)
    for other, message in (
        (after(first, previous="0" * 64), "does not follow"),
        (msgspec.structs.replace(after(first), sequence=3), "does not follow"),
        (after(first, cluster_id="other"), "of another cluster"),
        (with_range(after(first), "payments.raw", 5, Range(11, 20, 20)), "payments.raw:5 .* does not begin"),
        (with_range(after(first), "payments.raw", 6, Range(10, 20, 20)), "payments.raw:6 .* does not begin"),
    ):
        with pytest.raises(ManifestError, match=message):
            check_follows(other, first)


def test_consecutive_cuts_are_joined_into_one() -> None:
    first = cut()
    second = after(first)
    third = after(second, 20, 30)
    both = joined([second, third])
    assert both.topics["ledger.postings"][2] == Range(10, 30, 30)
    assert (both.previous, both.sequence, both.groups) == (first.digest, 3, third.groups)
    assert decode(encode(both)) == both
    assert joined([third]) == seal(third)
    with pytest.raises(ManifestError):
        joined([first, third])


def test_the_cut_covers_every_topic_but_those_that_need_no_reconciliation() -> None:
    left_out = {topic.name for topic in TOPICS} - set(LANDED_TOPICS)
    own_changelogs = {"payments.identities", "transform.progress"}
    reference = {"reference.fees", "reference.rates", "reference.balances", "reference.subscriptions"}
    assert left_out == own_changelogs | reference | {"reconciliation.runs", "operations.repairs"}
    assert dict(PIPELINE) == INPUTS
