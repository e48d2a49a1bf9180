"""The receiver of docs/webhooks.md, as it is printed there, called by the outbox's own sink."""

import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest_asyncio
from aiohttp import ClientConnectionError, ClientSession

from deploy.local.ports import LOOPBACK, LOOPBACK_NETWORK, free_ports
from services.outbox.outcomes import Delivered, Refused
from services.outbox.sinks.egress import Egress
from services.outbox.sinks.webhook import FORMATS, WebhookSink, derive_secret, derive_secrets, encode_envelope
from shared.addresses import parse_networks
from tests.harness import ROOT, eventually
from tests.sinks.effects import effect
from tests.sinks.rigs import KEY, PATIENT_S

(PROGRAM,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "webhooks.md").read_text(), re.DOTALL)
STANDARD = FORMATS["standard"]


class Running:
    """The receiver as a process, with what it printed."""

    def __init__(self, directory: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://{LOOPBACK}:{port}/hook"
        self.secret = derive_secret(KEY, self.url)
        self._output = directory / "output"
        self._errors = directory / "errors"
        environment = {**os.environ, "WEBHOOK_SECRET": STANDARD.secret_text(self.secret), "PORT": str(port)}
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env=environment, stdout=output, stderr=errors
            )

    async def listens(self) -> bool:
        """Return whether it answers yet."""
        assert self.process.poll() is None, self._errors.read_text()
        try:
            async with ClientSession() as session, session.post(self.url):
                return True
        except ClientConnectionError:
            return False

    def processed(self) -> list[str]:
        """The ids of the messages that it processed."""
        return [msgspec.json.decode(line)["data"]["effect_id"] for line in self._output.read_text().splitlines()]


@pytest_asyncio.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Running]:
    running = Running(tmp_path)
    try:
        await eventually(running.listens, "the receiver listens")
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def sink(key: bytes) -> WebhookSink:
    egress = Egress(parse_networks(LOOPBACK_NETWORK))
    return WebhookSink(lambda url: derive_secrets((key,), url), STANDARD, egress, PATIENT_S, 8, "once-test", time.time)


async def test_the_printed_receiver_verifies_and_processes_each_message_once(receiver: Running) -> None:
    first, second = (effect(number, receiver.url) for number in range(2))
    async with sink(bytes(32)) as forger, sink(KEY) as sender:
        refused = await forger.deliver(first)
        assert isinstance(refused, Refused)
        assert refused.detail.startswith("401")
        for request in (first, first, second):
            assert isinstance(await sender.deliver(request), Delivered)
    assert receiver.processed() == [first.effect_id, second.effect_id]


async def test_the_printed_receiver_refuses_a_captured_message(receiver: Running) -> None:
    request = effect(1, receiver.url)
    body = encode_envelope(request)
    now_s = int(time.time())
    sent = STANDARD.sign([receiver.secret], request.effect_id, now_s, body)
    old = STANDARD.sign([receiver.secret], request.effect_id, now_s - 301, body)
    async with sink(KEY) as sender, ClientSession() as session:
        assert isinstance(await sender.deliver(request), Delivered)
        statuses = []
        for headers in ({**sent, "webhook-id": "other"}, {**sent, "webhook-timestamp": str(now_s + 1)}, old, {}, sent):
            async with session.post(receiver.url, data=body, headers=headers) as response:
                statuses.append(response.status)
    assert statuses == [401, 401, 401, 401, 204]
    assert receiver.processed() == [request.effect_id]
