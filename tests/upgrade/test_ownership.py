"""The upgrade from a version that knew no clients, in the order of docs/deployment.md."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS, PAYMENTS_RAW
from shared.events.clients import OPERATOR, SubmittedBy, encode_submitted_by
from shared.events.headers import SUBMITTED_BY
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.events.postings import Decline, Posting, decode_ledger_event
from shared.events.validation import key_of
from shared.kafka.admin.installation import ensure_installation
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from shared.settings import EXIT_CONFIG
from tests.commands import once
from tests.harness import Service
from tests.partitions import PARTITIONS
from tests.tiers import full
from tests.upgrade.installation import Installation, Version

pytestmark = [pytest.mark.timeout(300), full]

SHOP = SubmittedBy("shop", "ab" * 8, True)
NO_HOUSE = SubmittedBy("operator", "cd" * 8)

BEFORE = {"funds-alice": ("cash@0", "alice"), "alice-pays": ("alice", "bob")}
"""Payments that the previous version decides: debtor and creditor."""
BETWEEN = {"while-stopped": ("alice", "bob")}
"""One that its gateway accepts while the ledger is stopped."""
AFTER: Mapping[str, tuple[str, str, SubmittedBy | None, str]] = {
    "of-shop": ("alice", "bob", SHOP, "not_authorised"),
    "of-nobody": ("alice", "bob", None, "not_authorised"),
    "of-operator": ("alice", "bob", NO_HOUSE, "posted"),
    "never-seen": ("carol", "bob", SHOP, "not_authorised"),
    "house": ("cash@1", "alice", NO_HOUSE, "not_authorised"),
    "of-the-house": ("cash@1", "alice", OPERATOR, "posted"),
}
"""Payments after ownership is enforced: debtor, creditor, who submitted it, and how the ledger must decide."""


async def send(brokers: str, payments: Mapping[str, tuple[str, str]], submitted_by: SubmittedBy | None) -> None:
    headers = () if submitted_by is None else ((SUBMITTED_BY, encode_submitted_by(submitted_by)),)
    async with IdempotentWriter(brokers) as writer:
        for payment_id, (debtor, creditor) in payments.items():
            amount = 100_000 if debtor == "cash@0" else 100
            value = encode_instruction(Payment(payment_id, debtor, creditor, amount, "EUR", SCHEMA_VERSION))
            key, partition = key_of(value, PARTITIONS)
            await writer.send(PAYMENTS_RAW, partition, key, value, headers)


async def decisions(brokers: str) -> dict[str, str]:
    """The ledger's decision on each payment, by payment_id."""
    found: dict[str, str] = {}

    def take(_topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            event = decode_ledger_event(record.value or b"")
            if isinstance(event, Posting | Decline):
                found[event.payment_id] = event.reason if isinstance(event, Decline) else "posted"

    await read_topics(brokers, [LEDGER_POSTINGS], take)
    return found


async def test_accounts_and_payments_from_before_belong_to_the_operator(unowned: Installation, tmp_path: Path) -> None:
    brokers = unowned.brokers
    unowned.start(Version.PREVIOUS)
    for number, (payment_id, accounts) in enumerate(BEFORE.items(), 1):  # the second one spends what the first brings
        await send(brokers, {payment_id: accounts}, None)
        await ensure_installation(brokers)  # the upgrade's first step; after payments it enforces nothing
        assert unowned.verify() == number
    unowned.stop()
    await send(brokers, BETWEEN, None)

    refused = Service("ledger", brokers, tmp_path).start()
    assert refused.wait_exit(30) == EXIT_CONFIG
    assert "once clients enforce" in refused.process.log_path.read_text()
    enforced = once("clients", "enforce", "--json", "--bootstrap-servers", brokers)
    assert sum(json.loads(enforced.stdout)["raw_from"]) == len(BEFORE) + len(BETWEEN)

    unowned.start(Version.PRESENT)
    for payment_id, (debtor, creditor, submitted_by, _) in AFTER.items():
        await send(brokers, {payment_id: (debtor, creditor)}, submitted_by)
    assert unowned.verify() == len(BEFORE) + len(BETWEEN) + len(AFTER)
    expected = dict.fromkeys((*BEFORE, *BETWEEN), "posted") | {name: wanted for name, (*_, wanted) in AFTER.items()}
    assert await decisions(brokers) == expected
    unowned.stop()
