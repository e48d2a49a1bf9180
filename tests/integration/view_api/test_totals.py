"""Totals by currency, and the digest of all balances."""

import tracemalloc

from sqlalchemy import update

from services.balances.projection import database
from shared.events.clients import OPERATOR
from shared.events.transfers import AccountOpened, Transfer
from spark.totals import digest
from tests.ledgers import CREDITOR, DAY, converted, reversal, transfer
from tests.views import ALL, Site


async def test_totals_add_up_over_partitions_and_balance(site: Site) -> None:
    ledger = site.view.ledger
    ledger.send(transfer("p-1", 1000, 10))
    ledger.send(converted())
    site.view.take()
    answer = await site.get("/api/totals")
    assert answer["conserved"] is True
    euro, dollar = answer["currencies"]
    assert (euro["currency"], euro["sum_minor"], euro["clients"]["balance_minor"]) == ("EUR", "0", "-2020")
    houses = {house["holder"]: house["balance_minor"] for house in dollar["houses"]}
    assert houses == {"fx:USD": "-1085", "in-transit": "1085"}
    ledger.drain()
    site.view.take()
    answer = await site.get("/api/totals")
    sums: dict[tuple[str, str], int] = {}
    for (account, currency), amount in ledger.balances().items():
        name, at, _ = account.rpartition("@")
        sums[currency, name if at else "clients"] = sums.get((currency, name if at else "clients"), 0) + amount
    shown = {
        (total["currency"], one["holder"]): int(one["balance_minor"])
        for total in answer["currencies"]
        for one in (total["clients"], *total["houses"])
    }
    assert {key: amount for key, amount in shown.items() if amount} == {key: sums[key] for key in sums if sums[key]}
    assert [one["partition"] for one in answer["as_of"]] == list(ALL)


async def test_totals_that_do_not_balance_are_not_conserved(site: Site) -> None:
    site.view.ledger.send(transfer())
    site.view.take()
    site.view.change(update(database.totals).where(database.totals.c.holder == "clients").values(balance_minor=-999))
    answer = await site.get("/api/totals")
    [euro] = answer["currencies"]
    assert (answer["conserved"], euro["conserved"], euro["sum_minor"]) == (False, False, "1")


async def test_the_digest_is_that_of_the_reconciliation(site: Site) -> None:
    ledger = site.view.ledger
    # Names that a locale and bytes sort differently, and a name that is a prefix of another
    for number, debtor in enumerate(("b", "B", "a-1", "a", "a.1", "A_1", "ab")):
        ledger.send(AccountOpened(debtor, None))
        amount = 7 + number
        ledger.send(Transfer(f"p-{number}", debtor, CREDITOR, amount, "EUR", amount, "USD", DAY, submitted_by=OPERATOR))
    ledger.drain()
    ledger.send(transfer("p-9"))
    ledger.drain()
    ledger.send(reversal("r-9", "p-9"))
    ledger.drain()
    site.view.take()
    lines = sorted(
        f"{account} {currency} {amount}".encode() for (account, currency), amount in ledger.balances().items()
    )
    answer = await site.get("/api/digest")
    assert answer["digest"] == digest(line.decode() for line in lines)
    assert answer["balances"] == len(lines) > 7
    assert [one["next_offset"] for one in answer["as_of"]] == [site.view.end(partition) for partition in ALL]
    site.view.ledger.send(transfer("p-10"))
    site.view.take()
    assert (await site.get("/api/digest"))["digest"] != answer["digest"]


async def test_the_digests_memory_does_not_grow_with_the_balances(site: Site) -> None:
    site.view.take()
    row = {"partition": 0, "currency": "EUR", "balance_minor": 7, "postings": 1, "last_offset": 0}
    site.view.add(database.balances, [row | {"account": f"a-{number}"} for number in range(30_000)])
    await site.get("/api/totals")
    tracemalloc.start()
    try:
        assert (await site.get("/api/digest"))["balances"] == 30_000
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
