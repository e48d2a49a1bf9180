"""The pure half of a landing: its jobs, and what is compared before a cut counts as landed."""

from pathlib import Path
from typing import cast

import msgspec
import pytest
from pyspark.sql import SparkSession

from spark.job import refuse_missing
from spark.lake import Count, Lake, LakeError, Span, Spans, Unknown
from spark.land import FileRows, counts_of, differences, land, misplaced, slices, unknown_of, with_lost
from spark.manifest import CONTIGUOUS, INPUTS, KEPT_FOR_EVER, LANDED_TOPICS, VERSION, Manifest, Range, Settings, seal
from spark.metrics import Progress

RAW, REQUESTS, POSTINGS = "payments.raw", "effects.requests", "ledger.postings"
FILE = Path("part-00000.parquet")


def cut(records_max: int = 100, /, **topics: dict[int, Range]) -> Manifest:
    """A cut of topics by name, `_` for a dot; the others have no new records."""
    named = {name.replace("_", "."): ranges for name, ranges in topics.items()}
    every = {topic: named.get(topic, {0: Range(0, 0, 0)}) for topic in LANDED_TOPICS}
    groups: dict[str, dict[int, int | None]] = {group: {0: None} for group in INPUTS}
    return seal(Manifest(VERSION, 1, 5, "kafka", every, groups, True, settings=Settings(records_max=records_max)))


@pytest.mark.parametrize(
    ("records_max", "expected"),
    [
        (100, [{0: (0, 30), 1: (5, 15), 2: (3, 4)}]),
        (41, [{0: (0, 30), 1: (5, 15), 2: (3, 4)}]),
        (40, [{0: (0, 15), 1: (5, 10)}, {0: (15, 30), 1: (10, 15), 2: (3, 4)}]),
        (0, 41),
    ],
)
def test_a_topic_is_read_in_jobs_of_bounded_size_that_cover_it_once(records_max: int, expected: object) -> None:
    ranges = {0: Range(0, 30, 30), 1: Range(0, 15, 15, beginning=5), 2: Range(3, 4, 9), 3: Range(7, 7, 7)}
    jobs = list(slices(cut(records_max, payments_raw=ranges)))
    if isinstance(expected, int):
        assert len(jobs) == expected
    else:
        assert [job.offsets for job in jobs] == expected
    assert {job.topic for job in jobs} == {RAW}
    covered = sorted(
        (partition, offset)
        for job in jobs
        for partition, (begin, end) in job.offsets.items()
        for offset in range(begin, end)
    )
    assert covered == [(0, n) for n in range(30)] + [(1, n) for n in range(5, 15)] + [(2, 3)]


@pytest.mark.parametrize("previous", ["", "digest"])
def test_an_empty_lake_takes_the_first_cut_only(tmp_path: Path, previous: str) -> None:
    """A manifest of joined cuts has no cut before it either."""
    lake, later = Lake(tmp_path), seal(msgspec.structs.replace(cut(), sequence=2, previous=previous))
    with pytest.raises(LakeError, match=f"the cuts before {later.cut_id} are not in"):
        land(cast("SparkSession", None), later, "none", lake, Progress())
    assert list(tmp_path.iterdir()) == []


def test_jobs_are_numbered_in_the_order_of_topics() -> None:
    manifest = cut(10, payments_raw={0: Range(0, 25, 25)}, effects_requests={0: Range(0, 5, 5)})
    jobs = list(slices(manifest))
    assert [job.topic for job in jobs] == [RAW, RAW, RAW, REQUESTS]
    assert [job.number for job in jobs] == sorted({job.number for job in jobs})


def file(rows: int, *, footer: int | None = None, doubled: int = 0, spans: Spans | None = None) -> FileRows:
    found = {RAW: {0: Span(rows, 0, rows - 1)}} if spans is None else spans
    return FileRows("payments_raw", rows if footer is None else footer, doubled, found)


@pytest.mark.parametrize(
    ("parsed", "found", "fault"),
    [
        (3, file(3), None),
        (3, file(2), "3 rows of payments_raw were parsed, and 2 are on disk"),
        (3, file(6), "3 rows of payments_raw were parsed, and 6 are on disk"),
        (3, file(3, footer=2), "part-00000.parquet of payments_raw has 3 rows, and 2 by its footer"),
        (6, file(6, doubled=3), "3 rows of part-00000.parquet of payments_raw have an offset that was landed before"),
    ],
)
def test_rows_that_were_parsed_those_on_disk_and_footers_must_agree(
    parsed: int, found: FileRows, fault: str | None
) -> None:
    assert differences({"payments_raw": parsed, "postings": 0}, {FILE: found}) == ([] if fault is None else [fault])


def test_rows_of_a_table_without_files_are_missed() -> None:
    assert differences({"postings": 2}, {}) == ["2 rows of postings were parsed, and 0 are on disk"]
    assert differences({}, {FILE: file(1)}) == ["0 rows of payments_raw were parsed, and 1 are on disk"]


@pytest.mark.parametrize(
    ("spans", "bad"),
    [
        ({RAW: {0: Span(2, 10, 19)}}, False),
        ({RAW: {0: Span(2, 9, 19)}}, True),
        ({RAW: {0: Span(2, 10, 20)}}, True),
        ({RAW: {1: Span(1, 10, 10)}}, True),
        ({REQUESTS: {0: Span(1, 14, 14)}}, True),  # below its log's beginning
        ({REQUESTS: {0: Span(1, 15, 15)}}, False),
        ({"other": {0: Span(1, 10, 10)}}, True),
    ],
)
def test_rows_outside_the_pinned_offsets_are_named(spans: Spans, bad: bool) -> None:
    pinned = {"payments_raw": {0: Range(10, 20, 25)}, "effects_requests": {0: Range(10, 20, 20, beginning=15)}}
    faults = misplaced(cut(**pinned), {FILE: file(0, spans=spans)})
    assert len(faults) == bad
    assert all("part-00000.parquet of payments_raw has" in fault for fault in faults)


def test_offsets_without_a_row_are_missing_only_where_each_offset_holds_a_record() -> None:
    manifest = cut(
        payments_raw={0: Range(0, 10, 10), 1: Range(5, 10, 10, beginning=7), 2: Range(3, 3, 3)},
        ledger_postings={0: Range(0, 10, 10)},
        effects_requests={0: Range(0, 10, 10, beginning=30)},
    )
    spans: list[Spans] = [
        {RAW: {0: Span(6, 0, 9), 1: Span(3, 7, 9)}, POSTINGS: {0: Span(1, 0, 0)}},
        {RAW: {0: Span(3, 2, 8)}, POSTINGS: {0: Span(6, 1, 8)}},
    ]
    assert counts_of(manifest, spans) == {
        RAW: {0: Count(10, 9, 0, 1), 1: Count(3, 3, 2, 0)},
        POSTINGS: {0: Count(10, 7, 0, 0)},
        REQUESTS: {0: Count(0, 0, 10, 0)},
    }


def test_the_log_is_looked_up_where_offsets_are_missing() -> None:
    asked: list[tuple[str, int, int, int]] = []

    def uncovered(*where: *tuple[str, int, int, int]) -> int:
        asked.append(where)
        return 2

    manifest = cut(payments_raw={0: Range(0, 10, 10), 1: Range(2, 9, 9, beginning=4)})
    counts = {RAW: {0: Count(10, 10, 0, 0), 1: Count(5, 2, 2, 3)}}
    assert with_lost(manifest, counts, uncovered) == {RAW: {0: Count(10, 10, 0, 0), 1: Count(5, 2, 2, 3, lost=2)}}
    assert asked == [(RAW, 1, 4, 9)]


def test_a_submitted_job_refuses_a_cut_whose_missing_offsets_it_cannot_look_up() -> None:
    manifest = cut(payments_raw={0: Range(0, 10, 10), 1: Range(2, 9, 9, beginning=4)})
    sound = {RAW: {0: Count(10, 10, 0, 0), 1: Count(5, 5, 2, 0)}}
    assert with_lost(manifest, sound, refuse_missing) == sound
    with pytest.raises(LakeError, match=r"payments\.raw:1 .* from 4 to before 9, .* with `once reconcile`"):
        with_lost(manifest, {RAW: {**sound[RAW], 1: Count(5, 2, 2, 3)}}, refuse_missing)


def test_records_with_unknown_fields_are_counted_by_topic_and_the_first_is_named() -> None:
    jobs = [(RAW, None), (POSTINGS, Unknown(2, 3, 9)), (POSTINGS, None), (POSTINGS, Unknown(1, 0, 12))]
    assert unknown_of(jobs) == {POSTINGS: Unknown(3, 0, 12)}


def test_topics_whose_records_may_go_are_known() -> None:
    assert {RAW} == CONTIGUOUS
    assert set(LANDED_TOPICS) - KEPT_FOR_EVER == {REQUESTS}


def test_a_span_is_stored_as_three_numbers() -> None:
    assert msgspec.json.encode(Span(3, 1, 9)) == b"[3,1,9]"
