"""Raw records that claim what their client may not do, on real brokers: none of them moves money."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from deploy.local.kafka.cluster import LocalKafka
from shared.events.catalogue import LEDGER_ACCOUNTS, LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_RAW
from shared.events.clients import BY_OPERATOR, SubmittedBy, encode_submitted_by
from shared.events.headers import SUBMITTED_BY, Headers
from shared.events.partitions import partition_for
from shared.events.postings import AccountTerms, Decline, Posting, decode_ledger_event, decode_terms
from shared.events.transfers import AccountOpened, encode_transfer
from shared.events.validation import key_of
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from tests.harness import services
from tests.partitions import PARTITIONS
from tests.proof import assert_exactly_once, verdict

KEY: Final = "0123456789abcdef"
ALPHA: Final = ((SUBMITTED_BY, encode_submitted_by(SubmittedBy("alpha", KEY))),)
BETA: Final = ((SUBMITTED_BY, encode_submitted_by(SubmittedBy("beta", KEY))),)
HOUSE: Final = ((SUBMITTED_BY, encode_submitted_by(SubmittedBy("treasury", KEY, house=True))),)
FORGED: Final[dict[str, Headers]] = {
    "no header": (),
    "other client": BETA,
    "other client with the scope house": HOUSE,
    "malformed": ((SUBMITTED_BY, b"alpha"),),
    "not UTF-8": ((SUBMITTED_BY, b"\xff:" + KEY.encode()),),
    "oversized": ((SUBMITTED_BY, b"a" * 100_000),),
    "second header": ((SUBMITTED_BY, b"malformed"), *ALPHA),
    "the operator": BY_OPERATOR,
}
OWNED, PAYEE, STOLEN = "owned-1", "payee-1", "stolen-1"


def line(payment_id: str, debtor: str, **more: object) -> dict[str, Any]:
    return {"schema_version": 2, "payment_id": payment_id, "debtor": debtor} | more


def payment(payment_id: str, debtor: str, creditor: str = PAYEE) -> dict[str, Any]:
    return line(payment_id, debtor, creditor=creditor, amount_minor=1, currency="EUR")


def opening(command_id: str, account: str = STOLEN, **more: object) -> dict[str, Any]:
    return line(command_id, account, type="account_opening", **more)


def forgeries() -> list[tuple[dict[str, Any], Headers]]:
    """Payments, reversals and openings that must be declined."""
    found = []
    for number, headers in enumerate(FORGED.values()):
        found.append((payment(f"forged-{number}", OWNED), headers))
        found.append((line(f"undo-{number}", OWNED, type="reversal", reverses="genuine"), headers))
        if headers not in (HOUSE, BY_OPERATOR):
            found.append((payment(f"house-{number}", f"cash@{number % PARTITIONS}"), headers))
            found.append((opening(f"open-{number}", OWNED), headers))
    return [
        *found,
        (opening("overdraft", overdraft_minor=1), ALPHA),
        (opening("unlimited", overdraft_minor=None), ALPHA),
        (opening("for-another", owner="beta"), ALPHA),
        (opening("nobody"), ()),
    ]


async def send(brokers: str, records: list[tuple[dict[str, Any], Headers]]) -> None:
    async with IdempotentWriter(brokers) as writer:
        for fields, headers in records:
            value = json.dumps(fields).encode()
            key, partition = key_of(value, PARTITIONS)
            await writer.write(PAYMENTS_RAW, partition, key, value, headers)


async def open_for_alpha(brokers: str) -> None:
    async with IdempotentWriter(brokers) as writer:
        event = AccountOpened(OWNED, None, "alpha")
        partition = partition_for(OWNED, PARTITIONS)
        await writer.send(LEDGER_TRANSFERS, partition, OWNED.encode(), encode_transfer(event))


def test_what_a_client_may_not_do_is_declined_and_moves_no_money(kafka: LocalKafka, tmp_path: Path) -> None:
    brokers = kafka.bootstrap_servers
    forged = forgeries()
    with services(brokers, tmp_path, "ingest", "transform", "ledger"):
        asyncio.run(open_for_alpha(brokers))
        asyncio.run(send(brokers, [(payment("genuine", OWNED), ALPHA)]))
        asyncio.run(send(brokers, forged))
        assert_exactly_once(verdict(brokers))
    posted, declined = set(), {}
    events: dict[str, AccountTerms] = {}

    def take(topic: str, _partition: int, records: list[Any]) -> None:
        for record in records:
            if topic == LEDGER_ACCOUNTS:
                events[record.key.decode()] = decode_terms(record.value)
                continue
            event = decode_ledger_event(record.value)
            if isinstance(event, Posting):
                posted.add((event.debtor, event.payment_id))
            elif isinstance(event, Decline):
                declined[event.debtor, event.payment_id] = event

    asyncio.run(read_topics(brokers, [LEDGER_POSTINGS, LEDGER_ACCOUNTS], take))
    identities = {(fields["debtor"], fields["payment_id"]) for fields, _ in forged}
    assert {identity: declined[identity].reason for identity in identities} == dict.fromkeys(
        identities, "not_authorised"
    )
    assert not identities & posted
    assert (OWNED, "genuine") in posted
    assert events[OWNED] == AccountTerms("alpha", 1, None)
    assert STOLEN not in events
