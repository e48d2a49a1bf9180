"""The images: their contents are pinned by hashes, and stand-ins have the names of the Dockerfiles' bases."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.compose.credentials import HOLDERS
from tests.compose.document import BUILT, PUBLIC, SERVICES, bases
from tests.compose.images import ABSENT, STAND_INS, dockerfile
from tests.harness import ROOT

IMAGES = ROOT / "deploy" / "images"
FILES = {image: (ROOT / path).read_text() for image, path in BUILT.items()}


def pins(path: Path) -> dict[str, frozenset[str]]:
    """Return the hashes of each package of a lock, by name and version."""
    found = re.findall(r"^([a-z0-9._-]+==\S+) \\\n((?:    --hash=\S+(?: \\)?\n?)+)", path.read_text(), re.MULTILINE)
    return {name: frozenset(re.findall(r"sha256:[0-9a-f]{64}", hashes)) for name, hashes in found}


def names(pinned: dict[str, frozenset[str]]) -> set[str]:
    return {name.partition("==")[0] for name in pinned}


@pytest.mark.parametrize("image", sorted(FILES))
def test_bases_of_images_have_stand_ins(image: str) -> None:
    assert set(bases(BUILT[image])) <= set(STAND_INS)


def test_every_public_image_has_a_stand_in_or_is_named_as_absent() -> None:
    assert {*STAND_INS, *ABSENT} == set(PUBLIC)
    assert (SERVICES["grafana"]["image"],) == ABSENT
    assert len({image.partition(":")[0] for image in PUBLIC}) == len(PUBLIC)  # each in one version everywhere


@pytest.mark.parametrize("image", sorted(STAND_INS))
def test_stand_ins_are_made_of_packages_only(image: str) -> None:
    text = dockerfile(STAND_INS[image])
    assert text.startswith("FROM once-standin/debian:bookworm\nRUN apt-get update")
    assert not re.search(r"curl|https?://", text)


@pytest.mark.parametrize("image", sorted(FILES))
def test_images_run_as_the_user_of_their_services(image: str) -> None:
    last = FILES[image].rpartition("FROM ")[2]
    users = re.findall(r"^USER (\S+)", last, re.MULTILINE)
    assert {users[-1]} == {service["user"] for service in SERVICES.values() if service["image"] == image}


@pytest.mark.parametrize("image", sorted(FILES))
def test_packages_are_installed_by_their_hashes_only(image: str) -> None:
    for line in FILES[image].replace("\\\n", " ").splitlines():
        for command in re.findall(r"pip install[^&]*", line):
            assert "--require-hashes" in command
        assert "apt-get" not in line
        assert not re.search(r"https?://|--index|--find-links", line)


@pytest.mark.parametrize("lock", ["services.txt", "spark.txt", "build.txt"])
def test_locks_of_the_images_are_parts_of_the_projects_lock(lock: str) -> None:
    whole, part = pins(ROOT / "requirements.txt"), pins(IMAGES / lock)
    assert part
    assert len(part) == (IMAGES / lock).read_text().count("==")
    assert {name: hashes for name, hashes in part.items() if whole.get(name) != hashes} == {}


def test_images_have_all_that_the_project_needs_and_nothing_for_its_tests() -> None:
    services, spark = names(pins(IMAGES / "services.txt")), names(pins(IMAGES / "spark.txt"))
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert needed
    wanted = {re.split(r"[\[<>=]", entry)[0] for entry in re.findall(r'"([^"]+)"', needed[1])}
    assert wanted <= services | spark
    assert spark == {"pyspark", "py4j"}
    assert not {"pytest", "mypy", "ruff", "uv", "playwright"} & services


def test_the_image_has_a_folder_for_each_holder() -> None:
    text = FILES[SERVICES["credentials"]["image"]].replace("\\\n", " ")
    found = re.search(r"for holder in ([a-z0-9 -]+); do", text)
    assert found
    assert set(found[1].split()) == set(HOLDERS)


def test_the_context_has_only_the_folders_that_images_copy() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {path for text in FILES.values() for path in re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE)}
    assert {path.split("/")[0] for path in copied} == kept


def test_a_broker_starts_with_the_common_properties_and_its_own_node_id(tmp_path: Path) -> None:
    java, properties = tmp_path / "java", tmp_path / "server.properties"
    java.write_text('#!/bin/sh\necho "$@"\n')
    java.chmod(0o755)
    common = ROOT / "deploy/compose/files/broker.properties"
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "HEAP": "1m", "JAVA_MORE": ""}
    argv = ["sh", str(IMAGES / "broker.sh"), str(common), "1"]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=True)
    formatted, started = done.stdout.splitlines()
    assert properties.read_text() == common.read_text().replace("${NODE_ID}", "1")
    assert formatted.endswith(f"--config {properties}")
    assert started.endswith(f"kafka.Kafka {properties}")


def test_the_port_of_the_brokers_metrics_is_scraped() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/compose/files/prometheus.yml").read_text())["scrape_configs"]
    (kafka,) = (job["static_configs"] for job in scraped if job["job_name"] == "kafka")
    (port,) = {target.partition(":")[2] for found in kafka for target in found["targets"]}
    assert f"0.0.0.0:{port}:" in (IMAGES / "broker.sh").read_text()
