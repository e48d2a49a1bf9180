"""A way to break the code of a check: another text in one of its modules."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.harness import ROOT

TESTS: Final = Path("tests/pipeline")


class Mutant(NamedTuple):
    """A change of one place in the code.

    Attributes:
        what: what the code does instead, for people.
        module: its file in `spark/`.
        old: a text that the file has once.
        found_by: the test that fails, `file::test`, with its parameters or with any. No other is run.
    """

    what: str
    module: str
    old: str
    new: str
    found_by: str

    @property
    def file(self) -> Path:
        """The module's file."""
        return ROOT / "spark" / self.module

    @property
    def imported_as(self) -> str:
        """The module's name."""
        return ".".join(("spark", *Path(self.module).with_suffix("").parts)).removesuffix(".__init__")

    def source(self) -> str:
        """Return the module's text with the change.

        Raises:
            ValueError: the module does not have the text once, or the result is no Python.
        """
        text = self.file.read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"spark/{self.module} has {count} times, not once: {self.old!r}")
        changed = text.replace(self.old, self.new)
        try:
            ast.parse(changed)
        except SyntaxError as error:
            raise ValueError(f"spark/{self.module} does not parse with {self.new!r}: {error}") from error
        return changed


Table = Mapping[str, Mutant]
"""Mutants by name. A name begins with that of the check."""
