"""Addresses of the public internet, and all others."""

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.addresses import Address, is_within, parse_networks, reached, why_not_public

PUBLIC = (
    "8.8.8.8 1.1.1.1 100.63.255.255 100.128.0.0 172.15.0.1 172.32.0.1 192.167.1.1 198.17.1.1 223.255.255.255 "
    "2606:4700::1 2a00::1 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::1"
)
REFUSED = {
    "an unspecified": "0.0.0.0 0.1.2.3 :: ::ffff:0.0.0.0",
    "a loopback": "127.0.0.1 127.255.255.254 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::5",
    "a link-local": "169.254.169.254 fe80::1 fe80::1%eth0 ::ffff:169.254.169.254 64:ff9b::a9fe:a9fe",
    "a private": "10.0.0.1 100.64.0.1 172.16.0.1 172.31.255.255 192.168.1.1 fc00::1 fd12::1 fec0::1 ::ffff:10.0.0.1 "
    "64:ff9b::a00:1 64:ff9b:1::a00:1 2002:a00:1:: 2002:c0a8:101::1",
    "a multicast": "224.0.0.1 239.255.255.255 ff02::1 ::ffff:224.0.0.1",
    "a reserved": "192.0.0.8 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 240.0.0.1 255.255.255.255 2001::1 "
    "2001:db8::1 3fff::1 100::1 5f00::1 ::7f00:1 4000::1",
}
KINDS = [(address, kind) for kind, addresses in REFUSED.items() for address in addresses.split()]


@pytest.mark.parametrize(("address", "kind"), [*((address, None) for address in PUBLIC.split()), *KINDS])
def test_each_address_has_its_kind(address: str, kind: str | None) -> None:
    assert why_not_public(ipaddress.ip_address(address)) == kind


@given(st.ip_addresses())
def test_no_address_that_the_library_takes_for_private_is_public(address: Address) -> None:
    if why_not_public(address) is None:
        assert reached(address).is_global
        assert not reached(address).is_multicast


@given(st.ip_addresses(v=4))
def test_an_address_is_judged_alike_however_it_is_carried(address: ipaddress.IPv4Address) -> None:
    carried = [
        ipaddress.IPv6Address(bytes(10) + b"\xff\xff" + address.packed),
        ipaddress.IPv6Address(bytes.fromhex("0064ff9b") + bytes(8) + address.packed),
        ipaddress.IPv6Address(b"\x20\x02" + address.packed + bytes(10)),
    ]
    assert {reached(each) for each in carried} == {address}
    assert {why_not_public(each) for each in carried} == {why_not_public(address)}


def test_networks_are_parsed() -> None:
    assert parse_networks("") == parse_networks(" , ") == ()
    networks = parse_networks("10.2.0.0/16, fd00::/8,127.0.0.1")
    assert [str(network) for network in networks] == ["10.2.0.0/16", "fd00::/8", "127.0.0.1/32"]
    inside = ("10.2.3.4", "fd00::1", "127.0.0.1", "::ffff:10.2.3.4", "64:ff9b::a02:304")
    assert [is_within(ipaddress.ip_address(address), networks) for address in inside] == [True] * len(inside)
    for outside in ("10.3.0.0", "fe80::1", "127.0.0.2", "::ffff:10.3.0.0"):
        assert not is_within(ipaddress.ip_address(outside), networks)


@pytest.mark.parametrize("text", ["10.2.0.0/33", "10.2.0.1/16", "localhost", "10.0.0.0/8;11.0.0.0/8"])
def test_what_is_no_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        parse_networks(f"127.0.0.0/8,{text}")
