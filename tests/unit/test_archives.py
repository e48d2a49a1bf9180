"""Archives of JVM classes: each of one Java and one set of jars, and optional."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError

from deploy.local import archives, jars
from deploy.local.prerequisites import require_java


@pytest.mark.parametrize("error", [jars.JarError("no jars here"), PermissionError("no room here")])
def test_a_failure_to_make_the_archive_is_reported_without_an_error_exit(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolve(*_: object) -> None:
        raise error

    monkeypatch.setattr(jars, "resolve", resolve)
    assert archives.main() == 0
    assert f"starts more slowly: {error}" in capsys.readouterr().err


def test_a_jvm_that_writes_no_archive_leaves_none(tmp_path: Path) -> None:
    with pytest.raises(archives.ArchiveError):
        archives.make(tmp_path / "one.jsa", lambda _, directory: directory.mkdir())
    assert list(tmp_path.iterdir()) == []


def test_a_driver_that_does_not_start_is_reported_without_an_error_exit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def session(**_: object) -> None:
        raise PySparkRuntimeError("the gateway exited")

    monkeypatch.setattr(archives, "session", session)
    monkeypatch.setattr(jars, "spark_archive_path", lambda: tmp_path / "spark.jsa")
    assert archives.main() == 0
    assert "starts more slowly: the gateway exited" in capsys.readouterr().err


def test_an_archive_is_made_once(tmp_path: Path) -> None:
    made = []

    def write(archive: Path, _: Path) -> None:
        made.append(archive.write_bytes(b"classes"))

    assert archives.make(tmp_path / "one.jsa", write) == archives.make(tmp_path / "one.jsa", write)
    assert made == [7]


def test_a_jvm_starts_with_a_damaged_archive(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsa"
    damaged.write_bytes(b"damaged")
    command = [require_java(), *jars.archive_options(damaged), "-cp", str(tmp_path), "-version"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "damaged" not in ended.stdout + ended.stderr


def test_without_java_there_is_no_archive_of_sparks_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jars.spark_archive_path() is None
    assert jars.spark_archive_options() == []


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
