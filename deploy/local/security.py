"""The local stack's credentials: an authority of its own, and an identity for each principal and broker.

Invariant: existing files stay, unless they would expire soon; none of them leaves the stack's directory.
"""

from collections.abc import Sequence
from pathlib import Path

from deploy.local.ports import LOOPBACK
from deploy.security.certificates import Authority, open_authority
from deploy.security.principals import CLIENTS, OPERATOR, broker
from shared.kafka.client.access import Tls

LOCAL_HOSTS = (LOOPBACK, "localhost")


def make_credentials(directory: Path, node_ids: Sequence[int]) -> Authority:
    """Make what is missing of them, and renew what is about to expire.

    Args:
        directory: their folder.
        node_ids: the brokers'.
    """
    authority = open_authority(directory)
    for name in CLIENTS:
        authority.ensure(name)
    for node_id in node_ids:
        authority.ensure(broker(node_id), LOCAL_HOSTS)
    return authority


def tls_as(authority: Authority, name: str = OPERATOR) -> Tls:
    """The files by which a client is `name`."""
    return Tls(str(authority.ca_file), str(authority.identity_file(name)))
