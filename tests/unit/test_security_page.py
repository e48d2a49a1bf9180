"""docs/security.md: every test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.harness import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
FILES = {path.relative_to(ROOT): path for path in (ROOT / "tests").rglob("test_*.py")}
NAMED = sorted(set(re.findall(r"`((?:tests/[\w/]+/)?test_\w+(?:\.py)?(?:::test_\w+)?)`", PAGE)))


def files_named(name: str) -> list[Path]:
    """The files of tests that a name with `.py` means."""
    return [path for path in FILES if path == Path(name) or path.name == name]


@cache
def functions(path: Path) -> set[str]:
    """The names of a file's functions. Parsing every file takes seconds, so this is not done at import."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    if file.endswith(".py"):
        found = files_named(file)
        assert found
        assert not function or any(function in functions(FILES[path]) for path in found)
    else:
        assert any(file in functions(path) for path in FILES.values())


def test_every_row_of_an_attack_names_a_test_or_the_one_above() -> None:
    rows = re.findall(
        r"^\| (?!attacker|credential|---)(.+) \|$", PAGE.split("### Replacing credentials")[0], re.MULTILINE
    )
    rows += re.findall(r"^\| (?!attacker|---)(.+) \|$", PAGE.split("## Clients and keys")[1], re.MULTILINE)
    assert len(rows) > 50
    for row in rows:
        attacker, goal, defence, test = row.split(" | ")
        assert attacker, row
        assert goal, row
        assert defence, row
        assert "`test_" in test or "`tests/" in test or "the same" in test, row


def test_every_surface_has_a_section() -> None:
    sections = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert sections == [
        "The trust boundary",
        "Kafka",
        "Clients and keys",
        "Gateway",
        "View and page",
        "Monitor",
        "PostgreSQL",
        "Redis",
        "Webhooks and mail",
        "Spark's files",
        "Supply chain",
    ]
    assert len(NAMED) > 80
