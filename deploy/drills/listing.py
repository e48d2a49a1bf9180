"""Drills as texts: a list of them in families, one in full, and how many there are of which kind. Pure."""

import textwrap
from collections.abc import Sequence
from itertools import groupby

from deploy.drills.drill import FAMILIES, NO_ROW, TARGETS, Drill, described

_SHOWN_CHARS = 100


def row(one: Drill) -> dict[str, object]:
    """Return a drill as `once drill list --json` prints it."""
    return {
        "row": one.row,
        "name": one.name,
        "tier": "test" if one.quick else "drills",
        "control": ", ".join(sorted(one.control)),
        "targets": ", ".join(one.targets),
        "tags": ", ".join(one.tags),
        "claim": one.claim,
    }


def shown(one: Drill) -> str:
    """Return a drill for people."""
    control = f"yes: {', '.join(sorted(one.control))} must happen" if one.is_control else "no: no anomaly may happen"
    fields = {
        "control": control,
        "targets": ", ".join(one.targets),
        "tags": ", ".join(one.tags) or "none",
        "limit": f"{one.within_s:.0f} s",
        "run": f"once drill run {one.key}",
        "read": ", ".join(one.reading) or "nothing more",
    }
    return "\n".join(
        [
            one.title,
            "",
            *_wrapped(f"{one.claim}."),
            "",
            *_wrapped(described(one)),
            "",
            *(f"{name + ':':13} {value}" for name, value in fields.items()),
        ]
    )


def listed(drills: Sequence[Drill], width_chars: int) -> str:
    """Return drills for people, in families: row, name, claim, and the anomalies that a control must show."""
    name_chars = max(len(one.name) for one in drills)
    lines = []
    for letter, family in groupby(drills, key=lambda one: one.row[0]):
        lines += ["", FAMILIES[letter]]
        for one in family:
            control = f" (control: {', '.join(sorted(one.control))})" if one.is_control else ""
            head = f"  {one.row:4} {one.name:{name_chars}}  "
            lines += textwrap.wrap(
                f"{one.claim}{control}", width_chars, initial_indent=head, subsequent_indent=" " * len(head)
            )
    return "\n".join(lines[1:])


def counted(drills: Sequence[Drill]) -> str:
    """Return how many drills there are of which kind."""
    rows = [one for one in drills if one.row != NO_ROW]
    elsewhere = [f"{sum(target in one.targets for one in drills)} run on {target}" for target in TARGETS]
    return (
        f"{len(rows)} rows, of which {sum(one.is_control for one in rows)} are controls, and "
        f"{len(drills) - len(rows)} alerts; {', '.join(elsewhere)}"
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _SHOWN_CHARS)
