"""Print a bill of materials, CycloneDX 1.6 in JSON: every locked Python package and jar, and every image.

Invariant: the same locks give the same bytes. So there is no time of making in it, and its serial number is derived
from its content.
"""

import json
import sys
import tomllib
import uuid
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from deploy import PROJECT_ROOT
from deploy.local.jars import LockedJar
from deploy.supply.locks import (
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

LOCK: Final = "once:lock"
"""Property of a component: the lock, or the kind of file, that names it."""
_NAMESPACE: Final = uuid.UUID("5ba4a1f0-5c2f-5b0e-9d0c-0b6d6f9f9d5e")

Component = dict[str, Any]


def bill() -> dict[str, Any]:
    """Return the document. A component that several locks name is in it once, with all of their names."""
    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())["project"]
    merged: dict[str, Component] = {}
    for component in _components():
        known = merged.setdefault(component["bom-ref"], component)
        if known is not component:
            known["properties"] += component["properties"]
            known["scope"] = min(known["scope"], component["scope"], key=("required", "excluded").index)
    content = {
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "once",
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
            }
        },
        "components": [merged[reference] for reference in sorted(merged)],
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        **content,
    }


def _components() -> Iterator[Component]:
    for lock in PYTHON_LOCKS:
        yield from (_of_package(package, lock) for package in packages(lock))
    for lock in JAR_LOCKS:
        yield from (_of_jar(jar, lock) for jar in jars(lock))
    yield from (_of_image(image) for image in images(image_files()))


def _of_package(package: Package, lock: str) -> Component:
    purl = f"pkg:pypi/{package.name}@{quote(package.version)}"
    scope = "required" if lock in RUNTIME_LOCKS else "excluded"  # what only tests and tools need is not in production
    return _component("library", package.name, package.version, purl, lock, scope)


def _of_jar(jar: LockedJar, lock: str) -> Component:
    classifier = f"classifier={jar.classifier}&" if jar.classifier else ""
    purl = f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}?{classifier}type=jar"
    return _component("library", jar.artifact, jar.version, purl, lock) | {
        "group": jar.group,
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
    }


def _of_image(image: Image) -> Component:
    version = image.digest.replace(":", "%3A") or image.tag
    purl = f"pkg:docker/{image.name}@{version}" + (f"?tag={image.tag}" if image.digest else "")
    made = _component("container", image.name, image.tag, purl, "image")
    hashes = [{"alg": "SHA-256", "content": image.digest.removeprefix("sha256:")}] if image.digest else []
    return made | ({"hashes": hashes} if hashes else {})


def _component(kind: str, name: str, version: str, purl: str, lock: str, scope: str = "required") -> Component:
    return {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "scope": scope,
        "purl": purl,
        "properties": [{"name": LOCK, "value": lock}],
    }


def main() -> int:
    json.dump(bill(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
