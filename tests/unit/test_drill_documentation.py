"""The page of drills: the catalogue with the results, recovery and mutants that are recorded."""

from collections.abc import Iterable, Sequence

import msgspec

from deploy.documents import drills
from deploy.drills.documentation import (
    Anomalies,
    Mutants,
    Recovery,
    Run,
    Seen,
    Shown,
    last_mutants,
    last_recovery,
    last_run,
    page,
)
from deploy.drills.index import DRILLS
from deploy.drills.recovery import START_S, WORK_S, Row, bounds
from tests.drills.mutants import FOUND_BY
from tests.harness import ROOT

ONE, OTHER = DRILLS[0], DRILLS[1]


def plain(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as a text that is easily searched."""
    return "\n".join(str(list(row)) for row in [heads, *rows])


def shown(row: str, name: str, verdict: str, *, anomalies: int = 0) -> Shown:
    return Shown(row, name, verdict, 1.25, Seen(10, [msgspec.Raw(b"{}")], [Anomalies("loss", anomalies)]))


def test_a_result_is_shown_with_its_drill_and_one_of_another_drill_is_not() -> None:
    run = Run([shown(ONE.row, ONE.name, "not as expected", anomalies=3), shown(OTHER.row, "renamed", "as expected")])
    text = page(plain, run, Recovery(), Mutants())
    lines = {line.split("'")[1]: line for line in text.splitlines() if line.startswith("['")}
    assert lines[ONE.row].endswith("'not as expected, 1.2 s']")
    assert lines[OTHER.row].endswith("'not run']")
    assert "took 2 s in its 2 drills: 1 as expected, 1 not as expected. They wrote 20 records, noted 2\npieces" in text
    assert "found 3 anomalies" in text


def test_without_a_run_the_page_says_so() -> None:
    text = page(plain, Run(), Recovery(), Mutants())
    assert "No run of all drills is recorded." in text
    assert "No run is recorded." in text
    assert text.count("'not run'") == len(DRILLS) + len(bounds())


def test_recovery_is_shown_next_to_the_bound_that_the_settings_imply() -> None:
    text = page(plain, Run(), Recovery([Row("ingest", 20, 2.5, 4.25, 9.0, 0)]), Mutants())
    assert f"['ingest', '{START_S + WORK_S:g}', " in text
    assert "'20', '2.50', '4.25', '9.0', '0']" in text


def test_each_mutant_is_a_line() -> None:
    row: dict[str, str | float] = {"mutant": "wrong-group", "drill": "B1", "seconds": 9.5}
    text = page(plain, Run(), Recovery(), Mutants([row]))
    assert "['mutant', 'drill', 'seconds']\n['wrong-group', 'B1', '9.5']" in text


def test_what_is_recorded_is_of_drills_bounds_and_mutants_that_exist() -> None:
    """A renamed drill is run again before its result is shown; what no longer exists is deleted."""
    assert {one.row for one in last_run().results} <= {one.row for one in DRILLS}
    assert {one.killed for one in last_recovery().recovery} <= {bound.killed for bound in bounds()}
    assert {row["mutant"] for row in last_mutants().mutants} <= set(FOUND_BY)
    assert (ROOT / "docs" / "drills" / "README.md").read_text() == drills()
