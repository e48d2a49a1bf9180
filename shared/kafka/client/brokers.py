"""One connection to each broker, each with its own time limit: for requests that every broker answers differently.

`Cluster` retries until it has one answer; here a silent or missing broker is reported at once and delays no other
broker.

Invariant: a request takes at most `answer_s`, including connecting. A connection whose request was not answered is
closed, so that nothing piles up behind it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from shared.kafka.client.access import Bootstrap, connection_options
from shared.kafka.client.cluster import Target
from shared.kafka.client.errors import (
    DeniedError,
    denying_unusable,
    error_for,
    error_name,
    refuse_handshake,
    unavailable,
)

ANSWER_S = 5.0
CLOSE_S = 1.0
_NO_LEADER = -1

Address = tuple[str, int]


class BrokerSilentError(Exception):
    """A broker did not answer; the message names it and says why."""

    def __init__(self, node_id: int, reason: str) -> None:
        super().__init__(f"broker {node_id}: {reason}")
        self.node_id = node_id


class View(NamedTuple):
    """The cluster's metadata.

    Attributes:
        brokers: addresses by id, of the brokers that the cluster counts as alive.
        leaders: the leader of each partition of the topics asked for; -1 without one.
        missing: topics without metadata, each with Kafka's name of the error: unknown, denied, or unavailable now.
    """

    brokers: dict[int, Address]
    leaders: dict[Target, int]
    missing: dict[str, str]

    def led_by(self, targets: Iterable[Target]) -> dict[int, list[Target]]:
        """Return these partitions by their leader; those without one are left out."""
        led: dict[int, list[Target]] = defaultdict(list)
        for target in targets:
            leader = self.leaders.get(target, _NO_LEADER)
            if leader != _NO_LEADER:
                led[leader].append(target)
        return led

    @property
    def leaderless(self) -> list[Target]:
        """Return the partitions without a leader."""
        return [target for target, leader in self.leaders.items() if leader == _NO_LEADER]


class Brokers:
    """Open connections while the context is entered; each is made on first use.

    Args:
        client_id: as the brokers log it.
        answer_s: seconds that a broker may take to answer one request.
    """

    def __init__(self, bootstrap_servers: Bootstrap, *, client_id: str = "once", answer_s: float = ANSWER_S) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._client_id = client_id
        self._answer_s = answer_s
        self._bootstrap: list[Address] = [(host, port) for host, port, _ in collect_hosts(str(bootstrap_servers))]
        self._addresses: dict[int, Address] = {}
        self._connections: dict[Address, Any] = {}
        self._connecting: dict[Address, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        closing = [connection.close() for connection in self._connections.values()]
        self._connections.clear()
        if closing:  # does not wait for data that a silent broker has not read
            await asyncio.wait(closing, timeout=CLOSE_S)

    async def view(self, topics: Iterable[str]) -> View:
        """Ask one broker after the other, connected ones first, until one returns metadata.

        Args:
            topics: topics to describe; asking creates none.

        Raises:
            KafkaUnavailableError: no broker answers.
            DeniedError: no broker accepts this principal, or its files cannot be used.
        """
        request = MetadataRequest(sorted(topics), allow_auto_topic_creation=False)
        silent: list[str] = []
        for address in self._candidates():
            try:
                response = await self._ask(address, request)
            except (KafkaError, OSError, TimeoutError) as error:
                silent.append(f"{address[0]}:{address[1]} {_reason(error, self._answer_s)}")
                continue
            view = _view(response)
            if view.brokers:
                self._keep_only(view.brokers)
                return view
            silent.append(f"{address[0]}:{address[1]} knows of no broker")
        await refuse_handshake(self.bootstrap_servers)
        raise unavailable(self.bootstrap_servers, f"no broker answers: {'; '.join(silent)}")

    async def ask(self, node_id: int, request: Any) -> Any:
        """Send one request to one broker and wait for its response.

        Args:
            node_id: of a broker of the last `view`.
            request: one of aiokafka's, or of the same form.

        Raises:
            BrokerSilentError: it did not answer in time, or cannot be connected to.
        """
        address = self._addresses.get(node_id)
        if address is None:
            raise BrokerSilentError(node_id, "not part of the cluster now")
        try:
            return await self._ask(address, request)
        except (KafkaError, OSError, TimeoutError, DeniedError) as error:
            raise BrokerSilentError(node_id, _reason(error, self._answer_s)) from error

    def _candidates(self) -> list[Address]:
        known = dict.fromkeys([*self._addresses.values(), *self._bootstrap])
        return sorted(known, key=lambda address: not self._connected(address))

    def _connected(self, address: Address) -> bool:
        connection = self._connections.get(address)
        return connection is not None and connection.connected()

    async def _ask(self, address: Address, request: Any) -> Any:
        connection: Any = None
        try:
            async with asyncio.timeout(self._answer_s):
                connection = await self._connection(address)
                return await connection.send(request)
        except (KafkaError, OSError, TimeoutError):
            # Close only the failed connection: another request may have opened a new one meanwhile
            current = self._connections.get(address)
            if current is not None and current is connection:
                del self._connections[address]
                current.close()
            raise

    async def _connection(self, address: Address) -> Any:
        async with self._connecting[address]:
            if not self._connected(address):
                with denying_unusable():
                    options = connection_options(self.bootstrap_servers)
                self._connections[address] = await create_conn(
                    *address,
                    client_id=self._client_id,
                    request_timeout_ms=int(self._answer_s * 1000),
                    **options,
                )
            return self._connections[address]

    def _keep_only(self, brokers: dict[int, Address]) -> None:
        self._addresses = dict(brokers)
        for address in self._connections.keys() - set(brokers.values()):
            self._connections.pop(address).close()


def _view(response: Any) -> View:
    leaders: dict[Target, int] = {}
    missing: dict[str, str] = {}
    for error_code, topic, _, partitions in response.topics:
        if error_code:
            missing[topic] = error_name(error_for(error_code)())
        for partition in partitions:
            leaders[topic, partition[1]] = partition[2]
    brokers = {node_id: (host, port) for node_id, host, port, *_ in response.brokers}
    return View(brokers, leaders, missing)


def _reason(error: Exception, answer_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {answer_s:g} s"
    return str(error) or error_name(error)
