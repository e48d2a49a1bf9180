"""A stack with a view and its page, and the payments that the page's tests expect."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from deploy.local.ports import free_ports
from deploy.local.supervisor.component import http_ready
from deploy.local.supervisor.stack import Stack
from services.balances.dashboard.observed import MONITOR, SERVICES
from shared.events.catalogue import RECONCILIATION_RUNS, REFERENCE_SUBSCRIPTIONS
from shared.events.effects import EVERY_ACCOUNT, EffectKind, Subscription, Subscriptions, encode_subscriptions
from shared.events.operations import encode_run_outcome
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.kafka.client.idempotent import IdempotentWriter
from tests.harness import Service
from tests.live import run
from tests.payments import payments
from tests.proof import send_raw

PAYMENTS = 600
ENTRIES = 60
REPEATS = 7
HUGE = 3
DECLINED = 4
BAD = 2
ALL = PAYMENTS + ENTRIES + HUGE + DECLINED + REPEATS + BAD
BUSY, POOR = "busy-account", "poor-account"
HUGE_MINOR = 2**53 - 1


class Site:
    """A stack, its view, and the page's address."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self.stack = stack
        self.brokers = stack.kafka.bootstrap_servers
        self.port = free_ports(1)[0]
        self.origin = f"http://127.0.0.1:{self.port}"
        watched = ",".join(f"{name}=127.0.0.1:{self.metrics_port(name)}" for name in (*SERVICES, MONITOR))
        self.view = Service(
            "balances",
            self.brokers,
            directory,
            VIEW_PORT=str(self.port),
            VIEW_DATABASE=f"sqlite:///{directory / 'view.db'}",
            VIEW_WATCHED=watched,
            SESSION_TIMEOUT_MS="30000",  # it is not restarted: a pause must not end its group membership
        )

    def metrics_port(self, service: str) -> int:
        """The telemetry port of a service."""
        return int(self.stack.services[service].process.env["ONCE_METRICS_PORT"])

    def ready(self, service: str) -> bool:
        """Whether /readyz reports ready."""
        return http_ready(self.metrics_port(service))

    def get(self, path: str) -> Any:
        """Get an answer of the view's API."""
        with urllib.request.urlopen(self.origin + path, timeout=10) as answer:  # noqa: S310 - loopback
            return json.loads(answer.read())


def payment(payment_id: str, debtor: str, creditor: str, amount_minor: int, currency: str = "EUR") -> bytes:
    """A raw payment."""
    return encode_instruction(
        Payment(payment_id, debtor, creditor, amount_minor, currency, SCHEMA_VERSION, None, "2026-01-05", "an invoice")
    )


async def subscribe(brokers: str) -> None:
    """Subscribe all accounts to notices in a file."""
    value = Subscriptions((Subscription(EffectKind.NOTICE.value, "file:notices"),))
    async with IdempotentWriter(brokers) as writer:
        await writer.write(REFERENCE_SUBSCRIPTIONS, 0, EVERY_ACCOUNT.encode(), encode_subscriptions(value))
        await writer.flush()


async def load(brokers: str) -> None:
    """Send payments with every outcome, and amounts above a browser's integers."""
    many = list(payments("page", PAYMENTS, accounts=50))
    entries = [payment(f"entry-{number}", "cash@1", BUSY, 100 + number) for number in range(ENTRIES)]
    huge = [payment(f"huge-{number}", "loans@2", "huge-account", HUGE_MINOR, "JPY") for number in range(HUGE)]
    declined = [payment(f"declined-{number}", POOR, BUSY, 100) for number in range(DECLINED)]
    await send_raw(brokers, [*many, *entries, *huge, *declined, *many[:REPEATS], b"no payment", b"{}"])


async def write_run(brokers: str, at: int, **changes: Any) -> None:
    """Write a reconciliation's outcome, as `once reconcile` does."""
    outcome = run(at, **changes).outcome
    async with IdempotentWriter(brokers) as writer:
        await writer.write(RECONCILIATION_RUNS, 0, outcome.cut_id.encode(), encode_run_outcome(outcome))
        await writer.flush()
