"""D: `once reconcile`: what it finds, what it names, and that it finds nothing else."""

import asyncio
from collections import Counter
from typing import Final

from deploy.drills.clients.by_hand import Break, Error, by_hand
from deploy.drills.drill import Anomaly, Needs, drill
from deploy.drills.reconciling import reconcile
from deploy.drills.stage import Stage
from deploy.local.kafka.cluster import LocalKafka
from shared.kafka.admin.topics import ensure_topics
from shared.settings import InstallationSettings
from spark.night import Kind
from spark.report import Break as Reported
from spark.report import Report

CLEAN_PAYMENTS: Final = 20
_CONSERVATION: Final = "conservation"
_READING: Final = ("docs/reconciliation.md", "spark/manifest.py")

ANOMALY_OF: Final = {
    Kind.MISSING: Anomaly.LOSS,
    Kind.DUPLICATE: Anomaly.DUPLICATE,
    Kind.TORN: Anomaly.TORN,
    Kind.UNCOMMITTED: Anomaly.ABORTED_READ,
}
"""Kinds of breaks that are anomalies of delivery; the others show in what is expected of the report."""


@drill(
    "D2",
    "planted-errors",
    "Each planted error is found, classified and named by topic, partition and offset; nothing else is",
    needs=Needs.OWN,
    control=[Anomaly.LOSS, Anomaly.DUPLICATE, Anomaly.TORN, Anomaly.ABORTED_READ],
    tags=["reconciliation"],
    within_s=180,
    reading=(*_READING, "deploy/drills/clients/by_hand.py"),
)
async def planted_errors(stage: Stage) -> None:
    """Write payments by hand through all topics of an empty cluster. Among them is one whose credit is missing, one
    posted twice, one with an altered amount, one with an origin that is not its own, one that is torn, and one made
    from an aborted record. The reconciliation must name exactly these records, and not exit with 0.
    """
    kafka = LocalKafka(stage.directory / "kafka", 1, heap_mb=256)
    stage.resources.callback(kafka.kill)
    stage.step("starting one broker")
    await asyncio.to_thread(kafka.start)
    await asyncio.to_thread(kafka.wait_ready, 90)
    await ensure_topics(kafka.bootstrap_servers, InstallationSettings.partitions, 1)
    errors = [error for error in Error if error is not Error.NONE]
    async with by_hand(kafka.bootstrap_servers, InstallationSettings.partitions) as hand:
        for number in range(CLEAN_PAYMENTS):
            await hand.pay(number)
        planted = [await hand.pay(number, error) for number, error in enumerate(errors, CLEAN_PAYMENTS)]
        for number in range(CLEAN_PAYMENTS, 2 * CLEAN_PAYMENTS):
            await hand.pay(len(errors) + number)
        await hand.consume()
        stage.journal.records = hand.records
    stage.step(f"{2 * CLEAN_PAYMENTS} payments are right, and {len(planted)} have an error each")
    for plant in planted:
        stage.evidence(f"error planted: {plant.error}", f"payment {plant.payment_id}")
    run = await reconcile(stage, stage.directory / "lake", kafka.bootstrap_servers)
    listed = run.report.breaks.listed
    named = [Break(one.kind, one.topic, one.partition, one.offset) for one in listed if one.check != _CONSERVATION]
    expected = [one for plant in planted for one in plant.breaks]
    stage.journal.tables["planted"] = [
        {"error": plant.error.value, "payment": plant.payment_id, "expected as": _text(one), "found": named.count(one)}
        for plant in planted
        for one in plant.breaks
    ]
    stage.expect("exit code", run.exit_code, 1)
    stage.expect("breaks that were not planted", [_text(one) for one in Counter(named) - Counter(expected)], [])
    stage.expect("planted breaks that were not found", [_text(one) for one in Counter(expected) - Counter(named)], [])
    sums = [one.detail for one in listed if one.check == _CONSERVATION]
    stage.expect_that(
        "sums that differ", sums, "money in transit", holds=any(sums) and all("transit" in one for one in sums)
    )
    _note_anomalies(stage, run.report)


def _note_anomalies(stage: Stage, report: Report) -> None:
    for kind, anomaly in ANOMALY_OF.items():
        stage.anomaly(anomaly, [_text(one) for one in report.breaks.listed if one.kind == kind])


def _text(one: Break | Reported) -> str:
    return f"{one.kind} {one.topic}:{one.partition}:{one.offset}"
