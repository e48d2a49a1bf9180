"""D: `once reconcile`: what it finds, what it names, and that it finds nothing else."""

import asyncio
from collections import Counter
from typing import Final

from deploy.checkers.verdict import Verdict
from deploy.drills.clients.by_hand import Break, Error, by_hand
from deploy.drills.drill import Anomaly, Needs, drill
from deploy.drills.judge import now_ms, verified
from deploy.drills.opinions import disagreements, reconciled
from deploy.drills.producers import producer
from deploy.drills.reconciling import Reconciled, reconcile
from deploy.drills.stage import Stage
from deploy.drills.workload import flowing, pay
from deploy.local.kafka.cluster import LocalKafka
from shared.eos.records import Output
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.reader import stable_offsets
from shared.settings import InstallationSettings
from spark.night import Kind
from spark.report import Break as Reported
from spark.report import Report

PAYMENTS: Final = 300
CLEAN_PAYMENTS: Final = 20
OPEN_MS: Final = 60_000
"""The brokers' maximum. A cut is pinned when a run begins."""
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
    "D1",
    "clean-run",
    "The reconciliation of a clean run finds drift 0 on every account, and exits with 0",
    needs=Needs.SERVICES,
    tags=["reconciliation"],
    within_s=180,
    reading=_READING,
)
async def clean_run(stage: Stage) -> None:
    """Send payments with repeats and bad records through the pipeline, and reconcile all topics in Spark. Its sums,
    counts and balances are those of `once verify`, which shares no code with it.
    """
    await pay(stage, PAYMENTS)
    verdict = await verified(stage, at_least=PAYMENTS)
    run = await reconcile(stage, stage.directory / "lake", stage.bootstrap_servers)
    _expect_clean(stage, run)
    _expect_agreement(stage, run.report, verdict)


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


@drill(
    "D3",
    "same-offsets-twice",
    "Two runs over the same pinned offsets give byte-identical reports",
    needs=Needs.SERVICES,
    tags=["reconciliation"],
    within_s=180,
    reading=_READING,
)
async def same_offsets_twice(stage: Stage) -> None:
    """Reconcile, send more payments, and reconcile the first manifest again in an empty lake. The topics have grown
    then, and the second run lands and compares everything once more; its report and page have the same bytes.
    """
    await pay(stage, PAYMENTS)
    await verified(stage, at_least=PAYMENTS)
    first, second = stage.directory / "first", stage.directory / "second"
    one = await reconcile(stage, first, stage.bootstrap_servers)
    await pay(stage, PAYMENTS)
    manifest = first / "cuts" / one.report.cut.cut_id / "manifest.json"
    again = await reconcile(stage, second, stage.bootstrap_servers, "--manifest", str(manifest))
    _expect_clean(stage, one)
    stage.expect("offsets of the second run", again.report.cut == one.report.cut, True)
    for name, content in one.files.items():
        stage.expect(f"{name} has the same bytes", again.files[name] == content, True)
    records = one.report.figures["records_in"]
    stage.expect_that("raw records in the report", records, f"at least {PAYMENTS}", holds=records >= PAYMENTS)


@drill(
    "D4",
    "open-transaction-under-traffic",
    "A run under traffic, with a transaction open, is pinned at the LSO: it neither hangs nor raises a false alarm",
    needs=Needs.SERVICES,
    tags=["reconciliation", "lso"],
    within_s=400,
    reading=_READING,
)
async def open_transaction_under_traffic(stage: Stage) -> None:
    """Leave a transaction open in payments.raw while payments flow, and reconcile. The cut ends at the last stable
    offset, below the high watermark; what is behind it is in flight, and is no break. Once the brokers have aborted the
    transaction and the pipeline has drained, the next run closes the gap.
    """
    lake, brokers = stage.directory / "lake", stage.bootstrap_servers
    async with flowing(stage, 20):
        async with producer(stage, f"{stage.name}-open", timeout_ms=OPEN_MS) as opened:
            await opened.init(OPEN_MS / 1000)
            await opened.begin()
            opened.append([Output(PAYMENTS_RAW, 0, None, _payment(stage.name), ())], now_ms())
            await opened.flush()
        stable = (await stable_offsets(stage.access, [PAYMENTS_RAW]))[PAYMENTS_RAW, 0]
        stage.step(f"a transaction is open in {PAYMENTS_RAW} [0], the LSO is {stable}")
        run = await reconcile(stage, lake, brokers)
    pinned = run.report.cut.topics[PAYMENTS_RAW][0]
    stage.expect("end of the cut where the transaction is open", pinned.end, stable)
    stage.evidence("transaction open", f"{pinned.high - pinned.end} offsets between LSO and high watermark at the cut")
    behind = pinned.high > pinned.end
    stage.expect_that("high watermark there", pinned.high, f"above {pinned.end}", holds=behind)
    stage.expect("cut is settled", run.report.cut.settled, False)  # what is expected
    stage.expect_that("records in flight", run.report.in_flight, "some", holds=any(run.report.in_flight.values()))
    _expect_clean(stage, run)
    verdict = await verified(stage, at_least=stage.journal.records, within_s=2 * OPEN_MS / 1000)
    after = await reconcile(stage, lake, brokers)
    stage.expect("next cut is settled", after.report.cut.settled, True)  # likewise
    stage.expect("records in flight at the next cut", sum(after.report.in_flight.values()), 0)
    _expect_clean(stage, after)
    stage.expect("balances of the next run and of the verifier", after.report.totals.digest, verdict.balances_digest)


def _payment(payment_id: str) -> bytes:
    return encode_instruction(Payment(payment_id, "cash@0", "client-0", 100, "CZK", SCHEMA_VERSION, None, "2026-01-05"))


def _expect_clean(stage: Stage, run: Reconciled) -> None:
    """Expect no break and no drift."""
    found = {kind: count for kind, count in run.report.breaks.by_kind.items() if count}
    stage.expect("breaks", found, {})
    stage.expect("exit code", run.exit_code, 0)
    stage.expect("accounts that differ from their postings", run.report.figures["accounts_off"], 0)
    drift = {one.currency: int(one.closing_minor) for one in run.report.totals.currencies if one.closing_minor}
    stage.expect("drift by currency", drift, {})
    _note_anomalies(stage, run.report)


def _expect_agreement(stage: Stage, report: Report, verdict: Verdict) -> None:
    """Expect Spark's counts and balances to be the verifier's."""
    stage.expect("figures in which Spark and the verifier differ", disagreements(verdict, reconciled(report)), [])
    stage.expect("digest of all balances", report.totals.digest, verdict.balances_digest)


def _note_anomalies(stage: Stage, report: Report) -> None:
    for kind, anomaly in ANOMALY_OF.items():
        stage.anomaly(anomaly, [_text(one) for one in report.breaks.listed if one.kind == kind])


def _text(one: Break | Reported) -> str:
    return f"{one.kind} {one.topic}:{one.partition}:{one.offset}"
