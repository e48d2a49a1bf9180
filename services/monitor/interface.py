"""The monitor's JSON interface, on the port of its metrics: the state of the cluster, and the steps of payments.

Invariant: it only reads, and GET is the only method. A request that names an unknown Host is refused. The state comes
from memory. Requests that read records are bounded in number, postings and time, and begin at ledger.postings.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from aiohttp import hdrs, web

from services.monitor.domain import Picture
from services.monitor.steps import steps_of
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.headers import Coordinates
from shared.http.hosts import Hosts
from shared.http.monitor import AT, CLUSTER_PATH, POSTINGS_MAX, STEPS_PATH, ClusterState, Steps
from shared.http.problems import Refused
from shared.http.serving import Places, json_answer, observed
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import KafkaUnavailableError

PLACES: Final = 4  # requests that read records at once: each one opens connections of its own
_POSTING: Final = re.compile(rf"{re.escape(LEDGER_POSTINGS)}:([0-9]{{1,9}}):([0-9]{{1,18}})")

Question = Callable[[web.Request], Awaitable[msgspec.Struct]]


class RefusedError(Exception):
    """A request that gets no 200."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.body = Refused(error, detail)


class Interface:
    """The handlers.

    Args:
        bootstrap_servers: where records are read.
        picture: returns the values of the last round.
        failure: returns why that round was not complete; empty if it was.
        hosts: names by which clients may reach the monitor.
    """

    def __init__(
        self, bootstrap_servers: Bootstrap, picture: Callable[[], Picture], failure: Callable[[], str], hosts: Hosts
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._picture = picture
        self._failure = failure
        self._hosts = hosts
        self._places = Places(PLACES, partial(RefusedError, 503, "busy", "too many ways are being read: ask again"))

    def routes(self) -> list[web.RouteDef]:
        questions: dict[str, Question] = {CLUSTER_PATH: self.get_cluster, STEPS_PATH: self.get_steps}
        return [web.get(path, self._answering(ask), allow_head=False) for path, ask in questions.items()]

    async def get_cluster(self, _: web.Request) -> ClusterState:
        return state_of(self._picture(), self._failure())

    async def get_steps(self, request: web.Request) -> Steps:
        postings = postings_of(list(request.query.items()))
        with self._places.one():
            try:
                return await steps_of(self._bootstrap_servers, postings)
            except KafkaUnavailableError as error:
                detail = "the brokers did not answer in time: ask again"
                raise RefusedError(503, "kafka_unavailable", detail) from error

    def _check_host(self, request: web.Request) -> None:
        if not self._hosts.known(request.headers.get(hdrs.HOST)):
            detail = "this Host is not a name of the monitor: use its address, or name it in ONCE_MONITOR_HOSTS"
            raise RefusedError(421, "host_unknown", detail)

    def _answering(self, ask: Question) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                self._check_host(request)
                return json_answer(await ask(request), 200)
            except RefusedError as error:
                return json_answer(error.body, error.status)

        async def counted(request: web.Request) -> web.StreamResponse:
            return await observed(request, answer)

        return counted


def state_of(picture: Picture, failure: str) -> ClusterState:
    """Sum a picture by topic and by group. Pure."""
    lso_lag: Counter[str] = Counter()
    for (topic, _), known in picture.partitions.items():
        lso_lag[topic] += max(known.end - known.stable, 0)
    behind = {group: sum(by_partition.values()) for group, by_partition in picture.behind.items()}
    return ClusterState(failure, picture.brokers, dict(lso_lag), behind, picture.run)


def postings_of(query: list[tuple[str, str]]) -> list[Coordinates]:
    """Parse the coordinates of a question for steps; RefusedError if it has others, none or too many. Pure."""
    found = [_POSTING.fullmatch(value) for name, value in query if name == AT]
    if not 1 <= len(query) <= POSTINGS_MAX or len(found) != len(query):
        raise _refused()
    return [_coordinates(match) for match in found]


def _coordinates(match: re.Match[str] | None) -> Coordinates:
    if match is None:
        raise _refused()
    return Coordinates(LEDGER_POSTINGS, int(match[1]), int(match[2]))


def _refused() -> RefusedError:
    detail = f"send {AT}={LEDGER_POSTINGS}:PARTITION:OFFSET, 1 to {POSTINGS_MAX} times, and no other parameter"
    return RefusedError(400, "parameter_invalid", detail)
