"""The services as supervised processes of the local stack, and the key that they share.

What holds: a service gets its settings by the environment only, and is ready when its /readyz says so. It must not
know which services there are.
"""

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from deploy.local.component import Component, http_ready
from deploy.local.process import ManagedProcess
from deploy.local.topology import ServiceSpec

_ROOT = Path(__file__).parents[2]
_KEY_BYTES = 32


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


def make_key(path: Path) -> None:
    """A random key, once: it outlives restarts, so that subscribers' secrets stay as they are."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_KEY_BYTES))
