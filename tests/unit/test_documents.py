"""The generated documentation agrees with the code."""

from pathlib import Path

from click.testing import CliRunner

from deploy.cli.docs import docs, stale, write
from deploy.documents import DOCUMENTS
from shared.events.catalogue import TOPICS
from shared.settings import ALL_SETTINGS
from shared.telemetry.catalogue import CATALOGUE


def test_the_documents_in_the_project_are_current() -> None:
    result = CliRunner().invoke(docs, ["--check"])
    assert (result.exit_code, result.output) == (0, "")


def test_a_stale_or_missing_document_is_found_and_written(tmp_path: Path) -> None:
    assert stale(tmp_path) == list(DOCUMENTS)
    assert write(tmp_path) == list(DOCUMENTS)
    assert stale(tmp_path) == []
    target = tmp_path / "docs/metrics.md"
    target.write_text(target.read_text().replace("kafka_producer_fenced_total", "kafka_producer_fended_total"))
    assert stale(tmp_path) == ["docs/metrics.md"]


def test_every_topic_metric_and_setting_has_its_row() -> None:
    texts = {path: make() for path, make in DOCUMENTS.items()}
    for topic in TOPICS:
        assert texts["docs/topics.md"].count(f"| `{topic.name}` |") == 1
    for metric in CATALOGUE:
        assert texts["docs/metrics.md"].count(f"| `{metric.name}` |") == 1
    for cls in ALL_SETTINGS:
        for item in cls.__dataclass_fields__.values():
            assert texts["docs/settings.md"].count(f"| `{item.metadata['variable']}` |") == 1


def test_every_row_has_as_many_cells_as_its_table() -> None:
    for make in DOCUMENTS.values():
        tables = [block.splitlines() for block in make().split("\n\n") if block.startswith("|")]
        assert tables
        for table in tables:
            assert len({line.count("|") - line.count("\\|") for line in table if line.startswith("|")}) == 1
