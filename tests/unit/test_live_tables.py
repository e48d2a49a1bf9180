"""The page's queries of the view's tables, and payments' ways from the monitor's steps."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import Connection

from services.balances.api.answers import Way, Ways
from services.balances.dashboard import tables
from services.balances.dashboard.tables import Looking, Posted, posted, ways_of
from services.balances.projection import database
from shared.eos.sources import SeenSources
from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_ACCEPTED, PAYMENTS_RAW
from shared.events.postings import Decline
from shared.http.monitor import POSTINGS_MAX, STEPS_MAX, Step
from tests.ledgers import DEBTOR, P, Q
from tests.views import View


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    made = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    made.fund()
    yield made
    made.close()


@pytest.fixture
def connection(view: View) -> Iterator[Connection]:
    """A connection whose transactions are snapshots."""
    engine = database.reading(view.url)
    with engine.connect() as made:
        yield made
    engine.dispose()


def look(looking: Looking, connection: Connection) -> tables.Look:
    with connection.begin():
        return looking.look(connection)


def test_a_look_counts_postings_and_sums_balances(view: View, connection: Connection) -> None:
    looking = Looking()
    assert look(looking, connection) == tables.Look({}, {})
    view.book("p-1")
    view.book("p-2")
    view.ledger.drain()
    view.post(P, Decline("p-3", DEBTOR, "insufficient_funds", "2026-11-02"))
    view.take()
    found = look(looking, connection)
    assert found.events == {"debit": 2, "credit": 2, "decline": 1}
    assert {holder for holder, _ in found.balances} >= {"clients", "in-transit"}
    assert sum(found.balances.values()) == 0


def test_only_what_is_new_is_counted(view: View, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    wanted = tables.events_between

    def note(partition: int, start: int, end: int) -> sqlalchemy.Select[str, int]:
        asked.append((partition, start, end))
        return wanted(partition, start, end)

    monkeypatch.setattr(tables, "events_between", note)
    looking = Looking()
    ends = []
    for number in range(4):
        view.book(f"p-{number}")
        view.take([P])
        ends.append(view.end(P))
        assert look(looking, connection).events == {"debit": number + 1}
        assert look(looking, connection).events == {"debit": number + 1}
    assert asked == [(P, start, end) for start, end in zip([0, *ends], ends, strict=False)]


def test_a_view_that_is_rebuilt_is_counted_from_the_beginning(view: View, connection: Connection) -> None:
    looking = Looking()
    for number in range(3):
        view.book(f"p-{number}")
    view.take()
    assert look(looking, connection).events == {"debit": 3}
    view.change(
        *(
            sqlalchemy.delete(table)
            for table in (database.events, database.entries, database.balances, database.totals)
        ),
        sqlalchemy.update(database.positions).values(next_offset=0, sources=SeenSources()),
    )
    assert look(looking, connection).events == {}
    view.take([P])
    assert look(looking, connection).events == {"debit": 3}


def test_the_count_uses_the_primary_key(view: View, connection: Connection) -> None:
    statement = tables.events_between(P, 4, 9).compile(connection, compile_kwargs={"literal_binds": True})
    with connection.begin():
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}").all()
    assert "SEARCH events USING INDEX" in str(plan)


def test_the_postings_of_a_payment_are_bounded(view: View, connection: Connection) -> None:
    offset = view.book("p-1")
    for number in range(POSTINGS_MAX + 5):
        view.post(Q, Decline("common", f"debtor-{number}", "insufficient_funds", "2026-11-02"))
    view.take()
    with connection.begin():
        assert posted(connection, "p-1", None) == [Posted(P, offset, DEBTOR)]
        assert posted(connection, "p-1", "another") == []
        assert len(posted(connection, "common", None)) == POSTINGS_MAX
        assert [one.debtor for one in posted(connection, "common", "debtor-3")] == ["debtor-3"]


def steps(sources: dict[tuple[str, int], str | None]) -> dict[str, Step]:
    """Steps on partition 1, each written at its offset, with their sources."""
    made = (
        Step("a record", topic, 1, offset, f"{topic}:1:{offset}", offset, source, found=True)
        for (topic, offset), source in sources.items()
    )
    return {step.at: step for step in made}


def test_a_way_goes_from_the_raw_record_to_both_legs() -> None:
    found = steps(
        {
            (LEDGER_POSTINGS, 40): "ledger.transfers:1:30",
            (LEDGER_TRANSFERS, 30): "ledger.transfers:1:20",
            (LEDGER_POSTINGS, 25): "ledger.transfers:1:20",
            (LEDGER_TRANSFERS, 20): "payments.accepted:1:10",
            (PAYMENTS_ACCEPTED, 10): "payments.raw:1:1",
            (PAYMENTS_RAW, 1): None,
        }
    )
    [way] = ways_of("p-1", [Posted(1, 40, DEBTOR), Posted(1, 25, DEBTOR)], found).ways
    assert [step.offset for step in way.steps] == [1, 10, 20, 25, 30, 40]


def test_each_debtor_has_a_way_of_its_own_and_nothing_else_is_shown() -> None:
    found = steps({(LEDGER_POSTINGS, offset): None for offset in (7, 8, 9)})
    ways = ways_of("common", [Posted(1, 8, "b"), Posted(1, 7, "a")], found)
    of = {name: (found[f"{LEDGER_POSTINGS}:1:{offset}"],) for name, offset in (("a", 7), ("b", 8))}
    assert ways == Ways("common", (Way("a", of["a"]), Way("b", of["b"])))


@pytest.mark.parametrize("length", [1, 2, STEPS_MAX, 5 * STEPS_MAX])
def test_a_way_without_a_beginning_ends(length: int) -> None:
    """A monitor that was taken over may name any source, also a record that goes back to itself."""
    circle = {(LEDGER_POSTINGS, at): f"{LEDGER_POSTINGS}:1:{(at + 1) % length}" for at in range(length)}
    [way] = ways_of("p-1", [Posted(1, 0, DEBTOR)], steps(dict(circle))).ways
    assert len(way.steps) == min(length, STEPS_MAX)
