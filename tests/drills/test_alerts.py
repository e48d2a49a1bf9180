"""The quick drills: the real fault, the real alert, and every payment booked once. `make drills` runs all of them."""

import re
import zipfile

import pytest

from deploy.local import jars
from tests.drills.alerts.fault import Drill, Fault
from tests.drills.alerts.registry import NOT_MADE, QUICK
from tests.drills.campaign import PASSED, Result, run
from tests.drills.site import Site
from tests.drills.timeline import Watch
from tests.tiers import full, mostly_full

pytestmark = pytest.mark.timeout(400)

LATE_S = 30.0


@pytest.mark.parametrize(
    "alert", mostly_full((drill.alert for drill in QUICK), [drill.alert for drill in QUICK if not drill.ends_itself])
)
def test_the_alert_fires_on_its_fault_and_is_silent_again(alert: str, results: dict[str, Result]) -> None:
    assert results[alert].verdict == PASSED, results[alert]


@full
def test_a_hanging_transaction_is_reported_within_30_s_of_its_threshold(site: Site, results: dict[str, Result]) -> None:
    threshold_s = site.value("once:threshold:transaction_open_seconds")
    assert threshold_s is not None
    result = results["TransactionHanging"]
    assert result.firing_s is not None
    assert result.firing_s <= threshold_s + LATE_S
    assert "ledger-0" in result.summary


class Nothing(Fault):
    """No fault."""

    healed = False

    def inject(self, site: Site) -> None:
        """Nothing."""

    def heal(self, site: Site) -> None:  # noqa: ARG002 # the fault's own
        """Nothing to heal."""
        type(self).healed = True


class Impossible(Nothing):
    """A fault that cannot be made."""

    def inject(self, site: Site) -> None:  # noqa: ARG002 # the same
        """Fail."""
        raise AssertionError("the fault could not be made")


@pytest.mark.parametrize(("fault", "why"), [(Nothing, "not within 1.0 s: RedisDown firing"), (Impossible, "be made")])
def test_a_drill_without_a_fault_is_not_passed(
    site: Site, watch: Watch, results: dict[str, Result], fault: type[Nothing], why: str
) -> None:
    assert results, "the others come first"
    drill = Drill("RedisDown", "Nothing is done.", fault, {}, within_s=1.0)
    result = run(site, watch, [drill], lambda _: None)["RedisDown"]
    assert why in result.verdict
    assert (result.firing_s, result.resolved_s) == (None, None)
    assert fault.healed


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
