"""Faults of transactions: left open, hanging, aborted again and again, of unknown outcome, fenced."""

import asyncio
import json

from click.testing import CliRunner

from deploy.cli.txn import txn
from deploy.drills.admin import configure, move_leader, unconfigure
from deploy.drills.hanging import leave_hanging, refuse_markers, unverified
from shared.eos import crash
from shared.eos.crash import CrashPoints
from shared.events import catalogue
from shared.kafka.runtime.producer import TransactionalProducer
from tests.drills.alerts.fault import Fault
from tests.drills.site import Site
from tests.harness import wait_until

TIMEOUT_MS = 10_000


class StoppedInTransaction(Fault):
    """A service gets SIGSTOP between its records' acknowledgement and its offsets, and continues when healed.

    Args:
        service: which one.
        partition: of the input that gets a payment.
    """

    def __init__(self, service: str, partition: int) -> None:
        self._service = service
        self._partition = partition

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        site.restart(self._service, CRASH_POINT=f"{crash.AFTER_SEND}=stop:1")
        site.pay(1, partition=self._partition)
        wait_until(lambda: site.suspended(self._service), f"{self._service} stopped inside its transaction")

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        site.resume(self._service)


class SecondProducer(Fault):
    """Another producer initialises the transactional.id of a running service, which then has work to do.

    Args:
        transactional_id: whose.
        partition: of the payments' debtors.
    """

    def __init__(self, transactional_id: str, partition: int) -> None:
        self._transactional_id = transactional_id
        self._partition = partition

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""

        async def take_over() -> None:
            producer = TransactionalProducer(
                site.brokers, self._transactional_id, TIMEOUT_MS, CrashPoints("", lambda _: None)
            )
            try:
                await producer.init(30)
                assert producer.epoch[1] > 0, "no producer had this transactional.id"
            finally:
                await producer.discard()

        asyncio.run(take_over())
        site.pay(10, partition=self._partition)

    def heal(self, site: Site) -> None:
        """The fenced instance rejoins, and fences in turn."""


class HangingTransaction(Fault):
    """A batch is taken into a transaction that no coordinator knows, while the brokers do not verify (KIP-890).

    Args:
        target: the partition that it hangs on; the pipeline must not read it.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""

        async def hang() -> None:
            async with unverified(site.kafka):
                await leave_hanging(site.brokers, self._target, b"hangs")

        asyncio.run(hang())

    def heal(self, site: Site) -> None:
        """`once txn find-hanging`, then `once txn abort`, as the runbook says."""
        for hung in json.loads(_txn(site, "find-hanging", "--json"))["hanging"]:
            place = ("--topic", hung["topic"], "--partition", str(hung["partition"]))
            _txn(site, "abort", *place, "--start-offset", str(hung["start_offset"]), "--yes")


def _txn(site: Site, *words: str) -> str:
    result = CliRunner().invoke(txn, [*words, "--bootstrap-servers", site.brokers])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.stdout


class RefusedMarker(Fault):
    """A service is killed inside a transaction, one partition of which refuses its coordinator's marker.

    Args:
        service: which one.
        output: a topic that it writes to.
        partition: of it, and of the payments' debtors.
    """

    def __init__(self, service: str, output: str, partition: int) -> None:
        self._service = service
        self._output = output
        self._partition = partition
        self._state: tuple[str, int] | None = None

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        site.restart(self._service, CRASH_POINT=f"{crash.AFTER_SEND}=stop:1")
        site.pay(1, partition=self._partition)
        wait_until(lambda: site.suspended(self._service), f"{self._service} stopped inside its transaction")
        transactional_id = f"{self._service}-0"
        target = (self._output, self._partition)
        self._state = asyncio.run(refuse_markers(site.brokers, transactional_id, target))
        site.component(self._service).kill()

    def heal(self, site: Site) -> None:
        """Move the leadership of the __transaction_state partition, as the runbook says."""
        assert self._state is not None
        parts = site.kafka.view(site.kafka.nodes[0].node_id).partitions
        led = next(part for part in parts if (part.topic, part.partition) == self._state)
        asyncio.run(
            move_leader(site.kafka, self._state, sorted(led.replicas, key=lambda node_id: node_id == led.leader))
        )
        site.wait_ready(self._service)


class RefusedPostings(Fault):
    """The brokers take no posting any more: ledger.postings takes only the smallest records, under load."""

    _SETTING = "max.message.bytes"

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        asyncio.run(configure(site.kafka, "topics", catalogue.LEDGER_POSTINGS, f"{self._SETTING}=200"))
        site.load(20)

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        try:
            site.stop_load()
        finally:
            asyncio.run(unconfigure(site.kafka, "topics", catalogue.LEDGER_POSTINGS, self._SETTING))


class SilentBroker(Fault):
    """A broker gets SIGSTOP under load: what was asked of it stays unanswered, its connections stay open.

    Args:
        broker: its component.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        site.load(100)
        site.component(self._broker).pause()

    def heal(self, site: Site) -> None:
        """See `Fault.heal`."""
        site.resume(self._broker)
        site.stop_load()
