"""An operator's commands on a secure stack."""

import json
import os
import subprocess
import sys
from typing import Any

from deploy.local.supervisor.stack import Stack
from shared.kafka.client.access import Tls
from tests.harness import ROOT

COMMAND_S = 800.0
READY_S = 180.0


def once(
    stack: Stack, *arguments: str, tls: Tls | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command as an operator, or with the identity in `tls`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ONCE_")}
    clean |= {"ONCE_DIR": str(stack.directory), **environment}
    if tls is not None:
        clean |= {"ONCE_TLS_CA_FILE": tls.ca_file, "ONCE_TLS_IDENTITY_FILE": tls.identity_file}
    command = [sys.executable, "-m", "deploy.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=COMMAND_S, check=False)


def verdict(stack: Stack) -> dict[str, Any]:
    """Run `once verify` without further arguments and return its result."""
    done = once(stack, "verify", "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
