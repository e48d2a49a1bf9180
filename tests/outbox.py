"""The outbox for integration tests, over a test's brokers."""

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.drills.outbox import OutboxSite, Results, judge_effects
from deploy.drills.sinks.processes import MailboxProcess, ReceiverProcess
from deploy.local.redis.server import LocalRedis
from shared.events.effects import EffectRequest
from tests.harness import Service, cluster


class World(OutboxSite):
    """An outbox with its sinks, its instances forked."""

    service_type = Service

    def outbox(self, instance: str = "0", **settings: str) -> Service:
        """See `OutboxSite.outbox`."""
        service = super().outbox(instance, **settings)
        assert isinstance(service, Service)
        return service


def assert_i11(requests: Sequence[EffectRequest], results: Results, effects: Counter[str]) -> Counter[str]:
    """Check that each request has one distinct effect at its sink, and doubts are reported.

    Returns:
        Number of results by state.
    """
    judged = judge_effects(requests, results, effects)
    assert judged[1:] == ([], [], [])
    return judged.states


@contextmanager
def world(directory: Path) -> Iterator[World]:
    """A world with its own brokers, stopped at the end: its requests are of payments that do not exist."""
    with cluster(directory / "kafka") as kafka, world_over(kafka.bootstrap_servers, directory) as made:
        yield made


@contextmanager
def world_over(bootstrap_servers: str, directory: Path) -> Iterator[World]:
    """A world over brokers that run."""
    directory.mkdir(parents=True, exist_ok=True)
    key_file = directory / "webhook.key"
    key_file.write_text(secrets.token_hex(32))
    redis = LocalRedis(directory / "redis")
    redis.start()
    try:
        redis.wait_ready()
        with (
            ReceiverProcess(directory / "receiver", key_file) as receiver,
            MailboxProcess(directory / "mailbox") as mailbox,
        ):
            made = World(bootstrap_servers, directory, redis, receiver, mailbox)
            try:
                yield made
            finally:
                made.stop()
    finally:
        redis.kill()
