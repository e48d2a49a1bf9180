"""The archive of the brokers' classes: of one Java and one set of jars, and done without where there is none."""

import os
import sys
from pathlib import Path

import pytest

from deploy.local.kafka.class_data import archive_path, make, use


@pytest.fixture
def jars(tmp_path: Path) -> str:
    paths = [tmp_path / "kafka.jar", tmp_path / "scala.jar"]
    for path in paths:
        path.write_bytes(b"jar")
    return os.pathsep.join(map(str, paths))


def test_it_is_another_one_when_a_jar_is_another_one(jars: str, tmp_path: Path) -> None:
    first = archive_path(sys.executable, jars)
    assert archive_path(sys.executable, jars) == first
    (tmp_path / "scala.jar").write_bytes(b"another jar")
    assert archive_path(sys.executable, jars) != first


def test_it_is_used_where_it_is_and_nothing_is_said_where_it_is_not(tmp_path: Path) -> None:
    archive = tmp_path / "brokers.jsa"
    assert list(use(archive)) == []
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in use(archive)
    assert f"-XX:ArchiveClassesAtExit={archive}" in make(archive)
