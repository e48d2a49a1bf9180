"""The archive of the brokers' classes: of one Java and one set of jars, and done without where there is none."""

import os
import sys
from pathlib import Path

import pytest

from deploy.local import jars
from deploy.local.kafka import archive


@pytest.mark.parametrize("error", [jars.JarError("no jars here"), PermissionError("no room here")])
def test_an_archive_that_cannot_be_made_is_said_and_no_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolve() -> None:
        raise error

    monkeypatch.setattr(jars, "resolve", resolve)
    assert archive.main() == 0
    assert f"brokers start more slowly: {error}" in capsys.readouterr().err


@pytest.fixture
def classpath(tmp_path: Path) -> str:
    paths = [tmp_path / "kafka.jar", tmp_path / "scala.jar"]
    for path in paths:
        path.write_bytes(b"jar")
    return os.pathsep.join(map(str, paths))


def test_it_is_another_one_when_a_jar_is_another_one(classpath: str, tmp_path: Path) -> None:
    first = jars.archive_path(sys.executable, classpath)
    assert jars.archive_path(sys.executable, classpath) == first
    (tmp_path / "scala.jar").write_bytes(b"another jar")
    assert jars.archive_path(sys.executable, classpath) != first


def test_it_is_used_where_it_is_and_nothing_is_said_where_it_is_not(tmp_path: Path) -> None:
    archive_file = tmp_path / "brokers.jsa"
    assert jars.archive_options(archive_file) == []
    assert f"-XX:ArchiveClassesAtExit={archive_file}" in jars.archive_options(archive_file, make=True)
    archive_file.touch()
    assert f"-XX:SharedArchiveFile={archive_file}" in jars.archive_options(archive_file)
