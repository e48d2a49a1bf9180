"""The checks of a run, each from the night's rows to a `Checked`. They change nothing."""

from collections.abc import Callable, Mapping
from typing import Final

from spark import decisions
from spark.checks import cut, effects, intake, ledger, legs, transform
from spark.night import Checked, Night

Check = Callable[[Night], Checked]

ALL: Final[Mapping[str, Check]] = {
    "cut": cut.check,
    "undecodable": intake.check_undecodable,
    "intake": intake.check,
    "transform": transform.check,
    "ledger": ledger.check,
    "legs": legs.check,
    "effects": effects.check,
    "decisions": decisions.check,
}
"""By name, in the order of the flow."""
