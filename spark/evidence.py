"""The evidence of a lake: digests of what was landed and of each run, outside of the files that they are of.

    cuts/<cut_id>/evidence.json    SHA-256 of landed.json, and of each run.json over the cut, the newest last
    verified.json                  when the whole lake was verified last

Invariant: a digest is written before the file that it is of counts. So a file whose digest is not recorded was changed
afterwards, together with its own sums. The next manifest names the digests in its own, so the chain of manifests covers
what was landed, carried and reported.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from spark.lake import Lake, LakeError, write_atomically
from spark.manifest import Code, Evidence, Manifest

VERIFIED_EVERY_MS: Final = 7 * 86_400_000
_SOURCES: Final = ("spark", "shared/events")
_VERIFIED: Final = "verified.json"


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The digests of one cut."""

    landed: str = ""  # of landed.json
    runs: tuple[str, ...] = ()  # of run.json, of each time that a run over the cut was published


class Verified(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A verification of the whole lake that found no fault."""

    at_ms: int  # since 1970 UTC
    cut_id: str  # the last that had landed


def sha256_of(path: Path) -> str:
    """Return the digest of a small file; empty if there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def recorded(lake: Lake, cut_id: str) -> Recorded | None:
    """Return the digests of a cut by its name; None without any. Raises LakeError if they cannot be read."""
    path = lake.root / "cuts" / cut_id / "evidence.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Recorded)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LakeError(f"{path} was altered: {error}") from error


def recorded_of(lake: Lake, cut: Manifest) -> Recorded | None:
    """Return the digests of a landed cut; None for a cut that a former version landed.

    Raises LakeError if they are gone, or cannot be read.
    """
    known = recorded(lake, cut.cut_id)
    if known is None and cut.version > 1:
        raise LakeError(f"cuts/{cut.cut_id}/evidence.json is gone")
    return known


def record_landed(lake: Lake, manifest: Manifest, text: bytes) -> None:
    """Record a landed.json before it is written."""
    before = recorded(lake, manifest.cut_id) or Recorded()
    _record(lake, manifest.cut_id, msgspec.structs.replace(before, landed=hashlib.sha256(text).hexdigest()))


def record_run(lake: Lake, cut_id: str, text: bytes) -> None:
    """Record a run.json before its run is published. A run over joined cuts is nowhere carried, nor recorded."""
    if not (lake.root / "cuts" / cut_id).is_dir():
        return
    before = recorded(lake, cut_id) or _of_former_version(lake, cut_id)
    digest = hashlib.sha256(text).hexdigest()
    if digest not in before.runs[-1:]:
        _record(lake, cut_id, msgspec.structs.replace(before, runs=(*before.runs, digest)))


def _of_former_version(lake: Lake, cut_id: str) -> Recorded:
    """Return the digests of what a former version left, which recorded none."""
    landed = sha256_of(lake.root / "cuts" / cut_id / "landed.json")
    run = sha256_of(lake.root / "runs" / cut_id / "run.json")
    return Recorded(landed, (run,) if run else ())


def fault_of(name: str, digest: str, known: Sequence[str]) -> str | None:
    """Return what is wrong with a file whose digest must be among those that are recorded. Pure."""
    if digest in known:
        return None
    return f"{name} was altered: its digest was not recorded" if digest else f"{name} is gone"


def evidence_of(lake: Lake, cuts: Sequence[Manifest]) -> Evidence:
    """Return the evidence for the manifest of the next cut, after comparing what the last one left.

    Args:
        cuts: all that have landed.

    Raises LakeError if the last cut's list, or a run, is not the one that was recorded.
    """
    named = {cut_id for cut in cuts for cut_id in cut.evidence.runs}
    runs = {}
    for cut in cuts:
        path = lake.root / "runs" / cut.cut_id / "run.json"
        if cut.cut_id not in named and (digest := sha256_of(path)):
            runs[cut.cut_id] = digest
            _raise_for(lake, cut, str(path), digest, "runs")
    landed = ""
    if cuts:
        path = lake.cut_directory(cuts[-1]) / "landed.json"
        landed = sha256_of(path)
        _raise_for(lake, cuts[-1], str(path), landed, "landed")
    return Evidence(landed, runs, code())


def _raise_for(lake: Lake, cut: Manifest, name: str, digest: str, field: str) -> None:
    known = recorded_of(lake, cut)
    if known is None:
        return
    fault = fault_of(name, digest, known.runs if field == "runs" else (known.landed,))
    if fault is not None:
        raise LakeError(fault)


@cache
def code() -> Code:
    """Return the version of the package, and the digest of the pipeline's source files and of the event schemas."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted(root.joinpath(folder).rglob("*")):
            if path.suffix in {".py", ".j2"}:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    try:
        installed = version("once")
    except PackageNotFoundError:
        installed = ""
    return Code(installed, digest.hexdigest())


def is_due(lake: Lake, now_ms: int) -> bool:
    """Whether the whole lake was not verified within VERIFIED_EVERY_MS, or in the future."""
    try:
        last = msgspec.json.decode((lake.root / _VERIFIED).read_bytes(), type=Verified)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return True
    return not 0 <= now_ms - last.at_ms < VERIFIED_EVERY_MS


def record_verified(lake: Lake, now_ms: int) -> None:
    """Record that the whole lake was verified."""
    cuts = lake.cuts()
    done = Verified(now_ms, cuts[-1].cut_id if cuts else "")
    write_atomically(lake.root / _VERIFIED, msgspec.json.encode(done) + b"\n")


def _record(lake: Lake, cut_id: str, digests: Recorded) -> None:
    text = msgspec.json.format(msgspec.json.encode(digests), indent=2) + b"\n"
    write_atomically(lake.root / "cuts" / cut_id / "evidence.json", text)
