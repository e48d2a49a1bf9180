"""The report of a reconciliation: its bytes, its page and its metrics, made from the findings alone."""

import html.parser
import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from deploy.cli.reconcile import show
from deploy.reconciliation import outcome_of
from shared.events.operations import RunOutcome, decode_run_outcome, encode_run_outcome
from spark import manifest as manifests
from spark import metrics
from spark.manifest import INPUTS, LANDED_TOPICS, Manifest, Range
from spark.page import age, amount, render, summary_lines
from spark.report import (
    BREAKS,
    CLEAN,
    EXPLAINED,
    Break,
    Count,
    Currency,
    Day,
    Explained,
    Hour,
    House,
    Report,
    Totals,
    agree,
    breaks_of,
    decode,
    encode,
    iso,
    report_of,
    without_list,
)

HOSTILE = '<script>alert("x")</script>&{{ 7 * 7 }}'
KINDS = ("missing", "duplicate")
RISK = ("EUR", Decimal(2**63))
TAKEN_MS = 1_767_500_000_000


def manifest(previous: str = "") -> Manifest:
    return manifests.seal(
        Manifest(
            version=1,
            sequence=2 if previous else 1,
            taken_at_ms=1_767_600_000_123,
            cluster_id="cluster",
            topics={topic: {p: Range(10, 1_010, 1_010) for p in (1, 0)} for topic in reversed(LANDED_TOPICS)},
            groups={group: {1: 7, 0: 1_010} for group in INPUTS},
            settled=not previous,
            previous=previous,
        )
    )


def listed(number: int, kind: str = "missing") -> Break:
    return Break(kind, "transfers:postings", "ledger.transfers", number % 6, number, f"P-{number}", "no posting")


def report(*found: Break, listed_max: int = 100, previous: str = "") -> Report:
    large = Decimal(92233720368547758080)
    sums = (Decimal(0), -large, large, Decimal(0))
    totals = Totals(
        "digest",
        (
            Currency("CHF", 2, *sums, Decimal(-5), Decimal(0), Decimal(1)),
            Currency("JPY", 2, *sums, Decimal(-5), Decimal(0), Decimal(12345)),
        ),
        (House("CHF", "in-transit", 6, 6, *sums),),
        (Hour("2026-01-05T08:00Z", "CHF", 40, Decimal(100)), Hour("2026-01-05T08:00Z", "EUR", 2, Decimal(1))),
    )
    breaks = breaks_of([Count(item.kind, item.check, 1, *RISK, TAKEN_MS) for item in found], found, KINDS, listed_max)
    return report_of(manifest(previous), {"records_in": 1_234_567, "accepted": 3}, {"ledger": 2}, breaks, totals)


def test_the_bytes_depend_on_nothing_but_the_content() -> None:
    first = report(listed(2), listed(1))
    again = report(listed(1), listed(2))
    text = encode(first)
    assert text == encode(again)
    assert text.endswith(b"}\n")
    content = json.loads(text)
    assert list(content) == sorted(content)
    assert list(content["cut"]["topics"]["payments.raw"]) == ["0", "1"]
    assert content["totals"]["currencies"][0]["credits_minor"] == "92233720368547758080"
    assert content["cut"]["taken_at"] == "2026-01-05T08:00:00.123Z"
    assert decode(text) == first


def test_the_verdict_and_whether_it_is_full_follow_from_the_content() -> None:
    assert (report().verdict, report(listed(1)).verdict) == (CLEAN, BREAKS)
    explained = msgspec.structs.replace(listed(1), explained=Explained("ann", "2026-01-06T08:00:00.000Z", "known"))
    for found, verdict in (([], EXPLAINED), ([listed(2)], BREAKS)):
        counts = [Count(item.kind, item.check, 1) for item in found]
        breaks = breaks_of(counts, found, KINDS, 100, explained=[explained])
        assert report_of(manifest(), {}, {}, breaks, report().totals).verdict == verdict
    assert (report().full, report(previous="other").full) == (True, False)


def test_all_breaks_are_counted_and_the_first_are_listed_in_order() -> None:
    found = [listed(number, kind) for number in (9, 3, 15) for kind in KINDS]
    shown = report(*found, listed_max=4).breaks
    assert (shown.total, shown.by_kind) == (6, {"missing": 3, "duplicate": 3})
    assert shown.by_check == {"transfers:postings": 6}
    assert [(item.kind, item.partition, item.offset) for item in shown.listed] == [
        ("duplicate", 3, 3),
        ("duplicate", 3, 9),
        ("duplicate", 3, 15),
        ("missing", 3, 3),
    ]


def test_kinds_without_breaks_are_counted_too() -> None:
    assert report().breaks.by_kind == {"missing": 0, "duplicate": 0}


def test_the_number_of_listed_breaks_does_not_change_the_report() -> None:
    some, all_ = report(listed(1), listed(2), listed_max=1), report(listed(1), listed(2))
    assert encode(some) != encode(all_)
    assert without_list(some) == without_list(all_)
    assert without_list(some) != without_list(report(listed(1)))


def test_a_run_agrees_with_one_of_a_version_without_totals_by_day() -> None:
    day = Day("2026-01-05", "CHF", 1, Decimal(-1), Decimal(1), Decimal(0), Decimal(1))
    later = report()
    totals = msgspec.structs.replace(later.totals, value_dates=(day,), business_days=(day,), time_zone="Europe/Prague")
    later = msgspec.structs.replace(later, totals=totals)
    earlier = msgspec.structs.replace(report(), schema_version=2)
    assert agree(earlier, later)
    assert not agree(report(), later)
    assert not agree(msgspec.structs.replace(earlier, figures={}), later)


def test_a_time_is_exact_to_the_millisecond() -> None:
    assert [iso(time_ms) for time_ms in (0, 1, 253_402_300_799_999)] == [
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:00.001Z",
        "9999-12-31T23:59:59.999Z",
    ]


@pytest.mark.parametrize(
    ("minor", "currency", "text"),
    [
        (123_456_789, "EUR", "1,234,567.89"),
        (-5, "EUR", "-0.05"),
        (-123_456, "JPY", "-123,456"),
        (1_234_567, "BHD", "1,234.567"),
        (92_233_720_368_547_758_080, "CHF", "922,337,203,685,477,580.80"),
        (0, "EUR", "0.00"),
        (-1_234, "???", "-1,234 minor units"),
    ],
)
def test_an_amount_has_its_currencys_digits(minor: int, currency: str, text: str) -> None:
    assert amount(Decimal(minor), currency) == text


class Page(html.parser.HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.headings: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in {"h1", "h2"} and data.strip():
            self.headings.append(data.strip())
        self.texts.append(data)


def text_of(found: Report) -> str:
    return " ".join(" ".join(Page(render(found)).texts).split())


def test_a_page_begins_with_the_answers_and_ends_with_the_manifest() -> None:
    clean = Page(render(report()))
    order = ["Breaks", "Currencies", "House accounts", "Days", "Postings per hour", "Figures", "Manifest"]
    assert [head for head in clean.headings if head in order] == order
    text = text_of(report())
    assert text.index("Clean No break is open") < text.index(
        "Open, not explained 0 no break 0 opened and 0 closed by this run"
    )
    assert "Open since none At risk none Open, explained 0 no break In flight 2 ledger 2" in text
    assert text.index("In flight 2") < text.index("Currencies") < text.index("1,234,567")


def test_the_answers_of_a_page_say_what_is_open_since_when_and_how_much() -> None:
    text = text_of(report(listed(1), listed(2), listed(3, "duplicate")))
    assert "3 open breaks They have no explanation. Repair what is wrong, or explain it: once breaks list." in text
    assert "Open, not explained 3 1 duplicate, 2 missing 0 opened and 0 closed by this run" in text
    assert "Open since 2026-01-04 04:13 UTC the oldest one, 27 h At risk 276," in text
    assert "1 open break It has no explanation." in text_of(report(listed(1)))


def test_a_page_shows_who_explained_a_break_and_why() -> None:
    explained = Explained(HOSTILE, "2026-01-06T08:00:00.000Z", "the mirror lost it")
    known = (("CHF", Decimal(150)), ("EUR", Decimal(5)), ("EUR", Decimal(7)))
    found = [
        msgspec.structs.replace(
            listed(number),
            break_id=f"{number:016}",
            opened_at=f"2026-01-0{number + 2}T00:00:00.000Z",
            explained=explained,
            currency=currency,
            amount_minor=minor,
        )
        for number, (currency, minor) in enumerate(known)
    ]
    found.append(
        msgspec.structs.replace(found[0], explained=msgspec.structs.replace(explained, by="bob"), amount_minor=None)
    )
    of = report_of(manifest(), {}, {}, breaks_of([], [], KINDS, 100, explained=found), report().totals)
    text = text_of(of)
    assert "Explained A person has explained each open break." in text
    assert (
        f"Open, explained 4 3 by {HOSTILE}, 1 by bob since 2026-01-02 00:00 UTC 1.50 CHF 0.12 EUR In flight 0 no record"
        in text
    )
    assert f"Explained by {HOSTILE}, 2026-01-06 08:00 UTC: the mirror lost it" in text
    assert "0000000000000002" in text
    assert "script" not in Page(render(of)).tags


def test_the_same_answers_are_printed() -> None:
    explained = msgspec.structs.replace(listed(1), explained=Explained("ann", "2026-01-06T08:00:00.000Z", "known"))
    counts = [Count("missing", "a", 2, *RISK, TAKEN_MS)]
    breaks = breaks_of(counts, [listed(2), listed(3)], KINDS, 100, explained=[explained])
    assert summary_lines(report_of(manifest(), {}, {"ledger": 2, "balances": 0}, breaks, report().totals)) == [
        "open: 2 (2 missing), the oldest since 2026-01-04 04:13 UTC (27 h)",
        "at risk: 92,233,720,368,547,758.08 EUR",
        "explained: 1 (1 by ann), see once breaks list",
        "in flight: 2 (ledger 2)",
    ]
    assert summary_lines(report_of(manifest(), {}, {}, breaks_of([], [], KINDS, 1), report().totals)) == [
        "in flight: 0"
    ]


def test_the_command_prints_the_last_business_days_and_ends_with_the_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    days = tuple(
        Day(f"2026-03-{number:02}", "CHF", number, Decimal(-200), Decimal(200), Decimal(5), Decimal(100))
        for number in range(1, 17)
    )
    totals = msgspec.structs.replace(report().totals, business_days=days, time_zone="Europe/Prague")
    show(msgspec.structs.replace(report(listed(1)), totals=totals), Path("report.html"))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    [head] = [at for at, line in enumerate(lines) if line.startswith("day (Europe/Prague)")]
    shown = [line.split() for line in lines[head + 1 : head + 15]]
    assert [row[0] for row in shown] == [day.day for day in days[2:]]
    assert shown[-1] == ["2026-03-16", "CHF", "16", "1.00", "0.05", "-2.00", "2.00"]
    assert lines[-5:] == [
        "report: report.html",
        "open: 1 (1 missing), the oldest since 2026-01-04 04:13 UTC (27 h)",
        "at risk: 92,233,720,368,547,758.08 EUR",
        "in flight: 2 (ledger 2)",
        "verdict: breaks",
    ]


@pytest.mark.parametrize(
    ("since", "until", "text"),
    [
        ("2026-01-05T08:00:00.000Z", "2026-01-05T08:00:00.000Z", ""),
        ("2026-01-05T08:00:00.000Z", "2026-01-05T08:30:00.000Z", "0 h"),
        ("2026-01-05T08:00:00.000Z", "2026-01-07T07:59:59.999Z", "47 h"),
        ("2026-01-05T08:00:00.000Z", "2026-01-07T08:00:00.000Z", "2 days"),
        ("2024-01-05T08:00:00.000Z", "2026-11-25T08:00:00.000Z", "1,055 days"),
    ],
)
def test_an_age_is_in_hours_or_days(since: str, until: str, text: str) -> None:
    assert age(since, until) == text


def test_a_page_has_the_totals_of_each_day() -> None:
    business = Day("2026-03-29", "CHF", 40, Decimal(-12_345), Decimal(12_345), Decimal(150), Decimal(6_100))
    value = msgspec.structs.replace(business, day="2026-04-02")
    totals = msgspec.structs.replace(
        report().totals, value_dates=(value,), business_days=(business,), time_zone="Europe/Prague"
    )
    text = text_of(msgspec.structs.replace(report(), totals=totals))
    heads = "day currency postings turnover fees debits credits"
    assert f"By business day, in Europe/Prague {heads} 2026-03-29 CHF 40 61.00 1.50 -123.45 123.45" in text
    assert f"By value date {heads} 2026-04-02 CHF 40 61.00" in text


def test_a_page_is_one_file() -> None:
    page = Page(render(report(listed(1))))
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(page.tags)
    assert [value for name, value in page.attributes if name in {"href", "src", "data", "xlink:href"}] == []
    assert "url(" not in render(report())


def test_all_text_from_outside_is_escaped() -> None:
    found = Break(HOSTILE, HOSTILE, HOSTILE, None, None, HOSTILE, HOSTILE)
    text = render(report(found))
    assert "<script" not in text
    assert "".join(Page(text).texts).count(HOSTILE) == 8  # by kind twice and by comparison too


def test_a_page_describes_the_chart_in_words() -> None:
    text = render(report())
    assert 'role="img" aria-labelledby="volume volume-text"' in text
    assert "42 between 2026-01-05 08:00 and 2026-01-05 08:00 UTC, one bar per hour; the most, 42," in text
    assert len(re.findall('<rect class="bar"', text)) == 1


def test_a_page_without_any_volume_has_no_chart() -> None:
    nothing = msgspec.structs.replace(report(), totals=Totals("digest", (), (), ()))
    text = render(nothing)
    assert "<svg" not in text
    assert "Nothing was posted." in text


def test_a_page_depends_on_the_report_alone() -> None:
    assert render(report(listed(1))) == render(report(listed(1)))


def test_metrics_describe_the_run(tmp_path: Path) -> None:
    path = tmp_path / "collector" / "once.prom"
    metrics.write(path, report(listed(1)), ended_at_s=1_767_600_100.5, duration_s=12.25, stages={"check:ledger": 2.5})
    lines = path.read_text().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert {name: float(value) for name, value in values.items()} == {
        "once_reconcile_last_run_timestamp_seconds": 1_767_600_100.5,
        "once_reconcile_cut_timestamp_seconds": datetime(2026, 1, 5, 8, 0, 0, 123_000, UTC).timestamp(),
        "once_reconcile_cut_sequence": 1,
        "once_reconcile_duration_seconds": 12.25,
        'once_reconcile_stage_duration_seconds{stage="check:ledger"}': 2.5,
        "once_reconcile_clean": 0,
        'once_reconcile_breaks{kind="missing"}': 1,
        "once_reconcile_breaks_explained": 0,
        "once_reconcile_oldest_break_timestamp_seconds": TAKEN_MS / 1000,
        'once_reconcile_at_risk_minor_units{currency="EUR"}': 2**63,
        'once_reconcile_breaks{kind="duplicate"}': 0,
        'once_reconcile_in_flight{waits_for="ledger"}': 2,
        'once_reconcile_records{figure="accepted"}': 3,
        'once_reconcile_records{figure="records_in"}': 1_234_567,
    }
    assert [entry.name for entry in path.parent.iterdir()] == ["once.prom"]
    metrics.write(path, report(), ended_at_s=1.0, duration_s=1.0, stages={})
    assert "once_reconcile_clean 1.0" in path.read_text().splitlines()


def test_every_metric_is_in_the_catalogue(tmp_path: Path) -> None:
    metrics.write(tmp_path / "once.prom", report(), ended_at_s=1.0, duration_s=1.0, stages={})
    exported = re.findall(r"^# HELP (\S+) (.*)$", (tmp_path / "once.prom").read_text(), re.MULTILINE)
    assert sorted(exported) == sorted((metric.name, metric.help) for metric in metrics.CATALOGUE)


def test_the_outcome_has_the_digest_of_the_report() -> None:
    outcome = outcome_of(report(listed(1)), "digest")
    assert outcome == RunOutcome(
        *(2, manifest().cut_id, manifest().digest, "digest", BREAKS, True, {"missing": 1, "duplicate": 0}),
        *(0, TAKEN_MS, {"EUR": str(2**63)}),
    )
    assert decode_run_outcome(encode_run_outcome(outcome)) == outcome
