"""The names by which clients may reach a server, against DNS rebinding. Pure.

A page of another site can have its own name resolve to this server, and then send requests to it from a browser. Such a
request has that name in its Host header. An address in the header needs no DNS, so it is always known.
"""

import re
from collections.abc import Iterable
from typing import Final

from shared.addresses import is_address

_HOST: Final = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::[0-9]{1,5})?")


class Hosts:
    """Known names: localhost, and further ones of DNS, without port."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: Final = frozenset({"localhost", *(name.strip().lower() for name in names if name.strip())})

    def known(self, host: str | None) -> bool:
        """Whether a Host header, with or without port, has an address or a known name."""
        found = _HOST.fullmatch(host or "")
        if found is None:
            return False
        name = (found["name"] or "").lower().removesuffix(".")
        return name in self._names or is_address(found["address"] or name)
