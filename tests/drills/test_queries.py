"""Every PromQL expression of rules and dashboards against a live Prometheus after faults and payments.

Queries that can only return nothing are found: refused by Prometheus, a selector of series that were never exported,
or a label that its series do not have.
"""

import asyncio
import http.client
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest

from deploy.drills.alerts.reconciliation import write_outcome
from deploy.drills.alerts.registry import DRILLS, NOT_MADE
from deploy.drills.alerts.site import Site
from deploy.drills.drill import Result
from deploy.drills.prometheus import Prometheus
from deploy.drills.waiting import until
from shared.eos.records import Output
from shared.events.catalogue import PAYMENTS_DEDUPLICATED
from shared.events.effects import EffectKind
from tests import queries
from tests.drills.selectors import Asked, Selector, asked
from tests.drills.textfile import scraped_textfile
from tests.harness import wait_until
from tests.payments import payments
from tests.topics import producing

pytestmark = pytest.mark.timeout(400)

RUN: Final = "1h"
"""Longer than a run of the tests."""
SCRAPED_S: Final = 30.0
OPEN: Final = "kafka_cluster_transaction_open_seconds"
ERRORS: Final = "job_request_error:kafka_network_requestmetrics_errors:increase1m"
FAILED: Final = "job_error:kafka_producer_record_error:increase1m"
REFUSALS: Final = ".+_TOO_LARGE|CORRUPT_MESSAGE|INVALID_RECORD|INVALID_TIMESTAMP|.+_AUTHORIZATION_FAILED"
OTHER_ALERTS: Final = "ProducerFenced|InvalidProducerEpoch|OutOfOrderSequenceNumber|DuplicateSequenceNumber"

ONLY_IN_TROUBLE: Final = {
    ERRORS + '{error="DUPLICATE_SEQUENCE_NUMBER"}': "SequenceDuplicated",
    ERRORS + '{error="OUT_OF_ORDER_SEQUENCE_NUMBER"}': "SequenceOutOfOrder",
    ERRORS + f'{{error=~"{REFUSALS}",request="Produce"}}': "RecordsFailing",
    "kafka_producer_record_error_total": "TransactionsAborting",
    FAILED + '{job=~".*"}': "TransactionsAborting",
    FAILED + f'{{error!~"{OTHER_ALERTS}"}}': "TransactionsAborting",
    "job_instance_partition:once_restore_begun_seconds:min": "RestoreSlow",
    "once_api_key_expires_timestamp_seconds": "ApiKeyExpires",
    "once_reconcile_at_risk_minor_units": "ReconciliationNotClean",
    "once_certificate_expires_timestamp_seconds": "CertificateExpires",
}
"""Series that no fault of this run makes, and the alert whose drill does, or which registry.NOT_MADE names."""

EXPRESSIONS: Final = {query.expression: asked(query.expression) for query in queries.queries()}


@pytest.fixture(scope="module")
def prometheus(runner: asyncio.Runner, site: Site, results: dict[str, Result]) -> Iterator[Prometheus]:
    """Prometheus, after faults, effects, repeats, a reconciliation and its file, and payments by HTTP."""
    assert results
    runner.run(prepare(site))
    with scraped_textfile(site.component("prometheus").process, site.files):
        yield site.prometheus


async def prepare(site: Site) -> None:
    """Make effects, repeats, the outcome of a reconciliation, and payments by HTTP."""
    await site.subscribe("drill-queries", EffectKind.NOTICE, "file:drill")
    await site.pay(5, creditor="drill-queries")
    repeated = list(payments("drill-repeated", 1))
    await site.send(repeated * 2)
    await write_outcome(site, "000000-drill", {"lost": 0})
    assert post(site, next(payments("drill-posted", 1))) == 202
    assert post(site, b"no payment") == 400
    site.paid += 2
    await hold_transaction(site)
    await site.prove()


async def hold_transaction(site: Site) -> None:
    """Hold a transaction open until it is seen: the pipeline's own may be too short for a look of the monitor."""
    producer = await producing(site.bootstrap_servers)
    try:
        await producer.begin()
        producer.append(
            [Output(PAYMENTS_DEDUPLICATED, 0, b"held", b"never committed", ())], time.time_ns() // 1_000_000
        )
        await producer.flush()
        await until(lambda: bool(site.prometheus.query(OPEN)), "a transaction is open", SCRAPED_S)
        await producer.abort()
    finally:
        await producer.discard()


def post(site: Site, value: bytes) -> int:
    """Post a payment to the gateway; returns the status."""
    connection = http.client.HTTPConnection(urlsplit(site.component("gateway").endpoint).netloc, timeout=10)
    try:
        key = site.stack.client_files.local_key.read_text()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request("POST", "/payments", value, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def series(prometheus: Prometheus, selector: str) -> list[dict[str, str]]:
    """The labels of all such series of the run."""
    return [found.labels for found in prometheus.query(f"last_over_time({selector}[{RUN}])")]


def test_prometheus_refuses_no_expression(prometheus: Prometheus) -> None:
    for query in (*queries.queries(), *queries.runbook_queries()):
        prometheus.query(query.expression)  # it raises


def test_every_selector_has_found_series(prometheus: Prometheus) -> None:
    wanted = {one.text for known in EXPRESSIONS.values() for one in known.selectors}
    assert ONLY_IN_TROUBLE.keys() <= wanted
    missing = wanted - ONLY_IN_TROUBLE.keys()

    def found() -> bool:
        missing.difference_update([text for text in missing if series(prometheus, text)])
        return not missing

    try:
        wait_until(found, "every selector has found series", SCRAPED_S)
    except TimeoutError:
        assert missing == set(), "no target has exported these"


def test_every_label_that_is_matched_or_grouped_by_exists(prometheus: Prometheus) -> None:
    names = {one.name for known in EXPRESSIONS.values() for one in known.selectors}
    labels = {name: {label for found in series(prometheus, name) for label in found} for name in names}
    wrong = [text for known in EXPRESSIONS.values() for text in unknown_labels(known, labels)]
    assert wrong == []


def unknown_labels(known: Asked, labels: dict[str, set[str]]) -> Iterator[str]:
    """Labels of an expression that its series do not have; series that were never exported have any label."""

    def lacks(one: Selector, label: str) -> bool:
        return bool(labels[one.name]) and label not in labels[one.name]

    for one in known.selectors:
        yield from (f"{one.text}: {label}" for label in one.labels if lacks(one, label))
    for grouping in known.groupings:
        for label in grouping.labels:
            if all(lacks(one, label) for one in grouping.within):
                yield f"grouped by {label}: {', '.join(one.text for one in grouping.within)}"


def test_series_that_only_trouble_makes_have_a_drill_that_makes_them() -> None:
    assert set(ONLY_IN_TROUBLE.values()) <= {drill.name for drill in DRILLS} | set(NOT_MADE)


# The checks, checked


def test_a_query_that_can_only_return_nothing_is_found(prometheus: Prometheus) -> None:
    assert series(prometheus, 'up{job="kafka"}')
    assert series(prometheus, 'up{job="kafkas"}') == []
    assert series(prometheus, "ups") == []
    labels = {"up": {"job", "instance"}, "down": set[str]()}
    assert list(unknown_labels(asked('sum by (job) (up{instance="a"})'), labels)) == []
    assert list(unknown_labels(asked('sum by (jobs) (up{instances="a"})'), labels)) == [
        'up{instances="a"}: instances',
        'grouped by jobs: up{instances="a"}',
    ]
    assert list(unknown_labels(asked("up and on (jobs) down"), labels)) == []
