# ruff: noqa: INP001 -- a folder for PYTHONPATH, no package
"""Break the runtime in every Python process that has this folder on its PYTHONPATH: `tests.drills.mutants`."""

import os

from tests.simulation.mutants import broken

MUTANT = broken(os.environ["ONCE_TEST_MUTANT"])
"""Kept: the context would be left when it is collected."""
MUTANT.__enter__()
