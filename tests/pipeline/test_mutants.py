"""Mutants of the checks fit the code that they break; `make mutants` runs them."""

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.harness import ROOT
from tests.pipeline.mutants import campaign
from tests.pipeline.mutants.__main__ import main, summary, table
from tests.pipeline.mutants.campaign import Found, exit_code
from tests.pipeline.mutants.mutant import TESTS, Mutant
from tests.pipeline.mutants.running import NotRunError, first_failure, prepare_worker
from tests.pipeline.mutants.table import MUTANTS, chosen
from tests.tiers import full

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


@full
def test_a_worker_tells_what_a_test_notices_from_what_could_not_run(tmp_path: Path) -> None:
    of_event, of_key = (
        f"test_schemas.py::test_{name}"
        for name in ("a_table_has_the_fields_of_its_event", "a_tombstone_requires_only_its_key")
    )
    field = Mutant("lands a field that no event has", "schemas.py", '"effect_id revision action"', '"more"', of_event)
    with ProcessPoolExecutor(1, get_context("spawn"), prepare_worker, (str(tmp_path),)) as pool:

        def run(mutant: Mutant | None, test: str, run_s: float = 60) -> str | None:
            return pool.submit(first_failure, mutant, test, run_s=run_s).result()

        assert run(None, of_event) is None
        assert run(field, of_event) == f"{of_event}[effect_resolutions]"
        assert run(field, of_key) is None
        assert run(None, of_event) is None
        with pytest.raises(NotRunError, match="NameError: name 'no_such_name'"):
            run(
                field._replace(old='_fields(\n                "effect_id state', new='no_such_name("effect_id state'),
                of_key,
            )
        hanging = field._replace(old="return tuple(table for", new="while topic: pass\n    return tuple(table for")
        with pytest.raises(NotRunError, match="stopped after 5 s"):
            run(hanging, "test_schemas.py::test_the_columns_of_one_topic_agree_in_type", run_s=5)
        with pytest.raises(NotRunError, match="stopped after 0 s"):
            run(None, of_event, run_s=0.01)
        with pytest.raises(NotRunError, match="did not run: USAGE_ERROR"):
            run(None, "test_schemas.py::test_of_nothing")


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


def test_what_fails_without_a_mutant_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    some = dict(list(MUTANTS.items())[:2])
    for without, text in (
        ("test.py::test", "test.py::test fails without a mutant"),
        (NotRunError("no"), "without a mutant: no"),
    ):

        def run(mutant: Mutant | None, _: str, without: str | NotRunError = without) -> str | None:
            assert mutant is None
            if isinstance(without, NotRunError):
                raise without
            return without

        monkeypatch.setattr(campaign, "first_failure", run)
        assert [(one.mutant, one.by, one.error) for one in campaign.judge("test.py::test", some)] == [
            (name, None, text) for name in some
        ]


def test_each_mutant_has_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = list(MUTANTS)[:3]
    answers: dict[str, str | NotRunError | None] = {first: "by", second: None, third: NotRunError("stopped")}

    def run(mutant: Mutant | None, _: str) -> str | None:
        [answer] = [one for name, one in answers.items() if MUTANTS[name] is mutant] if mutant else [None]
        if isinstance(answer, NotRunError):
            raise answer
        return answer

    monkeypatch.setattr(campaign, "first_failure", run)
    found = campaign.judge("test", {name: MUTANTS[name] for name in answers})
    assert [(one.by, one.word, one.error) for one in found] == [
        ("by", "found", None),
        (None, "survived", None),
        (None, "error", "stopped"),
    ]
