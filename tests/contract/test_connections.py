"""Brokers that are silent or starting: others are connected all the same, and none is waited for twice."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from deploy.drills.proxy.addresses import Address, rewrite
from deploy.drills.proxy.proxy import Proxy
from deploy.drills.proxy.rules import Hold, Part, Rule
from shared.kafka.client import connections
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.requests import Request
from shared.kafka.protocol.headers import decode_correlation_id, decode_response, encode_response
from tests.contract.steps import RAW

FEATURES = Request("ApiVersions", 3, {"ClientSoftwareName": "once", "ClientSoftwareVersion": "0"})
LONG_S = 60.0

pytestmark = pytest.mark.timeout(60)


@pytest_asyncio.fixture
async def proxy(brokers: str) -> AsyncIterator[Proxy]:
    async with Proxy(brokers) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def cluster(proxy: Proxy) -> AsyncIterator[Cluster]:
    async with Cluster(proxy.bootstrap_servers, request_timeout_s=LONG_S, deadline_s=LONG_S) as cluster:
        yield cluster


async def test_a_connection_that_is_not_answered_keeps_no_other_from_being_opened(
    proxy: Proxy, cluster: Cluster
) -> None:
    held = proxy.add(Rule(api="ApiVersions", action=Hold(Part.ANSWER)))
    silent = asyncio.create_task(cluster.send(cluster.some_broker, FEATURES))
    await held.acted()
    answer = await cluster.send(cluster.some_broker, FEATURES, coordination=True)
    assert answer["ErrorCode"] == 0
    assert not silent.done()
    held.release()
    assert (await silent)["ErrorCode"] == 0


async def test_nothing_waits_for_a_broker_that_did_not_answer_before(
    proxy: Proxy, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(deadline_s: float) -> int:
        sent = await cluster.retry(
            lambda: cluster.send(cluster.some_broker, FEATURES), "no answer", refresh=False, deadline_s=deadline_s
        )
        return int(sent["ErrorCode"])

    monkeypatch.setattr(connections, "CONNECTION_S", 0.2)
    monkeypatch.setattr(connections, "SILENT_S", 0.01)
    held = proxy.add(Rule(api="ApiVersions", action=Hold(Part.ANSWER), times_max=None))
    with pytest.raises(KafkaUnavailableError, match="not ready"):
        await ask(0.3)
    monkeypatch.setattr(connections, "CONNECTION_S", LONG_S)
    with pytest.raises(KafkaUnavailableError, match="not ready"):
        await ask(0.3)
    await held.acted(2)  # it is being connected all the same
    held.release()
    assert await ask(LONG_S) == 0


async def test_the_first_connection_is_given_up_earlier(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "FIRST_S", 0.2)
    monkeypatch.setattr(connections, "CONNECTION_S", LONG_S)
    async with Proxy(brokers) as proxy:
        held = proxy.add(Rule(api="ApiVersions", action=Hold(Part.ANSWER)))
        async with Cluster(proxy.bootstrap_servers, request_timeout_s=LONG_S, deadline_s=LONG_S) as cluster:
            assert cluster.brokers
        assert len(held.evidence.acts) == 1
        held.release()


async def test_a_broker_that_names_none_is_asked_again(
    brokers: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is starting or was paused may answer before the controllers count it as alive."""
    unnamed = 0

    def naming_none(api: str, version: int, frame: bytes, listeners: Mapping[Address, Address]) -> bytes:
        nonlocal unnamed
        if api != "Metadata" or unnamed == 3:
            return rewrite(api, version, frame, listeners)
        unnamed += 1
        values = decode_response(api, version, frame) | {"Brokers": []}
        return encode_response(api, version, values, correlation_id=decode_correlation_id(frame))

    monkeypatch.setattr("deploy.drills.proxy.proxy.rewrite", naming_none)
    async with IdempotentWriter(proxy.bootstrap_servers) as writer:  # its start is not repeated, unlike a cluster's
        assert unnamed == 3
        await writer.send(RAW, 0, b"k", b"v")
