"""The catalogue of drills: each row once, with all that a reader needs, found by row, name or tag."""

import re
from collections import Counter

import msgspec
import pytest
from click.testing import CliRunner

from deploy.cli.drill import drill as command
from deploy.cli.output import EXIT_NOTHING
from deploy.documents import drills as page
from deploy.drills.drill import FAMILIES, TARGETS, Drill, described
from deploy.drills.index import ALERTS, DRILLS, NoSuchDrillError, find, tags
from deploy.drills.index import EVERY as EVERY_DRILL
from deploy.drills.listing import listed
from tests.harness import ROOT

EVERY = pytest.mark.parametrize("one", DRILLS, ids=lambda one: one.row)


ROWS = {"A": 11, "B": 20, "C": 7, "D": 4, "E": 12}


def test_there_is_a_drill_for_each_of_the_54_rows() -> None:
    assert [one.row for one in DRILLS] == [
        f"{letter}{n}" for letter, count in ROWS.items() for n in range(1, count + 1)
    ]


def test_rows_and_names_are_unique() -> None:
    for values in ([one.row for one in DRILLS], [one.name for one in DRILLS]):
        assert [value for value, count in Counter(values).items() if count > 1] == []


@EVERY
def test_a_drill_says_what_it_shows(one: Drill) -> None:
    assert re.fullmatch(rf"[{''.join(FAMILIES)}][1-9]\d*", one.row)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one.name), "kebab case"
    assert one.claim[0].isupper()
    assert not one.claim.endswith("."), "the page adds it"
    assert len(described(one)) > 40, "its steps have a docstring"
    assert one.tags
    assert set(one.targets) <= set(TARGETS)
    assert one.targets
    assert one.within_s > 0


@EVERY
def test_what_a_drill_gives_to_read_exists(one: Drill) -> None:
    assert one.reading
    for source in one.reading:
        is_elsewhere = re.fullmatch(r"KIP-\d+|KAFKA-\d+|https://\S+|`once .+`", source)
        assert is_elsewhere or (ROOT / source.partition("#")[0]).is_file()


def test_a_drill_is_found_by_its_row_its_name_and_a_tag() -> None:
    first = DRILLS[0]
    assert find((first.row,)) == find((first.name,)) == [first]
    assert find((first.row, first.name)) == [first]
    for tag in tags():
        assert all(tag in one.tags for one in find((), tag=tag))
    with pytest.raises(NoSuchDrillError, match="no drill A0"):
        find(("A0",))
    with pytest.raises(NoSuchDrillError, match="no drill has the tag nothing"):
        find((), tag="nothing")


def test_the_page_has_a_line_for_each_drill() -> None:
    lines = page().splitlines()
    for one in DRILLS:
        assert any(line.startswith(f"| {one.row} | `{one.name}` | {one.claim} |") for line in lines), one.row


def test_the_list_for_people_has_each_drill_in_its_family_and_no_line_is_too_long() -> None:
    text = listed(EVERY_DRILL, 120)
    lines = text.splitlines()
    assert all(len(line) <= 120 for line in lines)
    assert [line for line in lines if line and line[0] != " "] == [
        title for letter, title in FAMILIES.items() if any(one.row[0] == letter for one in EVERY_DRILL)
    ]
    flat = " ".join(text.split())
    for one in EVERY_DRILL:
        control = f" (control: {', '.join(sorted(one.control))})" if one.is_control else ""
        assert f"{one.row} {one.name} {one.claim}{control}" in flat


def test_the_list_ends_with_counts_and_the_help_has_them() -> None:
    noted = CliRunner().invoke(command, ["list"]).stderr
    assert f"54 rows, of which {sum(one.is_control for one in DRILLS)} are controls, and {len(ALERTS)} alerts" in noted
    assert f"{len(EVERY_DRILL)} run on local" in noted
    shown = " ".join(CliRunner().invoke(command, ["run", "--help"]).output.split())
    assert f"all 54 rows. Those of the {len(ALERTS)} alerts" in shown


def test_drills_that_cannot_run_on_the_target_are_neither_passed_nor_failed() -> None:
    ended = CliRunner().invoke(command, ["run", "A2", "--on", "secure", "--json"])
    assert ended.exit_code == EXIT_NOTHING
    summary = msgspec.json.decode(ended.stdout)
    assert (summary["drills"], summary["verdicts"]["not on this target"]) == (1, 1)
    assert "drill: A2 not on this target: it runs on local" in ended.stderr


def test_show_prints_a_drill_for_people() -> None:
    one = next(one for one in DRILLS if one.row == "A2")
    shown = CliRunner().invoke(command, ["show", "a2".upper()])
    assert shown.exit_code == 0
    assert all(len(line) <= 100 for line in shown.output.splitlines())
    text = " ".join(shown.output.split())
    for said in (f"A2 {one.name}", one.claim, described(one), "no anomaly may happen", "once drill run A2", "KIP-98"):
        assert said in text
