"""The monitor's JSON interface, over real connections to the port of its metrics."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

import aiohttp
import pytest

from services.monitor import interface
from services.monitor.domain import Partition, Picture
from services.monitor.interface import PLACES, Interface
from services.monitor.steps import steps_of
from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_RAW
from shared.events.headers import Coordinates
from shared.events.operations import RunOutcome
from shared.http.hosts import Hosts
from shared.http.monitor import CLUSTER_PATH, POSTINGS_MAX, STEPS_PATH, Run, Step, Steps
from shared.kafka.client.access import Bootstrap
from shared.telemetry.server import Health, TelemetryServer

NO_BROKERS = "127.0.0.1:1"
RUN = Run(7_000, RunOutcome(2, "cut", "m", "r", "breaks", True, {"lost": 1}))
STEP = Step("raw", PAYMENTS_RAW, 1, 2, "payments.raw:1:2", 3, None, found=True)


class Served:
    """A monitor's interface that listens, and what it answers from."""

    def __init__(self) -> None:
        self.picture = Picture()
        self.failure = ""
        routes = Interface(NO_BROKERS, lambda: self.picture, lambda: self.failure, Hosts(["monitor"])).routes()
        self.server = TelemetryServer(0, Health(), more=routes)

    async def ask(self, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, Any]:
        """Status and decoded body."""
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers={"Host": host}) as answer,
        ):
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" and text else text


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    async with made.server:
        yield made


async def test_the_state_is_summed_by_topic_and_group(served: Served) -> None:
    served.picture = Picture(
        asked=True,
        brokers=2,
        partitions={
            (PAYMENTS_RAW, 0): Partition(10, 13),
            (PAYMENTS_RAW, 1): Partition(4, 8),
            (LEDGER_TRANSFERS, 0): Partition(7, 7),
        },
        behind={"ingest": {(PAYMENTS_RAW, 0): 3, (PAYMENTS_RAW, 1): 2}},
        run=RUN,
    )
    served.failure = "broker 1: no answer within 2 s"
    status, state = await served.ask(CLUSTER_PATH)
    assert status == 200
    outcome = state["run"].pop("outcome")
    assert state == {
        "failure": "broker 1: no answer within 2 s",
        "brokers": 2,
        "lso_lag": {PAYMENTS_RAW: 7, LEDGER_TRANSFERS: 0},
        "behind": {"ingest": 5},
        "run": {"at_ms": 7_000},
    }
    assert (outcome["cut_id"], outcome["verdict"], outcome["breaks"]) == ("cut", "breaks", {"lost": 1})


async def test_before_any_round_nothing_is_known(served: Served) -> None:
    served.failure = "not asked yet"
    state = {"failure": "not asked yet", "brokers": 0, "lso_lag": {}, "behind": {}, "run": None}
    assert await served.ask(CLUSTER_PATH) == (200, state)


async def test_steps_are_those_of_the_postings_that_were_named(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Bootstrap, list[Coordinates]]] = []

    async def steps(brokers: Bootstrap, postings: Iterable[Coordinates]) -> Steps:
        asked.append((brokers, list(postings)))
        return Steps((STEP,))

    monkeypatch.setattr(interface, "steps_of", steps)
    query = "&".join(f"at={LEDGER_POSTINGS}:{number}:{number + 5}" for number in range(POSTINGS_MAX))
    status, found = await served.ask(f"{STEPS_PATH}?{query}")
    assert status == 200
    assert found["steps"][0]["at"] == STEP.at
    postings = [Coordinates(LEDGER_POSTINGS, number, number + 5) for number in range(POSTINGS_MAX)]
    assert asked == [(NO_BROKERS, postings)]


@pytest.mark.parametrize(
    "query",
    [
        "",
        "at=",
        "at=payments.raw:0:1",
        "at=ledger.postings:0",
        "at=ledger.postings:0:-1",
        "at=ledger.postings:0:1x",
        f"at=ledger.postings:0:{'9' * 19}",
        "at=ledgerxpostings:0:1",
        "at=ledger.postings:0:1&payment_id=p-1",
        "payment_id=p-1",
        "&".join(["at=ledger.postings:0:1"] * (POSTINGS_MAX + 1)),
    ],
)
async def test_other_questions_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.setattr(interface, "steps_of", None)  # must not be called
    status, body = await served.ask(f"{STEPS_PATH}?{query}")
    assert (status, body["error"]) == (400, "parameter_invalid")
    assert "at=ledger.postings:PARTITION:OFFSET, 1 to 20 times" in body["detail"]


async def test_silent_brokers_are_a_refusal_in_time_and_not_logged(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(interface, "steps_of", partial(steps_of, deadline_s=0.3))
    async with asyncio.timeout(10):
        status, body = await served.ask(f"{STEPS_PATH}?at=ledger.postings:3:12345")
    assert (status, body["error"]) == (503, "kafka_unavailable")
    assert "12345" not in caplog.text


async def test_requests_that_read_records_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go = asyncio.Semaphore(0), asyncio.Event()

    async def steps(*_: object) -> Steps:
        reading.release()
        await go.wait()
        return Steps(())

    monkeypatch.setattr(interface, "steps_of", steps)
    path = f"{STEPS_PATH}?at=ledger.postings:0:1"
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        under_way = [tasks.create_task(served.ask(path)) for _ in range(PLACES)]
        for _ in under_way:
            await reading.acquire()
        status, body = await served.ask(path)
        assert (status, body["error"]) == (503, "busy")
        assert (await served.ask(CLUSTER_PATH))[0] == 200
        go.set()
    assert [task.result()[0] for task in under_way] == [200] * PLACES
    assert (await served.ask(path))[0] == 200


@pytest.mark.parametrize("path", [CLUSTER_PATH, f"{STEPS_PATH}?at=ledger.postings:0:1"])
async def test_a_host_of_another_name_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async def steps(*_: object) -> Steps:
        return Steps(())

    monkeypatch.setattr(interface, "steps_of", steps)
    for host, expected in (("evil.example", 421), ("monitor:9100", 200), ("localhost", 200), ("10.0.0.7:9100", 200)):
        status, body = await served.ask(path, host=host)
        assert status == expected, host
        assert status == 200 or body["error"] == "host_unknown"
    assert (await served.ask("/readyz", host="prometheus-sees.example"))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
async def test_the_interface_answers_get_alone(served: Served, method: str) -> None:
    for path in (CLUSTER_PATH, f"{STEPS_PATH}?at=ledger.postings:0:1"):
        assert (await served.ask(path, method))[0] == 405
