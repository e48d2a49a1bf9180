"""The site of drills: one monitored stack with all services, and operations for faults.

Invariant: every payment sent through the site is counted, so that a proof covers all of them. It must not know alerts.
"""

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from deploy.drills.prometheus import Prometheus, PrometheusError
from deploy.local.kafka.probe import BrokerNotAnsweringError
from deploy.local.supervisor.component import Component
from deploy.local.supervisor.stack import Stack
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_ACCEPTED, REFERENCE_SUBSCRIPTIONS
from shared.events.effects import EffectKind, Subscription, Subscriptions, encode_subscriptions
from shared.events.headers import Coordinates, Headers
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from tests.drills.load import Load
from tests.harness import wait_until
from tests.partitions import partition_for
from tests.payments import payments, with_fields
from tests.proof import assert_booked_once, assert_exactly_once, send_raw, verdict

READY_S = 120.0
IN_SYNC_S = 90.0


class Written(NamedTuple):
    """A record to be written; its time is in milliseconds since 1970 UTC, None is now."""

    key: bytes
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Site:
    """A monitored stack.

    Args:
        stack: with monitoring, and with all services; ready.
        directory: for files of drills, empty.

    Attributes:
        paid: distinct payments sent so far.
    """

    def __init__(self, stack: Stack, directory: Path) -> None:
        assert stack.monitoring is not None
        self.stack = stack
        self.monitoring = stack.monitoring
        self.kafka = stack.kafka
        self.brokers = stack.kafka.bootstrap_servers
        self.directory = directory
        self.prometheus = Prometheus(stack.monitoring.url)
        self.paid = 0
        self._loads: list[Load] = []
        self._copies: set[str] = set()

    # Components, by name

    def component(self, name: str) -> Component:
        """A service, an observer, `broker-<n>`, `redis` or `prometheus`."""
        return next(component for component in self.stack.components if component.name == name)

    def take_away(self, name: str) -> None:
        """Kill it, and prevent its restart."""
        component = self.component(name)
        component.release()
        component.kill()
        assert not component.process.running

    def bring_back(self, name: str) -> None:
        """Start it unless it runs, and keep it running."""
        self.component(name).start()

    def resume(self, name: str) -> None:
        """Send it SIGCONT, if it runs."""
        component = self.component(name)
        if component.process.running:
            component.resume()

    def suspended(self, name: str) -> bool:
        """Whether it has been stopped by SIGSTOP.

        Raises:
            AssertionError: it does not run.
        """
        process = self.component(name).process
        pid = process.pid
        assert pid is not None, f"{name} ended with {process.returncode}:\n{process.log_tail()}"
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def restart(self, name: str, **settings: str) -> None:
        """Stop a service and start it with further settings, ONCE_ prefix left out, for this one run; wait for it."""
        component = self.component(name)
        component.release()
        component.process.terminate()
        usual = dict(component.process.env)
        component.process.env.update({f"ONCE_{key}": value for key, value in settings.items()})
        try:
            component.start()
        finally:
            component.process.env.clear()
            component.process.env.update(usual)
        self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        """Wait until it is ready."""
        wait_until(lambda: self.component(name).ready, f"{name} ready", READY_S)

    def settle(self) -> None:
        """Wait until every component is ready and every replica in sync.

        Raises:
            StackNotReadyError, KafkaNotReadyError: not so in time.
        """
        self.stack.wait_ready(READY_S)
        self.kafka.wait_in_sync(IN_SYNC_S)

    # Payments and records

    def pay(self, count: int, *, partition: int | None = None, creditor: str | None = None) -> None:
        """Send payments and wait until the brokers have them.

        Args:
            count: how many.
            partition: of the debtors, house accounts all; None is any.
            creditor: of all of them; None is any of some client accounts.
        """
        changes: dict[str, object] = {} if creditor is None else {"creditor": creditor}
        if partition is not None:
            changes["debtor"] = f"cash@{partition}"
        values = [with_fields(value, **changes) for value in payments(f"drill-{uuid.uuid4()}", count)]
        self.send(values)
        self.paid += count

    def send(self, values: Sequence[bytes]) -> None:
        """Send bytes to payments.raw, and wait until the brokers have them."""
        asyncio.run(send_raw(self.brokers, values))

    def write(self, topic: str, partition: int, records: Iterable[Written]) -> None:
        """Write records outside of transactions, each in a batch of its own, and wait until the brokers have them."""

        async def write() -> None:
            async with IdempotentWriter(self.brokers) as writer:
                for record in records:
                    await writer.write(topic, partition, *record)
                    await writer.flush()

        asyncio.run(write())

    def copy_accepted(self, partition: int) -> None:
        """Write the last record of a partition of payments.accepted once more, headers included.

        Records cannot be removed: from now on, `prove` expects verification to report the copy.
        """

        async def last() -> Record:
            kept: list[Record] = []
            await read_topics(
                self.brokers,
                [PAYMENTS_ACCEPTED],
                lambda _topic, number, records: kept.extend(records if number == partition else ()),
            )
            return kept[-1]

        record = asyncio.run(last())
        assert record.key is not None
        self.write(PAYMENTS_ACCEPTED, partition, [Written(record.key, record.value, record.headers)])
        copy = asyncio.run(last())
        assert (copy.value, copy.headers) == (record.value, record.headers)
        assert copy.offset > record.offset
        self._copies.add(str(Coordinates(PAYMENTS_ACCEPTED, partition, copy.offset)))

    def load(self, per_s: int) -> None:
        """Start sending payments at a steady rate, and wait for the first; `stop_load` ends it."""
        load = Load(self.brokers, per_s)
        self._loads.append(load)
        load.start()
        wait_until(lambda: load.sent >= per_s or not load.is_alive(), "payments flow")

    def stop_load(self) -> None:
        """End every load, and wait until the brokers have its payments.

        Raises:
            KafkaUnavailableError: not all of them were taken.
        """
        loads, self._loads = self._loads, []
        for load in loads:
            self.paid += load.finish()

    def subscribe(self, account: str, kind: EffectKind, destination: str) -> None:
        """Subscribe an account's effects of a kind to a destination, and let the ledger read that."""
        value = encode_subscriptions(Subscriptions((Subscription(kind.value, destination),)))
        self.write(REFERENCE_SUBSCRIPTIONS, partition_for(account), [Written(account.encode(), value)])
        self.restart("ledger")  # it has read all subscriptions once it is ready

    def warm_up(self) -> None:
        """Send payments through all services, so that counters have a past and faults find work."""
        self.pay(60)
        self.prove()

    def prove(self) -> None:
        """Wait until the pipeline has drained, and check that every payment sent was booked once.

        Of records that were copied here, verification must report the copies and nothing else.
        """
        result = verdict(self.brokers)
        if self._copies:
            assert_booked_once(result)
            assert {found["where"] for found in result["violations"]} == self._copies, result
            assert len(result["violations"]) == result["violations_total"], result
        else:
            assert_exactly_once(result)
        expected = self.paid + len(self._copies)
        assert result["accepted"] == expected, (result["accepted"], expected)

    def in_sync(self, topic: str, asked: int) -> tuple[int, ...]:
        """The replicas in sync of a topic's partition 0, as one broker knows them; none while it does not answer."""
        try:
            view = self.kafka.view(asked)
        except BrokerNotAnsweringError:
            return ()
        return next(part.isr for part in view.partitions if (part.topic, part.partition) == (topic, 0))

    # Metrics

    def value(self, expression: str) -> float | None:
        """The value of an expression that has one series; None while it has none, or Prometheus does not answer."""
        try:
            found = self.prometheus.query(expression)
        except PrometheusError:
            return None
        assert len(found) <= 1, (expression, found)
        return found[0].value if found else None
