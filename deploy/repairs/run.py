"""Running a repair: verify, plan, write each scope's missing records, verify again."""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from deploy.checkers.verdict import Verdict, Violation
from deploy.repairs.evidence import Evidence
from deploy.repairs.menders import (
    CHANGELOGS,
    Mended,
    Mender,
    RepairScope,
    Sizes,
    mended,
    mender_of,
    numbered,
)
from deploy.repairs.plan import Gap, Plan, parts, plan
from deploy.repairs.reference import Reference, read_reference
from deploy.verification import Progress, verify_cluster
from shared.eos.errors import EosError, FencedError, RejoinError
from shared.eos.records import Output
from shared.events.catalogue import OPERATIONS_REPAIRS, TOPICS
from shared.events.codec import InternalInputError
from shared.events.headers import SOURCE, Coordinates, header
from shared.events.operations import REPAIR_SCHEMA_VERSION, Repaired, encode_repaired
from shared.events.partitions import partition_for
from shared.kafka.admin.topics import check_topics
from shared.kafka.client.access import Bootstrap, access_by
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import DrainTimeoutError, KafkaUnavailableError
from shared.kafka.client.reader import record_at
from shared.kafka.runtime.recovery import Restored, restore
from shared.settings import IngestSettings, LedgerSettings, RuntimeSettings, load_for

ATTEMPTS_MAX: Final = 5  # the owner that was fenced rejoins, and fences the repair
INPUTS_MAX: Final = 1_000  # of a transaction: its record names them all


class ScopeReport(msgspec.Struct, frozen=True):
    """A transaction that was written, or would be."""

    service: str
    partition: int
    inputs: tuple[str, ...]  # coordinates of the input records that lack outputs
    records: dict[str, int]  # counts by topic
    state_records: int  # changes of the service's state that go with them


class Report(msgspec.Struct, frozen=True):
    """A repair's outcome."""

    repair_id: str  # empty for a dry run
    by: str
    dry_run: bool
    scopes: list[ScopeReport]  # what was written, or would be in a dry run
    failed: list[str]  # scopes that could not be repaired, and why
    left: list[Violation]  # violations that remain; in a dry run, those that it cannot mend

    @property
    def clean(self) -> bool:
        return not self.failed and not self.left and not (self.dry_run and self.scopes)


class Repair:
    """One run, by `by`; `deadline_s` and `on_progress` are those of each `verify_cluster`.

    Raises SettingsError if the services' settings cannot be used.
    """

    def __init__(
        self,
        bootstrap_servers: Bootstrap,
        by: str,
        *,
        dry_run: bool,
        deadline_s: float,
        on_progress: Progress | None = None,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._by = by
        self._dry_run = dry_run
        self._deadline_s = deadline_s
        self._on_progress = on_progress
        self._note = on_note
        access = access_by(bootstrap_servers)
        files = ("", "") if access.tls is None else (access.tls.ca_file, access.tls.identity_file)
        self._settings = load_for(RuntimeSettings, access.bootstrap_servers, *files)
        self._sizes = Sizes(
            load_for(IngestSettings, access.bootstrap_servers, *files).window,
            load_for(LedgerSettings, access.bootstrap_servers, *files).reversal_window,
            self._settings.partitions,
        )
        self._repair_id = f"repair-{_now_ms()}"
        self._number = 0
        self._scopes: list[ScopeReport] = []
        self._failed: list[str] = []

    async def run(self) -> Report:
        """Write what is missing.

        Raises:
            TopicMismatchError: a topic is missing, or ONCE_PARTITIONS is not its partition count.
            DrainTimeoutError: the pipeline did not drain; nothing was written.
        """
        await check_topics(self._bootstrap_servers, [topic.name for topic in TOPICS], self._sizes.partitions)
        verdict = await self._verify()
        if not verdict.at_rest:
            raise DrainTimeoutError(
                f"nothing was repaired: the pipeline did not drain in {self._deadline_s} s, and records in flight "
                "look like missing ones. See `once status`, then run it again"
            )
        planned = plan(verdict.violations, await self._sources(verdict.violations))
        if planned.gaps:
            await self._work(planned)
        left = verdict.violations
        if self._scopes:
            left = planned.unmendable if self._dry_run else await self._left()
        repair_id = "" if self._dry_run else self._repair_id
        return Report(repair_id, self._by, self._dry_run, self._scopes, self._failed, left)

    async def _verify(self) -> Verdict:
        return await verify_cluster(
            self._bootstrap_servers,
            deadline_s=self._deadline_s,
            identity_window=self._sizes.identity_window,
            reversal_window=self._sizes.reversal_window,
            violations_kept=sys.maxsize,
            on_progress=self._on_progress,
            on_note=self._note,
        )

    async def _left(self) -> list[Violation]:
        """Return the violations that remain once the pipeline has processed what was written."""
        self._note("written; verifying again")
        verdict = await self._verify()
        if not verdict.at_rest:
            self._failed.append("the pipeline did not drain again: see `once status`, then run `once verify`")
        return verdict.violations

    async def _sources(self, violations: list[Violation]) -> dict[str, Coordinates]:
        """Return the sources of the records that violations name, where the plan needs them."""
        found: dict[str, Coordinates] = {}
        async with Cluster(self._bootstrap_servers) as cluster:
            await cluster.partitions([OPERATIONS_REPAIRS])  # before an owner is fenced
            for at in parts(violations):
                record = await record_at(cluster, at)
                source = None if record is None else header(record.headers, SOURCE)
                if source is not None:
                    found[str(at)] = Coordinates.decode(source)
        return found

    async def _work(self, planned: Plan) -> None:
        brokers = self._bootstrap_servers
        reference = await read_reference(brokers)
        for service, grouped in itertools.groupby(planned.gaps, key=lambda gap: gap.service):
            gaps = list(grouped)
            self._note(f"reading the topics of {service}")
            evidence = Evidence(brokers, service, gaps, self._sizes.partitions, self._sizes.reversal_window)
            await evidence.read()
            for gap in gaps:
                try:
                    evidence.raise_if_unreadable(gap.partition)
                    await (self._preview if self._dry_run else self._repair)(gap, reference, evidence)
                except (EosError, InternalInputError, KafkaUnavailableError) as error:
                    self._failed.append(f"{gap}: {error}")
            self._failed += evidence.left.values()

    def _mender(self, gap: Gap, reference: Reference, evidence: Evidence) -> Mender:
        return mender_of(gap.service, gap.partition, self._sizes, reference, evidence, _now_ms())

    async def _preview(self, gap: Gap, reference: Reference, evidence: Evidence) -> None:
        mender = self._mender(gap, reference, evidence)
        async with Cluster(self._bootstrap_servers) as cluster:
            changelog = CHANGELOGS[gap.service]
            restored = Restored(mender.store, lambda _: None)
            await restore(cluster, (changelog, gap.partition), restored, lambda _done, _total: None)
        mender.begin()
        for inputs in _batches(gap):
            made = mended(mender, evidence, inputs)
            state_records = len(list(mender.store.changes()))
            mender.store.commit()
            if made or state_records:
                self._scopes.append(_report(gap, made, state_records))

    async def _repair(self, gap: Gap, reference: Reference, evidence: Evidence) -> None:
        """Write what is missing; raise EosError when fenced ATTEMPTS_MAX times in a row."""
        for attempt in itertools.count(1):
            try:
                async with RepairScope(gap, self._mender(gap, reference, evidence), self._settings) as scope:
                    await scope.take_over(evidence)
                    for inputs in _batches(gap):
                        await self._write(gap, scope, scope.mend(evidence, inputs))
            except (FencedError, RejoinError) as error:
                if attempt == ATTEMPTS_MAX:
                    raise
                self._note(f"{gap}: {error}; trying again")
            else:
                return

    async def _write(self, gap: Gap, scope: RepairScope, made: list[Mended]) -> None:
        report = _report(gap, made, scope.state_records())
        if not made and not report.state_records:
            return
        outputs = numbered(made, self._repair_id, self._number)
        self._number += len(outputs)
        await scope.write([*outputs, self._audit_record(report)])
        self._scopes.append(report)
        self._note(f"{gap}: {len(outputs)} records written")

    def _audit_record(self, report: ScopeReport) -> Output:
        written = Repaired(
            REPAIR_SCHEMA_VERSION, self._repair_id, self._by, _now_ms(), *msgspec.structs.astuple(report)
        )
        key = self._repair_id
        partition = partition_for(key, self._sizes.partitions)
        return Output(OPERATIONS_REPAIRS, partition, key.encode(), encode_repaired(written), ())


def _batches(gap: Gap) -> Iterator[list[Coordinates]]:
    """Yield the inputs of each transaction; one without any where only the state is wrong."""
    inputs = gap.inputs()
    for first in range(0, max(len(inputs), 1), INPUTS_MAX):
        yield inputs[first : first + INPUTS_MAX]


def _report(gap: Gap, made: list[Mended], state_records: int) -> ScopeReport:
    records = dict(Counter(output.topic for one in made for output in one.outputs))
    return ScopeReport(gap.service, gap.partition, tuple(str(one.source) for one in made), records, state_records)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
