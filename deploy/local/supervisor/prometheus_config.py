"""Configuration of Prometheus: targets, intervals and rules. Pure text, no files, no processes.

Intervals are short because drills wait for alerts; a production Prometheus takes the same rules at 15 or 30 s.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from deploy.local.ports import LOOPBACK

SCRAPE_INTERVAL_S = 2
BROKER_SCRAPE_INTERVAL_S = 5  # an answer takes a broker more work than a service
KAFKA_JOB = "kafka"


@dataclass(frozen=True, slots=True)
class Target:
    """One process that is scraped.

    Attributes:
        job: the service's name, or `kafka`, `redis` or `prometheus`.
        instance: its name among those of the job, the same after a restart on another port.
        port: where it serves /metrics, on loopback.
        labels: further labels of all its series.
    """

    job: str
    instance: str
    port: int
    labels: dict[str, str] = field(default_factory=dict)


def prometheus_yml(targets: Sequence[Target], rules: Path) -> str:
    """The text of prometheus.yml.

    Args:
        targets: those of one job follow each other.
        rules: a pattern of rule files, absolute.
    """
    jobs = "".join(_job(name, list(members)) for name, members in groupby(targets, lambda target: target.job))
    return f"""\
global:
  scrape_interval: {SCRAPE_INTERVAL_S}s
  scrape_timeout: {SCRAPE_INTERVAL_S}s
  evaluation_interval: {SCRAPE_INTERVAL_S}s
rule_files:
  - {_quoted(str(rules))}
scrape_configs:
{jobs}"""


def _job(name: str, targets: Sequence[Target]) -> str:
    interval_s = BROKER_SCRAPE_INTERVAL_S if name == KAFKA_JOB else SCRAPE_INTERVAL_S
    lines = [f"  - job_name: {_quoted(name)}", f"    scrape_interval: {interval_s}s", "    static_configs:"]
    for target in targets:
        lines += [f"      - targets: [{_quoted(f'{LOOPBACK}:{target.port}')}]", "        labels:"]
        labels = {"instance": target.instance, **target.labels}
        lines += [f"          {label}: {_quoted(value)}" for label, value in labels.items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A JSON string, which YAML reads as the same string whatever is in it."""
    return json.dumps(text)
