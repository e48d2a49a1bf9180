"""The logs of `file:` destinations, read for the verifier. Shares no code with the outbox, which it is to judge.

Invariant: only whole lines that are JSON objects with an effect_id count as deliveries. A crash may leave half of a
line, which is then ended by a newline.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from deploy.checkers.effects import FILE_SCHEME
from shared.events.codec import decoder

SUFFIX = ".jsonl"


class _Line(msgspec.Struct):
    effect_id: str


_decode = decoder(_Line)


def logs(directory: Path) -> Iterator[tuple[str, Path]]:
    """The logs in a directory, each with the destination that it is of: `receipts.jsonl` is of `file:receipts`."""
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        yield FILE_SCHEME + path.name.removesuffix(SUFFIX), path


def effect_ids(path: Path) -> Iterator[str]:
    """The effect_id of each whole line, in order, repeats included."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                found = _decode(line)
            except msgspec.DecodeError:
                continue
            yield found.effect_id
