"""Faults of brokers: one lost, the quorum lost, and an unclean leader election.

Each node is a controller as well: without two of three there are no elections.
"""

from collections.abc import Sequence
from typing import Final

from deploy.drills.admin import create_topic, delete_topic
from deploy.drills.alerts.site import Site, Written
from deploy.drills.waiting import until

TOPIC: Final = "drill.brokers"
_LED_S: Final = 60.0


class LostReplica:
    """A broker is killed that has a replica of a topic which needs it.

    Args:
        node: the broker.
        replicas: the brokers that have the topic's, the first leader first.
        in_sync: its min.insync.replicas.
    """

    def __init__(self, node: int, replicas: Sequence[int], in_sync: int) -> None:
        self._node = node
        self._replicas = replicas
        self._in_sync = in_sync

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        in_sync = str(self._in_sync)
        await create_topic(site.bootstrap_servers, TOPIC, on=self._replicas, min_insync_replicas=in_sync)
        return site.lose(f"broker-{self._node}")

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        await site.heal()
        await delete_topic(site.bootstrap_servers, TOPIC)


class LostQuorum:
    """Several brokers are killed.

    Args:
        nodes: which ones.
    """

    def __init__(self, *nodes: int) -> None:
        self._nodes = nodes

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        return ", ".join(site.lose(f"broker-{node}") for node in self._nodes)

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        await site.heal()


class UncleanElection:
    """A replica that is out of sync comes back alone, on a topic that allows it to lead."""

    _FIRST, _LAST = 1, 2

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        first, last = (f"broker-{node}" for node in (self._FIRST, self._LAST))
        on, brokers = (self._FIRST, self._LAST), site.bootstrap_servers
        await create_topic(brokers, TOPIC, on=on, min_insync_replicas="1", unclean_leader_election_enable="true")
        site.lose(last)
        await until(lambda: site.in_sync(TOPIC, 0) == (self._FIRST,), f"{first} leads alone", _LED_S)
        await site.write(TOPIC, 0, [Written(b"key", b"only one broker has it")])
        site.lose(first)
        site.bring_back(last)
        await until(lambda: site.in_sync(TOPIC, self._LAST) == (self._LAST,), f"{last} leads what it never had", _LED_S)
        return f"{last} leads without a record that {first} has"

    async def heal(self, site: Site) -> None:
        """See `SiteFault.heal`."""
        await site.heal()
        await delete_topic(site.bootstrap_servers, TOPIC)
