"""`make fuzz`: the same properties, led by coverage (Atheris, libFuzzer).

Each property runs in a process of its own for its share of the time and memory. Inputs that reach new code
are kept below .once/fuzz, and the next run continues from them. Exit codes: 0 nothing was found, 1 a failure was found:
its input is named, and belongs in `seeds` with the fix; 2 wrong usage.
"""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click

PLACE: Final = Path(".once") / "fuzz"
INSTRUMENTED: Final = ("shared", "services", "deploy")
INPUT_BYTES_MAX: Final = 4096
INPUT_S: Final = 10
MEMORY_MB: Final = 1024
_CHILD: Final = "--child"


def fuzz(name: str) -> None:
    """Fuzz one property in this process; libFuzzer ends it.

    Args:
        name: of the property; libFuzzer's own arguments follow in `sys.argv`.
    """
    atheris: Any = importlib.import_module("atheris")  # it has no types, and only `make fuzz` installs it
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        properties = importlib.import_module("tests.fuzz.properties")
    chosen = next(case for case in properties.PROPERTIES if case.name == name)
    corpus = PLACE / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(chosen.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *sys.argv[3:], str(corpus)], chosen.check)
    atheris.Fuzz()


def run(name: str, seconds: int) -> bool:
    """Fuzz one property in a process of its own; returns whether nothing was found."""
    found = PLACE / "found" / name
    found.mkdir(parents=True, exist_ok=True)
    bounds = {
        "max_total_time": seconds,
        "max_len": INPUT_BYTES_MAX,
        "timeout": INPUT_S,
        "rss_limit_mb": MEMORY_MB,
        "artifact_prefix": f"{found}/",
        "verbosity": 0,
        "print_final_stats": 1,
    }
    words = [sys.executable, "-m", "tests.fuzz", _CHILD, name, *(f"-{key}={value}" for key, value in bounds.items())]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    tried = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
    if done.returncode == 0 and tried:
        print(f"{name}: {int(tried[0]):,} inputs, nothing found", flush=True)
        return True
    print(
        f"{name}: ended with {done.returncode}; inputs that did it are in {found}\n{done.stdout}{done.stderr[-4000:]}"
    )
    return False


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=int, default=60, help="for all of them together (default 60)")
@click.argument("names", nargs=-1)
def main(seconds: int, names: tuple[str, ...]) -> None:
    """Fuzz the decoders, led by coverage: the properties NAMES, or all."""
    known = [case.name for case in importlib.import_module("tests.fuzz.properties").PROPERTIES]
    if unknown := sorted(set(names) - set(known)):
        raise click.UsageError(f"no property {', '.join(unknown)}; there are {', '.join(known)}")
    if seconds < 1:
        raise click.UsageError("at least 1 s")
    chosen = names or known
    results = [run(name, max(seconds // len(chosen), 1)) for name in chosen]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == [_CHILD]:
        fuzz(sys.argv[2])
    else:
        main(prog_name="python -m tests.fuzz")
