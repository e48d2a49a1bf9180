"""The services as supervised processes of the local stack.

Invariant: a service gets its settings by the environment only, and is ready when its /readyz says so.
"""

from collections.abc import Mapping
from pathlib import Path

from deploy.local.process import ManagedProcess
from deploy.local.supervisor.component import Component, http_ready
from deploy.local.supervisor.topology import ServiceSpec

_ROOT = Path(__file__).parents[3]


def service_component(spec: ServiceSpec, logs: Path, extra: Mapping[str, str]) -> Component:
    """A service that has not been started.

    Args:
        spec: how it is started.
        logs: the directory of its log.
        extra: further variables; those of `spec` take precedence.
    """
    environment = {**extra, **spec.environment}
    process = ManagedProcess(spec.name, spec.argv, environment, logs / f"{spec.name}.log", cwd=_ROOT)
    return Component(process, lambda: http_ready(spec.metrics_port), spec.endpoint)
