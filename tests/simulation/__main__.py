"""`make simulate`: histories in interpreters that suit them."""

import os
import sys
from typing import Final

from tests.simulation.command import main

_HASH_SEED: Final = "0"

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        # Sets of strings are in another order in each interpreter, and a history would be as well
        os.environ["PYTHONHASHSEED"] = _HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606 # itself
    main(prog_name="python -m tests.simulation")
