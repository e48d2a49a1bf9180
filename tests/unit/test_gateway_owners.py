"""The gateway's knowledge of owners, over a table of the test's own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from services.gateway import owners
from services.gateway.owners import PENDING_MAX, PENDING_S, Owners
from shared.events.clients import OWNER_UNNAMED
from shared.events.postings import AccountTerms, encode_terms
from shared.kafka.client.errors import KafkaUnavailableError
from tests.harness import eventually


class Table:
    """A GlobalTable in memory: `starts` says how the next ones begin, `fail` ends this one."""

    made: list["Table"]
    starts: list[dict[str, AccountTerms] | None]

    def __init__(self, _: object, topic: str, decode_key: Callable[[bytes], str], decode_value: Any) -> None:
        assert (topic, decode_key(b"2378")) == ("ledger.accounts", "2378")
        assert decode_value(encode_terms(AccountTerms("shop", 1))) == AccountTerms("shop", 1)
        self.values: dict[str, AccountTerms] = {}
        self.stopped = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        Table.made.append(self)

    async def start(self) -> None:
        found = Table.starts.pop(0)
        if found is None:
            raise KafkaUnavailableError("no broker answers")
        self.values = found

    async def failed(self) -> None:
        await self._failure

    def fail(self, error: Exception) -> None:
        self._failure.set_exception(error)

    async def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch) -> None:
    Table.made, Table.starts = [], []
    monkeypatch.setattr(owners, "GlobalTable", Table)
    monkeypatch.setattr(owners, "RETRY_S", 0.01)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def test_an_account_that_was_never_opened_is_the_operators() -> None:
    Table.starts = [{"2378": AccountTerms("shop", 1)}]
    known = Owners("brokers")
    await known.start()
    assert (known.owner_of("2378"), known.owner_of("576")) == ("shop", OWNER_UNNAMED)
    assert (known.terms("2378"), known.terms("576")) == (AccountTerms("shop", 1), None)


async def test_an_opening_under_way_counts_until_its_time_is_over_or_the_ledger_has_decided() -> None:
    clock = Clock()
    Table.starts = [{}]
    known = Owners("brokers", clock)
    await known.start()
    known.opens("2378", "shop")
    known.opens("2378", "rival")  # takes nothing from the first one
    assert [known.is_opening("2378", client) for client in ("shop", "rival", OWNER_UNNAMED)] == [True, True, False]
    assert (known.owner_of("2378"), known.terms("2378")) == (OWNER_UNNAMED, None)
    Table.made[0].values["2378"] = AccountTerms("rival", 1)
    assert not known.is_opening("2378", "shop")
    del Table.made[0].values["2378"]
    clock.now_s += PENDING_S - 1
    assert known.is_opening("2378", "shop")
    clock.now_s += 1
    assert not known.is_opening("2378", "shop")


async def test_openings_under_way_are_bounded_and_the_oldest_is_forgotten() -> None:
    Table.starts = [{}]
    known = Owners("brokers", Clock())
    await known.start()
    for number in range(PENDING_MAX):
        known.opens(f"a{number}", "shop")
    known.opens("a0", "shop")  # again: now the youngest
    known.opens("new", "shop")
    assert [known.is_opening(account, "shop") for account in ("a0", "a1", "a2", "new")] == [True, False, True, True]


async def test_while_the_brokers_are_away_the_last_owners_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "RETRY_S", 3600)
    Table.starts = [{"2378": AccountTerms("shop", 1)}, None]
    known = Owners("brokers")
    await known.start()
    following = asyncio.create_task(known.follow())
    Table.made[0].fail(KafkaUnavailableError("no broker answers"))

    async def attempted() -> bool:
        return not Table.starts

    await eventually(attempted, "an attempt failed")
    assert known.owner_of("2378") == "shop"
    await cancel(following)


async def test_a_table_that_ended_is_replaced_by_one_that_has_read_all() -> None:
    Table.starts = [{"2378": AccountTerms("shop", 1)}, None, None, {"2378": AccountTerms("rival", 2)}]
    known = Owners("brokers")
    await known.start()
    following = asyncio.create_task(known.follow())
    Table.made[0].fail(KafkaUnavailableError("no broker answers"))

    async def replaced() -> bool:
        return known.owner_of("2378") == "rival"

    await eventually(replaced, "the topic was read again")
    await cancel(following)
    assert all(table.stopped for table in Table.made)


async def cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_record_that_is_no_terms_ends_it() -> None:
    Table.starts = [{}]
    known = Owners("brokers")
    await known.start()
    following = asyncio.create_task(known.follow())
    Table.made[0].fail(ValueError("not AccountTerms"))
    with pytest.raises(ValueError, match="not AccountTerms"):
        await following
    assert Table.made[0].stopped
