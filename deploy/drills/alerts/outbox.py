"""Faults outside Kafka: destinations that refuse, drop connections or are down, and a Redis with little memory."""

import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from deploy.drills.alerts.site import PARTITIONS, Site, Written
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.faults.redis import info
from deploy.drills.sinks.mailbox import Action, MailFaults, Stage
from deploy.drills.sinks.processes import MailboxProcess, ReceiverProcess
from deploy.drills.sinks.receiver import Faults, Mode
from deploy.drills.waiting import until
from services.outbox.lanes import endpoint_of
from shared.events.catalogue import REFERENCE_ENDPOINTS
from shared.events.effects import EffectKind
from shared.events.endpoints import Endpoint, EndpointState, encode_endpoint
from shared.events.partitions import partition_for

EFFECTS, HOOKS = 30, 3
_DELIVERED_S = 60.0


async def _recorded(site: Site, count: int) -> None:
    """Wait until the results of effects that were sent since the outbox's last start are committed.

    A destination that ends between a call and its answer would be called again, or leave a doubt.
    """
    sent = 'sum(once_effects_total{state="sent"})'
    await until(lambda: (site.value(sent) or 0) >= count, "all results are committed", _DELIVERED_S)


class RefusingWebhook:
    """A webhook answers 404."""

    def __init__(self) -> None:
        self._open = ExitStack()

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        receiver = ReceiverProcess(site.files / "refusing")
        await asyncio.to_thread(self._open.enter_context, receiver)
        receiver.fail(Faults(Mode.STATUS, status=404))
        await site.subscribe("drill-refused", EffectKind.NOTICE, receiver.url)
        await site.pay(3, creditor="drill-refused")
        return "the next calls are answered 404"

    async def heal(self, site: Site) -> None:  # noqa: ARG002 # a fault's signature
        """Nothing to heal: refused effects stay failed."""
        self._open.close()


class LostAnswer:
    """A mail server accepts a mail and drops the connection before it says so."""

    def __init__(self) -> None:
        self._open = ExitStack()

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        mailbox = MailboxProcess(site.files / "mailbox")
        await asyncio.to_thread(self._open.enter_context, mailbox)
        mailbox.fail(MailFaults(Stage.ACCEPTED, Action.DROP))
        await site.subscribe("drill-doubt", EffectKind.NOTICE, "mailto:drill@example.org")
        await site.restart(
            "outbox",
            SMTP_HOST="127.0.0.1",
            SMTP_PORT=str(mailbox.port),
            SMTP_CA_FILE=str(mailbox.ca_file),
            SMTP_SENDER="ledger@example.org",
        )
        await site.pay(1, creditor="drill-doubt")
        return "the connection of the next mail is dropped"

    async def heal(self, site: Site) -> None:
        """Start the outbox with its usual settings. An operator has to resolve the doubt."""
        self._open.close()
        await site.restart("outbox")


class UnreachableWebhook:
    """Effects are due at a webhook that is down."""

    def __init__(self) -> None:
        self._receiver: ReceiverProcess | None = None

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        # Two drills make this fault, and a webhook counts what is in its directory
        self._receiver = ReceiverProcess(Path(tempfile.mkdtemp(prefix="absent-", dir=site.files)))
        await site.subscribe("drill-absent", EffectKind.NOTICE, self._receiver.url)
        await site.restart("outbox", OUTBOX_RETRY_MAX_S="5")  # for a quick end once the webhook is up
        await site.pay(EFFECTS, creditor="drill-absent")
        return f"nothing listens on port {self._receiver.port}"

    async def heal(self, site: Site) -> None:
        """Start the webhook until all effects are delivered, and the outbox with its usual settings."""
        receiver = self._receiver
        if receiver is None:
            return
        try:
            await asyncio.to_thread(receiver.start)
            await until(lambda: receiver.counts().distinct >= EFFECTS, "all are delivered", _DELIVERED_S)
            await _recorded(site, EFFECTS)
        finally:
            receiver.kill()
            await site.restart("outbox")


class ScarceMemory:
    """Redis has little more memory than it uses."""

    def __init__(self) -> None:
        self._usual = ""

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        redis = site.stack.redis
        memory = await asyncio.to_thread(info, redis, "memory")
        used = int(memory["used_memory"])
        self._usual = memory["maxmemory"]
        await asyncio.to_thread(redis.command, "CONFIG", "SET", "maxmemory", str(used * 11 // 10))
        lowered = (await asyncio.to_thread(info, redis, "memory"))["maxmemory"]
        if lowered == self._usual:
            raise NoEvidenceError(f"maxmemory is still {lowered} bytes")
        return f"{used} of {lowered} bytes are in use"

    async def heal(self, site: Site) -> None:
        """Set the usual maxmemory."""
        if self._usual:
            await asyncio.to_thread(site.stack.redis.command, "CONFIG", "SET", "maxmemory", self._usual)


class DeadMailServer:
    """Mails are due at a mail server that is down, while a webhook gets its effects."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._mailbox: MailboxProcess | None = None

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        receiver = ReceiverProcess(site.files / "webhooks")
        await asyncio.to_thread(self._open.enter_context, receiver)
        self._mailbox = mailbox = MailboxProcess(site.files / "dead-mailbox")
        await asyncio.to_thread(mailbox.start)  # it makes its certificate
        mailbox.kill()
        await site.subscribe("drill-mails", EffectKind.NOTICE, "mailto:drill@example.org")
        await site.subscribe("drill-hooks", EffectKind.NOTICE, receiver.url)
        await site.restart(
            "outbox",
            OUTBOX_RETRY_MAX_S="5",
            SMTP_HOST="127.0.0.1",
            SMTP_PORT=str(mailbox.port),
            SMTP_CA_FILE=str(mailbox.ca_file),
            SMTP_SENDER="ledger@example.org",
        )
        await site.pay(EFFECTS, creditor="drill-mails")
        await site.pay(HOOKS, creditor="drill-hooks")
        await until(lambda: receiver.counts().distinct == HOOKS, "the webhook has its effects", _DELIVERED_S)
        return f"nothing listens on port {mailbox.port}, and a webhook got three effects"

    async def heal(self, site: Site) -> None:
        """Start the mail server until all mails are delivered, and the outbox with its usual settings."""
        mailbox = self._mailbox
        try:
            if mailbox is not None:
                await asyncio.to_thread(self._open.enter_context, mailbox)
                await until(lambda: len(mailbox.mails()) == EFFECTS, "all are delivered", _DELIVERED_S)
                await _recorded(site, EFFECTS + HOOKS)
        finally:
            self._open.close()
            await site.restart("outbox")


class DisabledEndpoint:
    """An endpoint fails until it is disabled, and an operator enables it."""

    def __init__(self) -> None:
        self._receiver: ReceiverProcess | None = None

    async def inject(self, site: Site) -> str:
        """See `SiteFault.inject`."""
        self._receiver = ReceiverProcess(site.files / "failing")
        await site.subscribe("drill-disabled", EffectKind.NOTICE, self._receiver.url)
        await site.restart("outbox", OUTBOX_RETRY_MAX_S="2", OUTBOX_CIRCUIT_OPEN_S="2", OUTBOX_DISABLE_AFTER_H="0.005")
        await site.pay(3, creditor="drill-disabled")
        return f"nothing listens on port {self._receiver.port}, and 18 s of failures disable an endpoint"

    async def heal(self, site: Site) -> None:
        """Enable it, and start the outbox with its usual settings, which would disable it again only much later."""
        if self._receiver is not None:
            name = endpoint_of(self._receiver.url)
            record = Endpoint(EndpointState.ENABLED.value, time.time_ns() // 1_000_000, by="operator")
            home = partition_for(name, PARTITIONS)
            await site.write(REFERENCE_ENDPOINTS, home, [Written(name.encode(), encode_endpoint(record))])
            await site.restart("outbox")
