"""The comparison with other libraries: what its ratios are made of, and the records that all sides process."""

import msgspec

from tests.bench.peers.__main__ import RATIOS, medians, ratios, table
from tests.bench.peers.cluster import events
from tests.bench.peers.page import figures_table, latency_table, ratios_table, results
from tests.bench.peers.programs.work import handle
from tests.harness import ROOT


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    rounds = [
        {"once": {"payments_per_s": ours, "memory_mb": 1.0}, "pipe1": {"payments_per_s": theirs, "memory_mb": 2.0}}
        for ours, theirs in ((30.0, 10.0), (10.0, 10.0), (40.0, 20.0))
    ]
    assert ratios(rounds)["pipeline_rate_ratio"] == 2.0
    assert set(RATIOS) > set(ratios(rounds[:1]))
    assert medians(rounds)["once"] == {"payments_per_s": 30.0, "memory_mb": 1.0}
    assert "payments_per_s 30" in table(medians(rounds))


def test_a_hop_adds_a_fee_and_refuses_what_is_bad() -> None:
    outcomes = [handle(value) for _, value in events(3000)]
    good = [msgspec.json.decode(outcome[1]) for outcome in outcomes if outcome is not None]
    assert 0 < len(outcomes) - len(good) < 30
    assert all(one["fee"] == one["amount_minor"] * 29 // 10000 + 30 and one["processed"] for one in good)
    assert [value for _, value in events(100)] == [value for _, value in events(100)]


def test_the_page_has_the_committed_results() -> None:
    found, page = results(), (ROOT / "docs" / "performance.md").read_text()
    assert ratios_table(found) in page
    assert figures_table(found[max(found)]) in page
    assert latency_table(found) in page
    assert set(RATIOS) <= set(found[max(found)])
