"""Transactions as `once txn` shows them, and wrong usage found before a request to a cluster."""

import click
import pytest
from click.testing import CliRunner

from deploy.cli.txn import _show_hanging, abort
from deploy.txn.listing import HANGING, Hold, instance_of, rows, targets_text
from shared.eos.open_transactions import ENDING_STATES, Look, Offsets, Open, Producer, Suspicion, Target, Transaction
from shared.events.catalogue import EFFECTS_REQUESTS, LEDGER_TRANSFERS, PAYMENTS_RAW

NOW_MS = 1_700_000_100_000
ACCEPTED: Target = ("payments.accepted", 3)
NO_BROKER = "127.0.0.1:1"


def transaction(name: str, producer_id: int, state: str, age_s: float | None, *partitions: Target) -> Transaction:
    start_ms = None if age_s is None else NOW_MS - int(age_s * 1000)
    return Transaction(name, producer_id, 3, state, 1, 10_000, start_ms, partitions)


TRANSACTIONS = (
    transaction("ledger-0", 4, "CompleteCommit", 59.0),
    transaction("outbox-effects.requests-0", 5, "CompleteCommit", 61.0),
    transaction("transform-0", 6, "Empty", None),
    transaction("ingest-blue", 7, "Ongoing", 2.5, ACCEPTED, ("payments.identities", 3)),
    transaction("somebody-else", 8, "PrepareCommit", 70.0, ("theirs", 0)),
)
HUNG = Open("ledger.postings", 1, 5, 9, 0)
LOOK = Look(
    NOW_MS,
    frozenset({1}),
    frozenset({1}),
    TRANSACTIONS,
    {ACCEPTED: Offsets(20, 32), HUNG.target: Offsets(5, 6)},
    {ACCEPTED: (Producer(7, 3, 0, NOW_MS, 0, 20),), HUNG.target: (Producer(9, 0, 0, NOW_MS - 90_000, -1, 5),)},
)
SUSPICION = Suspicion(frozenset({HUNG}), frozenset({HUNG}))
OWNERS = {
    "ingest": {(PAYMENTS_RAW, 3): "ingest-blue", (PAYMENTS_RAW, 0): "ingest-green", (PAYMENTS_RAW, 1): "ingest-blue"},
    "ledger": {(LEDGER_TRANSFERS, 1): "ledger-1"},
    "outbox": {(EFFECTS_REQUESTS, 0): "outbox-0"},
}


def test_the_table_lists_hanging_then_open_or_recent_transactions_the_oldest_first() -> None:
    names = [row.transactional_id for row in rows(LOOK, SUSPICION, OWNERS, everything=False)]
    assert names == [None, "somebody-else", "ledger-0", "ingest-blue"]
    everything = [row.transactional_id for row in rows(LOOK, SUSPICION, OWNERS, everything=True)]
    assert everything == [
        None,
        "somebody-else",
        "outbox-effects.requests-0",
        "ledger-0",
        "ingest-blue",
        "transform-0",
    ]


def test_a_row_has_service_instance_input_and_held_records() -> None:
    [row] = [row for row in rows(LOOK, SUSPICION, OWNERS, everything=False) if row.service == "ingest"]
    assert (row.instance, row.input) == ("blue", "payments.raw:1,3")
    assert (row.state, row.producer_epoch, row.coordinator, row.age_s, row.timeout_ms) == ("Ongoing", 3, 1, 2.5, 10_000)
    assert row.partitions == ("payments.accepted:3", "payments.identities:3")
    assert row.holds == (Hold("payments.accepted:3", 20, 12),)


def test_a_hanging_transaction_is_shown_without_the_coordinators_fields() -> None:
    hung = rows(LOOK, SUSPICION, OWNERS, everything=False)[0]
    assert (hung.transactional_id, hung.service, hung.coordinator, hung.timeout_ms) == (None, None, None, None)
    assert (hung.state, hung.producer_id, hung.age_s) == (HANGING, 9, 90.0)
    assert (hung.partitions, hung.holds) == (("ledger.postings:1",), (Hold("ledger.postings:1", 5, 1),))


@pytest.mark.parametrize(
    ("transactional_id", "found"),
    [
        ("somebody-else", (None, None, ())),
        ("ledger-1", ("ledger", "1", ((LEDGER_TRANSFERS, 1),))),
        ("ledger-0", ("ledger", "0", ())),  # it has no partition now
        ("transform-0", ("transform", "0", ())),
        ("outbox-effects.requests-0", ("outbox", "0", ((EFFECTS_REQUESTS, 0),))),
        ("outbox-effects.requests-1", ("outbox", None, ((EFFECTS_REQUESTS, 1),))),  # which no instance has now
    ],
)
def test_an_id_names_an_instance_with_its_partitions_or_a_partition_with_its_instance(
    transactional_id: str, found: object
) -> None:
    assert instance_of(transactional_id, OWNERS) == found


@pytest.mark.parametrize("state", ["Ongoing", *sorted(ENDING_STATES)])
def test_a_late_transaction_is_aborted_unless_its_outcome_is_decided(
    capsys: pytest.CaptureFixture[str], state: str
) -> None:
    known = transaction("ingest-blue", 7, state, 1000.0)
    _show_hanging(LOOK, [], [known])
    shown = capsys.readouterr().out
    assert ("once txn abort ingest-blue" in shown) == (state == "Ongoing")
    assert ("restart the coordinator cleanly" in shown) == (state != "Ongoing")


def test_partitions_are_named_by_topic_once() -> None:
    assert targets_text([("b", 2), ("a.b", 10), ("b", 0)]) == "a.b:10 b:0,2"
    assert targets_text([]) == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "give a TRANSACTIONAL_ID, or"),
        (["some-id", "--topic", "t"], "not both"),
        (["--topic", "t", "--partition", "0"], "all of"),
        (["--topic", "t", "--start-offset", "0"], "all of"),
        (["--topic", "t", "--partition", "-1", "--start-offset", "0"], "--partition"),
        (["some-id"], "give --yes"),
        (["--topic", "t", "--partition", "0", "--start-offset", "0"], "give --yes"),
    ],
)
def test_an_abort_that_is_incomplete_or_cannot_be_confirmed_is_wrong_usage(words: list[str], reason: str) -> None:
    result = CliRunner().invoke(abort, [*words, "--bootstrap-servers", NO_BROKER])
    assert result.exit_code == click.UsageError.exit_code, result.output
    assert reason in " ".join(result.stderr.split())
