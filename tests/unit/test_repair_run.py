"""Refusals, retries, failures and reports of a repair, without brokers."""

from collections.abc import Sequence
from typing import Any, Self

import pytest

from deploy.checkers.verdict import INVARIANT_OF, Kind, Violation
from deploy.repairs import menders, run
from deploy.repairs.evidence import Evidence
from deploy.repairs.menders import Mended, RepairScope, Sizes, mender_of
from deploy.repairs.plan import Gap
from deploy.repairs.reference import History, Reference
from deploy.repairs.run import ATTEMPTS_MAX, Repair, Report
from services.transform.domain import ReferenceData
from shared.eos.audit import TornTransactionError
from shared.eos.errors import EosError, FencedError, UnknownOutcomeError
from shared.eos.records import Output
from shared.events.catalogue import OPERATIONS_REPAIRS, PAYMENTS_ACCEPTED
from shared.events.effects import decode_subscriptions
from shared.events.headers import REPAIR, Coordinates, header
from shared.events.operations import decode_repaired
from shared.kafka.client.brokers import Brokers, View
from shared.kafka.client.errors import DrainTimeoutError, KafkaUnavailableError
from shared.settings import RuntimeSettings, load_for
from tests.installation import INSTALLATION
from tests.partitions import PARTITIONS

LOST = Violation(INVARIANT_OF[Kind.SKIPPED], Kind.SKIPPED.value, "payments.raw:2:7", "")
TWICE = Violation(INVARIANT_OF[Kind.TWO_OUTCOMES], Kind.TWO_OUTCOMES.value, "payments.accepted:1:4", "")
MADE = Mended(Coordinates("payments.raw", 2, 7), [Output(PAYMENTS_ACCEPTED, 2, b"k", b"v", ())])


class Found:
    """A verdict."""

    def __init__(self, *violations: Violation, at_rest: bool = True) -> None:
        self.violations = list(violations)
        self.at_rest = at_rest


class Cluster:
    """A cluster with given verdicts in turn, and a given end of each attempt to take over the scope."""

    def __init__(self, verdicts: list[Found], errors: Sequence[Exception]) -> None:
        self.verdicts = verdicts
        self.errors = list(errors)
        self.left: dict[Coordinates, str] = {}
        self.written: list[Output] = []
        self.attempts = 0

    async def verify(self, *_: object, **__: object) -> Found:
        return self.verdicts.pop(0)

    def scope(self, *_: object) -> "Scope":
        return Scope(self)


class Scope:
    """A scope whose takeover may fail."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def take_over(self, _: Evidence) -> None:
        self._cluster.attempts += 1
        if self._cluster.errors:
            raise self._cluster.errors.pop(0)

    def mend(self, evidence: Evidence, _inputs: object) -> list[Mended]:
        evidence.left |= self._cluster.left
        return [MADE]

    def state_records(self) -> int:
        return 1

    async def write(self, outputs: list[Output]) -> None:
        self._cluster.written += outputs


async def no_reference(_: object) -> Reference:
    return Reference(ReferenceData({}, {}), History(decode_subscriptions), INSTALLATION, (0,))


async def repaired(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> Report:
    async def nothing(*_: object, **__: object) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(run, "verify_cluster", cluster.verify)
    monkeypatch.setattr(run, "check_topics", nothing)
    monkeypatch.setattr(run, "read_reference", no_reference)
    monkeypatch.setattr(run, "RepairScope", cluster.scope)
    monkeypatch.setattr(Evidence, "read", nothing)
    monkeypatch.setattr(Repair, "_sources", nothing)
    return await Repair("127.0.0.1:1", "me@here", dry_run=False, deadline_s=1).run()


async def test_a_complete_pipeline_needs_no_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([Found()], [])
    report = await repaired(monkeypatch, cluster)
    assert report.clean
    assert (report.scopes, cluster.attempts) == ([], 0)


async def test_a_moving_pipeline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([Found(LOST, at_rest=False)], [])
    with pytest.raises(DrainTimeoutError, match="did not drain"):
        await repaired(monkeypatch, cluster)
    assert cluster.attempts == 0


async def test_a_fenced_repair_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([Found(LOST), Found()], [FencedError("fenced"), UnknownOutcomeError("no answer")])
    report = await repaired(monkeypatch, cluster)
    assert report.clean
    assert cluster.attempts == 3
    written, audit = cluster.written
    assert header(written.headers, REPAIR) == f"{report.repair_id}:0".encode()
    assert audit.topic == OPERATIONS_REPAIRS
    record = decode_repaired(audit.value or b"")
    assert (record.by, record.service, record.inputs) == ("me@here", "ingest", ("payments.raw:2:7",))


@pytest.mark.parametrize(
    ("error", "attempts"), [(FencedError("fenced"), ATTEMPTS_MAX), (TornTransactionError("records are gone"), 1)]
)
async def test_findings_that_cannot_be_repaired_are_reported(
    monkeypatch: pytest.MonkeyPatch, error: EosError, attempts: int
) -> None:
    cluster = Cluster([Found(LOST)], [error] * ATTEMPTS_MAX)
    report = await repaired(monkeypatch, cluster)
    assert not report.clean
    assert (cluster.attempts, cluster.written, report.left) == (attempts, [], [LOST])
    assert report.failed == [f"ingest on payments.raw:2: {error}"]


async def test_an_open_transaction_ends_the_repair_of_its_scope_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Violation(LOST.invariant, LOST.kind, "payments.raw:3:7", "")
    cluster = Cluster([Found(LOST, other), Found(LOST)], [KafkaUnavailableError("a transaction stays open")])
    report = await repaired(monkeypatch, cluster)
    assert report.failed == ["ingest on payments.raw:2: a transaction stays open"]
    assert [scope.partition for scope in report.scopes] == [3]
    assert report.left == [LOST]


async def test_remaining_findings_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([Found(LOST, TWICE), Found(TWICE)], [])
    report = await repaired(monkeypatch, cluster)
    assert not report.clean
    assert report.left == [TWICE]


async def test_a_pipeline_that_still_moves_afterwards_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([Found(LOST), Found(at_rest=False)], [])
    report = await repaired(monkeypatch, cluster)
    assert not report.clean
    assert [reason for reason in report.failed if "did not drain" in reason]


async def test_an_input_that_was_left_is_reported_and_the_others_are_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([Found(LOST), Found()], [])
    cluster.left = {Coordinates("payments.raw", 2, 8): "it would undo another one"}
    report = await repaired(monkeypatch, cluster)
    assert (report.failed, report.clean) == (["it would undo another one"], False)
    assert [scope.partition for scope in report.scopes] == [2]


class Silent(Brokers):
    """Brokers of which none answers a request to it."""

    async def view(self, _: object) -> View:
        return View({1: ("127.0.0.1", 1)}, {}, {})


async def test_a_silent_broker_is_an_unavailable_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the repair of its scope, as every error of that class does."""
    monkeypatch.setattr(menders, "Brokers", Silent)
    evidence = Evidence("127.0.0.1:1", "transform", [], PARTITIONS, 1)
    mender = mender_of("transform", 2, Sizes(1, 1, PARTITIONS), await no_reference(None), evidence, 0)
    settings = load_for(RuntimeSettings, "127.0.0.1:1", "", "")
    with pytest.raises(KafkaUnavailableError, match="owner cannot be found"):
        async with RepairScope(Gap("transform", 2, (7,)), mender, settings):
            pass
