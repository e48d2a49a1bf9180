"""The site of the alerts' drills: one monitored stack with all services, and operations for faults.

Invariant: every payment sent through the site is counted, so that a proof covers all of them. It must not know alerts.
"""

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from deploy.checkers.verdict import Verdict
from deploy.drills.alerts.timeline import Watch
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.prometheus import Prometheus, PrometheusError
from deploy.drills.target import LocalTarget
from deploy.drills.workload import Load, payments, send_raw, sending
from deploy.local.kafka.probe import BrokerNotAnsweringError
from deploy.local.process import state_of
from deploy.local.supervisor.stack import Stack, StackNotReadyError
from deploy.verification import verify_cluster
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_ACCEPTED, REFERENCE_SUBSCRIPTIONS
from shared.events.effects import EffectKind, Subscription, Subscriptions, encode_subscriptions
from shared.events.headers import Coordinates, Headers
from shared.events.partitions import partition_for
from shared.kafka.admin.groups import wait_drained
from shared.kafka.client.errors import DrainTimeoutError, KafkaUnavailableError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from shared.settings import InstallationSettings

READY_S: Final = 120.0
DRAINED_S: Final = 120.0
_SHOWN: Final = 5
PARTITIONS: Final = InstallationSettings.partitions


class NotBookedOnceError(Exception):
    """The topics do not show that each payment was booked once; the message has the findings."""


class Written(NamedTuple):
    """A record to be written; its time is in milliseconds since 1970 UTC, None is now."""

    key: bytes
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Site(LocalTarget):
    """A monitored stack.

    Args:
        stack: with monitoring, and with all services; ready.

    Attributes:
        files: directory for the faults' files.
        watch: of its alerts; the caller opens it.
        paid: distinct payments sent so far.
    """

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.healthy_s = READY_S  # longer than of other targets: services have work to catch up
        if stack.monitoring is None:
            raise LookupError("a site has monitoring")
        self.kafka = stack.kafka
        self.files: Path = stack.directory / "drills"
        self.files.mkdir()
        self.prometheus = Prometheus(stack.monitoring.url)
        self.watch = Watch(self.prometheus)
        self.paid = 0
        self._loads = AsyncExitStack()
        self._copies: set[str] = set()

    # Components, by name

    def pid(self, name: str) -> int:
        """Return a component's process id.

        Raises:
            NoEvidenceError: it does not run.
        """
        process = self.component(name).process
        if process.pid is None:
            raise NoEvidenceError(f"{name} ended with {process.returncode}:\n{process.log_tail()}")
        return process.pid

    def lose(self, name: str) -> str:
        """Kill a component, prevent its restart, and return the evidence; raises as `pid`."""
        self.pid(name)
        return f"{name}: {self.take_away(name)}"

    def suspended(self, name: str) -> bool:
        """Whether it has been stopped by SIGSTOP; raises as `pid`."""
        return state_of(self.pid(name)) == "T"

    async def restart(self, name: str, **settings: str) -> None:
        """Stop a service and start it with further settings, ONCE_ prefix left out, for this one run; wait for it."""
        await self.start_again(name, **settings)
        await self.ready(name, READY_S)

    async def start_again(self, name: str, **settings: str) -> None:
        """As `restart`, for a service that the settings keep from being ready: it does not wait."""
        component = self.component(name)
        component.release()
        await asyncio.to_thread(component.process.terminate)
        usual = dict(component.process.env)
        component.process.env.update({f"ONCE_{key}": value for key, value in settings.items()})
        try:
            component.start()
        finally:
            component.process.env.clear()
            component.process.env.update(usual)

    async def heal(self) -> None:
        """End every load too, and wait until the pipeline has drained; see `Target.heal`."""
        await super().heal()
        try:
            await self.stop_load()
            await wait_drained(self.access, deadline_s=DRAINED_S)
        except (KafkaUnavailableError, DrainTimeoutError) as error:
            raise StackNotReadyError(f"the next drill would find work of this one: {error}") from error

    # Payments and records

    async def pay(self, count: int, *, partition: int | None = None, creditor: str | None = None) -> None:
        """Send payments and wait until the brokers have them.

        Args:
            count: how many.
            partition: of the debtors, house accounts all; None is any.
            creditor: of all of them; None is any of some client accounts.
        """
        await self.send(list(islice(covered(partition, creditor), count)))
        self.paid += count

    async def send(self, values: Sequence[bytes]) -> None:
        """Send bytes to payments.raw, and wait until the brokers have them."""
        await send_raw(self.access, values)

    async def write(self, topic: str, partition: int, records: Iterable[Written]) -> None:
        """Write records outside of transactions, each in a batch of its own, and wait until the brokers have them."""
        async with IdempotentWriter(self.access) as writer:
            for record in records:
                await writer.write(topic, partition, *record)
                await writer.flush()

    async def copy_accepted(self, partition: int) -> str:
        """Write the last record of a partition of payments.accepted once more, headers included.

        Records cannot be removed: from now on, `prove` expects verification to report the copy.

        Returns:
            Where the copy is.

        Raises:
            NoEvidenceError: it is not the last record of its partition.
        """
        record = await self._last_accepted(partition)
        await self.write(PAYMENTS_ACCEPTED, partition, [Written(record.key or b"", record.value, record.headers)])
        copy = await self._last_accepted(partition)
        if (copy.value, copy.headers) != (record.value, record.headers) or copy.offset <= record.offset:
            raise NoEvidenceError(f"offset {copy.offset} is not a copy of offset {record.offset}")
        place = str(Coordinates(PAYMENTS_ACCEPTED, partition, copy.offset))
        self._copies.add(place)
        return place

    async def load(self, per_s: int) -> None:
        """Start sending payments at a steady rate, and wait for the first; `stop_load` ends it."""
        load = Load(self.access, covered(), per_s, None)
        self._loads.callback(self._count, load)  # when the brokers have all of them
        await self._loads.enter_async_context(sending(load))

    async def stop_load(self) -> None:
        """End every load, and wait until the brokers have its payments.

        Raises:
            KafkaUnavailableError: not all of them were taken.
        """
        await self._loads.aclose()

    async def subscribe(self, account: str, kind: EffectKind, destination: str) -> None:
        """Subscribe an account's effects of a kind to a destination, and let the ledger read that."""
        value = encode_subscriptions(Subscriptions((Subscription(kind.value, destination),)))
        home = partition_for(account, PARTITIONS)
        await self.write(REFERENCE_SUBSCRIPTIONS, home, [Written(account.encode(), value)])
        await self.restart("ledger")  # it has read all subscriptions once it is ready

    async def warm_up(self) -> None:
        """Send payments through all services, so that counters have a past and faults find work; raises as `prove`."""
        await self.pay(60)
        await self.prove()

    async def prove(self) -> None:
        """Wait until the pipeline has drained, and check that every payment sent was booked once.

        Of records that were copied here, verification must report the copies and nothing else.

        Raises:
            NotBookedOnceError: not so.
        """
        if findings := self._findings(await verify_cluster(self.access)):
            raise NotBookedOnceError("; ".join(findings))

    def in_sync(self, topic: str, asked: int) -> tuple[int, ...]:
        """Return the replicas in sync of a topic's partition 0, as one broker knows them; none without an answer."""
        try:
            view = self.kafka.view(asked)
        except BrokerNotAnsweringError:
            return ()
        return next(part.isr for part in view.partitions if (part.topic, part.partition) == (topic, 0))

    # Metrics

    def value(self, expression: str) -> float | None:
        """Return the value of an expression; None while it has no series, or Prometheus does not answer.

        Raises:
            LookupError: it has several series.
        """
        try:
            found = self.prometheus.query(expression)
        except PrometheusError:
            return None
        if len(found) > 1:
            raise LookupError(f"{expression} has {len(found)} series")
        return found[0].value if found else None

    def _count(self, load: Load) -> None:
        self.paid += load.sent

    def _findings(self, verdict: Verdict) -> list[str]:
        places = {found.where for found in verdict.violations}
        accepted = self.paid + len(self._copies)
        wanted = {
            "payments accepted": (verdict.accepted, accepted),
            "lost, duplicated, torn and drift": (
                (verdict.lost, verdict.duplicated, verdict.torn, verdict.drift_minor),
                (0, 0, 0, 0),
            ),
            "violations with a place": (len(verdict.violations), verdict.violations_total),
            "places of violations": (sorted(places)[:_SHOWN], sorted(self._copies)[:_SHOWN]),
        }
        found = [
            f"{what}: {seen}, expected {expected}" for what, (seen, expected) in wanted.items() if seen != expected
        ]
        if not verdict.at_rest:
            found.append("the pipeline has not drained")
        return found

    async def _last_accepted(self, partition: int) -> Record:
        kept: list[Record] = []
        await read_topics(
            self.access,
            [PAYMENTS_ACCEPTED],
            lambda _topic, number, records: kept.extend(records if number == partition else ()),
        )
        return kept[-1]


def covered(partition: int | None = None, creditor: str | None = None) -> Iterator[bytes]:
    """Generate payments of house accounts, which are never declined; parameters as of `Site.pay`."""
    values = payments(f"drill-{uuid.uuid4()}", 1, PARTITIONS, repeated=0, bad=0)
    for number, value in enumerate(values):
        changes = {"debtor": f"cash@{number % PARTITIONS if partition is None else partition}"}
        if creditor is not None:
            changes["creditor"] = creditor
        yield msgspec.json.encode(msgspec.json.decode(value) | changes)
