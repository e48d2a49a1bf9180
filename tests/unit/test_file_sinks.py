"""The verifier's own reading of file: destinations."""

from pathlib import Path

from deploy.verification import effect_ids, sink_logs


def test_whole_lines_count_and_others_do_not(tmp_path: Path) -> None:
    log = tmp_path / "receipts.jsonl"
    log.write_bytes(
        b'{"effect_id":"a","kind":"receipt"}\n{"effect_id":"b"\n\n\xff\n[]\n{"effect_id":1}\n{"other":"c"}\n'
        b'{"effect_id":"a"}\n{"effect_id":"d"}'
    )
    assert list(effect_ids(log)) == ["a", "a"]


def test_each_log_has_its_destination(tmp_path: Path) -> None:
    for name in ("receipts.jsonl", "a-b_1.jsonl", "receipts.jsonl.old", "notes.txt"):
        (tmp_path / name).touch()
    assert list(sink_logs(tmp_path)) == [
        ("file:a-b_1", tmp_path / "a-b_1.jsonl"),
        ("file:receipts", tmp_path / "receipts.jsonl"),
    ]
    assert list(effect_ids(tmp_path / "receipts.jsonl")) == []
