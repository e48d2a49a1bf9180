"""Verify a whole lake: the chain of its cuts, every landed file, every run, and the digests that each names of another.

Invariant: every fault that is found is named; none ends the audit before the others are looked for.
"""

import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec

from spark import register
from spark.evidence import fault_of, is_due, record_verified, recorded_of, sha256_of
from spark.lake import Lake, LakeError
from spark.manifest import Manifest, ManifestError, decode
from spark.runs import MANIFEST, RECORD, RunRecord, Runs, make_again

_SHOWN_MAX = 3


class Audit(msgspec.Struct, frozen=True):
    """The result of an audit."""

    cuts: int
    runs: int  # complete ones, over one cut or over several
    files: int  # listed by cuts and runs
    size_bytes: int
    last_cut: str  # its name; empty for an empty lake
    replaced: tuple[str, ...]  # runs that are not those that a later manifest names, which were damaged or lost
    faults: tuple[str, ...]


def audit(lake: Lake) -> Audit:
    """Verify a lake. Hold its lock meanwhile."""
    fresh = Lake(lake.root)
    try:
        cuts = fresh.cuts()
    except LakeError as error:
        return Audit(0, 0, 0, 0, "", (), (str(error),))
    faults, listed = _landed_faults(fresh, cuts)
    faults += [*_chain_faults(fresh, cuts), *_explanation_faults(fresh, cuts)]
    runs, replaced, run_faults = _run_faults(fresh, cuts)
    files = [*listed, *(size for sizes in runs.values() for size in sizes)]
    last = cuts[-1].cut_id if cuts else ""
    return Audit(len(cuts), len(runs), len(files), sum(files), last, tuple(replaced), (*faults, *run_faults))


def audit_when_due(lake: Lake, now_ms: int, progress: Callable[[str], None]) -> None:
    """Audit a lake that was not verified for a week, and record it.

    Args:
        now_ms: milliseconds since 1970 UTC.
        progress: takes a line for people.

    Raises LakeError with the first faults.
    """
    if not is_due(lake, now_ms):
        return
    begun = time.monotonic()
    found = audit(lake)
    if found.faults:
        more = len(found.faults) - _SHOWN_MAX
        shown = "; ".join(found.faults[:_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
        raise LakeError(f"the weekly audit of {lake.root} found: {shown}. `once reconcile --audit` names all")
    record_verified(lake, now_ms)
    progress(f"audited {found.cuts} cuts and {found.runs} runs in {time.monotonic() - begun:.1f} s")


def _landed_faults(lake: Lake, cuts: Sequence[Manifest]) -> tuple[list[str], list[int]]:
    """Return the faults of landed files, and the sizes of all that are listed."""
    faults, readable = [], []
    for cut in cuts:
        try:
            lake.landed(cut)
            readable.append(cut)
        except LakeError as error:
            faults.append(str(error))
    sizes = [file.size_bytes for cut in readable for file in lake.landed(cut).files]
    return faults + lake.faults(readable), sizes


def _chain_faults(lake: Lake, cuts: Sequence[Manifest]) -> list[str]:
    """Return a fault for each cut whose list is not the one that was recorded, or that the next manifest names."""
    faults: list[str] = []
    for cut, after in zip_longest(cuts, cuts[1:]):
        name, digest = f"cuts/{cut.cut_id}/landed.json", sha256_of(lake.cut_directory(cut) / "landed.json")
        known = _recorded(lake, cut, faults)
        if known is not None:
            fault = fault_of(name, digest, (known,))
            faults += [fault] if fault else []
        if after is not None and after.version > 1 and after.evidence.landed != digest:
            faults.append(f"{name} is not the list that cut {after.cut_id} names")
    return faults


def _explanation_faults(lake: Lake, cuts: Sequence[Manifest]) -> list[str]:
    """Return what is wrong with the explanations: each cut names the newest one that its run used."""
    try:
        known = {"", *(one.digest for one in register.read_explanations(lake.root))}
    except LakeError as error:
        return [str(error)]
    lost = [cut.cut_id for cut in cuts if cut.explanations not in known]
    return [f"cut {cut_id} names an explanation that is not in {register.EXPLANATIONS}" for cut_id in lost]


def _recorded(lake: Lake, cut: Manifest, faults: list[str]) -> str | None:
    """Return the digest of a cut's list; None, with a fault where there must be one, if it was not recorded."""
    try:
        known = recorded_of(lake, cut)
    except LakeError as error:
        faults.append(str(error))
        return None
    return None if known is None else known.landed


def _run_faults(lake: Lake, cuts: Sequence[Manifest]) -> tuple[dict[str, list[int]], list[str], list[str]]:
    """Return the sizes of each run's files, the runs that were replaced, and the faults of runs."""
    runs, found = Runs(lake), {}
    replaced: list[str] = []
    faults: list[str] = []
    named = {cut_id: digest for cut in cuts for cut_id, digest in cut.evidence.runs.items()}
    for manifest in [*cuts, *_joined(lake, {cut.cut_id for cut in cuts}, faults)]:
        cut_id = manifest.cut_id
        digest = sha256_of(runs.folder(cut_id) / RECORD)
        if not digest and cut_id not in named:
            continue  # not run yet
        if not digest:
            faults.append(f"runs/{cut_id} is gone: {make_again(runs.folder(cut_id))}")
        try:
            record = runs.verify(manifest) if digest else None
        except LakeError as error:
            faults.append(str(error))
            continue
        if digest and digest != named.get(cut_id, digest):
            if runs.was_set_aside(cut_id, named[cut_id]):
                replaced.append(f"runs/{cut_id}{_changed(runs, manifest, record)}")
            else:
                faults.append(f"runs/{cut_id} is not the run that a later manifest names, which was not set aside")
        if record is not None:
            found[cut_id] = [file.size_bytes for file in record.files]
    return found, replaced, faults


def _changed(runs: Runs, manifest: Manifest, record: RunRecord | None) -> str:
    """Return how a run that was made again differs from the damaged one; empty if it does not."""
    aside = runs.last_set_aside(manifest)
    if aside is None or record is None or aside.record.report.sha256 == record.report.sha256:
        return ""
    return f", whose report.json is not that of {aside.folder.name}"


def _joined(lake: Lake, cuts: set[str], faults: list[str]) -> list[Manifest]:
    """Return the manifests of runs over several cuts."""
    found = []
    for path in sorted(lake.root.glob(f"runs/[0-9]*/{MANIFEST}")):
        if path.parent.name in cuts or "." in path.parent.name:
            continue  # of one cut; or set aside
        try:
            found.append(decode(path.read_bytes()))
        except ManifestError as error:
            faults.append(f"{Path(*path.parts[-3:])}: {error}")
    return found
