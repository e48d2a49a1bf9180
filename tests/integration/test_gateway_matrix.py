"""The gateway and the ledger decide alike: each principal, each kind of account, on real brokers.

The same command goes through the gateway, and past it into payments.raw with the principal's header. The ledger
declines the second one as not_authorised exactly where the gateway answered 403, and none that the gateway accepted.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import free_ports
from shared.events.catalogue import LEDGER_POSTINGS, PAYMENTS_RAW
from shared.events.clients import OPERATOR, Scope, SubmittedBy, encode_submitted_by
from shared.events.headers import SUBMITTED_BY
from shared.events.partitions import partition_for
from shared.events.payments import AccountOpening, Payment, encode_instruction
from shared.events.postings import Decline, decode_ledger_event
from shared.http.keys import key_of
from shared.kafka.admin.groups import wait_drained
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from tests.commands import once
from tests.gateway_matrix import KINDS, RIVAL, SHOP, expected
from tests.harness import eventually, services
from tests.partitions import PARTITIONS
from tests.tiers import full

pytestmark = [full, pytest.mark.timeout(240)]

SCOPES = {
    "plain": frozenset({Scope.PAYMENTS_WRITE, Scope.ACCOUNTS_WRITE}),
    "house": frozenset({Scope.PAYMENTS_WRITE, Scope.ACCOUNTS_WRITE, Scope.HOUSE}),
}
ROUTES = ("POST /v1/payments", "POST /v1/payments/batch", "POST /payments")
VARIANTS: dict[str, dict[str, Any]] = {
    "POST /v1/accounts": {},
    "POST /v1/accounts, overdraft": {"overdraft_minor": 5},
    "POST /v1/accounts, owner": {"owner": RIVAL},
}


def named(account: str) -> str:
    """A name of this module's own: the brokers are shared."""
    return account if "@" in account else f"matrix.{account}"


class Client:
    """Sends to the gateway as SHOP."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(self, route: str, key: str, body: Any) -> int:
        """Return the status; of a batch, the payment's own."""
        path = route.partition(", ")[0].removeprefix("POST ")
        sent = {"payments": [body]} if path.endswith("/batch") else body
        headers = {"Authorization": f"Bearer {key}"}
        async with self._session.post(path, json=sent, headers=headers) as answer:
            found = await answer.json()
            return int(found["payments"][0]["status"]) if answer.status == 207 else answer.status


@pytest.fixture
async def client(kafka: LocalKafka, tmp_path: Path) -> AsyncIterator[Client]:
    keys = tmp_path / "keys"
    lines = [key_of(SHOP, f"once_{name}", scopes).line for name, scopes in SCOPES.items()]
    keys.write_text("\n".join([*lines, key_of(RIVAL, "once_rival", SCOPES["plain"]).line]))
    port = free_ports(1)[0]
    settings = {"GATEWAY_PORT": str(port), "GATEWAY_API_KEYS_FILE": str(keys)}
    with services(kafka.bootstrap_servers, tmp_path, "ingest", "transform", "ledger", "gateway", **settings):
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield Client(session)


async def open_and_close(brokers: str, client: Client) -> None:
    """Make the accounts of KINDS, and wait until the gateway knows them."""
    for account, owner, _ in KINDS.values():
        if owner is not None:
            key = "once_plain" if owner == SHOP else "once_rival"
            body = {"account": named(account), "command_id": "first"}
            assert await client.post("POST /v1/accounts", key, body) == 202
    await wait_drained(brokers, deadline_s=60)
    for account, _, closed in KINDS.values():
        if closed:
            done = once("accounts", "close", named(account), "--bootstrap-servers", brokers)
            assert done.exit_code == 0, done.output
    await wait_drained(brokers, deadline_s=60)
    numbers = iter(range(1_000_000))

    async def known() -> bool:
        again = {"account": named("shop-closed"), "command_id": f"probe-{next(numbers)}"}
        return await client.post("POST /v1/accounts", "once_plain", again) == 403

    await eventually(known, "the gateway knows that the account is closed", 30)


def payment(account: str, payment_id: str) -> Payment:
    return Payment(payment_id, account, "576", 1, "EUR", 2)


async def test_the_gateway_and_the_ledger_decide_alike(kafka: LocalKafka, client: Client) -> None:
    await open_and_close(kafka.bootstrap_servers, client)
    await debit_alike(kafka.bootstrap_servers, client)
    await open_alike(kafka.bootstrap_servers, client)
    await open_with_balance(kafka.bootstrap_servers, client)


async def debit_alike(brokers: str, client: Client) -> None:
    """Debit every kind of account."""
    answered: dict[str, int] = {}  # status by payment_id
    wanted: dict[str, int] = {}
    async with IdempotentWriter(brokers) as past:
        for name, scopes in SCOPES.items():
            submitted_by = encode_submitted_by(SubmittedBy(SHOP, "0" * 16, name == "house"))
            headers = ((SUBMITTED_BY, submitted_by),)
            for kind, (plain_account, _, _) in KINDS.items():
                account = named(plain_account)
                for route in ROUTES:
                    command_id = f"matrix {name} {kind} {route}"
                    instruction = payment(account, command_id)
                    answered[command_id] = await client.post(route, f"once_{name}", msgspec.to_builtins(instruction))
                    wanted[command_id] = expected(route, frozenset(map(str, scopes)), kind)
                forged = encode_instruction(payment(account, f"past {name} {kind}"))
                partition = partition_for(account, PARTITIONS)
                await past.send(PAYMENTS_RAW, partition, account.encode(), forged, headers)
        await past.flush()
    assert answered == wanted
    await wait_drained(brokers, deadline_s=60)
    reasons = await declines(brokers)
    for command_id, status in answered.items():
        assert status == 403 or reasons.get(command_id) != "not_authorised", command_id
    for name, scopes in SCOPES.items():
        for kind in KINDS:
            refused = expected("POST /v1/payments", frozenset(map(str, scopes)), kind) == 403
            assert (reasons.get(f"past {name} {kind}") == "not_authorised") == refused, (name, kind)


async def open_alike(brokers: str, client: Client) -> None:
    """Open accounts that the client may not open: an opening that is accepted would change what follows."""
    async with IdempotentWriter(brokers) as past:
        for variant, changes in VARIANTS.items():
            for kind in ("another's", "another's, closed", "own, closed"):
                account = named(KINDS[kind][0])
                status = await client.post(
                    variant, "once_plain", {"account": account, "command_id": f"via {variant}", **changes}
                )
                assert status == expected(variant, frozenset(map(str, SCOPES["plain"])), kind) == 403
                opening = encode_instruction(AccountOpening(f"past {variant}", account, schema_version=2, **changes))
                header = ((SUBMITTED_BY, encode_submitted_by(SubmittedBy(SHOP, "0" * 16))),)
                partition = partition_for(account, PARTITIONS)
                await past.send(PAYMENTS_RAW, partition, account.encode(), opening, header)
        await past.flush()
    await wait_drained(brokers, deadline_s=60)
    found = [
        event
        for event in await events(brokers)
        if isinstance(event, Decline) and event.payment_id.startswith("past POST")
    ]
    assert {event.reason for event in found} == {"not_authorised"}
    assert {(event.debtor, event.payment_id) for event in found} == {
        (named(KINDS[kind][0]), f"past {variant}")
        for variant in VARIANTS
        for kind in ("another's", "another's, closed", "own, closed")
    }
    assert all(event.opening for event in found)


async def open_with_balance(brokers: str, client: Client) -> None:
    """Open an account that has received money: ledger.accounts does not have it, so only the ledger can refuse."""
    account = named("credited")
    async with IdempotentWriter(brokers) as past:
        credit = encode_instruction(Payment("credit", "cash@0", account, 1, "EUR", 2))
        await past.send(PAYMENTS_RAW, 0, b"cash@0", credit, ((SUBMITTED_BY, encode_submitted_by(OPERATOR)),))
    await wait_drained(brokers, deadline_s=60)
    opening = {"account": account, "command_id": "open-credited"}
    assert await client.post("POST /v1/accounts", "once_plain", opening) == 202
    await wait_drained(brokers, deadline_s=60)
    assert (await declines(brokers))["open-credited"] == "not_authorised"


async def events(brokers: str) -> list[Any]:
    found: list[Any] = []
    await read_topics(
        brokers,
        [LEDGER_POSTINGS],
        lambda _, __, records: found.extend(decode_ledger_event(record.value or b"") for record in records),
    )
    return found


async def declines(brokers: str) -> dict[str, str]:
    """Reason by payment_id."""
    return {event.payment_id: event.reason for event in await events(brokers) if isinstance(event, Decline)}
