"""Network addresses, as far as a service's safety depends on them. Pure."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the host, which has no port. An empty host binds to every address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
