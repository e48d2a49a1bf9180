"""The pinned cut: its digest covers all of it, and cuts form a chain without a gap."""

import json
from pathlib import Path

import msgspec
import pytest

from shared.events.catalogue import TOPICS
from shared.kafka.admin.groups import PIPELINE
from spark.manifest import (
    INPUTS,
    LANDED_TOPICS,
    VERSION,
    Evidence,
    Manifest,
    ManifestError,
    Range,
    Settings,
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


def without_partition(manifest: Manifest, topic: str, partition: int) -> Manifest:
    fewer = {number: offsets for number, offsets in manifest.topics[topic].items() if number != partition}
    return seal(msgspec.structs.replace(manifest, topics={**manifest.topics, topic: fewer}))


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
    for version in (0, VERSION + 1):
        with pytest.raises(ManifestError, match=f"version {version}, and only 1 to {VERSION}"):
            decode(encode(cut(version=version)))
    unsealed = msgspec.structs.replace(cut(), digest="")
    with pytest.raises(ManifestError, match="digest is not there"):
        decode(encode(unsealed))


def test_a_manifest_without_a_topic_or_group_or_with_offsets_out_of_order_is_refused() -> None:
    manifest = cut()
    fewer = seal(msgspec.structs.replace(manifest, topics=dict(list(manifest.topics.items())[:-1])))
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
        (with_range(after(first), "payments.raw", 6, Range(10, 20, 20)), "payments.raw has 7 partitions"),
        (without_partition(after(first), "payments.raw", 5), "payments.raw has 5 partitions"),
        (without_partition(after(first), "payments.raw", 0), "payments.raw has partitions 1, 2, 3, 4, 5"),
        (cut(2, 10, 20, 20, version=1, previous=first.digest), f"has version 1, the one before {VERSION}"),
    ):
        with pytest.raises(ManifestError, match=message):
            check_follows(other, first)


@pytest.mark.parametrize(
    ("topic", "offsets", "message"),
    [
        ("payments.raw", Range(10, 9, 20, 4, 7), "the end of payments.raw:1 is 9, and was 10"),
        ("payments.raw", Range(10, 20, 20, 3, 7), "the beginning of payments.raw:1 is 3, and was 4"),
        ("payments.raw", Range(10, 20, 20, 4, 6), "the leader epoch of payments.raw:1 is 6, and was 7"),
        ("effects.requests", Range(10, 20, 20, 3, 7), None),  # a new leader has not deleted its segments yet
        ("payments.raw", Range(10, 20, 20, 5, 8), None),
    ],
)
def test_a_log_that_moved_backwards_is_refused(topic: str, offsets: Range, message: str | None) -> None:
    first = with_range(cut(), topic, 1, Range(0, 10, 10, 4, 7))
    second = with_range(after(first), topic, 1, offsets)
    if message is None:
        check_follows(second, first)
        return
    with pytest.raises(ManifestError, match=message):
        check_follows(second, first)


def test_a_topic_with_another_id_or_without_one_is_refused() -> None:
    ids = {topic: f"id of {topic}" for topic in LANDED_TOPICS}
    first = cut(topic_ids=ids)
    check_follows(after(first, topic_ids=ids), first)
    check_follows(after(cut(), topic_ids=ids), cut())
    for other, message in (
        ({**ids, "ledger.postings": "other"}, "ledger.postings was deleted and created again: its id is other"),
        ({topic: found for topic, found in ids.items() if topic != "ledger.postings"}, "does not name ledger.postings"),
    ):
        with pytest.raises(ManifestError, match=message):
            check_follows(after(first, topic_ids=other), first)


def test_offsets_that_expired_are_counted_up_to_the_end() -> None:
    cases = (Range(5, 9, 9), 0), (Range(5, 9, 9, 7), 2), (Range(5, 9, 9, 12), 4), (Range(5, 9, 9, 3), 0)
    assert [offsets.expired for offsets, _ in cases] == [expired for _, expired in cases]


GOLDEN = Path(__file__).with_name("manifest_v1.json")


def test_a_manifest_of_version_1_is_read_and_written_as_it_is_and_continued() -> None:
    text = GOLDEN.read_bytes()
    first = decode(text)
    assert encode(first) == text
    assert (first.version, first.cut_id) == (1, "000001-ed129afb")
    assert first.topics["effects.requests"][1] == Range(4, 7, 9, 5, leader_epoch=-1)
    assert (first.topic_ids, first.settings, first.evidence, first.explanations) == ({}, Settings(), Evidence(), "")
    topics = {
        topic: {number: Range(offsets.end, offsets.high, offsets.high, 5, 3) for number, offsets in ranges.items()}
        for topic, ranges in first.topics.items()
    }
    second = after(first, topics=topics, topic_ids=dict.fromkeys(LANDED_TOPICS, "id"))
    second = seal(msgspec.structs.replace(second, cluster_id=first.cluster_id))
    check_follows(decode(encode(second)), first)
    both = joined([first, second])
    assert (both.version, both.topics["payments.raw"][1]) == (VERSION, Range(0, 9, 9, 5, 3))


def test_a_manifest_of_version_2_is_read_and_written_as_it_is_with_the_defaults_of_later_settings() -> None:
    text = Path(__file__).with_name("manifest_v2.json").read_bytes()
    first = decode(text)
    assert encode(first) == text
    assert (first.version, first.cut_id) == (2, "000001-814b9700")
    assert first.settings == Settings(identity_window=5, late_after_cuts=2, records_max=7)
    altered = json.loads(text)
    altered["settings"]["reversal_window"] = 20_000
    with pytest.raises(ManifestError, match="was altered"):
        decode(json.dumps(altered).encode())


def test_a_time_zone_is_pinned() -> None:
    utc, local = cut(settings=Settings()), cut(settings=Settings(time_zone="Europe/Prague"))
    assert decode(encode(utc)).settings.time_zone == "UTC"
    assert decode(encode(local)) == local
    altered = json.loads(encode(local))
    altered["settings"]["time_zone"] = "UTC"
    with pytest.raises(ManifestError, match="was altered"):
        decode(json.dumps(altered).encode())


@pytest.mark.parametrize("field", ["topic_ids", "settings", "evidence", "explanations", "leader_epoch"])
def test_a_manifest_of_version_1_with_a_field_of_version_2_was_altered(field: str) -> None:
    altered = json.loads(GOLDEN.read_bytes())
    if field == "leader_epoch":
        altered["topics"]["payments.raw"]["0"][field] = 5
    else:
        altered[field] = json.loads(encode(cut()))[field]
    with pytest.raises(ManifestError, match="was altered"):
        decode(json.dumps(altered).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"topic_ids": {"payments.raw": "other"}},
        {"settings": Settings(identity_window=1)},
        {"settings": Settings(reversal_window=1)},
        {"settings": Settings(superseded_kept_ms=1)},
        {"evidence": Evidence(landed="a" * 64)},
        {"explanations": "a" * 64},
        {"groups": {group: dict.fromkeys(range(6)) for group in INPUTS}},
    ],
)
def test_the_digest_covers_the_fields_of_version_2(change: dict[str, object]) -> None:
    changed = msgspec.structs.replace(cut(), **change)
    assert seal(changed).digest != cut().digest
    with pytest.raises(ManifestError, match="was altered"):
        decode(encode(changed))


def test_a_manifest_of_a_former_version_without_the_reference_topics_is_read() -> None:
    former = {topic: ranges for topic, ranges in cut().topics.items() if not topic.startswith("reference.")}
    first = seal(msgspec.structs.replace(cut(), topics=former))
    assert decode(encode(first)) == first
    second = after(first)
    check_follows(second, first)
    assert joined([first, second]).topics["reference.fees"][0].start == second.topics["reference.fees"][0].start


def test_a_topic_that_is_landed_from_some_cut_on_begins_where_its_log_began() -> None:
    without = cut()
    fewer = {topic: ranges for topic, ranges in without.topics.items() if topic != "effects.waiting"}
    first = seal(msgspec.structs.replace(without, topics=fewer))
    second = with_range(after(first), "effects.waiting", 0, Range(3, 20, 20))
    check_follows(second, first)
    assert joined([first, second]).topics["effects.waiting"][0] == Range(3, 20, 20)
    with pytest.raises(ManifestError, match=r"does not name effects\.waiting"):
        check_follows(seal(msgspec.structs.replace(after(without), topics=first.topics)), without)


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
    others = {
        "reference.balances",
        "reconciliation.runs",
        "operations.repairs",
        "operations.audit",
        "reference.endpoints",
    }
    assert left_out == own_changelogs | others
    assert dict(PIPELINE) == INPUTS
