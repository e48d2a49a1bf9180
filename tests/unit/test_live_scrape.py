"""The page's parser of scrapes, with the text of real instruments."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.balances.dashboard.observed import WANTED, parse_scrape, series, started_s, total
from shared.telemetry import catalogue
from shared.telemetry.catalogue import Kind
from shared.telemetry.instruments import counter, histogram
from tests.live import STARTED_S, text


def test_wanted_series_are_read_with_labels_in_the_rows_order() -> None:
    found = parse_scrape(
        text(
            {
                catalogue.RECORDS_LAG: {("payments.raw", "0"): 3, ("payments.raw", "1"): 4},
                catalogue.DEDUPLICATED: {(): 12},
                catalogue.EFFECTS: {("receipt", "sent"): 5},
            }
        )
    )
    assert series(found, catalogue.RECORDS_LAG) == {("payments.raw", "0"): 3.0, ("payments.raw", "1"): 4.0}
    assert total(found, catalogue.RECORDS_LAG) == 7
    assert series(found, catalogue.DEDUPLICATED) == {(): 12.0}
    assert series(found, catalogue.EFFECTS) == {("receipt", "sent"): 5.0}
    assert started_s(found) == STARTED_S


def test_a_label_value_is_unescaped() -> None:
    name = 'a "quoted"\\name{}, b'
    found = parse_scrape(text({catalogue.OPEN_TRANSACTION_AGE: {(name,): 0.25}}))
    assert series(found, catalogue.OPEN_TRANSACTION_AGE) == {(name,): 0.25}


def test_sum_and_count_of_a_histogram_are_read_but_not_its_buckets() -> None:
    registry = CollectorRegistry()
    made = histogram(catalogue.END_TO_END_LATENCY, registry)
    made.labels("ledger.postings").observe(0.5)
    made.labels("ledger.postings").observe(1.5)
    found = parse_scrape(generate_latest(registry).decode())
    name = catalogue.END_TO_END_LATENCY.name
    assert found == {f"{name}_sum": {("ledger.postings",): 2.0}, f"{name}_count": {("ledger.postings",): 2.0}}


def test_an_unwanted_metric_is_skipped_even_if_malformed() -> None:
    registry = CollectorRegistry()
    counter(catalogue.RECORD_RETRY, registry).inc()
    lines = generate_latest(registry).decode() + f"{catalogue.DEDUPLICATED.name}_more{{ this is no series\n"
    assert parse_scrape(lines) == {}


def test_a_malformed_line_of_a_wanted_metric_is_an_error() -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_scrape(f"{catalogue.DEDUPLICATED.name} many\n")


def test_a_missing_metric_has_no_total() -> None:
    assert total(parse_scrape(""), catalogue.RECORDS_LAG) is None
    assert started_s(parse_scrape("")) is None


def test_wanted_counters_are_named_as_they_are_scraped() -> None:
    assert all(row.name.endswith("_total") for row in WANTED if row.kind is Kind.COUNTER)
