"""Mutants of the checks fit the code that they break; `make mutants` runs them."""

import re

import pytest
from click.testing import CliRunner

from tests.harness import ROOT
from tests.pipeline.mutants.__main__ import main, table
from tests.pipeline.mutants.mutant import TESTS, Mutant
from tests.pipeline.mutants.table import MUTANTS, chosen

COUNT_MIN = 60


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_changes_one_place_and_has_a_test(mutant: Mutant) -> None:
    assert mutant.source() != mutant.file.read_text()
    file, _, test = mutant.found_by.partition("::")
    assert re.search(rf"^def {re.escape(test.partition('[')[0])}\(", (ROOT / TESTS / file).read_text(), re.MULTILINE)


def test_the_page_names_every_mutant() -> None:
    assert len(MUTANTS) >= COUNT_MIN
    assert table(MUTANTS) in (ROOT / "docs" / "testing.md").read_text()


def test_a_text_that_is_not_there_once_is_an_error() -> None:
    mutant = next(iter(MUTANTS.values()))
    for old in ("no such text", "\n"):
        with pytest.raises(ValueError, match="times, not once"):
            mutant._replace(old=old).source()
    with pytest.raises(ValueError, match="does not parse"):
        mutant._replace(new="(").source()


def test_mutants_are_chosen_by_name_or_check() -> None:
    first = next(iter(MUTANTS))
    assert list(chosen((first,))) == [first]
    assert {name.partition("-")[0] for name in chosen(("legs",))} == {"legs"}
    assert chosen(()) == dict(MUTANTS)
    done = CliRunner().invoke(main, ["--only", "nothing"])
    assert (done.exit_code, "no mutant and no check is named 'nothing'" in done.output) == (2, True)
