"""What the configuration of pytest promises."""

from importlib.util import find_spec

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook


def _is_parsed_anew(module: str) -> bool:
    spec = find_spec(module)
    assert spec is not None
    return isinstance(spec.loader, AssertionRewritingHook)


@pytest.mark.parametrize("module", ["hypothesis.strategies", "schemathesis.specs.openapi.schemas", "anyio.abc"])
def test_packages_that_bring_plugins_are_imported_as_they_are(module: str) -> None:
    assert not _is_parsed_anew(module)


def test_a_failed_assertion_of_ours_tells_its_values() -> None:
    assert _is_parsed_anew(__name__)
