"""The archive of the brokers' classes: bound to one Java and one set of jars, and optional."""

import os
import sys
from pathlib import Path

import pytest

from deploy.local import archives, jars


@pytest.mark.parametrize("error", [jars.JarError("no jars here"), PermissionError("no room here")])
def test_a_failure_to_make_the_archive_is_reported_without_an_error_exit(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolve() -> None:
        raise error

    monkeypatch.setattr(jars, "resolve", resolve)
    assert archives.main() == 0
    assert f"brokers start more slowly: {error}" in capsys.readouterr().err


@pytest.fixture
def classpath(tmp_path: Path) -> str:
    paths = [tmp_path / "kafka.jar", tmp_path / "scala.jar"]
    for path in paths:
        path.write_bytes(b"jar")
    return os.pathsep.join(map(str, paths))


def test_the_archive_is_in_the_users_cache(classpath: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jars.archive_path(sys.executable, classpath).parent == tmp_path / ".cache" / "once"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert jars.archive_path(sys.executable, classpath).parent == tmp_path / "other" / "once"


def test_another_jar_needs_another_archive(classpath: str, tmp_path: Path) -> None:
    first = jars.archive_path(sys.executable, classpath)
    assert jars.archive_path(sys.executable, classpath) == first
    (tmp_path / "scala.jar").write_bytes(b"another jar")
    assert jars.archive_path(sys.executable, classpath) != first


def test_the_archive_is_used_only_where_it_exists(tmp_path: Path) -> None:
    archive_file = tmp_path / "brokers.jsa"
    assert jars.archive_options(archive_file) == []
    assert f"-XX:ArchiveClassesAtExit={archive_file}" in jars.archive_options(archive_file, make=True)
    archive_file.touch()
    assert f"-XX:SharedArchiveFile={archive_file}" in jars.archive_options(archive_file)
