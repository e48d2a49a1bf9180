"""Repeats are counted by input topic, and the first of them is logged."""

import logging

import pytest

from shared.events.catalogue import LEDGER_POSTINGS
from shared.kafka.runtime.partition_metrics import report_repeats
from shared.telemetry import metrics
from tests.view_tables import made_from, record


def counted() -> float:
    value: float = metrics.SOURCE_REPEATS.labels(LEDGER_POSTINGS)._value.get()
    return value


def test_repeats_are_counted_and_the_first_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    before = counted()
    repeats = [record(2, 7, b"", made_from(2, 3)), record(2, 9, b"", ())]
    with caplog.at_level(logging.INFO):
        report_repeats(LEDGER_POSTINGS, 2, repeats)

    assert counted() == before + 2
    [line] = caplog.records
    assert line.levelno == logging.ERROR
    logged = {name: vars(line)[name] for name in ("topic", "partition", "offset", "source", "records")}
    assert logged == {
        "topic": LEDGER_POSTINGS,
        "partition": 2,
        "offset": 7,
        "source": "ledger.transfers:2:3",
        "records": 2,
    }


def test_a_source_that_is_not_text_is_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    report_repeats(LEDGER_POSTINGS, 0, [record(0, 1, b"", (("source", b"\xff:1"),))])
    assert vars(caplog.records[0])["source"] == "\\xff:1"


def test_without_repeats_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    report_repeats(LEDGER_POSTINGS, 0, [])
    assert caplog.records == []
