"""The configuration of pytest."""

from importlib.util import find_spec

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook


def _is_rewritten(module: str) -> bool:
    spec = find_spec(module)
    assert spec is not None
    return isinstance(spec.loader, AssertionRewritingHook)


@pytest.mark.parametrize("module", ["hypothesis.strategies", "schemathesis.specs.openapi.schemas", "anyio.abc"])
def test_packages_with_plugins_are_imported_unchanged(module: str) -> None:
    assert not _is_rewritten(module)


def test_own_modules_are_rewritten_to_show_values_of_failed_assertions() -> None:
    assert _is_rewritten(__name__)
