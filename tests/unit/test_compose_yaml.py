"""What is written as YAML reads back as what was given."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deploy.compose.yaml import plain, write
from tests.yaml_text import read

names = st.text("abc_.9-", max_size=8).map("a".__add__)
scalars = st.booleans() | st.integers() | st.text(max_size=20) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(scalars, max_size=4)
        | st.lists(st.dictionaries(names, scalars, min_size=1, max_size=3), max_size=3)
        | st.dictionaries(names, inner, min_size=1, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(names, values, min_size=1, max_size=5))
def test_a_document_reads_back(document: dict[str, Any]) -> None:
    assert read(write(document)) == document == plain(document)


def test_comments_and_anchors_are_no_data() -> None:
    document = {
        "# About it.\nIn two lines.": None,
        "x-all": {"restart": "always", "user": "1"},
        "services": {"a": {"<<": ["all"], "user": "2", "# why": None, "image": "i"}},
    }
    text = write(document)
    assert text.startswith("# About it.\n# In two lines.\nx-all: &all\n")
    assert "    <<: [*all]\n" in text
    expected = {"a": {"restart": "always", "user": "2", "image": "i"}}
    assert read(text)["services"] == plain(document)["services"] == expected


def test_long_lists_are_written_in_lines() -> None:
    words = [f"a rather long word number {number}" for number in range(9)]
    text = write({"command": words})
    assert max(map(len, text.splitlines())) <= 120
    assert read(text) == {"command": words}
