"""Odd records as ingest decides them: neither checker reports one, however other parsers read it."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from services.ingest.service import IngestHandler
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.clients import BY_OPERATOR
from shared.events.dead_letters import Reason
from shared.events.headers import REASON, Headers, header
from spark import decisions
from spark.checks import intake
from tests.odd_records import odd_records
from tests.partitions import PARTITIONS
from tests.pipeline.landed import night_of
from tests.pipeline.nights import rows_of
from tests.planted import HOME
from tests.tiers import full
from tests.world import World


def write(world: World, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> Record:
    """Write a record on the partition of the odd ones."""
    world.append(topic, HOME, value, key)
    log = world.logs[topic, HOME]
    log[-1] = log[-1]._replace(headers=headers)
    return log[-1]


@pytest.fixture(scope="module")
def odd() -> World:
    """A system in which ingest decided all odd records, and no other service is running."""
    world, handler = World(), IngestHandler(HOME, 100_000, partitions=PARTITIONS)
    for value in odd_records():
        raw = write(world, catalogue.PAYMENTS_RAW, None, value, BY_OPERATOR)
        [output] = handler.process(raw)
        write(world, output.topic, output.key, output.value, output.headers)
        world.committed["ingest"][HOME] = raw.offset + 1
    world.log_next_offset(HOME, world.committed["ingest"][HOME], catalogue.PAYMENTS_IDENTITIES)
    return world


def test_odd_records_are_refused_for_every_reason(odd: World) -> None:
    letters = odd.logs[catalogue.PAYMENTS_DEAD_LETTER, HOME]
    reasons = Counter((header(letter.headers, REASON) or b"").decode() for letter in letters)
    assert set(reasons) == {reason.value for reason in Reason} - {Reason.TOO_LARGE.value}
    assert len(odd.logs[catalogue.PAYMENTS_ACCEPTED, HOME]) > 100
    assert len(odd.logs[catalogue.PAYMENTS_DEDUPLICATED, HOME]) > 10


def test_once_verify_reports_no_odd_record(odd: World) -> None:
    kinds = odd.audit(chunk=1000).kinds
    assert kinds == {"lost": len(odd.logs[catalogue.PAYMENTS_ACCEPTED, HOME])}  # the ledger has not booked them


@full
def test_once_reconcile_reports_no_odd_record(spark: SparkSession, tmp_path: Path, odd: World) -> None:
    now = night_of(spark, odd, tmp_path)
    values = {(topic, record.offset): record.value for (topic, _), records in odd.logs.items() for record in records}
    checks = (decisions.check, intake.check_ingest, intake.check_undecodable)
    rows = [row for check in checks for row in rows_of(check(now))]
    assert [(row.detail, (values[row.topic, row.offset] or b"")[:300]) for row in rows] == []
