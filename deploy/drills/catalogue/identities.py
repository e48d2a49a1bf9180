"""E: what a transactional.id is for, and what happens where it is random or shared."""

from typing import Final

from deploy.drills.clients.raw import FENCED
from deploy.drills.drill import Anomaly, drill
from deploy.drills.faults.requests import OnRequests
from deploy.drills.hops import OURS, Hops, note_anomalies, until_settled
from deploy.drills.judge import now_ms
from deploy.drills.proxy.rules import Drop, Part, Rule
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually
from deploy.local.process import ManagedProcess
from shared.kafka.admin.rules import PROCESSORS, Kind, Operation, allows, rules, transactional_ids
from shared.kafka.admin.rules import Rule as AccessRule
from shared.kafka.admin.transactions import look
from shared.kafka.client.brokers import Brokers

TIMEOUT_MS: Final = 25_000
"""Past the successor's wait for its predecessor's session."""
TURNS: Final = 2
WORKED: Final = 20
"""Records of each application, a transaction for each, in which nothing is fenced."""


@drill(
    "E3",
    "random-transactional-id",
    "A random transactional.id at each start leaves the transaction of a crash open: readers wait for its timeout",
    control=[Anomaly.OPEN_TRANSACTION_LEFT, Anomaly.LSO_STALL],
    tags=["naive", "processes", "visibility"],
    within_s=180,
    reading=["KIP-98", "docs/adr/0021-transaction-per-instance.md"],
)
async def random_transactional_id(stage: Stage) -> None:
    """Kill a hop within a transaction and start it again. The project's runtime has the same transactional.id then:
    its InitProducerId ends what was left open before it writes. The control takes a new id at each start. It does the
    work again, and its readers see nothing of it until the coordinator aborts the transaction of the crash.
    """
    for program in (OURS, "random_id"):
        hops, killed_ms = await _crash(stage, program)
        found = await _left_open(stage, hops, killed_ms)
        seconds = await until_settled(stage, hops.job.sink, 60)
        stage.step(f"{program}: readers see the successor's output after {seconds:.1f} s")
        note_anomalies(stage, found, is_control=program != OURS)
        await hops.until_done()
        await hops.expect_exactly_once()


async def _crash(stage: Stage, program: str) -> tuple[Hops, int]:
    """Kill a hop within a transaction, and start it again; return when its new output is in the log.

    Returns:
        The hops, and when the process was killed, in milliseconds since 1970 UTC.
    """
    hops = await Hops.prepared(stage, transaction_timeout_ms=TIMEOUT_MS)
    hop = hops.start(program)
    await hops.write()
    await hops.until_done()
    rule = Rule(api="AddOffsetsToTxn", group=hops.job.group, action=Drop(Part.REQUEST))
    async with stage.fault(OnRequests(await stage.proxy(), rule, f"{program}: AddOffsetsToTxn lost")) as lost:
        before = len(await hops.output(committed=False))
        await hops.write()
        stage.evidence(lost.name, await lost.acted())
        # The stock client has many requests in flight: its output may be behind the one that was lost
        await eventually(lambda: _is_longer(hops, before), "the output is in the log", 30)
        hops.kill(hop)
    killed_ms = now_ms()
    hop.start()
    before = len(await hops.output(committed=False))
    await eventually(lambda: _is_longer(hops, before), "the successor's output is in the log", 60)
    return hops, killed_ms


async def _is_longer(hops: Hops, records: int) -> bool:
    """Whether the output has more records than these, committed or not."""
    return len(await hops.output(committed=False)) > records


async def _left_open(stage: Stage, hops: Hops, since_ms: int) -> dict[Anomaly, list[str]]:
    """Return transactions that are open since before a time, and partitions of the output that they hold back."""
    async with Brokers(stage.access) as brokers:
        seen = await look(brokers, [hops.job.sink], only_open=True)
    left = [one for one in seen.transactions if one.start_ms is not None and one.start_ms < since_ms and one.is_open]
    own = [one for one in left if any(topic == hops.job.sink for topic, _ in one.partitions)]
    targets = {target for one in own for target in one.partitions if target[0] == hops.job.sink}
    held = {target: seen.offsets[target] for target in sorted(targets)}
    return {
        Anomaly.OPEN_TRANSACTION_LEFT: [f"{one.transactional_id}, {one.age_s(seen.at_ms):.1f} s old" for one in own],
        Anomaly.LSO_STALL: [
            f"{topic}:{partition} at offset {at.stable}, {at.held} held back"
            for (topic, partition), at in held.items()
            if at.held
        ],
    }


@drill(
    "E4",
    "shared-transactional-id",
    "Two applications with one transactional.id fence each other in turns; access rules give each service its own",
    control=[Anomaly.MUTUAL_FENCING],
    tags=["naive", "fencing"],
    within_s=180,
    reading=["KIP-98", "docs/runbooks/ProducerFenced.md"],
)
async def shared_transactional_id(stage: Stage) -> None:
    """Run two applications under supervisors that start them again. With ids of their own, which is how the runtime
    names them, none ends. With one transactional.id each start fences the other application. The brokers' access rules
    of the project allow each service the ids that begin with its own name, and no others.
    """
    for program in (OURS, "shared_id"):
        fenced = await _run_two(stage, program, turns=0 if program == OURS else TURNS)
        where = [f"{name} was fenced {count} times" for name, count in fenced.items()]
        note_anomalies(stage, {Anomaly.MUTUAL_FENCING: where}, is_control=program != OURS)
        stage.expect(f"{program}: applications that were fenced", len(fenced), 0 if program == OURS else 2)
    allowed = [
        f"{service} as {other}"
        for service in PROCESSORS
        for other in PROCESSORS
        if service != other
        and allows(rules(), AccessRule(service, Kind.TRANSACTIONAL_ID, f"{transactional_ids(other)}0", Operation.WRITE))
    ]
    stage.expect("services that may use another one's transactional.ids", allowed, [])


async def _run_two(stage: Stage, program: str, *, turns: int) -> dict[str, int]:
    """Run two applications until each was fenced so often, or has worked for a while if that is never.

    Returns:
        How often each was fenced; without those that were not.
    """
    both = [await Hops.prepared(stage) for _ in range(2)]
    variables = {"SHARED_ID": f"{stage.name}-shared"}
    started = [(hops, hops.start(program, variables=variables)) for hops in both]
    applications = {f"application {number}": one for number, one in enumerate(started, 1)}
    fenced: dict[str, int] = {}

    async def turned() -> bool:
        for name, (hops, process) in applications.items():
            if not process.running:
                fenced[name] = fenced.get(name, 0) + _was_fenced(process)
                process.log_path.write_text("")
                process.start()
            await hops.write(1)
        if turns:
            return len(fenced) == len(applications) and min(fenced.values()) >= turns
        return all([await hops.passed() >= WORKED for hops in both])

    await eventually(turned, "both applications have had their turns", 90)
    for _, process in applications.values():
        process.kill()
    return fenced


def _was_fenced(process: ManagedProcess) -> bool:
    """Whether a process ended by an error that says that another producer has its transactional.id."""
    return any(name in process.log_path.read_text() for name in FENCED)
