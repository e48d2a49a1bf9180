"""Report the processor time of each test module, the processes that it started included: `pytest -p tests.cpu`.

A process counts for the module that waits for it: shared clusters and forked services count for the last one.
"""

import os
from collections import Counter
from typing import Final

import pytest

_KEY: Final = "cpu"
_SHOWN: Final = 25
_spent: Counter[str] = Counter()
_seen = 0.0


def _now_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _add(place: str) -> None:
    global _seen  # noqa: PLW0603 # a plugin's state is its module's
    now_s = _now_s()
    _spent[place] += now_s - _seen  # type: ignore[assignment] # a Counter of seconds
    _seen = now_s


def pytest_configure(config: pytest.Config) -> None:
    """Measure where tests run, not in the process that distributes them."""
    global _seen  # noqa: PLW0603 # a plugin's state is its module's
    if not getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        config.pluginmanager.register(_Measure())
    _seen = _now_s()


class _Measure:
    """The hooks of a process that runs tests."""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Add the time since the last test ended, fixtures included."""
        _add(nodeid.partition("::")[0])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send a worker's figures to the process that distributes the tests."""
        _add("the session's end")
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_KEY] = dict(_spent)


def pytest_testnodedown(node: object) -> None:
    """Add a worker's figures."""
    _spent.update(getattr(node, "workeroutput", {}).get(_KEY, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print packages, then the modules that cost most."""
    packages: Counter[str] = Counter()
    for place, seconds in _spent.items():
        packages[place.rpartition("/")[0] or place] += seconds
    terminalreporter.section("processor time, s")
    for rows in (packages, _spent):
        for place, seconds in rows.most_common(_SHOWN):
            terminalreporter.line(f"{seconds:8.1f}  {place}")
