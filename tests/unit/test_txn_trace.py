"""`once txn trace`: its output and exit codes, with a given trace instead of a cluster."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from deploy.txn import trace as txn_trace
from shared.eos.errors import FencedError
from shared.kafka.admin.transaction_state import StateRecord, Status, TransactionState
from shared.kafka.client.access import Bootstrap
from shared.kafka.txntrace.transaction_lines import from_states
from shared.kafka.txntrace.transaction_steps import NAMES, Line, Source, Step, faults, in_order
from shared.kafka.txntrace.transaction_trace import Trace
from tests.transaction_lines import START_MS, whole

Show = Callable[..., Result]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Show:
    """Run the command on a given trace, and record its query."""

    def run(found: Trace | Exception | None, *arguments: str) -> Result:
        async def give(bootstrap_servers: Bootstrap, *asked: object, **how: object) -> Trace | None:
            assert str(bootstrap_servers) == "nowhere:1"
            calls.append((asked, how))
            if isinstance(found, Exception):
                raise found
            return found

        calls: list[tuple[object, object]] = []
        for name in ("trace_own", "trace_newest"):
            monkeypatch.setattr(txn_trace, name, give)
        result = CliRunner().invoke(txn_trace.trace_command, [*arguments, "--bootstrap-servers", "nowhere:1"])
        if calls:
            own = "ledger" not in arguments
            assert calls == [((), {"commit": "--abort" not in arguments}) if own else (("ledger",), {})]
        return result

    return run


def made(*, commit: bool = True, without: Step = Step.NONE, clock_difference_ms: float = 0.0) -> Trace:
    metadata = Line(Step.NONE, Source.WIRE, "Metadata request", START_MS + 0.5, "127.0.0.1:9092")
    lines = in_order([metadata, *(line for line in whole(commit=commit) if line.step is not without)])
    status = Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT
    wrong = tuple(faults(lines, commit=commit))
    return Trace("once.trace.0", "__transaction_state:4", 2, status, tuple(lines), wrong, clock_difference_ms)


def looked_at(*statuses: Status) -> Trace:
    partitions = (("t", 0),)
    states = [
        StateRecord(place, 5 * place, TransactionState(1, 4001, 3, 10_000, status, partitions, 0, 0))
        for place, status in enumerate(statuses)
    ]
    lines = tuple(from_states(states, ("__transaction_state", 4)))
    return Trace("ledger", "__transaction_state:4", 2, statuses[-1], lines, ())


@pytest.mark.parametrize("commit", [True, False])
def test_all_ten_steps_are_printed_in_order_and_numbered(show: Show, commit: bool) -> None:
    result = show(made(commit=commit), *([] if commit else ["--abort"]))
    assert result.exit_code == 0, result.output
    first, header, *rows, last = result.stdout.splitlines()
    assert first == "once.trace.0: states in __transaction_state:4, coordinator broker 2"
    assert header.split() == ["step", "ms", "from", "what", "where", "producer", "detail"]
    assert last == f"all ten steps were seen, the last one with {'COMMIT' if commit else 'ABORT'}"
    steps = [int(row.split()[0]) for row in rows]
    assert steps == sorted(steps)
    assert set(steps) == set(range(1, 11))
    ongoing = next(row for row in rows if "Ongoing" in row)
    assert "state log" in ongoing
    assert "4001/0" in ongoing
    assert "partitions=once.trace.0:0,once.trace.0:1" in ongoing
    answered = next(row for row in rows if "AddPartitionsToTxn response" in row)
    assert answered.split()[-5:] == ["v0", "#4", "40", "B", "errors=NONE"]
    assert result.stderr == "also, in --json only: Metadata 1 messages\n"


def test_times_count_from_the_first_line(show: Show) -> None:
    rows = [row.split() for row in show(made()).stdout.splitlines()[2:-1]]
    assert rows[0][1] == "0.6"  # the metadata request, not shown, came first
    assert next(row for row in rows if "Empty" in row)[1] == "2"  # a broker's time has no fractions
    made_by_producer = next(row for row in rows if "records" in row)
    assert made_by_producer[:3] == ["5", "partition", "log"]  # its time is not the time of the append


@pytest.mark.parametrize("step", list(NAMES))
def test_a_missing_step_is_named_and_fails(show: Show, step: Step) -> None:
    result = show(made(without=step))
    assert result.exit_code == 1
    assert f"step {int(step)} {NAMES[step]}: " in result.stdout
    assert "all ten" not in result.stdout
    as_json = show(made(without=step), "--json")
    assert as_json.exit_code == 1
    assert not json.loads(as_json.stdout)["complete"]


def test_json_is_one_object_with_every_line(show: Show) -> None:
    result = show(made(), "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["complete"]
    assert (found["status"], found["faults"], found["wire_tapped"]) == ("CompleteCommit", [], True)
    assert len(found["lines"]) == len(made().lines)
    first, second = found["lines"][:2]
    assert (first["step"], first["step_name"], first["ms"]) == (0, None, 0)
    assert (second["step"], second["step_name"], second["what"]) == (1, "FindCoordinator", "FindCoordinator request")
    assert second["fields"]["size_bytes"] == 40


def test_a_clock_difference_is_reported(show: Show) -> None:
    assert "a broker's clock differs from this one's by 12.5 ms" in show(made(clock_difference_ms=12.5)).stderr


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [
        ([Status.ONGOING], "the transaction is open"),
        ([Status.ONGOING, Status.PREPARE_COMMIT], "the transaction is to be committed; markers are being written"),
        ([Status.ONGOING, Status.PREPARE_ABORT, Status.COMPLETE_ABORT], "the transaction was aborted"),
        ([Status.EMPTY], "no transaction was begun since the producer was initialised"),
    ],
)
def test_a_services_transaction_is_shown_without_the_wire(show: Show, statuses: list[Status], outcome: str) -> None:
    result = show(looked_at(*statuses), "ledger")
    assert result.exit_code == 0, result.output
    assert "no wire: another process's connections cannot be tapped" in result.stdout.splitlines()[0]
    assert result.stdout.splitlines()[-1] == outcome
    assert not json.loads(show(looked_at(*statuses), "ledger", "--json").stdout)["wire_tapped"]


def test_every_state_has_its_sentence(show: Show) -> None:
    for status in Status:
        assert show(looked_at(status), "ledger").exit_code == 0


def test_an_unknown_transactional_id_has_its_own_exit_code(show: Show) -> None:
    result = show(None, "ledger")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no transactional.id ledger" in result.stderr


def test_abort_is_for_the_commands_own_transaction_only(show: Show) -> None:
    result = show(made(), "ledger", "--abort")
    assert result.exit_code == 2
    assert "goes with no TRANSACTIONAL_ID" in result.stderr


def test_a_transaction_that_failed_is_one_line(show: Show) -> None:
    result = show(FencedError("another producer took over"))
    assert (result.exit_code, result.stderr) == (1, "Error: another producer took over\n")
