"""Network addresses, as far as a service's safety depends on them. Pure."""

import ipaddress
from collections.abc import Iterable
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# IANA's special-purpose registries (RFC 6890). A table, because `ipaddress` judges differently from release to release
_SPECIAL: Final = tuple(
    (ipaddress.ip_network(network), kind)
    for kind, networks in {
        "an unspecified": "0.0.0.0/8 ::/128",
        "a loopback": "127.0.0.0/8 ::1/128",
        "a link-local": "169.254.0.0/16 fe80::/10",
        "a private": "10.0.0.0/8 100.64.0.0/10 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10 64:ff9b:1::/48",
        "a multicast": "224.0.0.0/4 ff00::/8",
        "a reserved": "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 "
        "240.0.0.0/4 2001::/23 2001:db8::/32 3fff::/20",
    }.items()
    for network in networks.split()
)
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the host, which has no port. An empty host binds to every address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(text: str) -> bool:
    """Whether it is an IP address, without brackets or port."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse networks in CIDR notation, comma separated; ValueError names the first that is none."""
    return tuple(ipaddress.ip_network(part) for part in text.replace(" ", "").split(",") if part)


def reached(address: Address) -> Address:
    """The IPv4 address that packets to an IPv6 address reach: IPv4-mapped, 6to4, NAT64. Else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    """Whether the address, or the one that it reaches, is of one of the networks."""
    return any(each in network for network in networks for each in (address, reached(address)))


def why_not_public(address: Address) -> str | None:
    """The kind of an address that is not of the public internet, such as `a private`; None for a public one."""
    end = reached(address)
    for network, kind in _SPECIAL:
        if end in network:
            return kind
    return "a reserved" if isinstance(end, ipaddress.IPv6Address) and end not in _GLOBAL_UNICAST else None
