"""Run tests on a broken module, in this process and with one Spark session: its start takes longer than most of them.

Each run imports the pipeline and its tests again, with the changed text in place of one module's. A run ends with the
first failure.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType
from typing import Any, Final
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from tests.harness import ROOT
from tests.pipeline.mutants.mutant import TESTS, Mutant

_AGAIN: Final = ("spark", "deploy", "tests")
"""Packages that are imported again. No other one imports the pipeline."""
_OPTIONS: Final = (
    # The suite's own, without the terminal and without the fixtures of tests that need brokers. pytest-timeout needs
    # the terminal: without it, a test that takes too long ends in an AssertionError, as if it had noticed something
    *("-o", "addopts=", "--disable-plugin-autoload"),
    *("-o", "tmp_path_retention_count=1000000"),
    *("-p", "asyncio", "-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:logging"),
    *("--rootdir", str(ROOT), "--confcutdir", str(ROOT / TESTS), "--exitfirst"),
)


class NotRunError(Exception):
    """Tests did not run: they were not found, could not be imported, or ended in an exception."""


class _Loader(SourceFileLoader):
    """Compiles another text than the file's, and leaves no bytecode."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.get_filename(fullname), "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds the broken module, and no other."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._text = mutant.source()

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the module's spec."""
        del path, target
        if fullname != self._mutant.imported_as:
            return None
        file = str(self._mutant.file)
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file, self._text))


@contextmanager
def broken(mutant: Mutant | None) -> Iterator[None]:
    """Import the pipeline and its tests again when they are next needed, with the mutant's change."""
    own = {name: module for name, module in sys.modules.items() if name.split(".")[0] in _AGAIN}
    finder = None if mutant is None else _Finder(mutant)
    for name in own:
        if not name.startswith("tests.pipeline.mutants"):
            del sys.modules[name]
    if finder is not None:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] in _AGAIN]:
            del sys.modules[name]
        sys.modules.update(own)


class _Reports:
    """What pytest reports."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []
        self.errors: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed

    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[None]) -> None:
        assert call.excinfo is not None
        if call.when == "call" and isinstance(call.excinfo.value, AssertionError):
            self.failed.append(node.nodeid)
        else:
            # Whatever test runs code that raises finds it: that proves nothing
            self.errors.append(f"{node.nodeid}: {call.excinfo.exconly()}")


def prepare_worker(root: str) -> None:
    """Have all runs of this process use one Spark session, which the first one opens, and keep its folders.

    Args:
        root: of all temporary folders. It is removed when the process has ended.
    """

    def keep(session: SparkSession) -> None:
        session.catalog.clearCache()

    os.environ["PYTEST_DEBUG_TEMPROOT"] = root
    os.environ.pop("PYTEST_ADDOPTS", None)  # of the whole run: they may need plugins that are not loaded here
    mock.patch.object(SparkSession, "stop", keep).start()


def first_failure(mutant: Mutant | None, test: str) -> str | None:
    """Run a test, `file::test` of `tests/pipeline`; return the first of its parameters that fails, None where all pass.

    Raises:
        NotRunError: no test ran, or one could not.
    """
    reports = _Reports()
    with broken(mutant):
        code = pytest.main([*_OPTIONS, str(ROOT / TESTS / test)], plugins=[reports])
    if reports.errors:
        raise NotRunError(reports.errors[0])
    if reports.failed:
        return reports.failed[0].removeprefix(f"{TESTS}/")
    if code != pytest.ExitCode.OK or not reports.passed:
        raise NotRunError(f"{test} did not run: {pytest.ExitCode(code).name}")
    return None
