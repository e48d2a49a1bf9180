"""Decisions on ownership, right and wrong: who may debit an account, who may open it, and which version it gets."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from shared.events import catalogue
from shared.events.clients import OPERATOR, SubmittedBy, encode_submitted_by
from shared.events.headers import ORIGIN, SOURCE, SUBMITTED_BY, Coordinates, header
from shared.events.installation import OWNERSHIP_KEY, Ownership, encode_ownership
from shared.events.postings import Decline, decode_ledger_event, decode_terms, encode_ledger_event, encode_terms
from shared.events.transfers import AccountClosed, AccountOpened, decode_transfer, encode_transfer
from tests.planted import ALICE, AWAY, BOB, ELSEWHERE, HOME, MAIL, Clean
from tests.world import AT_MS, RECEIVED, World

ACME = SubmittedBy("acme", "0123456789abcdef")
HOUSE = SubmittedBy("acme", "0123456789abcdef", True)
OTHER = SubmittedBy("other", "fedcba9876543210")
ONLY_OPENED = "only-opened"


@contextmanager
def submitted(world: World, by: SubmittedBy | None) -> Iterator[None]:
    """Have what follows submitted by a client."""
    before, world.by = world.by, by
    yield
    world.by = before


def own(world: Clean, name: str = "owned") -> str:
    """Open an account of acme, which lives at HOME and has cover for small payments."""
    account = world.client(name, HOME)
    with submitted(world, ACME):
        world.open(world.named(f"open-{name}"), account)
    world.pay(world.named(f"fund-{name}"), world.alice, account, 10_000)
    return account


def decide_all_kinds(world: Clean) -> None:
    """Take right decisions of every kind on ownership."""
    account = own(world)
    with submitted(world, ACME):
        world.pay("o1", account, BOB, 100)
        world.reverse("o2", account, "o1")
        world.decline("o3", account, BOB)
        world.decline("o4", ALICE, BOB, because="not_authorised")
        world.decline("o5", f"cash@{HOME}", BOB, because="not_authorised")
        world.open("o6", account)  # changes nothing, and has an outcome
        world.open("o7", account, expected_version=1)
        world.decline_opening("o8", account, "stale_version", expected_version=0)
        world.decline_opening("o9", account, "not_authorised", overdraft_minor=None)
        world.decline_opening("o10", ALICE, "not_authorised")
        world.decline_opening("o11", BOB, "not_authorised")  # has a balance, and so belongs to the operator
    with submitted(world, OTHER):
        world.decline("o12", account, BOB, because="not_authorised")
        world.decline("o13", account, BOB, no_rate=True, because="not_authorised")
        world.decline_opening("o14", account, "not_authorised", expected_version=7)
    with submitted(world, None):
        world.decline("o15", ALICE, BOB, because="not_authorised")
    with submitted(world, HOUSE):
        world.pay("o16", f"cash@{AWAY}", account, 5)
        world.open("o17", account, owner="other", overdraft_minor=50, expected_version=1)
    _, at = world.decline_command(AccountOpened(account, 5, expected_version=1))
    world.notify(at, "decline_notice", MAIL)
    world.account_event(AccountOpened(account, 5, "other", expected_version=2))
    world.account_event(AccountClosed(account))
    with submitted(world, OTHER):
        world.decline("o18", account, BOB, because="debtor_closed")
        world.decline_opening("o19", account, "not_authorised")
    world.expect(BOB, world.balances[BOB]["CZK"])


def former() -> Clean:
    """A system of a former version, without clients, owners and versions. No payment debits accounts at ELSEWHERE."""
    world = Clean(raw_from=10**6, by=None)
    world.account_event(AccountOpened(world.client(ONLY_OPENED, ELSEWHERE), None))
    for (topic, partition), records in world.logs.items():
        if topic == catalogue.LEDGER_ACCOUNTS:
            records.clear()
        for index, record in enumerate(records):
            records[index] = record._replace(value=_without(topic, record.value))
            assert SUBMITTED_BY not in dict(record.headers), partition
    world.terms = {account: msgspec.structs.replace(terms, version=0) for account, terms in world.terms.items()}
    return world


def enforced_without_payments(world: Clean) -> None:
    """Put ownership into force while payments.raw has nothing at ELSEWHERE."""
    raw_from = tuple(0 if number == ELSEWHERE else 10**6 for number in range(world.partitions))
    world.logs[catalogue.INSTALLATION, 0].clear()
    world.append(catalogue.INSTALLATION, 0, encode_ownership(Ownership(raw_from, AT_MS)), OWNERSHIP_KEY)


def opened_by_a_former_ledger_too_late(world: Clean) -> Coordinates:
    """Open an account at ELSEWHERE without a version, after a payment that needs a client."""
    with submitted(world, OPERATOR):
        world.pay("counted", world.client(ONLY_OPENED, ELSEWHERE), BOB, 1)
    world.expect(BOB, world.balances[BOB]["CZK"])
    account = world.client("late", ELSEWHERE)
    _, at = world.account_event(AccountOpened(account, 5))
    _take_version(world, account, at)
    return at


def _without(topic: str, value: bytes | None) -> bytes | None:
    """A record as a former version wrote it."""
    if topic not in {catalogue.LEDGER_POSTINGS, catalogue.LEDGER_BALANCES}:
        return value
    fields = msgspec.json.decode(value or b"")
    return msgspec.json.encode({name: of for name, of in fields.items() if name not in {"submitted_by", "version"}})


def change_event(world: World, at: Coordinates, **changes: object) -> None:
    """Alter a posting, decline or account event."""
    event = decode_ledger_event(world.at(at).value or b"")
    world.change(at, encode_ledger_event(msgspec.structs.replace(event, **changes)))


def debited_by_another_client(world: Clean) -> None:
    account = own(world)
    with submitted(world, OTHER):
        world.pay(world.named("w"), account, world.bob, 1)


def debited_by_no_client(world: Clean) -> None:
    with submitted(world, None):
        world.pay(world.named("w"), world.alice, world.bob, 1)


def debited_by_a_former_owner(world: Clean) -> None:
    account = own(world)
    world.account_event(AccountOpened(account, 0, "other"))
    with submitted(world, ACME):
        world.pay(world.named("w"), account, world.bob, 1)


def reversed_by_another_client(world: Clean) -> None:
    with submitted(world, ACME):
        world.reverse(world.named("w"), world.alice, world.named("p2"))


def house_debited_without_the_scope(world: Clean) -> None:
    with submitted(world, ACME):
        world.pay(world.named("w"), f"cash@{HOME}", world.bob, 1)


def declined_as_unauthorised(world: Clean) -> None:
    world.decline(world.named("w"), world.alice, world.bob, because="not_authorised")


def owner_declined_as_unauthorised(world: Clean) -> None:
    account = own(world)
    with submitted(world, ACME):
        world.decline(world.named("w"), account, world.bob, because="not_authorised")


def house_declined_with_the_scope(world: Clean) -> None:
    world.decline(world.named("w"), f"cash@{HOME}", world.bob, because="not_authorised")


def declined_for_funds_though_unauthorised(world: Clean) -> None:
    account = own(world)
    with submitted(world, OTHER):
        world.decline(world.named("w"), account, world.bob)


def declined_without_a_rate_though_unauthorised(world: Clean) -> None:
    with submitted(world, OTHER):
        world.decline(world.named("w"), world.alice, world.bob, no_rate=True)


def owner_changed_by_another_client(world: Clean) -> None:
    account = own(world)
    with submitted(world, OTHER):
        world.open(world.named("w"), account)


def opened_with_an_overdraft(world: Clean) -> None:
    with submitted(world, ACME):
        world.open(world.named("w"), world.client("new", HOME), overdraft_minor=5)


def opened_for_another_client(world: Clean) -> None:
    with submitted(world, ACME):
        world.open(world.named("w"), world.client("new", HOME), owner="other")


def opened_by_no_client(world: Clean) -> None:
    with submitted(world, None):
        world.open(world.named("w"), world.client("new", HOME))


def account_of_the_operator_taken(world: Clean) -> None:
    account = world.client("funded", HOME)
    world.pay(world.named("fund"), world.alice, account, 1)
    with submitted(world, ACME):
        world.open(world.named("w"), account)


def closed_account_opened_by_its_client(world: Clean) -> None:
    account = own(world)
    world.account_event(AccountClosed(account))
    with submitted(world, ACME):
        world.open(world.named("w"), account)


def opening_declined_without_a_cause(world: Clean) -> None:
    with submitted(world, ACME):
        world.decline_opening(world.named("w"), world.client("new", HOME), "not_authorised")


def opening_declined_as_stale_at_its_version(world: Clean) -> None:
    account = own(world)
    with submitted(world, ACME):
        world.decline_opening(world.named("w"), account, "stale_version", expected_version=1)


def opened_at_a_stale_version(world: Clean) -> None:
    account = own(world)
    with submitted(world, ACME):
        world.open(world.named("w"), account, expected_version=0)


def command_done_at_a_stale_version(world: Clean) -> None:
    world.account_event(AccountOpened(world.client("new", HOME), 1, expected_version=3))


def command_declined_at_its_version(world: Clean) -> None:
    world.decline_command(AccountOpened(world.client("new", HOME), 1, expected_version=0))


def version_skipped(world: Clean) -> None:
    account = own(world)
    world.terms[account] = msgspec.structs.replace(world.terms[account], version=2)
    world.account_event(AccountOpened(account, 7, "acme"))


def version_kept_though_changed(world: Clean) -> None:
    account = own(world)
    world.terms[account] = msgspec.structs.replace(world.terms[account], version=0)
    world.account_event(AccountOpened(account, 7, "acme"))


def client_altered_on_acceptance(world: Clean) -> None:
    value = world.at(world.paid.accepted).value or b""
    world.change(world.paid.accepted, msgspec.json.encode({**msgspec.json.decode(value), "submitted_by": ACME}))


def client_altered_by_transform(world: Clean) -> None:
    transfer = decode_transfer(world.at(world.paid.transfer).value or b"")
    world.change(world.paid.transfer, encode_transfer(msgspec.structs.replace(transfer, submitted_by=ACME)))


def client_altered_by_the_ledger(world: Clean) -> None:
    change_event(world, world.paid.debit, submitted_by=HOUSE)


def client_dropped_by_the_ledger(world: Clean) -> None:
    change_event(world, world.paid.debit, submitted_by=None)


def client_on_a_credit(world: Clean) -> None:
    change_event(world, world.paid.credit, submitted_by=OPERATOR)


def client_altered_on_a_decline(world: Clean) -> None:
    change_event(world, world.declined.debit, submitted_by=ACME)


def owner_altered_by_transform(world: Clean) -> None:
    with submitted(world, HOUSE):
        at, posted = world.open(world.named("w"), world.client("new", HOME), owner="other")
    transfer = decode_transfer(world.at(at).value or b"")
    world.change(at, encode_transfer(msgspec.structs.replace(transfer, owner="acme")))
    change_event(world, posted, owner="acme")


def opening_without_an_outcome(world: Clean) -> None:
    with submitted(world, ACME):
        world.opened = world.open(world.named("w"), world.client("new", HOME))
    world.remove(world.opened[1])


def opening_with_two_outcomes(world: Clean) -> None:
    with submitted(world, ACME):
        _, posted = world.open(world.named("w"), world.client("new", HOME))
    world.copy(posted)


def opening_done_and_declined(world: Clean) -> None:
    account = world.client("new", HOME)
    with submitted(world, ACME):
        _, posted = world.open(world.named("w"), account)
    origin, source = (Coordinates.decode(header(world.at(posted).headers, name) or b"") for name in (ORIGIN, SOURCE))
    event = Decline(world.named("w"), account, "not_authorised", RECEIVED, opening=True, submitted_by=ACME)
    world.append(catalogue.LEDGER_POSTINGS, HOME, encode_ledger_event(event), origin=origin, source=source)


def account_listed_with_another_owner(world: Clean) -> None:
    own(world)
    at = last_listed(world)
    terms = decode_terms(world.at(at).value or b"")
    assert terms.owner == "acme"
    world.change(at, encode_terms(msgspec.structs.replace(terms, owner="other")))


def account_not_listed(world: Clean) -> None:
    own(world)
    world.remove(last_listed(world))


def last_listed(world: Clean) -> Coordinates:
    """The last record of ledger.accounts at HOME."""
    return Coordinates(catalogue.LEDGER_ACCOUNTS, HOME, world.logs[catalogue.LEDGER_ACCOUNTS, HOME][-1].offset)


def client_altered_on_a_dead_letter(world: Clean) -> None:
    """Sent again, it would count for a client who never sent it."""
    record = world.remove(world.refused[1])
    headers = {**dict(record.headers), SUBMITTED_BY: encode_submitted_by(HOUSE)}
    log = world.logs[record.topic, record.partition]
    log.append(record._replace(headers=tuple(headers.items())))
    log.sort(key=lambda one: one.offset)


def opened_without_a_version(world: Clean) -> None:
    """As former versions wrote account events, of operators' commands only."""
    account = world.client("owned", HOME)
    with submitted(world, ACME):
        _, at = world.open(world.named("w"), account)
    _take_version(world, account, at)


def _take_version(world: World, account: str, at: Coordinates) -> None:
    change_event(world, at, version=0)
    for topic, key in ((catalogue.LEDGER_BALANCES, f"account/{account}"), (catalogue.LEDGER_ACCOUNTS, account)):
        log = world.logs[topic, at.partition]
        log[:] = [one for one in log if one.key != key.encode()]
    world.terms[account] = msgspec.structs.replace(world.terms[account], version=0)
    world.log_account(account, at.partition)
