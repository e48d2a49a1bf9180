"""Rights of each principal, tried on real brokers."""

import asyncio

import pytest

from deploy.local.supervisor.stack import Stack
from deploy.security.certificates import Authority
from shared.eos.crash import CrashPoints
from shared.eos.errors import EosError
from shared.eos.open_transactions import Transaction
from shared.events.catalogue import LEDGER_POSTINGS, TOPICS
from shared.kafka.admin.acls import Changed, ensure_rules
from shared.kafka.admin.rules import (
    CLUSTER,
    MEMBERS,
    PRINCIPALS,
    PROCESSORS,
    Kind,
    Operation,
    Rule,
    allows,
    rules,
    transactional_ids,
)
from shared.kafka.admin.transactions import look
from shared.kafka.client.access import Access
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.errors import DeniedError, is_denied
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets
from shared.kafka.runtime.producer import TransactionalProducer
from tests.access_attempts import OPERATOR_REQUESTS, Caller, is_refused
from tests.integration.secure.commands import once

pytestmark = pytest.mark.timeout(900)

LETTERS = {
    Operation.READ: "R",
    Operation.WRITE: "W",
    Operation.DESCRIBE: "d",
    Operation.DESCRIBE_CONFIGS: "c",
}


def as_(stack: Stack, authority: Authority, principal: str) -> Access:
    """Return access to the stack's brokers with a principal's identity."""
    return Access(stack.kafka.bootstrap_servers, authority.tls(principal))


def cells() -> list[Rule]:
    """Return all attempts without the principal: each operation on each resource."""
    internal = ("__consumer_offsets", "__transaction_state")
    topics = [
        Rule("", Kind.TOPIC, name, operation)
        for name in (*(topic.name for topic in TOPICS), *internal)
        for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    ]
    groups = [
        Rule("", Kind.GROUP, name, operation)
        for name in (*MEMBERS, "another")
        for operation in (Operation.READ, Operation.DESCRIBE)
    ]
    ids = [
        Rule("", Kind.TRANSACTIONAL_ID, f"{transactional_ids(service)}tried", operation)
        for service in (*PROCESSORS, "another")
        for operation in (Operation.WRITE, Operation.DESCRIBE)
    ]
    cluster = [
        Rule("", Kind.CLUSTER, CLUSTER, operation) for operation in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    ]
    return [*topics, *groups, *ids, *cluster]


def test_each_principal_has_exactly_the_rights_of_the_rules(stack: Stack, authority: Authority) -> None:
    granted, seen = rules(), dict[Rule, bool]()
    for number, principal in enumerate(PRINCIPALS):
        # Every broker decides by itself: spread the principals over the brokers
        node = stack.kafka.nodes[number % len(stack.kafka.nodes)]
        with Caller(node.port, authority.tls(principal)) as caller:
            for cell in cells():
                wanted = cell._replace(principal=principal)
                seen[wanted] = not caller.denied(wanted)
            let_through = [request[0] for request in OPERATOR_REQUESTS if not is_refused(caller, request)]
            assert let_through == [], f"{principal} may administer"
    show(seen)
    wrong = [rule for rule, allowed in seen.items() if allowed != allows(granted, rule)]
    assert wrong == []
    assert {True, False} == set(seen.values())
    # A view that was taken over learns of payments what the ledger booked, and no more
    topics = {rule.name for rule, allowed in seen.items() if allowed and rule[:2] == ("balances", Kind.TOPIC)}
    assert topics == {LEDGER_POSTINGS}
    # Each rule was tried and allowed
    untried = {rule for rule in granted if not any(seen[tried] and allows(frozenset({rule}), tried) for tried in seen)}
    assert untried == set()


def show(seen: dict[Rule, bool]) -> None:
    """Print the allowed operations by resource and principal."""
    width = max(len(rule.name) for rule in seen) + 1
    print("\n" + " " * (width + 18) + "".join(f"{name:>15}" for name in PRINCIPALS))
    for kind, name in dict.fromkeys((rule.kind, rule.name) for rule in seen):
        row = ""
        for principal in PRINCIPALS:
            letters = [
                letter
                for operation, letter in LETTERS.items()
                if seen.get(Rule(principal, kind, name, operation), False)
            ]
            row += f"{''.join(letters) or '-':>15}"
        print(f"{kind.name.lower():<17} {name:<{width}}{row}")
    print(f"{len(seen)} things tried, {sum(seen.values())} let through")


def test_the_operator_may_administer(stack: Stack) -> None:
    assert asyncio.run(ensure_rules(stack.access)) == Changed((), ())
    done = once(stack, "access", "check")
    assert (done.returncode, done.stdout) == (0, "")


def test_an_unknown_rule_is_shown_and_removed(stack: Stack) -> None:
    unknown = Rule("ingest", Kind.TOPIC, LEDGER_POSTINGS, Operation.WRITE)
    assert len(asyncio.run(ensure_rules(stack.access, {*rules(), unknown})).created) == 1
    found = once(stack, "access", "check")
    assert (found.returncode, found.stdout) == (1, "- User:ingest WRITE on topic ledger.postings\n")
    removed = once(stack, "access", "apply")
    assert (removed.returncode, removed.stdout) == (0, found.stdout)
    assert once(stack, "access", "check").returncode == 0


async def transaction_of(access: Access, transactional_id: str) -> Transaction:
    async with Brokers(access) as brokers:
        seen = await look(brokers, [LEDGER_POSTINGS])
    return next(one for one in seen.transactions if one.transactional_id == transactional_id)


def test_a_thief_can_neither_fence_the_ledger_nor_write_for_it(stack: Stack, authority: Authority) -> None:
    own = "ledger-0"
    before, end = (
        asyncio.run(transaction_of(stack.access, own)),
        asyncio.run(end_offsets(stack.access, [LEDGER_POSTINGS])),
    )

    async def fence(thief: Access) -> None:
        producer = TransactionalProducer(thief, own, 10_000, CrashPoints("", lambda _: None))
        try:
            await producer.init(20)
        finally:
            await producer.discard()

    async def write(thief: Access) -> None:
        async with IdempotentWriter(thief) as writer:
            await writer.write(LEDGER_POSTINGS, 0, b"stolen", b"{}")

    for principal in PRINCIPALS:
        if principal == "ledger":
            continue
        with pytest.raises(EosError) as refused:
            asyncio.run(fence(as_(stack, authority, principal)))
        assert is_denied(refused.value), principal
        with pytest.raises(DeniedError, match=rf"denied to {principal} \(by .*{principal}\.pem\)"):
            asyncio.run(write(as_(stack, authority, principal)))
    after = asyncio.run(transaction_of(stack.access, own))
    assert (after.producer_id, after.producer_epoch) == (before.producer_id, before.producer_epoch)
    assert asyncio.run(end_offsets(stack.access, [LEDGER_POSTINGS])) == end
    # The ledger itself may initialise such a producer, so the comparison above could fail
    other = "ledger-99"
    asyncio.run(fence_as_owner(as_(stack, authority, "ledger"), other))
    assert asyncio.run(transaction_of(stack.access, other)).producer_id >= 0


def test_the_monitor_lists_the_transactions_of_every_producer(stack: Stack, authority: Authority) -> None:
    """The brokers list what the principal may describe; a transaction that is not listed would seem to hang."""
    asyncio.run(fence_as_owner(stack.access, "bank-0"))
    assert asyncio.run(transaction_of(as_(stack, authority, "monitor"), "bank-0")).producer_id >= 0


async def fence_as_owner(ledger: Access, transactional_id: str) -> None:
    producer = TransactionalProducer(ledger, transactional_id, 10_000, CrashPoints("", lambda _: None))
    await producer.init(20)
    await producer.discard()
