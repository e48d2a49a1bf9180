"""Checks of running containers against what the deployment promises.

Pure: takes the output of `docker inspect`, returns a sentence for each fault.
"""

from collections.abc import Mapping
from typing import Any, Final

PUBLISHED: Final = frozenset({"gateway", "balances"})
LOOPBACK: Final = "127.0.0.1"


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
    """Credentials of others that a container sees.

    Args:
        service: its own.
        files: the names in its folder of credentials, in lines.
        principals: everyone who has an identity.
    """
    seen = {name.removesuffix(".pem") for name in files.split() if name.endswith(".pem")}
    return [f"{service} sees the identity of {other}" for other in sorted((seen & principals) - {service})]
