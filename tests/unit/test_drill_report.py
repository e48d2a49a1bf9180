"""The pages of drills: each section, escaped texts, and charts with gaps and marked faults."""

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest

from deploy.drills import chart
from deploy.drills.drill import (
    SECURE,
    Anomaly,
    Drill,
    Evidence,
    Found,
    Journal,
    Moment,
    Observation,
    Result,
    Sample,
    Series,
    Verdict,
    drill,
)
from deploy.drills.report import command, matrix, page, timeline, write
from deploy.drills.stage import Stage

HOSTILE = '<script src="https://example.com/x.js">&amp;</script>'


@drill("A2", "lost-acknowledgement", "A batch is stored once", reading=["KIP-98", "docs/upstream.md"])
async def steps(stage: Stage) -> None:
    """Lose the answer
    to a Produce request.
    """


def journal() -> Journal:
    """A journal with something in each of its parts."""
    return Journal(
        steps=[Moment(0.25, "fault: answer lost")],
        faults=[Evidence("answer lost", "1 of 1 Produce requests", 1.0, 3.0), Evidence("answer lost", "acted", 2.0)],
        observations=[
            Observation(4.0, "copies of the record", "1", "1", is_expected=True),
            Observation(4.5, "offset", "7", "8", is_expected=False),
        ],
        anomalies=[Found(Anomaly.DUPLICATE, 21, ["payments.raw [0] 7"])],
        samples=[
            Sample(at_s, {"records/s: in": rate, "LSO: in": 5.0, "log end: in": 6.0, "lag, records: ledger": 1.0})
            for at_s, rate in ((0.5, 10.0), (1.0, 20.0), (4.0, 30.0))
        ],
        tables={"Semantics": [{"mode": "at most once", "lost": 1234, "share": 0.25, "note": None}]},
        plots=[Series("Cost of a commit", "records", "ms", {"once": [(1.0, 2.0), (10_000.0, 3.0)]})],
        records=1234,
    )


def result(verdict: Verdict = Verdict.AS_EXPECTED, reason: str = "", **changes: object) -> Result:
    """A result of the drill above."""
    made = Result("A2", steps.name, steps.claim, "local", [], verdict, reason, 5.0, 7, journal())
    return msgspec.structs.replace(made, **changes)


def text_of(html: str) -> str:
    """The text of a page, without its style sheet."""
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)).split())


def test_a_page_has_all_that_was_done_and_seen() -> None:
    html = page(result(control=[Anomaly.DUPLICATE]), steps)
    text = text_of(html)
    for said in (
        "A2 lost-acknowledgement",
        "As expected A batch is stored once.",
        "It passes only with its anomaly: duplicate",
        "Lose the answer to a Produce request.",
        "0.2 fault: answer lost",
        "4.0 copies of the record 1 1 as expected",
        "4.5 offset 7 8 not expected",
        "F1 1.0 3.0 answer lost 1 of 1 Produce requests",
        "Duplicate: 21, as this control expects. payments.raw [0] 7 and 20 more",
        "mode lost share note at most once 1,234 0.25",
        "Cost of a commit",
        "once drill run lost-acknowledgement --seed 7",
        "KIP-98 docs/upstream.md docs/drills/README.md",
    ):
        assert said in text
    anchors = ["hypothesis", "steps", "time", "seen", "faults", "anomalies", "figures", "again", "reading"]
    assert re.findall(r'<h2 id="(\w+)"', html) == anchors


def test_a_page_of_a_drill_that_did_nothing_says_so() -> None:
    text = text_of(page(result(Verdict.NO_DATA, "nothing was observed", journal=Journal()), steps))
    for said in ("No data nothing was observed", "Nothing was sampled", "makes no fault", "None was found."):
        assert said in text
    assert "Figures" not in text


def _hostile() -> Result:
    said = HOSTILE
    return result(
        reason=said,
        claim=said,
        journal=Journal(
            steps=[Moment(0.0, said)],
            faults=[Evidence(said, said, 0.0)],
            observations=[Observation(0.0, said, said, said, is_expected=True)],
            anomalies=[Found(Anomaly.LOSS, 1, [said])],
            samples=[Sample(0.0, {f"records/s: {said}": 1.0})],
            tables={said: [{said: said}]},
            plots=[Series(said, said, said, {said: [(0.0, 1.0)]})],
        ),
    )


def test_every_text_is_escaped() -> None:
    one = _hostile()
    for html in (page(one, steps), matrix([one])):
        assert "<script" not in html
        assert html.count("&lt;script src=") >= 2
    # Every part: claim twice, title of the chart's line twice, and each text of the journal at least once
    assert page(one, steps).count("&lt;script src=") >= 14


def test_nothing_comes_from_elsewhere() -> None:
    for html in (page(result(), steps), matrix([result()])):
        assert re.findall(r"https?:", html) == []
        assert "default-src 'none'" in html


def test_the_matrix_counts_verdicts_and_leads_to_each_page() -> None:
    other = result(Verdict.FAILED, "TimeoutError: no answer", row="B10", name="hanging")
    text, html = text_of(matrix([result(), other])), matrix([result(), other])
    assert 'href="A2.html"' in html
    assert 'href="B10.html"' in html
    for said in ("As expected 1", "Failed 1", "Records 2,468", "Idempotent producer", "TimeoutError: no answer"):
        assert said in text


def test_the_command_names_another_target() -> None:
    assert command(result(target=SECURE), steps) == "once drill run lost-acknowledgement --seed 7 --on secure"
    own = dataclasses.replace(steps, command="once drill soak --minutes 1")
    assert command(result(), own) == "once drill soak --minutes 1 --seed 7"


def test_a_report_is_a_folder_of_pages_and_a_journal(tmp_path: Path) -> None:
    drills: dict[str, Drill] = {"A2": steps}
    index = write([result()], drills, {"drills": 1}, tmp_path / "report")
    assert index == tmp_path / "report" / "index.html"
    assert sorted(path.name for path in index.parent.iterdir()) == ["A2.html", "index.html", "results.json"]
    assert msgspec.json.decode((index.parent / "results.json").read_bytes()) == {"drills": 1}


# Charts


def test_units_have_charts_of_their_own_and_faults_are_marked_in_each() -> None:
    charts = timeline(journal(), 5.0)
    assert [one.title for one in charts] == ["records/s", "lag, records", "log end and LSO"]
    assert [line.name for line in charts[2].lines] == ["in, LSO", "in, log end"]
    for one in charts:
        [span, moment] = one.marks
        assert (span.label, moment.label, moment.width) == ("F1", "F2", 0)
        assert span.width == pytest.approx(2.0 / 3.5 * (chart.WIDTH - chart.LEFT - chart.RIGHT), abs=0.01)


def test_faults_without_samples_have_a_chart_too() -> None:
    [one] = timeline(Journal(faults=[Evidence("paused", "stopped", 1.0, 2.0)]), 5.0)
    assert (one.title, one.lines, len(one.marks)) == ("Faults", (), 1)


def test_a_line_has_a_gap_where_no_broker_answered() -> None:
    [rate, *_] = timeline(journal(), 5.0)
    [line] = rate.lines
    assert len(line.parts) == 1
    assert len(line.dots) == 1, "a single point behind a gap"


def test_points_are_where_their_axes_say() -> None:
    drawn = chart.chart("ms", "records", {"once": [(0.0, 0.0), (10.0, 40.0)]})
    first, last = drawn.lines[0].parts[0].split()
    bottom, left = chart.HEIGHT - chart.BOTTOM, chart.LEFT
    assert [tick.text for tick in drawn.ys] == ["0", "10", "20", "30", "40"]
    assert first == f"{float(left)},{float(bottom)}"
    assert last == f"{float(chart.WIDTH - chart.RIGHT)},{float(chart.TOP)}"


def test_offsets_far_from_zero_keep_their_differences() -> None:
    drawn = chart.chart("log end", "s", {"in": [(0.0, 1_000_000.0), (1.0, 1_000_010.0)]}, from_zero=False)
    assert [tick.text for tick in drawn.ys] == ["1,000,000", "1,000,005", "1,000,010"]


def test_sizes_over_magnitudes_have_a_logarithmic_axis() -> None:
    drawn = chart.chart("ms", "records", {"once": [(1.0, 2.0), (100.0, 2.0), (10_000.0, 3.0)]})
    assert [tick.text for tick in drawn.xs] == ["1", "10", "100", "1,000", "10,000"]
    gaps = {round(b.at - a.at, 1) for a, b in zip(drawn.xs, drawn.xs[1:], strict=False)}
    assert len(gaps) == 1


@pytest.mark.parametrize("value", [0.0, 7.0, -3.0])
def test_a_line_of_one_value_can_be_drawn(value: float) -> None:
    drawn = chart.chart("ms", "s", {"once": [(2.0, value), (2.0, value)]})
    assert drawn.ys
    assert drawn.text == f"ms: once from {value:.0f} to {value:.0f}, at last {value:.0f}."
