"""The supply chain: the bill of materials, the audit, and the digests of images."""

import json
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from deploy.compose.engine import Engine
from deploy.supply import audit, pins, sbom
from deploy.supply.audit import Report, combine, parse
from deploy.supply.locks import (
    COMPOSE,
    JAR_LOCKS,
    PYTHON_LOCKS,
    RUNTIME_LOCKS,
    Image,
    Package,
    image_files,
    images,
    jars,
    packages,
)
from deploy.supply.pins import UNAVAILABLE, UnpinnableError, digest_of, pin, pinned
from tests.harness import ROOT

DIGEST = "sha256:" + "0a" * 32
OTHER = "sha256:" + "1b" * 32


def program(path: Path, text: str) -> Path:
    """Write a shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# The bill


def test_the_bill_has_every_locked_package_jar_and_image_once() -> None:
    components: list[dict[str, Any]] = sbom.bill()["components"]
    references = Counter(component["bom-ref"] for component in components)
    assert set(references.values()) == {1}
    locked = {f"pkg:pypi/{name}@{version}" for lock in PYTHON_LOCKS for name, version in packages(lock)}
    assert locked <= set(references)
    shas = {hash_["content"] for component in components for hash_ in component.get("hashes", ())}
    assert {jar.sha256 for lock in JAR_LOCKS for jar in jars(lock)} <= shas
    assert {f"pkg:docker/{image.name}" for image in images(image_files())} == {
        reference.partition("@")[0] for reference in references if reference.startswith("pkg:docker/")
    }


def test_every_lock_of_the_project_is_in_the_bill() -> None:
    found = {
        str(path.relative_to(ROOT))
        for pattern in ("**/requirements.txt", "deploy/images/*.txt", "deploy/*/jgo.lock.toml")
        for path in ROOT.glob(pattern)
        if not path.relative_to(ROOT).parts[0].startswith(".")
    }
    assert found == {*PYTHON_LOCKS, *JAR_LOCKS}


def test_only_what_runs_in_production_is_required() -> None:
    by_name = {component["name"]: component for component in sbom.bill()["components"]}
    assert {by_name[name]["scope"] for name in ("aiohttp", "msgspec", "pyspark", "kafka-clients")} == {"required"}
    assert {by_name[name]["scope"] for name in ("pytest", "ruff", "pip-audit")} == {"excluded"}
    assert {"name": sbom.LOCK, "value": RUNTIME_LOCKS[0]} in by_name["aiohttp"]["properties"]


def test_the_same_locks_give_the_same_bill() -> None:
    assert json.dumps(sbom.bill()) == json.dumps(sbom.bill())
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", sbom.bill()["serialNumber"])


# The audit

CLEAN = '{"dependencies": [{"name": "aiohttp", "version": "3.14.5", "vulns": []}]}'
FOUND = '{"dependencies": [{"name": "aiohttp", "version": "3.14.5", "vulns": [{"id": "B-2"}, {"id": "A-1"}]}]}'
SKIPPED = '{"dependencies": [{"name": "aiohttp", "skip_reason": "not found on the index"}], "fixes": []}'
AIOHTTP = Package("aiohttp", "3.14.5")


def test_a_package_that_a_source_skips_is_not_audited() -> None:
    assert parse(SKIPPED) == Report(frozenset(), {})
    assert parse("") == parse("Traceback") == Report(frozenset(), {})
    assert parse(CLEAN) == Report(frozenset({AIOHTTP}), {})
    assert parse(FOUND).findings == {AIOHTTP: ["A-1", "B-2"]}


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([CLEAN, SKIPPED], 0),
        ([SKIPPED, CLEAN], 0),
        ([SKIPPED, FOUND], audit.VULNERABLE),
        ([SKIPPED, ""], audit.NOT_AUDITED),
    ],
)
def test_one_answer_is_enough_and_none_is_no_success(answers: list[str], code: int) -> None:
    assert combine([AIOHTTP], map(parse, answers)).exit_code == code


def test_what_no_source_answered_for_is_left() -> None:
    other = Package("msgspec", "0.22.0")
    assert combine([AIOHTTP, other], [parse(CLEAN)]).exit_code == audit.NOT_AUDITED
    assert combine([AIOHTTP, other], [parse(FOUND)]).exit_code == audit.VULNERABLE


def test_the_command_reports_sources_that_cannot_be_reached(tmp_path: Path) -> None:
    away = program(tmp_path / "away", "echo 'Traceback: no such host' >&2; exit 1")
    done = CliRunner().invoke(audit.main, ["--pip-audit", str(away)])
    assert done.exit_code == audit.NOT_AUDITED
    assert "pypi: no answer" in done.stderr
    assert "osv: no answer" in done.stderr
    assert re.search(r"0 of (\d+) packages audited, \1 not", done.stderr)


def test_the_command_reports_findings_by_package(tmp_path: Path) -> None:
    found = program(tmp_path / "found", f"echo '{FOUND}'; exit 1")
    done = CliRunner().invoke(audit.main, ["--pip-audit", str(found)])
    assert (done.exit_code, done.stdout) == (audit.VULNERABLE, "aiohttp 3.14.5: A-1, B-2\n")


# The digests


def test_a_digest_is_written_behind_each_name_and_replaced() -> None:
    digests = {"python:3.11-slim": DIGEST, "apache/kafka:4.3.1": OTHER}
    others = "FROM my/python:3.11-slim\nFROM python:3.11-slim2\n"
    text = f"FROM python:3.11-slim AS a\nFROM apache/kafka:4.3.1@{DIGEST}\n{others}"
    assert pinned(text, digests) == f"FROM python:3.11-slim@{DIGEST} AS a\nFROM apache/kafka:4.3.1@{OTHER}\n{others}"
    assert pinned(pinned(text, digests), digests) == pinned(text, digests)


def test_all_images_of_the_project_are_pinned(tmp_path: Path) -> None:
    files = [tmp_path / file.name for file in image_files()]
    for file, original in zip(files, image_files(), strict=True):
        file.write_text(original.read_text())
    digests = pin(files, lambda _: DIGEST)
    assert len(digests) == len(images(image_files()))
    assert {image.digest for image in images(files)} == {DIGEST}
    built = [line for line in (tmp_path / COMPOSE).read_text().splitlines() if "image: once-" in line]
    assert built
    assert not any("@" in line for line in built)


def test_nothing_is_changed_if_one_image_has_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "a.Dockerfile"
    file.write_text("FROM one:1\nFROM two:2\n")

    def find(image: Image) -> str:
        if image.name == "two":
            raise UnpinnableError("two:2 cannot be pulled")
        return DIGEST

    with pytest.raises(UnpinnableError):
        pin([file], find)
    assert file.read_text() == "FROM one:1\nFROM two:2\n"


def test_an_image_without_a_tag_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.Dockerfile"
    file.write_text("FROM redis\n")
    with pytest.raises(ValueError, match="redis has no tag"):
        images([file])


def docker(directory: Path, text: str) -> Engine:
    """An engine whose command is this script."""
    program(directory / "docker", text)
    return Engine(environment={"PATH": f"{directory}:/usr/bin:/bin"})


@pytest.mark.parametrize("repository", ["redis", "registry.example/library/redis"])
def test_the_digest_is_that_of_the_pulled_image(tmp_path: Path, repository: str) -> None:
    engine = docker(tmp_path, f"""test "$1" = image && echo '["other@{OTHER}", "{repository}@{DIGEST}"]' || true""")
    assert digest_of(Image("redis", "7.2.11", ""), engine) == DIGEST


def test_an_image_that_was_built_here_has_no_digest(tmp_path: Path) -> None:
    engine = docker(tmp_path, "test \"$1\" = image && echo '[]' || true")
    with pytest.raises(UnpinnableError, match="was built on this machine"):
        digest_of(Image("redis", "7.2.11", ""), engine)


def test_a_registry_that_cannot_be_reached_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "docker", "echo 'no route to registry.example' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    before = [file.read_bytes() for file in image_files()]
    done = CliRunner().invoke(pins.main)
    assert done.exit_code == UNAVAILABLE
    assert "nothing was changed" in done.stderr
    assert "cannot be pulled: the registry cannot be reached, or does not have it" in done.stderr
    assert "registry.example" not in done.stderr
    assert [file.read_bytes() for file in image_files()] == before
