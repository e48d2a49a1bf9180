"""Free loopback ports.

They are taken below the range from which the kernel picks ports for outgoing connections. A port there could be lost to
any client while its broker is down, and a broker must come back where it was. Invariant: while the process that was
given a port lives, no caller is given it again, even while nothing listens; but for the oldest of very many.
"""

import secrets
import socket
from collections import deque

LOOPBACK = "127.0.0.1"
LOOPBACK_NETWORK = "127.0.0.0/8"
LOCAL_HOSTS = (LOOPBACK, "localhost")
"""Names that a local server's certificate is for."""
_FIRST, _LAST = 20_000, 32_000
_TRIES_MAX = 1_000
_KEPT_MAX = 300  # one open file each
_kept: deque[socket.socket] = deque()
"""Reservations of ports: an abstract socket each (unix(7)), which is gone when this process is."""


class NoFreePortError(RuntimeError):
    """The range of ports is as good as full."""


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on now, and that no other caller was given."""
    ports: list[int] = []
    for _ in range(_TRIES_MAX):
        if len(ports) == count:
            return ports
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if _take(port):
            ports.append(port)
    raise NoFreePortError(f"no {count} free ports between {_FIRST} and {_LAST} on {LOOPBACK}")


def _take(port: int) -> bool:
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        mark.bind(f"\0once-port-{port}")
    except OSError:  # another process, or this one, was given it
        mark.close()
        return False
    if not _is_free(port):
        mark.close()
        return False
    _kept.append(mark)
    if len(_kept) > _KEPT_MAX:
        _kept.popleft().close()
    return True


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
