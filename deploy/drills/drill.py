"""A drill: one claim about exactly-once semantics, the steps that show it, and the verdict on what they saw. Pure.

A drill passes if everything it observed is as expected, each of its faults left evidence, and exactly the anomalies
that it expects were found. A control expects anomalies: it shows the failure that a protection is for.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from deploy.drills.stage import Stage


class Anomaly(StrEnum):
    """Kinds of anomalies, as the checkers name them. Jepsen calls a loss a lost write, and an aborted read G1a."""

    DUPLICATE = "duplicate"
    LOSS = "loss"
    ABORTED_READ = "aborted read"
    PRECOMMITTED_READ = "precommitted read"
    NONMONOTONIC_POLL = "nonmonotonic poll"
    POLL_SKIP = "poll skip"
    INCONSISTENT_OFFSETS = "inconsistent offsets"
    ZOMBIE_COMMIT = "zombie commit"
    TORN = "torn"
    REORDERED = "reordered"
    DEADLOCK = "deadlock"
    LSO_STALL = "LSO stall"
    MUTUAL_FENCING = "mutual fencing"
    OPEN_TRANSACTION_LEFT = "open transaction left"


class Verdict(StrEnum):
    """Result of a drill."""

    AS_EXPECTED = "as expected"
    NOT_AS_EXPECTED = "not as expected"
    NO_DATA = "no data"
    """A fault left no evidence, or nothing was observed: the drill shows nothing."""
    NOT_ON_THIS_TARGET = "not on this target"
    FAILED = "failed"
    """The drill itself could not go on."""


class Needs(StrEnum):
    """What runs on the target."""

    BROKERS = "brokers"
    SERVICES = "services"
    MONITORING = "services and monitoring"
    OWN = "own cluster"
    """The drill starts what it needs by itself, with settings that the others must not have."""


NO_ROW: Final = "-"
"""Of a drill that is of no row: an alert's."""

FAMILIES: Final[Mapping[str, str]] = {
    "A": "Idempotent producer",
    "B": "Transactions",
    "C": "What transactions do not cover",
    "D": "Reconciliation",
    "E": "Costs, comparisons and rare failures",
    "S": "Soak",
    NO_ROW: "Alerts",
}
"""The subject of the rows of each letter."""

LOCAL: Final = "local"
SECURE: Final = "secure"
COMPOSE: Final = "compose"
TARGETS: Final = (LOCAL, SECURE, COMPOSE)

Steps = Callable[["Stage"], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One row of the scenarios, or the drill of an alert.

    Attributes:
        row: its number, such as A2; NO_ROW for an alert.
        name: the fault and the phase, such as lost-acknowledgement; the alert's for an alert.
        claim: what it shows, in a sentence.
        steps: what it does; their docstring says it in a few sentences.
        needs: what runs on the target.
        control: the anomalies that it expects; a drill that expects none is no control.
        targets: where it can run. The proxy cannot look into TLS, so a drill that uses it runs on `local` only.
        tags: further names for a selection, such as a fault's family.
        quick: whether `make test` runs it: one drill of each fault family.
        within_s: seconds that it may take.
        reading: documents to read next: paths in the project, or KIPs.
        command: how it is run, without options that all drills have; empty for `once drill run` with its name.
        place: of an alert, in the order of a run.
    """

    row: str
    name: str
    claim: str
    steps: Steps
    needs: Needs = Needs.BROKERS
    control: frozenset[Anomaly] = frozenset()
    targets: tuple[str, ...] = (LOCAL,)
    tags: tuple[str, ...] = ()
    quick: bool = False
    within_s: float = 90.0
    reading: tuple[str, ...] = ()
    command: str = ""
    place: int = 0

    @property
    def is_control(self) -> bool:
        """Whether it expects an anomaly."""
        return bool(self.control)

    @property
    def order(self) -> tuple[str, int]:
        """Return the key by which drills are sorted: by row, and alerts last."""
        return ("~", self.place) if self.row == NO_ROW else (self.row[0], int(self.row[1:]))

    @property
    def key(self) -> str:
        """Return the shortest text that names it."""
        return self.name if self.row == NO_ROW else self.row

    @property
    def title(self) -> str:
        """Return its row, if it is of one, and its name."""
        return self.name if self.row == NO_ROW else f"{self.row} {self.name}"


def described(drill: Drill) -> str:
    """Return what a drill does: the docstring of its steps, in one line."""
    return " ".join((drill.steps.__doc__ or "").split())


def drill(
    row: str,
    name: str,
    claim: str,
    *,
    needs: Needs = Needs.BROKERS,
    control: Iterable[Anomaly] = (),
    targets: Iterable[str] = (LOCAL,),
    tags: Iterable[str] = (),
    quick: bool = False,
    within_s: float = 90.0,
    reading: Iterable[str] = (),
) -> Callable[[Steps], Drill]:
    """Make a drill of its steps; parameters as the attributes of `Drill`."""

    def made(steps: Steps) -> Drill:
        return Drill(
            row=row,
            name=name,
            claim=claim,
            steps=steps,
            needs=needs,
            control=frozenset(control),
            targets=tuple(targets),
            tags=tuple(tags),
            quick=quick,
            within_s=within_s,
            reading=tuple(reading),
        )

    return made


class Observation(msgspec.Struct, frozen=True):
    """One figure or fact that a drill saw, and what it expected.

    Attributes:
        at_s: seconds since the drill began.
    """

    at_s: float
    what: str
    seen: str
    expected: str
    is_expected: bool


class Found(msgspec.Struct, frozen=True):
    """Anomalies of one kind that a checker found, with where they are."""

    kind: Anomaly
    count: int
    where: list[str]


class Evidence(msgspec.Struct, frozen=True):
    """What shows that a fault took effect.

    Attributes:
        at_s, healed_s: seconds since the drill began; the second is None for a fault that has no end.
    """

    fault: str
    what: str
    at_s: float
    healed_s: float | None = None


class Moment(msgspec.Struct, frozen=True):
    """A step of a drill, in words; `at_s` in seconds since it began."""

    at_s: float
    what: str


class Sample(msgspec.Struct, frozen=True):
    """One point of a time line.

    Attributes:
        at_s: seconds since the drill began.
        values: such as records per second, lag in records or LSO, by the name of the line.
    """

    at_s: float
    values: dict[str, float]


class Series(msgspec.Struct, frozen=True):
    """Measured points to plot: the names of both axes with their units, and the points of each line."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]


class Journal(msgspec.Struct):
    """Everything that a drill did and saw."""

    steps: list[Moment] = []
    faults: list[Evidence] = []
    observations: list[Observation] = []
    anomalies: list[Found] = []
    samples: list[Sample] = []
    tables: dict[str, list[dict[str, str | int | float | None]]] = {}
    plots: list[Series] = []
    records: int = 0


class Result(msgspec.Struct, frozen=True):
    """Result of a drill.

    Attributes:
        reason: why the verdict is what it is, in a sentence; empty where everything was as expected.
    """

    row: str
    name: str
    claim: str
    target: str
    control: list[Anomaly]
    verdict: Verdict
    reason: str
    seconds: float
    seed: int
    journal: Journal

    @property
    def key(self) -> str:
        """Return the shortest text that names its drill."""
        return self.name if self.row == NO_ROW else self.row

    @property
    def title(self) -> str:
        """Return its drill's row, if it is of one, and name."""
        return self.name if self.row == NO_ROW else f"{self.row} {self.name}"

    @property
    def passed(self) -> bool:
        """Whether the drill showed its claim."""
        return self.verdict is Verdict.AS_EXPECTED


def judged(drill: Drill, journal: Journal) -> tuple[Verdict, str]:
    """Return the verdict on a drill that went through all its steps, and the reason."""
    if not journal.observations:
        return Verdict.NO_DATA, "nothing was observed"
    for seen in journal.observations:
        if not seen.is_expected:
            return Verdict.NOT_AS_EXPECTED, f"{seen.what}: {seen.seen}, expected {seen.expected}"
    found = {anomaly.kind for anomaly in journal.anomalies if anomaly.count}
    for kind in sorted(drill.control - found):
        return Verdict.NOT_AS_EXPECTED, f"the control did not show its anomaly: {kind}"
    for kind in sorted(found - drill.control):
        [anomaly] = [one for one in journal.anomalies if one.kind == kind][:1]
        return Verdict.NOT_AS_EXPECTED, f"{kind}: {anomaly.count}, such as {', '.join(anomaly.where[:3])}"
    return Verdict.AS_EXPECTED, ""
