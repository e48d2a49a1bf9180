"""Faults of brokers: one lost, the quorum lost, and an unclean leader election.

Each node is a controller as well: without two of three there are no elections.
"""

import asyncio
from typing import Final

from deploy.drills.admin import create_topic, delete_topic
from tests.drills.alerts.fault import Fault
from tests.drills.site import Site, Written
from tests.harness import wait_until

TOPIC: Final = "drill.brokers"


class LostReplica(Fault):
    """A broker is killed that has a replica of a topic which needs it.

    Args:
        node: the broker.
        replicas: of the topic, as for `create_topic`.
        in_sync: its min.insync.replicas.
    """

    def __init__(self, node: int, replicas: str, in_sync: int) -> None:
        self._node = node
        self._replicas = replicas
        self._in_sync = in_sync

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        asyncio.run(create_topic(site.kafka, TOPIC, self._replicas, f"min.insync.replicas={self._in_sync}"))
        site.take_away(f"broker-{self._node}")

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        site.bring_back(f"broker-{self._node}")
        site.settle()
        asyncio.run(delete_topic(site.kafka, TOPIC))


class LostQuorum(Fault):
    """Several brokers are killed.

    Args:
        nodes: which ones.
    """

    def __init__(self, *nodes: int) -> None:
        self._nodes = nodes

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        for node in self._nodes:
            site.take_away(f"broker-{node}")

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        for node in self._nodes:
            site.bring_back(f"broker-{node}")
        site.settle()


class UncleanElection(Fault):
    """A replica that is out of sync comes back alone, on a topic that allows it to lead."""

    _FIRST, _LAST = 1, 2

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        replicas = f"{self._FIRST}:{self._LAST}"
        asyncio.run(
            create_topic(site.kafka, TOPIC, replicas, "min.insync.replicas=1", "unclean.leader.election.enable=true")
        )
        site.take_away(f"broker-{self._LAST}")
        wait_until(lambda: site.in_sync(TOPIC, 0) == (self._FIRST,), "the other replica leads alone")
        site.write(TOPIC, 0, [Written(b"key", b"only one broker has it")])
        site.take_away(f"broker-{self._FIRST}")
        site.bring_back(f"broker-{self._LAST}")
        wait_until(lambda: site.in_sync(TOPIC, self._LAST) == (self._LAST,), "it leads what it never had")

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        for node in (self._FIRST, self._LAST):
            site.bring_back(f"broker-{node}")
        site.settle()
        asyncio.run(delete_topic(site.kafka, TOPIC))
