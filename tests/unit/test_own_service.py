"""docs/own-service.md: its code is the example's, its tables are true; and the handler of the example."""

import ast
import re

import msgspec
import pytest

from examples.velocity import ALERTS, PAYMENTS_MAX, RECENT, WINDOW_MS, Velocity
from shared.eos.records import Output, Record
from shared.events.catalogue import BY_NAME, PAYMENTS_ACCEPTED, TOPICS, Topic, own_topic
from shared.events.clients import OPERATOR
from shared.events.payments import Payment, Reversal, encode_accepted
from shared.kafka.admin import rules
from tests.harness import ROOT

PAGE = (ROOT / "docs" / "own-service.md").read_text()
CODE = (ROOT / "examples" / "velocity.py").read_text()
BEGIN_MS = 1_700_000_000_000


def accepted(at_ms: int, debtor: str = "alice", offset: int = 0) -> Record:
    payment = Payment(f"p-{offset}", debtor, "bob", 1, "EUR", schema_version=2)
    value = encode_accepted(payment, at_ms, OPERATOR)
    return Record(PAYMENTS_ACCEPTED, 1, offset, BEGIN_MS, debtor.encode(), value, (("origin", b"payments.raw:1:9"),))


def alerts(handler: Velocity, *times_ms: int, debtor: str = "alice") -> list[list[Output]]:
    """Return the outputs of payments received at these times, each counted from BEGIN_MS."""
    records = [accepted(BEGIN_MS + at_ms, debtor, offset) for offset, at_ms in enumerate(times_ms)]
    return [handler.process(record) for record in records]


def test_the_page_shows_the_file_as_it_is() -> None:
    assert re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) == [CODE]
    assert len([line for line in CODE.splitlines() if line]) <= 40


def test_the_example_imports_what_the_page_names_and_nothing_else_of_the_project() -> None:
    rows = re.findall(r"^\| `(shared[\w.]*)` \| (.*) \|$", PAGE, re.MULTILINE)
    named = {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}
    found = [node for node in ast.walk(ast.parse(CODE)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in found if (node.module or "").startswith("shared")]
    assert len(ours) == 7
    for node in ours:
        module = node.module or ""
        if not module.startswith("shared.events."):
            assert {name.name for name in node.names} <= named[module]


def test_a_payment_that_follows_three_others_within_a_minute_is_flagged() -> None:
    *before, [alert] = alerts(Velocity(), 0, 1, 2, WINDOW_MS - 1)
    assert before == [[]] * PAYMENTS_MAX
    assert (alert.topic, alert.partition, alert.key) == (ALERTS, 1, b"alice")
    assert alert.headers == (("origin", b"payments.raw:1:9"), ("source", b"payments.accepted:1:3"))
    value = {"payment_id": "p-3", "since_ms": BEGIN_MS, "at_ms": BEGIN_MS + WINDOW_MS - 1}
    assert msgspec.json.decode(alert.value or b"") == value


@pytest.mark.parametrize(
    "outputs",
    [alerts(Velocity(), 0, 1, 2, WINDOW_MS), alerts(Velocity(), *range(5), debtor="cash@1")],
    ids=["a minute", "a house account"],
)
def test_no_other_payment_is_flagged(outputs: list[list[Output]]) -> None:
    assert not any(outputs)


def test_debtors_are_counted_apart_and_reversals_not() -> None:
    handler = Velocity()
    assert not any(alerts(handler, 0, 1, 2))
    assert not any(alerts(handler, 3, debtor="carol"))
    reversal = encode_accepted(Reversal("r", "alice", "p-0", schema_version=2), BEGIN_MS, OPERATOR)
    assert handler.process(accepted(0)._replace(value=reversal)) == []
    assert any(alerts(handler, 4))


def test_a_payment_of_unknown_receipt_counts_by_the_time_of_its_record() -> None:
    handler = Velocity()
    assert not any(alerts(handler, 0, 1, 2))
    [alert] = handler.process(accepted(-1))
    assert msgspec.json.decode(alert.value or b"")["at_ms"] == BEGIN_MS


def test_a_new_owner_goes_on_where_the_changelog_ends() -> None:
    first, second = Velocity(), Velocity()
    assert not any(alerts(first, 0, 1, 2))
    for key, value in first.store.changes():
        second.store.restore(key, value)
    assert any(alerts(second, 3))


def test_after_a_rollback_the_same_record_gives_the_same_outputs() -> None:
    handler = Velocity()
    alerts(handler, 0, 1, 2)
    handler.store.commit()
    first = handler.process(accepted(BEGIN_MS + 3))
    handler.store.rollback()
    assert first
    assert handler.process(accepted(BEGIN_MS + 3)) == first


def test_the_rules_on_the_page_are_those_of_a_service_that_the_system_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(topic: Topic) -> Topic:
        readers = (*topic.readers, "velocity") if topic.name == PAYMENTS_ACCEPTED else topic.readers
        return Topic(topic.name, topic.key, topic.purpose, topic.writers, readers)

    added = (
        Topic(ALERTS, "debtor account", "Alerts.", ("velocity",), ()),
        Topic(RECENT, "store key", "Changelog.", ("velocity",), ("velocity",)),
    )
    processors = {**rules.PROCESSORS, "velocity": PAYMENTS_ACCEPTED}
    monkeypatch.setattr(rules, "TOPICS", (*map(known, TOPICS), *added))
    monkeypatch.setattr(rules, "PROCESSORS", processors)
    monkeypatch.setattr(rules, "MEMBERS", (*processors, "balances"))
    monkeypatch.setattr(rules, "PRINCIPALS", (*rules.PRINCIPALS, "velocity"))
    rows = re.findall(r"^\| (topic|group|cluster|transactional id) \| `(.*)` \| (.*) \|$", PAGE, re.MULTILINE)
    shown = {f"{operation} on {kind} {name}" for kind, name, may in rows for operation in may.split(", ")}
    assert {str(rule) for rule in rules.rules_of("velocity")} == shown


def test_the_changelog_of_ones_own_is_kept_as_the_systems_are() -> None:
    assert own_topic(RECENT, changelog=True).settings() == BY_NAME["transform.progress"].settings()
    assert own_topic(ALERTS).settings() == BY_NAME[PAYMENTS_ACCEPTED].settings()
