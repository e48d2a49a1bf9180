"""The quick drills: the real fault, the real alert, and every payment booked once. `make drills` runs all of them."""

import asyncio
import re
import zipfile

import pytest

from deploy.drills.alerts.alert import AlertFault, SiteFault
from deploy.drills.alerts.firing import drill
from deploy.drills.alerts.registry import ALERTS, NOT_MADE
from deploy.drills.alerts.site import Site
from deploy.drills.drill import Result, Verdict
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.run import run_on
from deploy.local import jars
from tests.tiers import full, mostly_full

pytestmark = pytest.mark.timeout(400)

LATE_S = 30.0
QUICK = [alert for alert in ALERTS if alert.quick]


@pytest.mark.parametrize(
    "alert", mostly_full((alert.name for alert in QUICK), [alert.name for alert in QUICK if not alert.ends_itself])
)
def test_the_alert_fires_on_its_fault_and_is_silent_again(alert: str, results: dict[str, Result]) -> None:
    result = results[alert]
    assert result.verdict is Verdict.AS_EXPECTED, result
    assert seen(result, f"seconds until {alert} fired") is not None
    assert seen(result, f"seconds until {alert} was silent again") is not None
    assert result.journal.faults
    assert result.journal.faults[0].healed_s is not None
    assert result.journal.records > 0


def seen(result: Result, what: str) -> str | None:
    """Return what a drill observed under this name."""
    return next((one.seen for one in result.journal.observations if one.what == what), None)


@full
def test_a_hanging_transaction_is_reported_within_30_s_of_its_threshold(site: Site, results: dict[str, Result]) -> None:
    threshold_s = site.value("once:threshold:transaction_open_seconds")
    assert threshold_s is not None
    result = results["TransactionHanging"]
    firing_s = seen(result, "seconds until TransactionHanging fired")
    assert firing_s is not None
    assert float(firing_s) <= threshold_s + LATE_S
    assert any("ledger-0" in step.what for step in result.journal.steps if step.what.startswith("the alert says: "))


class Nothing:
    """No fault."""

    healed = False

    async def inject(self, site: Site) -> str:  # noqa: ARG002 # a fault's signature
        """Do nothing."""
        return "nothing was done"

    async def heal(self, site: Site) -> None:  # noqa: ARG002 # the same
        """Nothing to heal."""
        type(self).healed = True


class Impossible(Nothing):
    """A fault that cannot be made."""

    async def inject(self, site: Site) -> str:  # noqa: ARG002 # a fault's signature
        """Fail."""
        raise NoEvidenceError("the fault could not be made")


@pytest.mark.parametrize(
    ("fault", "verdict", "why"),
    [
        (Nothing, Verdict.NOT_AS_EXPECTED, "seconds until RedisDown fired: none, expected at most 1"),
        (Impossible, Verdict.NO_DATA, "the fault could not be made"),
    ],
)
def test_a_drill_without_a_fault_is_not_passed(
    runner: asyncio.Runner,
    site: Site,
    results: dict[str, Result],
    fault: type[SiteFault],
    verdict: Verdict,
    why: str,
) -> None:
    assert results, "the others come first"
    silent = drill(AlertFault("RedisDown", "Nothing is done.", fault, {}, within_s=1.0), 1)
    [result] = runner.run(run_on(site, [silent], seed=1, say=lambda _: None))
    assert (result.verdict, result.reason) == (verdict, why)
    assert seen(result, "seconds until RedisDown was silent again") is None
    assert fault.healed  # type: ignore[attr-defined]


def test_no_broker_answers_duplicate_sequence_number() -> None:
    """So no drill can cause it. A version whose brokers answer it needs a drill."""
    assert list(NOT_MADE) == ["SequenceDuplicated"]
    names = re.compile(rb"DuplicateSequenceException|DUPLICATE_SEQUENCE_NUMBER")
    clients = re.compile(r"org/apache/kafka/(clients/|common/(protocol/Errors|errors/DuplicateSequenceException)\.)")
    found = []
    for jar in jars.resolve():
        with zipfile.ZipFile(jar) as archive:
            classes = [name for name in archive.namelist() if name.endswith(".class")]
            found += [name for name in classes if names.search(archive.read(name))]
    assert found
    assert [name for name in found if not clients.match(name)] == []
