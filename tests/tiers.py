"""Marks for tests that `make test` leaves to `make test-all`: docs/testing.md."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

full = pytest.mark.full
"""Another test, in `make test`, finds the same kind of fault."""


def without_full(config: pytest.Config) -> bool:
    """Whether this run leaves out what is `full`."""
    return "not full" in config.getoption("markexpr")


def mostly_full(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return the parameters of a matrix, marked `full` except some.

    Args:
        values: of one parameter, or a tuple for each row.
        quick: those that stay in `make test`; each must be among `values`.
    """
    known = list(values)
    assert all(value in known for value in quick), "a row that `make test` is to run does not exist"
    return [value if value in quick else _marked(value) for value in known]


def _marked(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=full)
