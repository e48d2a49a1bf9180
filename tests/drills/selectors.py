"""Selectors of a PromQL expression with their matchers, and the labels that it groups by. Pure.

It parses only the grammar that this needs: Prometheus' own parser has accepted the expression. It must not know which
series exist.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<string> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' )
    | (?P<number> \d[\w.]* )
    | (?P<name> [A-Za-z_:][\w:]* )
    | (?P<mark> =~ | !~ | != | >= | <= | == | . )
    """,
    re.VERBOSE,
)
_WORDS: Final = frozenset({"and", "or", "unless", "bool", "Inf", "NaN"})
_GROUPING: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_PAIRS: Final = {"(": ")", "{": "}", "[": "]"}


class Token(NamedTuple):
    """A token and its kind: string, number, name or mark."""

    kind: str
    text: str


class Selector(NamedTuple):
    """A selector of series.

    Attributes:
        name: the metric's.
        labels: names in its matchers.
        text: as PromQL, without range and offset.
    """

    name: str
    labels: frozenset[str]
    text: str


class Grouping(NamedTuple):
    """Labels that an expression groups by or joins on.

    Attributes:
        labels: their names.
        within: their selectors: the aggregated ones, or all of the expression for a join.
    """

    labels: frozenset[str]
    within: tuple[Selector, ...]


class Asked(NamedTuple):
    """Selectors and groupings of an expression."""

    selectors: tuple[Selector, ...]
    groupings: tuple[Grouping, ...]


def asked(expression: str) -> Asked:
    """Parse an expression.

    Raises:
        ValueError: it selects without naming a metric.
    """
    tokens = [
        Token(found.lastgroup or "", found.group())
        for found in _TOKEN.finditer(expression)
        if found.lastgroup != "space"
    ]
    placed = dict(_selectors(tokens))
    everywhere = tuple(placed.values())
    groupings = []
    for at, token in enumerate(tokens):
        if token.text not in _GROUPING or not _opens(tokens, at + 1):
            continue
        end = _closing(tokens, at + 1)
        labels = frozenset(inside.text for inside in tokens[at + 2 : end] if inside.kind == "name")
        if token.text in {"by", "without"}:
            scope = _aggregated(tokens, at, end)
            groupings.append(Grouping(labels, tuple(one for place, one in placed.items() if place in scope)))
        else:
            groupings.append(Grouping(labels, everywhere))
    return Asked(everywhere, tuple(groupings))


def _selectors(tokens: Sequence[Token]) -> Iterator[tuple[int, Selector]]:
    """Each selector with its place."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.text == "[" or (token.text in _GROUPING and _opens(tokens, at + 1)):
            at = _closing(tokens, at if token.text == "[" else at + 1)
        elif token.text == "offset":
            at += 1
        elif token.text == "{":
            raise ValueError(f"a selector without a name at token {at}: {' '.join(one.text for one in tokens)}")
        elif token.kind == "name" and not _calls(tokens, at):
            end = at
            if at + 1 < len(tokens) and tokens[at + 1].text == "{":
                end = _closing(tokens, at + 1)
            inside = tokens[at + 2 : end]
            labels = frozenset(one.text for one, after in pairwise(inside) if after.text in {"=", "!=", "=~", "!~"})
            yield at, Selector(token.text, labels, "".join(one.text for one in tokens[at : end + 1]))
            at = end
        at += 1


def _calls(tokens: Sequence[Token], at: int) -> bool:
    """Whether this name is an operator's, a function's or an aggregation's."""
    after = tokens[at + 1].text if at + 1 < len(tokens) else ""
    return tokens[at].text in _WORDS | _GROUPING or after == "(" or (after in {"by", "without"})


def _opens(tokens: Sequence[Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].text == "("


def _closing(tokens: Sequence[Token], at: int) -> int:
    """The place of the mark that closes the one at `at`."""
    depth = 0
    for place in range(at, len(tokens)):
        if tokens[place].kind == "mark":
            depth += (tokens[place].text in _PAIRS) - (tokens[place].text in _PAIRS.values())
        if depth == 0:
            return place
    raise ValueError(f"nothing closes {tokens[at].text}")


def _aggregated(tokens: Sequence[Token], by: int, end: int) -> range:
    """The places of the aggregated tokens: `sum by (a) (...)`, or `sum(...) by (a)`."""
    if _opens(tokens, end + 1):
        return range(end + 1, _closing(tokens, end + 1))
    depth = 0
    for place in range(by - 1, -1, -1):
        if tokens[place].kind == "mark":
            depth += (tokens[place].text in _PAIRS.values()) - (tokens[place].text in _PAIRS)
        if depth == 0:
            return range(place, by)
    raise ValueError("a grouping without an aggregation")
