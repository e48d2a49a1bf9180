"""Two installations with the same payments on one Redis, one webhook receiver and one mail server: nothing is lost."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from deploy.drills.outbox import requests_to
from shared.events.effects import EffectRequest, EffectState, effect_id
from shared.kafka.admin.installation import installation_id
from tests.harness import Service, cluster
from tests.outbox import World, assert_i11, world
from tests.tiers import full

pytestmark = [pytest.mark.timeout(400), full]

CALLS, MAILS = 60, 10
MAILTO = "mailto:alice@example.org"


@pytest.fixture
def first(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path / "first") as made:
        yield made


@pytest.fixture
def second(first: World, tmp_path: Path) -> Iterator[World]:
    """Another cluster, with the first one's Redis, receiver and mailbox."""
    with cluster(tmp_path / "second") as kafka:
        made = World(kafka.bootstrap_servers, first.directory, first.redis, first.receiver, first.mailbox)
        try:
            yield made
        finally:
            made.stop()


async def of(installation: World, requests: Sequence[EffectRequest]) -> list[EffectRequest]:
    """The same payments' requests as this installation's ledger writes them."""
    identity = await installation_id(installation.bootstrap_servers)
    return [
        msgspec.structs.replace(
            one,
            effect_id=effect_id(one.payment_id.encode(), one.kind, one.event, one.destination, installation=identity),
        )
        for one in requests
    ]


async def assert_all_made(installation: World, requests: Sequence[EffectRequest]) -> None:
    """Write requests, and check that each is made once and known to be."""
    await installation.write(requests)
    results = await installation.settled(requests, 90.0)
    made = installation.webhook_effects() + installation.mail_effects()
    assert assert_i11(requests, results, made) == {EffectState.SENT: len(requests)}
    assert {made[request.effect_id] for request in requests} == {1}


def distrusted(*services: Service) -> float:
    return sum(service.metric("once_redis_distrusted_total") for service in services)


async def test_installations_share_redis_and_receivers(first: World, second: World) -> None:
    payments = [*requests_to(first.receiver.url, CALLS), *requests_to(MAILTO, MAILS)]
    former = first.outbox().start().wait_ready()
    await assert_all_made(first, await of(first, payments))
    assert former.process.terminate() == 0

    recreated = second.outbox().start().wait_ready()
    await assert_all_made(second, await of(second, payments))

    again = first.outbox().start().wait_ready()
    payments = [*requests_to(first.receiver.url, CALLS), *requests_to(MAILTO, MAILS)]
    for installation in (first, second):
        await installation.write(await of(installation, payments))
    for installation in (first, second):
        await assert_all_made(installation, await of(installation, payments))  # repeats are not made again
    assert distrusted(recreated, again) == 0
