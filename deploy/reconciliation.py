"""The nightly reconciliation of a cluster: choose a cut, run it in Spark, and publish the outcome.

Invariant: unless asked for an earlier one, it takes a new cut after the last that landed; a night that was missed is in
it. A report is on disk before its outcome is published.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from pyspark.errors import DateTimeException
from pyspark.sql import SparkSession

from deploy.cut import DEFAULTS, SETTLE_DEADLINE_S, gone, offsets_uncovered, take_cut
from deploy.local.jars import spark_archive_options, spark_jars
from shared.events.catalogue import RECONCILIATION_RUNS, REFERENCE_TOPICS
from shared.events.operations import RUN_SCHEMA_VERSION, RunOutcome, encode_run_outcome
from shared.events.partitions import partition_for
from shared.kafka.admin.configs import compaction_lag_ms
from shared.kafka.client.access import Bootstrap, access_by
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import partition_count
from shared.settings import ReconcileSettings, SettingsError
from spark import metrics, register
from spark.evidence import evidence_of, sha256_of
from spark.lake import Lake, LakeError
from spark.manifest import DEFAULT_TIME_ZONE, Manifest, Settings, decode
from spark.nightly import Work, work
from spark.report import LISTED_MAX, Report
from spark.runs import REPORT, Runs
from spark.session import Brokers, TlsBrokers, session

Say = Callable[[str], None]

LOG = "spark.log"  # Spark's own messages, in the lake


@dataclass(frozen=True)
class Request:
    """A request for a reconciliation; by default of a new cut.

    Attributes:
        full: one run over all landed cuts, or all up to the one that is named; a new cut is taken only where none has
            landed.
    """

    full: bool = False
    manifest: Path | None = None  # a file with the cut to run, again or for the first time
    day: date | None = None  # the last cut that was taken on this day in UTC, again
    listed_max: int = LISTED_MAX  # how many breaks a report lists
    textfile: Path | None = None  # another file for the run's metrics, which are in its folder as well
    replace: bool = False  # make a damaged or lost run over the cut again
    runs_max: int | None = None  # runs to make at most; a new cut is taken only when the landed ones are done
    settle_deadline_s: float = SETTLE_DEADLINE_S  # how long a new cut waits for the flow to settle

    @property
    def is_of_a_new_cut(self) -> bool:
        """Whether it names no cut."""
        return self.manifest is None and self.day is None and not self.full


@contextmanager
def spark_session(settings: ReconcileSettings, directory: Path) -> Iterator[SparkSession]:
    """Open a session as the settings say; Spark's own messages go to LOG in the directory.

    Raises JarError if the jars of Spark's Kafka source cannot be downloaded.
    """
    spark = session(
        master=settings.spark_master,
        jars=spark_jars(),
        memory=settings.spark_memory,
        driver_host=settings.spark_driver_host,
        log=directory / LOG,
        java_options=spark_archive_options(),
        more={"spark.sql.warehouse.dir": f"file://{directory.resolve() / '.warehouse'}"},
    )
    try:
        yield spark
    finally:
        spark.stop()


def choose_cut(lake: Lake, bootstrap_servers: Bootstrap, request: Request, settings: Settings = DEFAULTS) -> Manifest:
    """Return the cut that the request is about; a new one is taken where it names none.

    Args:
        settings: for a new cut's manifest; what the topics say themselves is read from the cluster.

    Raises:
        LakeError: no cut was taken on the day that is asked for, or the lake's cuts were altered.
        ManifestError: the manifest cannot be read, or the cluster is not that of the cuts before.
        KafkaUnavailableError: the cluster does not answer.
    """
    if request.manifest is not None:
        return decode(request.manifest.read_bytes())
    cuts = lake.cuts()
    if request.day is not None:
        return cut_of_day(cuts, request.day)
    if request.full and cuts:
        return cuts[-1]
    kept_ms = asyncio.run(compaction_lag_ms(bootstrap_servers, REFERENCE_TOPICS))
    settings = msgspec.structs.replace(settings, superseded_kept_ms=kept_ms)
    return asyncio.run(
        take_cut(
            bootstrap_servers,
            cuts[-1] if cuts else None,
            now_ms=_now_ms(),
            evidence=evidence_of(lake, cuts),
            deadline_s=request.settle_deadline_s,
            settings=settings,
            explanations=register.head_of(lake.root),
        )
    )


def cuts_due(
    lake: Lake, bootstrap_servers: Bootstrap, request: Request, settings: Settings = DEFAULTS, *, say: Say
) -> Iterator[Manifest]:
    """Yield the cuts that a request is about; each must be run before the next is asked for.

    A cut that was taken and has not landed comes before a new one, with the same offsets. If records of it have expired
    meanwhile, the new one takes its place. With a bound on the runs, missing runs over landed cuts come first: each
    new cut would be one more run. Raises as `choose_cut` does.
    """
    if request.runs_max is not None and request.is_of_a_new_cut:
        cuts = lake.cuts()
        if cuts and Runs(lake).record(cuts[-1]) is None:
            yield cuts[-1]
    waiting = lake.pending() if request.is_of_a_new_cut else None
    if waiting is not None:
        lost = asyncio.run(gone(bootstrap_servers, waiting))
        if not lost:
            yield waiting
        else:
            say(
                f"cut {waiting.cut_id} cannot be landed any more: records of {', '.join(lost)} are gone; taking another"
            )
            lake.drop(waiting)
    yield choose_cut(lake, bootstrap_servers, request, settings)


def settings_of(chosen: ReconcileSettings) -> Settings:
    """Return the settings that a cut pins.

    Raises SettingsError if no such time zone is known here.
    """
    try:
        zone = DEFAULT_TIME_ZONE if chosen.time_zone == DEFAULT_TIME_ZONE else ZoneInfo(chosen.time_zone).key
    except (ZoneInfoNotFoundError, OSError) as error:
        raise SettingsError(
            f"ONCE_RECONCILE_TIME_ZONE is {chosen.time_zone!r}, which is not in this machine's time zone database: "
            "choose an IANA name, such as Europe/Prague"
        ) from error
    return Settings(
        identity_window=chosen.window,
        reversal_window=chosen.reversal_window,
        late_after_cuts=chosen.late_after_cuts,
        records_max=chosen.records_max,
        time_zone=zone,
    )


def validate_time_zone(spark: SparkSession, cut: Manifest) -> None:
    """Ask Java for the time zone of a cut, before the lake has the cut: each run over it needs the zone.

    Raises SettingsError if Java does not know it.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 # Python's own database is another one
    zones, zone = jvm.java.time.ZoneId, cut.settings.time_zone
    try:
        zones.of(zone, zones.SHORT_IDS)  # as Spark does
    except DateTimeException as error:
        raise SettingsError(
            f"the time zone of cut {cut.cut_id} is {zone!r}, which Java does not know: set ONCE_RECONCILE_TIME_ZONE to "
            "another IANA name, such as Europe/Prague, or update Java"
        ) from error


def reconcile_cut(
    spark: SparkSession, lake: Lake, bootstrap_servers: Bootstrap, cut: Manifest, request: Request, *, say: Say
) -> Work:
    """Make the runs that are due up to a cut, and publish each: on disk, in metrics, in reconciliation.runs.

    An earlier cut that is run again changes no current verdict: its outcome stays in its folder. Hold the lake's lock
    meanwhile. `say` takes a line for people before each run and after each stage.

    Raises:
        SettingsError: see `validate_time_zone`.
        LakeError: a file of the lake is gone or altered.
        ManifestError: the cut does not follow the last that landed.
        KafkaUnavailableError: the outcome could not be published.
        OSError: metrics could not be written; the outcome is published.
    """
    begun_s = time.monotonic()
    say(f"cut {cut.cut_id}, {'settled' if cut.settled else 'taken with records in flight'}")
    validate_time_zone(spark, cut)
    brokers, runs = brokers_for_spark(bootstrap_servers), Runs(lake)

    def publish(report: Report) -> None:
        folder, newest = runs.folder(report.cut.cut_id), runs.is_newest(report.cut.sequence)
        try:
            for path in filter(None, [folder / metrics.FILE, request.textfile if newest else None]):
                metrics.write(
                    path,
                    report,
                    ended_at_s=time.time(),
                    duration_s=time.monotonic() - begun_s,
                    stages=progress.seconds,
                )
        finally:
            # A file that cannot be written withholds no verdict
            if newest:
                asyncio.run(_publish(bootstrap_servers, outcome_of(report, sha256_of(folder / REPORT))))
            else:
                say(f"a later cut has a run: the verdict of cut {report.cut.cut_id} is not published")

    # One by one: a backfill that is killed has published the runs that it had made
    progress = metrics.Progress(say, made=publish)
    return work(
        spark,
        lake,
        cut,
        brokers,
        full=request.full,
        listed_max=request.listed_max,
        replace=request.replace,
        runs_max=request.runs_max,
        now_ms=_now_ms(),
        uncovered=lambda *where: asyncio.run(offsets_uncovered(bootstrap_servers, *where)),
        progress=progress,
    )


def brokers_for_spark(bootstrap: Bootstrap) -> Brokers:
    """Return the same brokers, and the same files, for Spark's own Kafka client. Pure."""
    access = access_by(bootstrap)
    if access.tls is None:
        return access.bootstrap_servers
    return TlsBrokers(access.bootstrap_servers, access.tls.ca_file, access.tls.identity_file)


def outcome_of(report: Report, digest: str) -> RunOutcome:
    """Return a run's outcome, as it is published. Pure.

    Args:
        digest: SHA-256 of the stored report.json, in hex. It may list another number of breaks than `report`.
    """
    oldest_at = report.breaks.oldest_at
    return RunOutcome(
        schema_version=RUN_SCHEMA_VERSION,
        cut_id=report.cut.cut_id,
        manifest=report.cut.digest,
        report=digest,
        verdict=report.verdict,
        full=report.full,
        breaks=report.breaks.by_kind,
        explained=len(report.breaks.explained),
        oldest_at_ms=None if oldest_at is None else round(datetime.fromisoformat(oldest_at).timestamp() * 1000),
        at_risk_minor={currency: str(minor) for currency, minor in report.breaks.at_risk_minor.items()},
    )


def cut_of_day(cuts: Sequence[Manifest], day: date) -> Manifest:
    """Return the last cut taken on a day in UTC. Pure.

    Raises LakeError if none was; the message names the days that there are.
    """
    days = {datetime.fromtimestamp(cut.taken_at_ms / 1000, UTC).date(): cut for cut in cuts}
    if day not in days:
        known = ", ".join(str(known) for known in days) or "none"
        raise LakeError(f"no cut was taken on {day}; days with one: {known}")
    return days[day]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def cuts_up_to(cuts: Sequence[Manifest], name: str) -> list[Manifest]:
    """Return the cuts up to one, by its name, its number, or the day in UTC whose last one it is. Pure.

    Raises LakeError if there is no such cut.
    """
    try:
        last = cut_of_day(cuts, date.fromisoformat(name)).sequence
    except ValueError:
        found = [cut.sequence for cut in cuts if name in {cut.cut_id, str(cut.sequence)}]
        if not found:
            known = f"{cuts[0].cut_id} to {cuts[-1].cut_id}" if cuts else "none"
            raise LakeError(f"there is no cut {name}; cuts that have landed: {known}") from None
        last = found[0]
    return [cut for cut in cuts if cut.sequence <= last]


async def _publish(bootstrap_servers: Bootstrap, outcome: RunOutcome) -> None:
    partitions = await partition_count(bootstrap_servers, [RECONCILIATION_RUNS])
    async with IdempotentWriter(bootstrap_servers) as writer:
        key = outcome.cut_id
        await writer.send(
            RECONCILIATION_RUNS, partition_for(key, partitions), key.encode(), encode_run_outcome(outcome)
        )
