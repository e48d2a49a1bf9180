"""docs/drills/README.md: the catalogue, and the results of the last runs, which are committed as JSON.

    once drill run --all --json >docs/drills/results.json
    once drill recovery --json >docs/drills/recovery.json
    python -m tests.drills.mutants --json >docs/drills/mutants.json

Invariant: a result counts for the drill that has its row and name today; one of another drill is not shown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from deploy import PROJECT_ROOT
from deploy.drills.drill import COMPOSE, FAMILIES, LOCAL, SECURE, Drill, Verdict
from deploy.drills.index import ALERTS, DRILLS
from deploy.drills.recovery import Row, bounds

DIRECTORY: Final = PROJECT_ROOT / "docs" / "drills"
Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
T = TypeVar("T")

_NOT_RUN: Final = "not run"


class Anomalies(msgspec.Struct, frozen=True):
    """Anomalies of one kind in a result."""

    kind: str
    count: int


class Seen(msgspec.Struct, frozen=True):
    """Of a result's journal, what the page counts."""

    records: int
    faults: list[msgspec.Raw]
    anomalies: list[Anomalies]


class Shown(msgspec.Struct, frozen=True):
    """Of a result, what the page shows."""

    row: str
    name: str
    verdict: str
    seconds: float
    journal: Seen


class Run(msgspec.Struct, frozen=True):
    """Of the output of `once drill run --all --json`, what the page shows."""

    results: list[Shown] = []


class Recovery(msgspec.Struct, frozen=True):
    """The output of `once drill recovery --json`."""

    recovery: list[Row] = []


class Mutants(msgspec.Struct, frozen=True):
    """The output of `python -m tests.drills.mutants --json`: rows with the same columns."""

    mutants: list[dict[str, str | float]] = []


def last_run() -> Run:
    """Return the committed results; none where there is no file."""
    return _read(DIRECTORY / "results.json", Run)


def last_recovery() -> Recovery:
    """Return the committed figures of recovery, as `last_run`."""
    return _read(DIRECTORY / "recovery.json", Recovery)


def last_mutants() -> Mutants:
    """Return the committed table of mutants, as `last_run`."""
    return _read(DIRECTORY / "mutants.json", Mutants)


def page(table: Table, run: Run, recovery: Recovery, mutants: Mutants) -> str:
    """Return the page below its title. Pure.

    Args:
        table: makes a table of heads and rows.
    """
    return "\n".join(
        [
            f"{_ABOUT}\n",
            f"{_last(run)}\n",
            f"{_REPORT}\n",
            *_families(table, {(one.row, one.name): one for one in run.results}),
            f"{_RECOVERY}\n",
            _recovery(table, {one.killed: one for one in recovery.recovery}),
            f"{_MUTANTS}\n",
            table(list(mutants.mutants[0]), ([str(cell) for cell in row.values()] for row in mutants.mutants))
            if mutants.mutants
            else "No run is recorded.\n",
        ]
    )


def _last(run: Run) -> str:
    """Return the last run in a paragraph."""
    if not run.results:
        return "No run of all drills is recorded."
    verdicts = Counter(one.verdict for one in run.results)
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in Verdict if verdicts[verdict])
    seen = [one.journal for one in run.results]
    records, faults = sum(one.records for one in seen), sum(len(one.faults) for one in seen)
    anomalies = sum(found.count for one in seen for found in one.anomalies)
    return (
        f"The last recorded run of all rows took {sum(one.seconds for one in run.results):,.0f} s in its "
        f"{len(run.results)} drills: {counts}. They wrote {records:,} records, noted {faults:,}\npieces of evidence of "
        f"faults, and found {anomalies:,} anomalies. Its output is [results.json](results.json)."
    )


def _families(table: Table, results: Mapping[tuple[str, str], Shown]) -> list[str]:
    heads = ("row", "drill", "claim", "control", "targets", "last result")
    found = {letter: [one for one in DRILLS if one.row.startswith(letter)] for letter in FAMILIES}
    return [
        f"## {FAMILIES[letter]}\n\n{table(heads, (_cells(one, results) for one in drills))}"
        for letter, drills in found.items()
        if drills
    ]


def _cells(one: Drill, results: Mapping[tuple[str, str], Shown]) -> tuple[str, ...]:
    result = results.get((one.row, one.name))
    shown = _NOT_RUN
    if result is not None:
        shown = f"{result.verdict}, {result.seconds:.1f} s"
    control = ", ".join(sorted(one.control)) or "no"
    return one.row, f"`{one.name}`", one.claim, control, ", ".join(one.targets), shown


def _recovery(table: Table, measured: Mapping[str, Row]) -> str:
    heads = ("killed", "bound, s", "because of", "kills", "median, s", "worst, s", "smallest bound, s", "late")
    rows = []
    for bound in bounds():
        kills = measured.get(bound.killed)
        figures = (
            [_NOT_RUN, *[""] * 4]
            if kills is None
            else [
                str(kills.kills),
                f"{kills.median_s:.2f}",
                f"{kills.worst_s:.2f}",
                f"{kills.bound_s:.1f}",
                str(kills.late),
            ]
        )
        rows.append([bound.killed, f"{bound.seconds:g}", bound.because, *figures])
    return table(heads, rows)


def _read(path: Path, kind: type[T]) -> T:
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.is_file() else kind()


_ACTS_ON: Final[Mapping[str, str]] = {
    LOCAL: "a local stack of their own",
    SECURE: "the same with TLS and access rules",
    COMPOSE: "the containers of docker-compose.yml, which must be up",
}
_TARGETS: Final = "".join(
    f"| `{name}` | {what} | {sum(name in one.targets for one in DRILLS)} |\n" for name, what in _ACTS_ON.items()
)

_ABOUT: Final = f"""\
A drill shows one claim about exactly-once semantics on real brokers. It injects the fault, watches what happens, and
judges. A control shows the failure that a protection is for: its anomaly must be found, or it fails.

    once drill list
    once drill show A2
    once drill run A2 lost-acknowledgement
    once drill run --all --keep .once/drills
    once drill run --tag alert
    once drill run --all --on secure
    once drill soak --minutes 30 --seed 1

`--all` runs the {len(DRILLS)} rows below, `--tag alert` the drills of {len(ALERTS)} [alerts](alerts.md). Each run
starts a stack of its own and leaves nothing running, also after Ctrl-C. Steps go to stderr. With `--keep`, each drill
gets a page in `report`: time line, faults, what was seen and expected. `results.json` there has the same as data.

- as expected: everything seen was as expected, each fault left evidence, and exactly the expected anomalies were found.
- not as expected: the reason names what was seen and what was expected.
- no data: a fault left no evidence, or nothing was observed. It is not a pass.
- not on this target: the drill cannot run there, and is counted apart. The proxy that loses and delays requests cannot
  look into TLS, and a container's processes and files are not this machine's.
- failed: the drill itself could not go on. After a timeout, the reason says what the drill waited for.

| exit code | meaning |
| --- | --- |
| 0 | every drill that ran showed its claim |
| 1 | one did not, or its target did not start |
| 2 | wrong usage, such as an unknown drill |
| 3 | none of the drills can run on the target |
| 130 | interrupted: everything was healed and stopped first |

| target | the drills act on | drills of rows |
| --- | --- | --- |
{_TARGETS}
On `compose` a drill runs in a container of the operator, and Docker's command line makes its faults. It pays, kills
containers and changes settings of topics: use a deployment that is there for it. `make compose-verify` brings one up
and runs all drills that run there. DOCKER_HOST and COMPOSE_PROJECT_NAME select another one.

The checkers name anomalies as [Jepsen](https://jepsen.io) does, except that a lost write is a loss and G1a an aborted
read. `once drill soak` makes random faults for a chosen time; its judges are a checker of histories,
`once verify`, Spark's reconciliation and the view. `make drills` runs all drills, those of [alerts](alerts.md)
included, and `make drills-transactions` the table of [a transaction's requests](transactions.md), lost, late and
repeated."""

_REPORT: Final = """\
![The report of B9: verdict, hypothesis, throughput, log end and LSO over time, what was seen](../images/drill.png)

The report of B9: the last stable offset stays at the open transaction's first record, until the coordinator aborts
it."""

_RECOVERY: Final = """\
## Recovery

`once drill recovery` measures the seconds from a kill to the next commit of records made after it. A bound follows
from the settings, and from what is allowed for work on idle cores. On busy ones the allowance grows with the time
between two commits without a fault. So each kill has a bound of its own. The table has the smallest one, and how many
kills took longer than theirs."""

_MUTANTS: Final = """\
## The runtime broken on purpose

`python -m tests.drills.mutants` breaks the runtime in each of these ways, in every process of a drill. The drill must
not pass."""
