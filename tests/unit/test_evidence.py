"""Digests of what was landed and of runs: recorded first, compared later, and named by the next manifest."""

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from deploy.cli.reconcile import reconcile
from spark import evidence
from spark.audit import Audit, audit, audit_when_due
from spark.evidence import VERIFIED_EVERY_MS, code, evidence_of, is_due, record_run, record_verified, recorded
from spark.lake import Lake, LakeError, LandedFile
from spark.manifest import INPUTS, LANDED_TOPICS, VERSION, Code, Evidence, Manifest, Range, encode, seal
from spark.runs import RunRecord, Runs
from spark.staging import Staging

NOW_MS = 1_767_686_400_000


def land(lake: Lake, version: int = VERSION) -> Manifest:
    """Land a cut with one file of two rows."""
    cuts = lake.cuts()
    start = len(cuts) * 10
    ranges = {0: Range(start, start + 10, start + 10)}
    groups = {group: {0: start} for group in INPUTS}
    named = Evidence() if version == 1 else evidence_of(lake, cuts)
    previous = cuts[-1].digest if cuts else ""
    topics = dict.fromkeys(LANDED_TOPICS, ranges)
    cut = seal(Manifest(version, len(cuts) + 1, NOW_MS, "kafka", topics, groups, True, previous, evidence=named))
    staging = Staging(lake, cut)
    folder = staging.directory("payments", 0) / "day=2026-01-05"
    folder.mkdir(parents=True)
    (folder / "part-00000-x.parquet").write_bytes(b"rows of cut %d" % cut.sequence)
    staging.publish({"payments": 2})
    if version == 1:
        (lake.cut_directory(cut) / "evidence.json").unlink()
    return cut


def run(lake: Lake, cut: Manifest, *, record: bool = True) -> Path:
    """Leave a run over a cut, as `spark.runs` does."""
    folder = lake.root / "runs" / cut.cut_id
    folder.mkdir(parents=True)
    files = {}
    for name, content in (("manifest.json", encode(cut)), ("report.json", b"report"), ("report.html", b"page")):
        (folder / name).write_bytes(content)
        files[name] = evidence_file(name, content)
    made = RunRecord(1, cut.cut_id, cut.digest, files["report.json"], files["report.html"], {}, code())
    text = msgspec.json.encode(made)
    if record:
        record_run(lake, cut.cut_id, text)
    (folder / "run.json").write_bytes(text)
    return folder


def evidence_file(name: str, content: bytes) -> LandedFile:
    return LandedFile(name, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three cuts with their runs; the last has none yet."""
    made = Lake(tmp_path)
    for _ in range(2):
        run(made, land(made))
    land(made)
    return made


def test_a_manifest_names_the_list_and_the_runs_before_it(lake: Lake) -> None:
    first, second, third = lake.cuts()
    assert first.evidence == Evidence(code=code())
    for cut, after in ((first, second), (second, third)):
        landed = (lake.cut_directory(cut) / "landed.json").read_bytes()
        made = (lake.root / "runs" / cut.cut_id / "run.json").read_bytes()
        digests = hashlib.sha256(landed).hexdigest(), hashlib.sha256(made).hexdigest()
        assert after.evidence == Evidence(digests[0], {cut.cut_id: digests[1]}, code())
        assert recorded(lake, cut.cut_id) == evidence.Recorded(digests[0], (digests[1],))


def test_a_run_that_was_made_late_is_named_by_the_manifest_after_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    first = land(lake)
    second = land(lake)
    assert second.evidence.runs == {}
    for cut in (first, second):
        run(lake, cut)
    third = land(lake)
    assert set(third.evidence.runs) == {first.cut_id, second.cut_id}
    assert audit(lake).faults == ()


def test_an_audit_counts_what_it_verified(lake: Lake) -> None:
    rows, of_run = len(b"rows of cut 1"), len(b"reportpage")
    assert audit(lake) == Audit(3, 2, 3 + 4, 3 * rows + 2 * of_run, lake.cuts()[2].cut_id, (), ())
    assert audit(Lake(lake.root / "none")) == Audit(0, 0, 0, 0, "", (), ())


Harm = Callable[[Lake, Manifest], object]


def _file(lake: Lake, cut: Manifest) -> Path:
    return lake.root / lake.landed(cut).files[0].path


def _folder(lake: Lake, cut: Manifest) -> Path:
    return lake.root / "runs" / cut.cut_id


def _mended_list(lake: Lake, cut: Manifest) -> None:
    """Change a landed file, and its digest in the list."""
    _file(lake, cut).write_bytes(b"other rows...")
    landed = lake.landed(cut)
    [table] = landed.tables.values()
    size, digest = len(b"other rows..."), hashlib.sha256(b"other rows...").hexdigest()
    [file] = table.files
    changed = msgspec.structs.replace(table, files=(msgspec.structs.replace(file, size_bytes=size, sha256=digest),))
    text = msgspec.json.encode(msgspec.structs.replace(landed, tables={"payments": changed}))
    (lake.cut_directory(cut) / "landed.json").write_bytes(text)


def _mended_list_and_record(lake: Lake, cut: Manifest) -> None:
    _mended_list(lake, cut)
    evidence.record_landed(lake, cut, (lake.cut_directory(cut) / "landed.json").read_bytes())


def _mended_run(lake: Lake, cut: Manifest) -> None:
    """Change a report, and its digest in run.json."""
    folder = _folder(lake, cut)
    (folder / "report.json").write_bytes(b"better")
    made = msgspec.json.decode((folder / "run.json").read_bytes(), type=RunRecord)
    changed = msgspec.structs.replace(made, report=evidence_file("report.json", b"better"))
    (folder / "run.json").write_bytes(msgspec.json.encode(changed))


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda lake, cut: _file(lake, cut).unlink(), ".parquet is gone"),
        (lambda lake, cut: _file(lake, cut).write_bytes(b"x"), ".parquet was altered"),
        (_mended_list, "landed.json was altered: its digest was not recorded"),
        (_mended_list_and_record, "is not the list that cut 000002"),
        (lambda lake, cut: (lake.cut_directory(cut) / "evidence.json").unlink(), "evidence.json is gone"),
        (lambda lake, cut: (lake.cut_directory(cut) / "evidence.json").write_bytes(b"{"), "evidence.json was altered"),
        (lambda lake, cut: (lake.cut_directory(cut) / "landed.json").write_bytes(b"{"), "landed.json was altered"),
        (lambda lake, cut: (_folder(lake, cut) / "report.html").unlink(), "report.html is gone"),
        (lambda lake, cut: (_folder(lake, cut) / "report.json").write_bytes(b"other"), "report.json was altered"),
        (lambda lake, cut: (_folder(lake, cut) / "run.json").unlink(), "is gone: make it again with `once reconcile"),
        (_mended_run, "run.json was altered: its digest was not recorded"),
        (lambda lake, cut: shutil.rmtree(_folder(lake, cut)), "is gone: make it again with `once reconcile --replace"),
        (lambda lake, cut: (lake.cut_directory(cut) / "manifest.json").unlink(), "manifest.json is gone"),
        (lambda lake, cut: lake.cut_directory(cut).rename(lake.root / "elsewhere"), "is missing"),
    ],
)
def test_each_change_of_an_old_cut_is_named(lake: Lake, harm: Harm, fault: str) -> None:
    harm(lake, lake.cuts()[0])
    found = audit(lake).faults
    assert [one for one in found if fault in one], found


def test_every_fault_is_named_and_not_only_the_first(lake: Lake) -> None:
    first, second, _ = lake.cuts()
    _file(lake, first).unlink()
    (lake.cut_directory(second) / "landed.json").write_bytes(b"{")
    _mended_run(lake, first)
    (_folder(lake, second) / "report.html").unlink()
    found = audit(lake)
    assert len(found.faults) == 6  # the second list is unreadable, not the recorded one, nor the one that is named
    assert (found.cuts, found.runs) == (3, 0)


def test_the_next_cut_is_refused_when_the_last_list_or_run_is_not_the_recorded_one(lake: Lake) -> None:
    third = lake.cuts()[-1]
    run(lake, third)
    evidence_of(lake, lake.cuts())
    _mended_run(lake, third)
    with pytest.raises(LakeError, match=r"run\.json was altered: its digest was not recorded"):
        evidence_of(lake, lake.cuts())
    (_folder(lake, third) / "run.json").unlink()
    _mended_list(lake, third)
    with pytest.raises(LakeError, match=r"landed\.json was altered: its digest was not recorded"):
        evidence_of(lake, lake.cuts())
    (lake.cut_directory(third) / "evidence.json").unlink()
    with pytest.raises(LakeError, match=r"evidence\.json is gone"):
        evidence_of(lake, lake.cuts())


def test_a_run_that_was_never_recorded_is_refused(lake: Lake) -> None:
    run(lake, lake.cuts()[-1], record=False)
    with pytest.raises(LakeError, match=r"run\.json was altered: its digest was not recorded"):
        evidence_of(lake, lake.cuts())


def test_a_run_that_was_replaced_is_listed_and_is_no_fault(lake: Lake) -> None:
    first = lake.cuts()[0]
    folder = _folder(lake, first)
    folder.rename(folder.with_name(f"{folder.name}.damaged-1"))
    _replace_list(lake, first, run(lake, first))
    found = audit(lake)
    assert (found.replaced, found.faults, found.runs) == ((f"runs/{first.cut_id}",), (), 2)


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_whose_list_was_damaged_as_well_may_be_replaced(lake: Lake, gone: bool) -> None:
    first = lake.cuts()[0]
    folder = _folder(lake, first)
    path = folder.rename(folder.with_name(f"{folder.name}.damaged-1")) / "run.json"
    if gone:
        path.unlink()
    else:
        path.write_bytes(b"{")
    _replace_list(lake, first, run(lake, first))
    assert (audit(lake).replaced, audit(lake).faults) == ((f"runs/{first.cut_id}",), ())


def test_a_damaged_run_gets_the_number_after_the_highest(lake: Lake) -> None:
    first = lake.cuts()[0]
    folder = _folder(lake, first)
    folder.rename(folder.with_name(f"{folder.name}.damaged-2"))  # the first was removed by hand
    (run(lake, first) / "report.html").unlink()
    said = Runs(lake).set_aside(first) or ""
    assert said.endswith(f"it is kept as {folder}.damaged-3")
    assert sorted(path.suffix for path in folder.parent.glob(f"{folder.name}.*")) == [".damaged-2", ".damaged-3"]


def test_a_run_that_was_changed_with_its_evidence_is_named(lake: Lake) -> None:
    first = lake.cuts()[0]
    folder = _folder(lake, first)
    _replace_list(lake, first, folder)
    fault = f"runs/{first.cut_id} is not the run that a later manifest names, which was not set aside"
    assert (audit(lake).replaced, audit(lake).faults) == ((), (fault,))
    aside = folder.with_name(f"{folder.name}.damaged-1")
    aside.mkdir()
    (aside / "run.json").write_bytes((folder / "run.json").read_bytes())
    assert (audit(lake).replaced, audit(lake).faults) == ((), (fault,))


def _replace_list(lake: Lake, cut: Manifest, folder: Path) -> None:
    """Record another list of a run, as if its tables had been written in another order."""
    text = (folder / "run.json").read_bytes() + b"\n"
    record_run(lake, cut.cut_id, text)
    (folder / "run.json").write_bytes(text)


def test_a_run_over_several_cuts_is_verified_too(lake: Lake) -> None:
    joined = seal(msgspec.structs.replace(lake.cuts()[1], previous=""))
    folder = run(lake, joined)
    assert recorded(lake, joined.cut_id) is None
    assert audit(lake).runs == 3
    (folder / "report.json").write_bytes(b"other!")
    assert [fault for fault in audit(lake).faults if joined.cut_id in fault and "report.json was altered" in fault]


def test_a_lake_of_the_version_before_is_continued_and_recorded_from_then_on(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    first = land(lake, version=1)
    folder = run(lake, first, record=False)
    assert audit(lake).faults == ()
    second = land(lake)
    assert set(second.evidence.runs) == {first.cut_id}
    run(lake, second)
    assert audit(lake).faults == ()
    before = (folder / "run.json").read_bytes()
    record_run(lake, first.cut_id, before + b"\n")  # made again, and killed before it was published
    assert audit(lake).faults == ()
    assert len((recorded(lake, first.cut_id) or evidence.Recorded()).runs) == 2


def test_the_whole_lake_is_audited_once_a_week(lake: Lake) -> None:
    said: list[str] = []
    audit_when_due(lake, NOW_MS, said.append)
    assert [line.split(" in ")[0] for line in said] == ["audited 3 cuts and 2 runs"]
    for now_ms, due in ((NOW_MS, False), (NOW_MS + VERIFIED_EVERY_MS - 1, False), (NOW_MS + VERIFIED_EVERY_MS, True)):
        assert is_due(lake, now_ms) is due
    assert is_due(lake, NOW_MS - 1)  # the clock was set back, or the file was changed
    _file(lake, lake.cuts()[0]).unlink()
    audit_when_due(lake, NOW_MS + 1, said.append)
    for _ in range(2):
        with pytest.raises(
            LakeError, match=r"the weekly audit of .* found: .*parquet is gone\. `once reconcile --audit`"
        ):
            audit_when_due(lake, NOW_MS + VERIFIED_EVERY_MS, said.append)
    assert len(said) == 1
    (lake.root / "verified.json").write_bytes(b"{")
    assert is_due(lake, NOW_MS)
    record_verified(lake, NOW_MS)
    assert not is_due(lake, NOW_MS)


def test_a_long_list_of_faults_is_cut_short(lake: Lake) -> None:
    for cut in lake.cuts():
        _file(lake, cut).unlink()
    _mended_run(lake, lake.cuts()[0])
    with pytest.raises(LakeError, match="; and 1 more"):
        audit_when_due(lake, NOW_MS, print)


def test_the_code_is_known_by_version_and_sources() -> None:
    found = code()
    assert found == code()
    assert len(found.sha256) == 64
    assert found != Code()


def command(lake: Lake, *options: str) -> Result:
    return CliRunner().invoke(reconcile, ["--lake", str(lake.root), "--audit", *options])


def test_the_command_says_what_it_verified_and_counts_as_the_weekly_audit(lake: Lake) -> None:
    shown = command(lake)
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "audit: no fault")
    assert [line.split() for line in shown.stdout.splitlines()[:2]] == [["cuts", "3"], ["runs", "2"]]
    assert not is_due(lake, time.time_ns() // 1_000_000)
    as_json = command(lake, "--json")
    assert msgspec.json.decode(as_json.stdout, type=Audit) == audit(lake)


def test_the_command_names_each_fault_and_fails(lake: Lake) -> None:
    first = lake.cuts()[0]
    path = lake.landed(first).files[0].path
    (lake.root / path).unlink()
    (_folder(lake, first) / "report.html").unlink()
    shown = command(lake)
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (2, "audit: 2 faults")
    assert f"fault: {path} is gone" in shown.stdout
    assert "report.html is gone" in shown.stdout
    assert not (lake.root / "verified.json").exists()
    as_json = command(lake, "--json")
    assert (as_json.exit_code, len(msgspec.json.decode(as_json.stdout, type=Audit).faults)) == (2, 2)


def test_the_command_refuses_an_audit_of_one_cut_and_a_replacement_of_none(lake: Lake) -> None:
    for options, message in ((("--audit", "--full"), "give --audit without a cut"), (("--replace",), "name the cut")):
        refused = CliRunner().invoke(reconcile, ["--lake", str(lake.root), *options])
        assert refused.exit_code == 2
        assert message in refused.stderr


def test_an_audit_where_nothing_has_landed_judges_nothing_and_makes_no_file(tmp_path: Path) -> None:
    empty, mistyped = Lake(tmp_path / "empty"), Lake(tmp_path / "mistyped")
    empty.root.mkdir()
    for lake in (empty, mistyped):
        done = command(lake)
        assert (done.exit_code, done.stdout) == (3, "")
        assert f"nothing has landed in {lake.root}" in done.stderr
    assert list(tmp_path.rglob("*")) == [empty.root]


def test_an_audit_waits_for_no_run(lake: Lake) -> None:
    with lake.lock():
        refused = command(lake)
    assert (refused.exit_code, "another run is at work" in refused.stderr) == (2, True)
