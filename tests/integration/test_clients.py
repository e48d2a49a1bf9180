"""`once clients` with a gateway at work: revocation under load, the audit of both, and enforcement of ownership."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.kafka.cluster import LocalKafka
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_TRANSFERS, PAYMENTS_RAW, TOPICS
from shared.events.headers import SUBMITTED_BY, header
from shared.events.transfers import AccountOpened, decode_transfer
from shared.http.keys import key_of
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.reader import read_topics, stable_offsets
from tests.commands import once
from tests.harness import cluster, eventually
from tests.integration.test_gateway import Client, Gateway
from tests.integration.test_verify import BANK_FILE
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import send_raw

pytestmark = pytest.mark.timeout(180)

REVOKED_WITHIN_S = 5.0
SENDERS = 4
SCOPES = "payments:write,read,house"


class Operator:
    """Commands on a cluster and a file of keys."""

    def __init__(self, kafka: LocalKafka, file: Path) -> None:
        self.kafka = kafka
        self.file = file

    def run(self, *words: str) -> Any:
        """Run `once clients`; the answer of `--json`."""
        keys = [] if words[0] in {"log", "enforce"} else ["--file", self.file]
        done = once("clients", *words, *keys, "--bootstrap-servers", self.kafka.bootstrap_servers, "--json")
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for this module only: balances that a bank file states are no longer right afterwards."""
    with cluster(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def operator(kafka: LocalKafka, tmp_path: Path) -> Operator:
    return Operator(kafka, tmp_path / "keys")


@pytest.fixture
def started(kafka: LocalKafka, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway to be started once there are keys."""
    gateway = Gateway(kafka, tmp_path, GATEWAY_API_KEYS_FILE=str(tmp_path / "keys"))
    try:
        yield gateway
    finally:
        gateway.service.process.kill()


class Load:
    """Payments by one key, and when each was sent and answered with which status."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._values = payments(f"{name}-{time.time_ns()}", 1_000_000)
        self.sent: list[tuple[float, int]] = []
        self.until_s = float("inf")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(self._send())

    async def _send(self) -> None:
        while (begun_s := time.monotonic()) < self.until_s:
            answer = await self._client.post(next(self._values))
            assert answer is not None
            self.sent.append((begun_s, answer[0]))

    @property
    def statuses(self) -> Counter[int]:
        return Counter(status for _, status in self.sent)


async def test_a_revoked_key_is_refused_within_5_s_under_load_and_all_of_it_is_recorded(
    operator: Operator, started: Gateway
) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    shop, kiosk = [await asyncio.to_thread(operator.run, "add", name, "--scopes", SCOPES) for name in ("shop", "kiosk")]
    await asyncio.to_thread(started.service.start().wait_ready)
    async with started.client(shop["key"]) as one, started.client(kiosk["key"]) as other:
        revoked, kept = Load(one, "shop"), Load(other, "kiosk")
        loading = [asyncio.create_task(load.run()) for load in (revoked, kept)]

        async def loaded() -> bool:
            return min(load.statuses[202] for load in (revoked, kept)) > 20

        await eventually(loaded, "both clients pay")
        await asyncio.to_thread(operator.run, "revoke", "shop", shop["key_id"])
        returned_s = time.monotonic()
        revoked.until_s = kept.until_s = returned_s + REVOKED_WITHIN_S + 2
        await asyncio.gather(*loading)
    late = [status for sent_s, status in revoked.sent if sent_s > returned_s + REVOKED_WITHIN_S]
    assert set(late) == {401}
    assert set(kept.statuses) == {202}
    assert await asyncio.to_thread(started.service.process.terminate) == 0

    events = (await asyncio.to_thread(operator.run, "log", "--since", since))["events"]
    by_kind: Counter[tuple[str, str, str]] = Counter()
    for event in events:
        by_kind[event["event"], event["client"], event.get("key_id", "")] += event.get("requests", 1)
    assert by_kind == {
        ("client_added", "shop", ""): 1,
        ("client_added", "kiosk", ""): 1,
        ("key_issued", "shop", shop["key_id"]): 1,
        ("key_issued", "kiosk", kiosk["key_id"]): 1,
        ("key_revoked", "shop", shop["key_id"]): 1,
        ("key_used", "shop", shop["key_id"]): revoked.statuses[202],
        ("key_used", "kiosk", kiosk["key_id"]): kept.statuses[202],
        ("requests_refused", "", ""): revoked.statuses[401],
    }
    assert {event["reason"] for event in events if event["event"] == "requests_refused"} == {"key_unknown"}
    assert all(
        "@" in event["by"] for event in events if event["event"] in {"client_added", "key_issued", "key_revoked"}
    )
    assert shop["key"] not in json.dumps(events)
    [used] = (await asyncio.to_thread(operator.run, "list"))["clients"]
    assert used["last_used"] >= since
    [key] = (await asyncio.to_thread(operator.run, "keys", "kiosk"))["keys"]
    assert key["last_used"] == used["last_used"]


async def test_a_client_is_not_added_where_it_cannot_be_recorded(operator: Operator, tmp_path: Path) -> None:
    nowhere = ("--bootstrap-servers", "127.0.0.1:1")
    done = await asyncio.to_thread(once, "clients", "add", "shop", "--file", operator.file, *nowhere)
    assert (done.exit_code, operator.file.exists()) == (1, False)
    for name in ("shop", "kiosk"):
        await asyncio.to_thread(operator.run, "add", name)
    done = await asyncio.to_thread(once, "clients", "revoke", "shop", "--file", operator.file, *nowhere)
    assert (done.exit_code, "revoked, but not recorded" in done.output) == (1, True)
    assert [client["client"] for client in (await asyncio.to_thread(operator.run, "list"))["clients"]] == ["kiosk"]


def loaded(kafka: LocalKafka, file: Path, *words: object) -> tuple[set[bytes | None], set[str]]:
    """Load a file; return the header of its payments, and the owners of the accounts that were opened for it."""
    starts = asyncio.run(stable_offsets(kafka.bootstrap_servers, [PAYMENTS_RAW, LEDGER_TRANSFERS]))
    done = once("load", file, *words, "--bootstrap-servers", kafka.bootstrap_servers, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    names: set[bytes | None] = set()
    owners: set[str] = set()

    def take(topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            if topic == PAYMENTS_RAW:
                names.add(header(record.headers, SUBMITTED_BY))
            else:
                event = decode_transfer(record.value or b"")
                assert isinstance(event, AccountOpened)
                owners.add(event.owner)

    asyncio.run(read_topics(kafka.bootstrap_servers, [PAYMENTS_RAW, LEDGER_TRANSFERS], take, start=starts))
    return names, owners


def test_a_file_is_loaded_for_a_client(kafka: LocalKafka, tmp_path: Path) -> None:
    bank, lines, key = tmp_path / "bank.csv", tmp_path / "lines.jsonl", tmp_path / "shop.key"
    bank.write_text(BANK_FILE)
    lines.write_bytes(b"\n".join(payments("loaded", 20)))
    key.write_text("once_the-shops-key\n")
    assert loaded(kafka, bank) == ({b"local::house"}, {"local"})
    assert loaded(kafka, bank, "--client", "operator") == ({b"operator::house"}, {"operator"})
    by_key = f"shop:{key_of('shop', 'once_the-shops-key').id}".encode()
    assert loaded(kafka, lines, "--client", "shop", "--key-file", key) == ({by_key}, set())


def test_ownership_is_enforced_once_from_the_end_of_what_was_paid(tmp_path: Path) -> None:
    kafka = LocalKafka(tmp_path / "kafka", 1, heap_mb=256)
    operator = Operator(kafka, tmp_path / "keys")
    kafka.start()
    try:
        kafka.wait_ready(120)
        asyncio.run(ensure_topics(kafka.access, PARTITIONS, 1, topics=TOPICS))  # and no id: as if from before
        asyncio.run(send_raw(kafka.bootstrap_servers, payments("before", 30)))
        first = operator.run("enforce")
        assert (sum(first["raw_from"]), first["new"]) == (30, True)
        asyncio.run(send_raw(kafka.bootstrap_servers, payments("after", 30)))
        assert operator.run("enforce") == first | {"new": False}
        [event] = operator.run("log", "--since", "2020-01-01")["events"]
        named = event["event"], event["client"], event["raw_from"]
        assert named == ("ownership_enforced", "operator", first["raw_from"])
    finally:
        kafka.kill()
