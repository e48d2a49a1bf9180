"""The catalogue of drills: each row once, with all that a reader needs, found by row, name or tag."""

import re
from collections import Counter

import pytest
from click.testing import CliRunner

from deploy.cli.drill import drill as command
from deploy.documents import drills as page
from deploy.drills.catalogue import DRILLS, NoSuchDrillError, find, tags
from deploy.drills.drill import FAMILIES, TARGETS, Drill, described
from tests.harness import ROOT

EVERY = pytest.mark.parametrize("one", DRILLS, ids=lambda one: one.row)


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


def test_show_prints_a_drill_for_people() -> None:
    one = next(one for one in DRILLS if one.row == "A2")
    shown = CliRunner().invoke(command, ["show", "a2".upper()])
    assert shown.exit_code == 0
    assert all(len(line) <= 100 for line in shown.output.splitlines())
    text = " ".join(shown.output.split())
    for said in (f"A2 {one.name}", one.claim, described(one), "no anomaly may happen", "once drill run A2", "KIP-98"):
        assert said in text
