"""The steps that the monitor shows of a payment's records."""

from services.monitor.steps import step_of
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_RAW
from shared.events.headers import ORIGIN, SOURCE, Coordinates
from shared.http.monitor import Step


def record(topic: str, offset: int, source: str | None, value: bytes = b"{}") -> Record:
    headers = ((ORIGIN, b"payments.raw:1:1"), *(((SOURCE, source.encode()),) if source else ()))
    return Record(topic, 1, offset, 1000 + offset, b"key", value, headers)


def test_a_step_describes_its_record_and_names_the_source() -> None:
    found = record(LEDGER_POSTINGS, 9, "ledger.transfers:1:5", b'{"type":"posting","leg":"debit"}')
    step = step_of(Coordinates(LEDGER_POSTINGS, 1, 9), found)
    at, source = "ledger.postings:1:9", "ledger.transfers:1:5"
    assert step == Step("debit posting", LEDGER_POSTINGS, 1, 9, at, 1009, source, found=True)


def test_a_raw_record_has_no_source_even_if_its_sender_sets_the_header() -> None:
    assert step_of(Coordinates(PAYMENTS_RAW, 1, 1), record(PAYMENTS_RAW, 1, "payments.raw:1:1")).source is None


def test_a_missing_record_is_named() -> None:
    step = step_of(Coordinates(LEDGER_TRANSFERS, 2, 7), None)
    assert (step.at, step.found, step.timestamp_ms, step.source) == ("ledger.transfers:2:7", False, None, None)
