"""Free loopback ports.

They are taken below the range from which the kernel picks ports for outgoing connections: a port there could be
lost to any client while its broker is down, and a broker must come back where it was. A process does not give one out
twice in a row: who was given it may not listen yet.
"""

import secrets
import socket
from collections import deque

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20_000, 32_000
_TRIES_MAX = 1_000
_given: deque[int] = deque(maxlen=1_000)


class NoFreePortError(RuntimeError):
    """No free port was found within a bounded number of tries."""


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that nothing listens on now.

    Raises:
        NoFreePortError: the range is as good as full.
    """
    ports: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(ports) == count:
            return ports
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if port not in _given and _is_free(port):
            _given.append(port)
            ports.append(port)
    raise NoFreePortError(f"no {count} free ports between {_FIRST} and {_LAST} on {LOOPBACK}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
