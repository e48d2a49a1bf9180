"""Network addresses, as far as a service's safety depends on them. Pure."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on, or is asked at, this host: `localhost` or a loopback address.

    Args:
        host: a name or an address, without a port; an empty one, which binds to every address, is none.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
