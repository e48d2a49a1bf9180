"""Explanations of breaks: a person accounts for one break, as it is. An append-only file in the lake.

    explanations.jsonl    a JSON object on each line

Invariant: each explanation names the digest of the one before it, and each cut's manifest names the digest of the
newest one. So no explanation that a run has used can be changed or removed unnoticed. An explanation applies to a break
with the detail that it had then: if another amount is missing the next night, the break is unexplained again.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from spark.lake import LakeError

FILE: Final = "explanations.jsonl"


class Explanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One explanation of one break."""

    break_id: str
    detail: str  # of the break when it was explained
    by: str  # the person
    at_ms: int  # when, since 1970 UTC
    reason: str
    previous: str = ""  # digest of the explanation before; empty for the first
    digest: str = ""  # SHA-256 over all other fields, hex


_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(Explanation).decode


def read(root: Path, head: str | None = None) -> list[Explanation]:
    """Return the explanations in a lake, oldest first, up to the one whose digest is `head`, or all of them.

    Raises LakeError if one was altered or removed.
    """
    path = root / FILE
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        lines = []
    found: list[Explanation] = []
    for number, line in enumerate(lines, 1):
        if (found and found[-1].digest == head) or head == "":
            return found
        try:
            one = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LakeError(f"{path}:{number} was altered: {error}") from error
        before = found[-1].digest if found else ""
        if (one.previous, one.digest) != (before, _digest(one)):
            raise LakeError(f"{path}:{number} was altered, or a line before it was removed")
        found.append(one)
    if head and (not found or found[-1].digest != head):
        raise LakeError(f"{path} does not have the explanation {head}, which a cut names: restore the file")
    return found


def head_of(root: Path) -> str:
    """Return the digest of the newest explanation; empty without any. Raises LakeError as `read` does."""
    found = read(root)
    return found[-1].digest if found else ""


def append(root: Path, break_id: str, detail: str, *, by: str, at_ms: int, reason: str) -> Explanation:
    """Append an explanation, on disk when this returns. Hold the lake's lock meanwhile.

    Raises LakeError if the file was altered.
    """
    blank = Explanation(break_id, detail, by, at_ms, reason, head_of(root))
    made = msgspec.structs.replace(blank, digest=_digest(blank))
    with (root / FILE).open("ab") as file:
        file.write(_encode(made) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return made


def newest(explanations: Sequence[Explanation]) -> dict[tuple[str, str], Explanation]:
    """Return the newest explanation of each break as it was, by its id and detail."""
    return {(one.break_id, one.detail): one for one in explanations}


def _digest(one: Explanation) -> str:
    return hashlib.sha256(_encode(msgspec.structs.replace(one, digest=""))).hexdigest()
