"""Mutants of the checks fit the code that they break; `make mutants` runs them."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.harness import ROOT
from tests.pipeline.mutants import campaign
from tests.pipeline.mutants.__main__ import main, summary, table
from tests.pipeline.mutants.campaign import Found, exit_code
from tests.pipeline.mutants.mutant import TESTS, Mutant
from tests.pipeline.mutants.running import NotRunError
from tests.pipeline.mutants.table import MUTANTS, chosen
from tests.pipeline.mutants.worker import Worker
from tests.tiers import full

COUNT_MIN = 60


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_changes_one_place_and_has_a_test(mutant: Mutant) -> None:
    assert mutant.source() != mutant.file.read_text()
    file, _, test = mutant.found_by.partition("::")
    assert re.search(rf"^def {re.escape(test.partition('[')[0])}\(", (ROOT / TESTS / file).read_text(), re.MULTILINE)


def test_the_page_names_every_mutant() -> None:
    assert len(MUTANTS) >= COUNT_MIN
    assert table(MUTANTS) in (ROOT / "docs" / "mutants.md").read_text()


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


@full
def test_a_worker_tells_what_a_test_notices_from_what_could_not_run(tmp_path: Path) -> None:
    of_event = "test_schemas.py::test_a_table_has_the_fields_of_its_event"
    of_key = "test_schemas.py::test_a_tombstone_requires_only_its_key"
    of_topic = "test_schemas.py::test_the_columns_of_one_topic_agree_in_type"
    field = Mutant("lands a field that no event has", "schemas.py", '"effect_id revision action"', '"more"', of_event)
    tables = "return tuple(table for table"
    ends = field._replace(old=tables, new=f"__import__('os')._exit(1)\n    {tables}")
    hangs = field._replace(old=tables, new=f"__import__('threading').Event().wait()\n    {tables}")
    raises = field._replace(old="TABLES: Final", new="no_such_name\nTABLES: Final")
    with Worker(str(tmp_path)) as worker:
        assert worker.run(None, of_event) is None
        assert worker.run(field, of_event) == f"{of_event}[effect_resolutions]"
        assert worker.run(field, of_key) is None
        for mutant, test, error in (
            (raises, of_key, "NameError: name 'no_such_name'"),
            (field._replace(old="no such text"), of_key, "times, not once"),
            (None, "test_schemas.py::test_of_nothing", "did not run: USAGE_ERROR"),
            (ends, of_topic, f"the process of {of_topic} ended"),
        ):
            with pytest.raises(NotRunError, match=error):
                worker.run(mutant, test)
        with pytest.raises(NotRunError, match=f"{of_topic} was stopped after 5 s"):
            worker.run(hangs, of_topic, within_s=5)
        assert worker.run(None, of_topic) is None


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ({"found": 95, "survived": 5}, 0),
        ({"found": 94, "survived": 6}, 1),
        ({"found": 99, "error": 1}, 2),
    ],
)
def test_exit_code(results: dict[str, int], expected: int) -> None:
    made = {
        "found": Found("legs-a", "test.py::test", 1),
        "survived": Found("legs-b", None, 2),
        "error": Found("intake-c", None, 3, "ImportError"),
    }
    each = [made[word] for word, count in results.items() for _ in range(count)]
    assert exit_code(each) == expected
    assert summary(each, 7).endswith(f"({results['found']}.0%) in 7 s")


class Answers(Worker):
    """Answers at once: by mutant, None for a run without any."""

    def __init__(self, answers: Mapping[Mutant | None, str | NotRunError | None]) -> None:
        self.answers = answers

    def run(self, mutant: Mutant | None, test: str, *, within_s: float = 0.0) -> str | None:
        del test, within_s
        answer = self.answers[mutant]
        if isinstance(answer, NotRunError):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("without", "error"),
    [("file::test", "file::test fails without a mutant"), (NotRunError("no"), "without a mutant: no")],
)
def test_what_fails_without_a_mutant_finds_none(without: str | NotRunError, error: str) -> None:
    some = dict(list(MUTANTS.items())[:2])
    found = campaign.judge(Answers({None: without}), "file::test", some)
    assert [(one.mutant, one.by, one.error) for one in found] == [(name, None, error) for name in some]


def test_each_mutant_has_its_result() -> None:
    some = dict(list(MUTANTS.items())[:3])
    answers = zip((None, *some.values()), (None, "file::test", None, NotRunError("stopped")), strict=True)
    found = campaign.judge(Answers(dict(answers)), "file::test", some)
    assert [(one.mutant, one.by, one.word, one.error) for one in found] == [
        (name, *result)
        for name, result in zip(
            some,
            [("file::test", "found", None), (None, "survived", None), (None, "error", "stopped")],
            strict=True,
        )
    ]
