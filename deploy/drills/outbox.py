"""The outbox with its sinks: requests as the ledger writes them, its instances, and the check of I11.

The check compares the outbox's results with the sinks' own journals.
"""

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from deploy.drills.service import Service
from deploy.drills.sinks.processes import MailboxProcess, ReceiverProcess
from deploy.drills.waiting import eventually
from deploy.local.ports import LOOPBACK_NETWORK
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
from shared.events.partitions import partition_for
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from shared.settings import InstallationSettings

SENDER = "ledger@example.org"
CALL_TIMEOUT_S = 5.0  # a mail's answer has half of it: after that, the mail stays in doubt
LEASE_S = 15.0
BRIEF_LEASE_S = 6.0
BRIEF = {"OUTBOX_CALL_TIMEOUT_S": "3", "OUTBOX_LEASE_S": str(BRIEF_LEASE_S)}
"""Settings of an instance with short timeouts of calls and claims."""
_POLL_S = 0.1
Results = dict[str, EffectResult]


class OutboxSite:
    """Instances of the outbox, with a Redis, a webhook receiver and a mailbox, over brokers.

    Args:
        bootstrap_servers: the brokers.
        directory: for data and logs.
        redis: that runs.
        receiver, mailbox: that run.
        access: credentials of the writer of requests; None without access control.
    """

    service_type: ClassVar[type[Service]] = Service

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
            "WEBHOOK_ALLOWED_NETWORKS": LOOPBACK_NETWORK,
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
        service = self.service_type("outbox", self.bootstrap_servers, self.directory, instance, **given)
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
            await self.write_by(writer, requests)
            await writer.flush()

    async def write_by(self, writer: IdempotentWriter, requests: Iterable[EffectRequest]) -> None:
        """Write these requests by a writer, without waiting for the brokers."""
        # Sources ascend, as the ledger's do, and differ from them
        for number, request in enumerate(requests, time.time_ns()):
            headers = ((ORIGIN, b"payments.raw:0:0"), (SOURCE, b"ledger.transfers:99:%d" % number))
            partition = partition_for(request.account, InstallationSettings.partitions)
            key, value = request.account.encode(), encode_request(request)
            await writer.write(EFFECTS_REQUESTS, partition, key, value, headers)

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
        """Wait until each of these has a result, and return theirs; TimeoutError after `deadline_s` seconds."""
        wanted = {request.effect_id for request in requests}
        found: Results = {}

        async def complete() -> bool:
            nonlocal found
            results = await self.results()
            found = {identity: results[identity] for identity in wanted & results.keys()}
            return len(found) == len(wanted)

        await eventually(complete, f"each of {len(wanted)} effects has a result", deadline_s, every_s=_POLL_S)
        return found

    def webhook_effects(self) -> Counter[str]:
        """Effects that the receiver made, by id: processed calls without recognised repeats."""
        return Counter(delivery.key for delivery in self.receiver.deliveries() if delivery.what == "processed")

    def mail_effects(self) -> Counter[str]:
        """Mails that the mailbox accepted, by the effect's id."""
        return Counter(mail.message_id.strip("<>").partition("@")[0] for mail in self.mailbox.mails())


class Judged(NamedTuple):
    """Requests, their results and the effects in the sinks' journals, compared (I11).

    Attributes:
        states: number of results by state.
        repeated: ids of effects that were made more often than their results say.
        missing: ids of effects that a result says were sent, and no sink has; and those without a result.
        denied: ids of effects that a result says failed, and a sink has.
    """

    states: Counter[str]
    repeated: list[str]
    missing: list[str]
    denied: list[str]


def judge_effects(requests: Sequence[EffectRequest], results: Results, effects: Counter[str]) -> Judged:
    """Compare each request with its result and the number of its effects in the sinks' journals. Pure."""
    judged = Judged(Counter(), [], [], [])
    for request in requests:
        identity, made = request.effect_id, effects[request.effect_id]
        result = results.get(identity)
        if result is None:
            judged.missing.append(identity)
            continue
        judged.states[result.state] += 1
        if result.state == EffectState.FAILED and made:
            judged.denied.append(identity)
        elif made > 1 + result.resends:
            judged.repeated.append(identity)
        elif result.state == EffectState.SENT and not made:
            judged.missing.append(identity)
    return judged


def requests_to(destination: str, count: int, **changes: object) -> list[EffectRequest]:
    """Requests, each of a payment of its own."""
    prefix = secrets.token_hex(4)
    return [_request(destination, f"{prefix}-{number}", f"client-{number % 40}", changes) for number in range(count)]


def _request(destination: str, payment_id: str, account: str, changes: dict[str, object]) -> EffectRequest:
    kind = str(changes.get("kind", "receipt"))
    fields: dict[str, object] = {
        "effect_id": effect_id(payment_id.encode(), kind, "debit", destination, installation=""),
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
