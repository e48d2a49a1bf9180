"""Everything to run the system: the local stack, the command line, images and monitoring."""

from pathlib import Path

PROJECT_ROOT = Path(__file__).parents[1]
