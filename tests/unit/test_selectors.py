"""Selectors, matchers and groupings of a PromQL expression, as distinct from its functions and keywords."""

import pytest

from tests import queries
from tests.drills.selectors import Selector, asked


@pytest.mark.parametrize(
    ("expression", "selectors"),
    [
        ("up", ["up"]),
        ("sum by (job) (rate(a_total{x='1', y!~\"2|}\"}[1m])) > 0.5", ["a_total{x='1',y!~\"2|}\"}"]),
        ("a - a offset 1m >= 0 or a and on (job) b:c:d", ["a", "a", "a", "b:c:d"]),
        ("histogram_quantile(0.99, sum by (le) (rate(a_bucket[1m])))", ["a_bucket"]),
        ("sum(a) without (x) / ignoring (y) group_left (z) b", ["a", "b"]),
        ("time() - max(a > bool 1) unless count(b) or vector(0)", ["a", "b"]),
        ("max_over_time(a[5m:1m]) == +Inf", ["a"]),
    ],
)
def test_the_selectors_of_an_expression(expression: str, selectors: list[str]) -> None:
    assert [one.text for one in asked(expression).selectors] == selectors


def test_a_selector_has_the_labels_that_it_matches() -> None:
    assert asked('a{x="1", y=~"2", z!="x=3"}').selectors == (
        Selector("a", frozenset({"x", "y", "z"}), 'a{x="1",y=~"2",z!="x=3"}'),
    )


@pytest.mark.parametrize(
    ("expression", "groupings"),
    [
        ("sum by (x, y) (a) + b", [({"x", "y"}, ["a"])]),
        ("sum(a) by (x) + b", [({"x"}, ["a"])]),
        (
            "sum by (x) (a or sum without (y) (b)) / on (z) c",
            [({"x"}, ["a", "b"]), ({"y"}, ["b"]), ({"z"}, ["a", "b", "c"])],
        ),
    ],
)
def test_the_groupings_of_an_expression_and_their_series(
    expression: str, groupings: list[tuple[set[str], list[str]]]
) -> None:
    found = asked(expression).groupings
    assert [(set(one.labels), [of.name for of in one.within]) for one in found] == groupings


def test_a_selector_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="without a name"):
        asked('{job="a"}')


def test_a_second_parser_finds_the_same_names_in_all_expressions() -> None:
    for query in queries.queries():
        assert {one.name for one in asked(query.expression).selectors} == queries.metric_names(query.expression)
