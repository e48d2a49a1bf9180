"""Usage of a process from /proc, and a line of progress."""

import os
import sys
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def cpu_s(pid: int | None) -> float:
    """CPU seconds that a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def high_water_mb(pid: int | None) -> float:
    """Peak resident memory of a process, MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1_000_000
