"""A full disk of a broker, then of a second one: they delay payments and lose none."""

import asyncio
import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deploy.local.supervisor.stack import Stack
from shared.kafka.client.errors import KafkaUnavailableError
from tests.harness import wait_until
from tests.payments import payments
from tests.proof import assert_exactly_once, send_raw, verdict
from tests.tiers import full

pytestmark = [
    full,
    pytest.mark.timeout(420),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system"),
]

SERVICES = ("ingest", "transform", "ledger")
DISK_MB = 512
BATCH = 200
RECOVERED_S = 120.0
STALLED_S = 30.0
"""The threshold of ProducerInitStalled's runbook."""
GIVEN_UP = re.compile(r"its coordinator, broker (\d+), .*? all of which have leaders")


class Disk:
    """A separate file system for one broker's data.

    Args:
        path: the mount point.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Fill the file system to the last byte."""
        block = bytes(1 << 20)
        with self._ballast.open("ab", buffering=0) as file:
            while block:
                try:
                    file.write(block)
                except OSError:  # a smaller block may fit
                    block = block[: len(block) // 2]

    def free(self) -> None:
        """Free the space, as an operator does after the alert."""
        self._ballast.unlink()


@contextmanager
def disk(path: Path) -> Iterator[Disk]:
    path.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(path)], check=True)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", str(path)], check=True)


class Payer:
    """A client that pays batch after batch and retries unacknowledged batches."""

    def __init__(self, brokers: str) -> None:
        self.paid = 0
        self.refused = 0
        self._brokers = brokers
        self._stop = threading.Event()

    def pay(self) -> None:
        """Pay until asked to stop."""
        while not self._stop.is_set():
            try:
                asyncio.run(send_raw(self._brokers, payments(f"full-{self.paid}", BATCH)))
            except KafkaUnavailableError:
                self.refused += 1
            else:
                self.paid += BATCH

    @contextmanager
    def paying(self) -> Iterator[None]:
        """Pay in another thread."""
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(self.pay)
            try:
                yield
            finally:
                self._stop.set()
                done.result()  # raises the failure that ended the payments


def reported_full(stack: Stack, node_id: int) -> bool:
    """Return whether the broker reported a full disk and was restarted."""
    log = stack.directory / "logs" / f"broker-{node_id}.log"
    return "No space left on device" in log.read_text() and stack.components[node_id].restarts > 0


def given_up(stack: Stack) -> set[int]:
    """Return the coordinators that no longer send a transaction's markers, as the services report."""
    found = set()
    for service in stack.services.values():
        try:
            with urllib.request.urlopen(f"http://{urlsplit(service.endpoint).netloc}/readyz", timeout=2):
                continue
        except urllib.error.HTTPError as answer:
            found |= {int(broker) for broker in GIVEN_UP.findall(answer.read().decode())}
        except OSError:  # not listening yet
            continue
    return found


def recover(stack: Stack) -> None:
    """Wait until the stack is ready. Follow docs/runbooks/ProducerInitStalled.md where it applies.

    It applies when a leader's disk is full as it writes a marker: docs/upstream.md, 3.
    """
    end = time.monotonic() + RECOVERED_S
    since: dict[int, float] = {}
    while missing := [component.name for component in stack.components if not component.ready]:
        now = time.monotonic()
        assert now < end, f"not ready within {RECOVERED_S} s: {missing}"
        since = {broker: since.get(broker, now) for broker in given_up(stack)}
        for broker in [broker for broker, seen in since.items() if now - seen > STALLED_S]:
            print(f"\nbroker {broker} sent no markers for {STALLED_S} s: restarted")
            stack.kafka.processes[broker].terminate(20)
            del since[broker]
        time.sleep(0.2)


def report(directory: Path, result: dict[str, Any]) -> None:
    """Print the verdict and the torn transactions with their completion."""
    lines = [json.loads(line) for path in (directory / "logs").glob("*.log") for line in path.open() if line[0] == "{"]
    torn = [line for line in lines if line["event"] == "torn transaction completed"]
    print(f"\nverdict {result['verdict']}, accepted {result['accepted']}, torn transactions {len(torn)}")
    for line in torn:
        passed = f"offsets {line['first_offset']} to {line['next_offset'] - 1}"
        print(f"  {line['transactional_id']} {passed}: {line['parts']}; {line['records']} records written again")


def test_two_full_disks_delay_payments_and_lose_none(tmp_path: Path) -> None:
    data = tmp_path / "data" / "kafka"
    with (
        disk(data / "broker-1") as first,
        disk(data / "broker-2") as second,
        Stack(tmp_path, services=SERVICES, heap_mb=256) as stack,
    ):
        stack.wait_ready(120)
        payer = Payer(stack.kafka.bootstrap_servers)
        with payer.paying():
            wait_until(lambda: payer.paid > 0, "payments flow")
            first.fill()
            wait_until(lambda: reported_full(stack, 1), "broker 1 stopped: disk full")
            paid = payer.paid
            wait_until(lambda: payer.paid > paid, "two brokers still accept payments")

            second.fill()
            wait_until(lambda: reported_full(stack, 2), "broker 2 stopped: disk full")
            refused = payer.refused
            wait_until(lambda: payer.refused > refused, "one broker accepts no payment")

            first.free()
            second.free()
            recover(stack)
            paid = payer.paid
            wait_until(lambda: payer.paid > paid, "payments flow again")
        stack.kafka.wait_in_sync(120)
        result = verdict(stack.kafka.bootstrap_servers)
        report(tmp_path, result)
        assert_exactly_once(result)
        assert result["accepted"] >= payer.paid
