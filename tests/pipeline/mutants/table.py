"""All mutants."""

from typing import Final

from tests.pipeline.mutants.mutant import Mutant, Table
from tests.pipeline.mutants.of_decisions import OF_DECISIONS, OF_EFFECTS
from tests.pipeline.mutants.of_links import OF_LINKS, OF_THE_REGISTER
from tests.pipeline.mutants.of_owners import OF_OWNERS
from tests.pipeline.mutants.of_records import OF_CUTS, OF_INTAKE, OF_LEDGER, OF_LEGS, OF_TRANSFORM
from tests.pipeline.mutants.of_sums import OF_SUMS

MUTANTS: Final[Table] = {
    **OF_CUTS,
    **OF_INTAKE,
    **OF_TRANSFORM,
    **OF_LEDGER,
    **OF_LEGS,
    **OF_EFFECTS,
    **OF_LINKS,
    **OF_SUMS,
    **OF_DECISIONS,
    **OF_OWNERS,
    **OF_THE_REGISTER,
}
"""By name, in the order of the flow."""


def chosen(words: tuple[str, ...]) -> dict[str, Mutant]:
    """Return the mutants of some names or checks; all without any.

    Raises:
        KeyError: a word is neither.
    """
    found = {name: one for name, one in MUTANTS.items() if not words or {name, name.split("-")[0]} & {*words}}
    for word in words:
        if not any(word in {name, name.split("-")[0]} for name in MUTANTS):
            raise KeyError(word)
    return found
