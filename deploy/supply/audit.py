"""Audit the locked Python packages for known vulnerabilities, by pip-audit: `make audit`.

Two sources are asked, the package index and OSV. A source that cannot be reached, or that has packages but no
vulnerability data, is reported, and what no source has answered for counts as not audited. pip-audit alone would print
`No known vulnerabilities found` then, and end with 0.

Exit codes: 0 every package was audited and none has a known vulnerability; 1 at least one has; 69 none was found, and
packages are left that no source could answer for.

pip-audit knows no jars and no images. The bill of `make sbom` lists them for a scanner.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import click

from deploy import PROJECT_ROOT
from deploy.supply.locks import PYTHON_LOCKS, Package, packages

SOURCES: Final = ("pypi", "osv")
VULNERABLE: Final = 1
NOT_AUDITED: Final = 69
"""EX_UNAVAILABLE of sysexits.h."""
_DEADLINE_S: Final = 900.0


class Report(NamedTuple):
    """The answer of one source for one lock.

    Attributes:
        audited: packages that it answered for.
        findings: ids of the vulnerabilities of those that have one.
    """

    audited: frozenset[Package]
    findings: dict[Package, list[str]]


class Audit(NamedTuple):
    """The answers of all sources for all locks."""

    wanted: frozenset[Package]
    audited: frozenset[Package]
    findings: dict[Package, list[str]]

    @property
    def exit_code(self) -> int:
        if self.findings:
            return VULNERABLE
        return NOT_AUDITED if self.wanted - self.audited else 0


def parse(output: str) -> Report:
    """Read pip-audit's JSON; nothing is audited if it printed none, as when its source cannot be reached."""
    try:
        dependencies: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except ValueError:
        return Report(frozenset(), {})
    answered = [one for one in dependencies if "skip_reason" not in one]
    return Report(
        frozenset(Package(one["name"], one["version"]) for one in answered),
        {
            Package(one["name"], one["version"]): sorted(vulnerability["id"] for vulnerability in one["vulns"])
            for one in answered
            if one["vulns"]
        },
    )


def combine(wanted: Iterable[Package], reports: Iterable[Report]) -> Audit:
    audited: set[Package] = set()
    findings: dict[Package, list[str]] = {}
    for report in reports:
        audited |= report.audited
        for package, ids in report.findings.items():
            findings[package] = sorted({*findings.get(package, []), *ids})
    return Audit(frozenset(wanted), frozenset(audited), findings)


def ask(program: Sequence[str], source: str, lock: str) -> Report:
    """Run pip-audit for one source and one lock; it is silent about what it cannot reach, except on stderr."""
    words = ["--vulnerability-service", source, "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(
        [*program, *words, "--disable-pip", "--require-hashes", "--requirement", lock],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    return parse(done.stdout)


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--pip-audit", "program", default="pip-audit", show_default=True, help="the program to run")
def main(program: str) -> None:
    """Print findings, and what was not audited."""
    reports = []
    for source in SOURCES:
        answers = [ask([program], source, lock) for lock in PYTHON_LOCKS]
        if not any(answer.audited for answer in answers):
            click.echo(f"{source}: no answer; it cannot be reached, or has no vulnerability data", err=True)
        reports += answers
    audit = combine((package for lock in PYTHON_LOCKS for package in packages(lock)), reports)
    for package, ids in sorted(audit.findings.items()):
        click.echo(f"{package.name} {package.version}: {', '.join(ids)}")
    left = len(audit.wanted - audit.audited)
    click.echo(f"{len(audit.wanted) - left} of {len(audit.wanted)} packages audited, {left} not", err=True)
    click.echo("jars and images are not audited here: give the bill of `make sbom` to a scanner", err=True)
    sys.exit(audit.exit_code)


if __name__ == "__main__":
    main()
