"""Network addresses, as far as a service's safety depends on them. Pure."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether the host is `localhost` or a loopback address, so that only this machine can connect.

    Args:
        host: a name or an address, without a port. An empty host binds to every address and is not a loopback.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
