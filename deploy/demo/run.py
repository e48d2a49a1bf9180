"""One run of the demonstration: stack, load, faults, drain, audit, reconciliation.

Invariant: a fault counts only when it hit a process at work; whatever happens, nothing is left running.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from deploy import PROJECT_ROOT
from deploy.checkers.verdict import PASS, Verdict
from deploy.clients.local import LOCAL, submitted_by
from deploy.demo.faults import BAD, FLUSH, PLANTED, REPEATS, SERVICES, Fault, Injected, due, interleave, plan
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.faults.processes import Kill
from deploy.drills.faults.redis import Flush
from deploy.drills.opinions import Reconciled, Viewed, differences, disagreements, reconciling, view
from deploy.drills.run import started
from deploy.drills.target import Target
from deploy.drills.workload import subscribe_to_receipts
from deploy.load.loader import load_file
from deploy.local.supervisor.stack import Stack
from deploy.local.supervisor.topology import MONITOR, VIEW
from deploy.verification import verify_cluster
from shared.kafka.admin.groups import PIPELINE
from shared.kafka.client.reader import group_offsets
from shared.settings import partitions

SAMPLE = PROJECT_ROOT / "deploy" / "sample" / "trans_1993.csv.gz"
TRANSACTIONS = 28_205
ACCOUNTS = 1_139
LEGS_PER_TRANSACTION = 2
RECORDS_PER_S = 2_500  # so that every fault falls into the work, on a machine of any speed
POLL_S = 0.05
READY_S = 120.0
DRAINED_S = 180.0

INPUTS = dict(PIPELINE)
PAYMENTS = TRANSACTIONS + PLANTED
EXPECTED_INPUT = {
    "ingest": PAYMENTS,
    "transform": TRANSACTIONS,
    "ledger": LEGS_PER_TRANSACTION * TRANSACTIONS + ACCOUNTS,
    "outbox": TRANSACTIONS,
}

Say = Callable[[str], None]
Progress = Callable[[int, int], None]


class DemoResult(msgspec.Struct, frozen=True):
    """Result of a run.

    Attributes:
        view_matches: whether the view has the balances of the other two.
        faults: those that hit a process at work.
        missing: what was expected and did not come, in words; empty when all holds.
    """

    verdict: Verdict
    reconciliation: Reconciled
    view: Viewed
    view_matches: bool
    faults: list[Injected]
    missing: list[str]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.missing


def shortfalls(verdict: Verdict, faults: list[Injected], planned: list[Fault]) -> list[str]:
    """Describe what was expected of a run and is missing. Pure."""
    expected = {
        "records_in": PAYMENTS,
        "accepted": TRANSACTIONS,
        "deduplicated": REPEATS,
        "dead_lettered": BAD,
        "postings": LEGS_PER_TRANSACTION * TRANSACTIONS,
        "declines": 0,
        "accounts_off": 0,
        "effects_requested": TRANSACTIONS,
        "effects_delivered": TRANSACTIONS,
        "effects_duplicated": 0,
        "effects_in_doubt": 0,
        "effects_failed": 0,
    }
    found = {name: getattr(verdict, name) for name in expected}
    missing = [f"{name} is {found[name]}, not {value}" for name, value in expected.items() if found[name] != value]
    if verdict.verdict != PASS:
        missing.append(f"the audit's verdict is {verdict.verdict}")
    hit = {fault.target for fault in faults}
    missing += [f"{fault.action} {fault.target} hit no work" for fault in planned if fault.target not in hit]
    return missing


async def demonstrate(
    directory: Path, seed: int, say: Say, progress: Progress, done: Callable[[DemoResult], Awaitable[None]]
) -> DemoResult:
    """Run the demonstration on a fresh stack.

    Args:
        directory: for the stack's data and logs; must be empty.
        seed: of the planted records and of the faults.
        done: called with the result while the stack still runs.

    Raises:
        StackNotReadyError, KafkaNotReadyError, ...: the stack did not come up; each names the component.
        ViewBehindError: the view did not catch up.
        LakeError, PySparkException: the reconciliation could not be made.
    """
    begun = time.monotonic()
    say("starting three brokers, Redis and the services")
    running = started(directory, (*SERVICES, VIEW, MONITOR), partitions=partitions(), prepare=subscribe_to_receipts)
    async with running as target:
        page = target.component(VIEW).endpoint
        say(f"watch it at {page}")
        planned = plan(seed)
        loader = _Loader(target.bootstrap_servers, seed, progress)
        loading = asyncio.create_task(loader.run())
        faults = await _inject(target, loader, loading, planned, say)
        await loading
        verdict, reconciliation = await _judge(target.stack, directory / "lake", say)
        viewed = await view(page)
        differing = differences(viewed, verdict, reconciliation)
        missing = [*shortfalls(verdict, faults, planned), *disagreements(verdict, reconciliation), *differing]
        seconds = round(time.monotonic() - begun, 1)
        result = DemoResult(verdict, reconciliation, viewed, not differing, faults, missing, seconds)
        await done(result)
        return result


async def _judge(stack: Stack, lake: Path, say: Say) -> tuple[Verdict, Reconciled]:
    brokers = stack.kafka.bootstrap_servers
    async with reconciling(lake) as spark:
        say("waiting until the pipeline has drained, then verifying from offset 0")
        await asyncio.to_thread(stack.wait_ready, READY_S)
        verdict = await verify_cluster(
            brokers, wait=True, deadline_s=DRAINED_S, file_sinks=stack.effects_directory, on_note=say
        )
        say("reconciling the same topics in Spark")
        return verdict, await spark.reconcile(brokers, say)


class _Loader:
    def __init__(self, brokers: str, seed: int, progress: Progress) -> None:
        self._brokers = brokers
        self._seed = seed
        self._progress = progress
        self.loaded = 0

    async def run(self) -> None:
        arrange: Callable[[Iterable[bytes]], Iterator[bytes]] = partial(interleave, seed=self._seed)
        await load_file(
            self._brokers,
            SAMPLE,
            submitted_by(LOCAL),
            records_per_s=RECORDS_PER_S,
            on_progress=self._on_progress,
            arrange=arrange,
            arranged_more=PLANTED,
        )

    def _on_progress(self, done: int, total: int) -> None:
        self.loaded = done
        self._progress(done, total)


async def _inject(
    target: Target, loader: _Loader, loading: "asyncio.Task[None]", planned: list[Fault], say: Say
) -> list[Injected]:
    """Inject each fault when its moment has come. A fault that finds no input left, or no work, does not count."""
    injected: list[Injected] = []
    for fault in planned:
        # Polled: no event reports that the target is ready and at work
        while not loading.done() and not (due(fault, loader.loaded, PAYMENTS) and await _at_work(target, fault)):
            await asyncio.sleep(POLL_S)
        loaded = loader.loaded
        try:
            await (Flush() if fault.action == FLUSH else Kill(fault.target)).inject(target)
        except NoEvidenceError as error:
            say(f"{fault.action} {fault.target}: {error}")
            continue
        # Read after the fault: at least this many records remained when it hit
        processed = await _processed(target.bootstrap_servers, fault.watched)
        remaining = EXPECTED_INPUT[fault.watched] - processed
        if remaining > 0:
            injected.append(Injected(fault.action, fault.target, fault.watched, loaded, processed, remaining))
        say(
            f"{fault.action} {fault.target}: {loaded:,} of {PAYMENTS:,} payments loaded, "
            f"{remaining:,} left to {fault.watched}"
        )
    return injected


async def _at_work(target: Target, fault: Fault) -> bool:
    """Whether the target is back from an earlier kill and the watched service has begun: there is work to lose."""
    return target.component(fault.target).ready and await _processed(target.bootstrap_servers, fault.watched) > 0


async def _processed(brokers: str, service: str) -> int:
    """Offsets that a service has passed, of all partitions; markers count, so it is rather too much."""
    return sum((await group_offsets(brokers, service, INPUTS[service])).values())
