"""The outbox for integration tests: requests as the ledger writes them, its instances, and the check of I11.

The check compares the outbox's results with the sinks' own journals.
"""

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.local.redis.server import LocalRedis
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_REQUESTS, EFFECTS_RESULTS
from shared.events.effects import (
    EffectRequest,
    EffectResult,
    EffectState,
    decode_result,
    effect_id,
    encode_request,
)
from shared.events.headers import ORIGIN, SOURCE
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from tests.harness import Service, cluster, eventually
from tests.partitions import partition_for
from tests.sinks.processes import MailboxProcess, ReceiverProcess

SENDER = "ledger@example.org"
CALL_TIMEOUT_S = 5.0  # a mail's answer has half of it: after that, the mail stays in doubt
LEASE_S = 15.0
BRIEF_LEASE_S = 6.0
BRIEF = {"OUTBOX_CALL_TIMEOUT_S": "3", "OUTBOX_LEASE_S": str(BRIEF_LEASE_S)}
"""Settings of an instance with short timeouts of calls and claims."""
Results = dict[str, EffectResult]


class World:
    """A Redis, the sinks and the outbox over a test's brokers.

    Args:
        bootstrap_servers: the brokers.
        directory: for data and logs.
        redis: that runs.
        receiver, mailbox: that run.
        access: the test's credentials for the brokers; None without access control.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        directory: Path,
        redis: LocalRedis,
        receiver: ReceiverProcess,
        mailbox: MailboxProcess,
        access: Bootstrap | None = None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.access = access or bootstrap_servers
        self.directory = directory
        self.redis = redis
        self.receiver = receiver
        self.mailbox = mailbox
        self.key_file = directory / "webhook.key"
        self._started: list[Service] = []

    def outbox(self, instance: str = "0", **settings: str) -> Service:
        """An instance, not started; `settings` are further variables, ONCE_ prefix left out."""
        given = {
            "REDIS_URL": self.redis.url,
            "WEBHOOK_KEY_FILE": str(self.key_file),
            "SMTP_HOST": "127.0.0.1",
            "SMTP_PORT": str(self.mailbox.port),
            "SMTP_CA_FILE": str(self.mailbox.ca_file),
            "SMTP_SENDER": SENDER,
            "OUTBOX_CALL_TIMEOUT_S": str(CALL_TIMEOUT_S),
            "OUTBOX_LEASE_S": str(LEASE_S),
            "OUTBOX_RETRY_FIRST_S": "0.2",
            "OUTBOX_CIRCUIT_OPEN_S": "0.5",
            "OUTBOX_BATCH_MAX": "20",
            **settings,
        }
        service = Service("outbox", self.bootstrap_servers, self.directory, instance, **given)
        self._started.append(service)
        return service

    def stop(self) -> None:
        """Stop every instance."""
        for service in self._started:
            if service.process.running:
                service.process.resume()
            service.process.terminate()

    async def request(self, count: int, destination: str, **changes: object) -> list[EffectRequest]:
        """Write requests as committed intents, each of a payment of its own."""
        requests = requests_to(destination, count, **changes)
        await self.write(requests)
        return requests

    async def write(self, requests: Iterable[EffectRequest]) -> None:
        """Write these requests."""
        async with IdempotentWriter(self.access) as writer:
            # Sources ascend, as the ledger's do, and differ from them
            for number, request in enumerate(requests, time.time_ns()):
                headers = ((ORIGIN, b"payments.raw:0:0"), (SOURCE, b"ledger.transfers:99:%d" % number))
                partition = partition_for(request.account)
                key, value = request.account.encode(), encode_request(request)
                await writer.write(EFFECTS_REQUESTS, partition, key, value, headers)
            await writer.flush()

    async def results(self) -> Results:
        """The last result of each effect."""
        found: Results = {}

        def take(_topic: str, _partition: int, records: list[Record]) -> None:
            for record in records:
                result = decode_result(record.value or b"")
                found[result.effect_id] = result

        await read_topics(self.access, [EFFECTS_RESULTS], take)
        return found

    async def dead_letters(self) -> list[Record]:
        """All of effects.dead-letter."""
        found: list[Record] = []
        await read_topics(self.access, [EFFECTS_DEAD_LETTER], lambda _t, _p, records: found.extend(records))
        return found

    async def settled(self, requests: Sequence[EffectRequest], deadline_s: float = 40.0) -> Results:
        """Wait until each of these has a result, and return theirs."""
        wanted = {request.effect_id for request in requests}
        found: Results = {}

        async def all_there() -> bool:
            results = await self.results()
            found.update({identity: results[identity] for identity in wanted & results.keys()})
            return len(found) == len(wanted)

        await eventually(all_there, f"{len(wanted)} effects have a result", deadline_s)
        return found

    def webhook_effects(self) -> Counter[str]:
        """Effects that the receiver made, by id: processed calls without recognised repeats."""
        return Counter(delivery.key for delivery in self.receiver.deliveries() if delivery.what == "processed")

    def mail_effects(self) -> Counter[str]:
        """Mails that the mailbox accepted, by the effect's id."""
        return Counter(mail.message_id.strip("<>").partition("@")[0] for mail in self.mailbox.mails())


def assert_i11(requests: Sequence[EffectRequest], results: Results, effects: Counter[str]) -> Counter[str]:
    """Check that each request has one distinct effect at its sink, doubts are reported, and no other effects exist.

    Returns:
        Number of results by state.
    """
    states: Counter[str] = Counter()
    for request in requests:
        result = results[request.effect_id]
        states[result.state] += 1
        made = effects[request.effect_id]
        if result.state == EffectState.SENT:
            assert 1 <= made <= 1 + result.resends, (result, made)
        elif result.state == EffectState.FAILED:
            assert made == 0, (result, made)
        else:
            assert made <= 1 + result.resends, (result, made)
    return states


def requests_to(destination: str, count: int, **changes: object) -> list[EffectRequest]:
    """Requests, each of a payment of its own."""
    prefix = secrets.token_hex(4)
    return [_request(destination, f"{prefix}-{number}", f"client-{number % 40}", changes) for number in range(count)]


def _request(destination: str, payment_id: str, account: str, changes: dict[str, object]) -> EffectRequest:
    kind = str(changes.get("kind", "receipt"))
    fields: dict[str, object] = {
        "effect_id": effect_id(payment_id.encode(), kind, "debit", destination),
        "kind": kind,
        "event": "debit",
        "destination": destination,
        "account": account,
        "payment_id": payment_id,
        "debtor": account,
        "creditor": "shop",
        "value_date": "2026-01-05",
        "amount_minor": -1250,
        "currency": "EUR",
        **changes,
    }
    return EffectRequest(**fields)  # type: ignore[arg-type]


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
