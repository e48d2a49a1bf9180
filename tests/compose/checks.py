"""Checks of running containers against the promises of docs/deployment.md."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deploy.compose.credentials import CERTIFIED, GRAFANA_PASSWORD
from deploy.compose.engine import Engine, EngineError
from deploy.security.principals import REDIS_EXPORTER
from tests.compose.document import ROOT
from tests.compose.engine import VerifyError, say

PUBLISHED: Final = frozenset({"gateway", "balances"})
LOOPBACK: Final = "127.0.0.1"
_OWN: Final = "/run/once"
_TARGETS_S: Final = 60.0
_POLL_S: Final = 1.0


def check_confinement(engine: Engine, services: Sequence[str]) -> None:
    """Check each container against the promises of the deployment.

    Raises:
        VerifyError: a container violates them; every finding is named.
    """
    principals = frozenset(CERTIFIED)
    wrong: list[str] = []
    for service in services:
        wrong += findings(service, engine.container(service))
        if service in principals and service != REDIS_EXPORTER:  # that image may have no shell
            files = engine.compose("exec", "--no-TTY", service, "ls", _OWN)
            wrong += foreign(service, files, principals)
    if wrong:
        raise VerifyError("; ".join(wrong))
    say(f"{len(services)} containers are confined, and see their own credentials alone")


def findings(service: str, container: Mapping[str, Any]) -> list[str]:
    """List the faults of a container; empty if there are none.

    Args:
        service: its service.
        container: of `docker inspect`.
    """
    host, config = container["HostConfig"], container["Config"]
    limited = host["Memory"] > 0 and host["NanoCpus"] > 0 and bool(host["PidsLimit"])
    wrong = {
        "runs as root": config["User"].split(":")[0] in {"", "0", "root"},
        "may write to its image": not host["ReadonlyRootfs"],
        "is privileged": host["Privileged"],
        "keeps capabilities": host["CapDrop"] != ["ALL"] or bool(host["CapAdd"]),
        "may gain privileges": "no-new-privileges:true" not in (host["SecurityOpt"] or []),
        "has no limits": not limited,
        "has no init": not host["Init"],
    }
    return [f"{service} {text}" for text, is_so in wrong.items() if is_so] + _ports(service, host)


def _ports(service: str, host: Mapping[str, Any]) -> list[str]:
    bindings = [binding for found in (host["PortBindings"] or {}).values() for binding in found]
    if bool(bindings) != (service in PUBLISHED):
        return [f"{service} publishes {len(bindings)} ports"]
    return [f"{service} is published on {one['HostIp']}" for one in bindings if one["HostIp"] != LOOPBACK]


def foreign(service: str, files: str, principals: frozenset[str]) -> list[str]:
    """Credentials of other principals in a container.

    Args:
        service: its own.
        files: the names in its folder of credentials, in lines.
        principals: all with an identity.
    """
    seen = {name.removesuffix(".pem") for name in files.split() if name.endswith(".pem")}
    return [f"{service} sees the identity of {other}" for other in sorted((seen & principals) - {service})]


def check_targets(engine: Engine) -> None:
    """Wait until Prometheus scrapes all targets.

    Raises:
        VerifyError: a target is down at the deadline.
    """
    url = "http://127.0.0.1:9090/api/v1/targets?state=active"
    deadline = time.monotonic() + _TARGETS_S
    while True:
        targets: list[dict[str, Any]] = []
        try:
            output = engine.compose("exec", "--no-TTY", "prometheus", "wget", "-q", "-O", "-", url)
            targets = json.loads(output)["data"]["activeTargets"]
            down = [f"{one['labels']['instance']}: {one['lastError']}" for one in targets if one["health"] != "up"]
        except EngineError as error:
            down = [str(error)]
        if targets and not down:
            say(f"Prometheus scrapes {len(targets)} targets")
            return
        if time.monotonic() > deadline:
            raise VerifyError(f"Prometheus cannot scrape {'; '.join(down) or 'anything'}")
        time.sleep(_POLL_S)


def check_dashboards(engine: Engine) -> None:
    """Compare Grafana's dashboards with those of the repository.

    Raises:
        VerifyError: it has others.
    """
    password = f"$(cat {_OWN}/{GRAFANA_PASSWORD})"
    url = f"http://admin:{password}@127.0.0.1:3000/api/search?type=dash-db"
    found = json.loads(engine.compose("exec", "--no-TTY", "grafana", "sh", "-c", f'wget -q -O - "{url}"'))
    shown = {one["uid"] for one in found}
    wanted = {json.loads(path.read_text())["uid"] for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
    if shown != wanted:
        raise VerifyError(f"Grafana shows the dashboards {sorted(shown)}, and there are {sorted(wanted)}")
    say(f"Grafana shows {len(shown)} dashboards")
