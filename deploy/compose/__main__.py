"""Writes the deployment's files, or compares them with what the code says.

Exit codes: 0 up to date, 1 stale (--check).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.compose.files import FILES

ROOT = Path(__file__).parents[2]


def stale(root: Path) -> list[str]:
    """The files below `root` that are missing or differ."""
    return [path for path, make in FILES.items() if not (root / path).is_file() or (root / path).read_text() != make()]


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(prog="python -m deploy.compose", description=__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", action="store_true", help="bring the files up to date")
    group.add_argument("--check", action="store_true", help="only compare them")
    writing = parser.parse_args(words).write
    found = stale(root)
    for path in found:
        if writing:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(FILES[path]())
        print(f"{path} {'written' if writing else 'is stale: run `python -m deploy.compose --write`'}")
    return int(bool(found) and not writing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
