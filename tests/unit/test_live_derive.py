"""Snapshots for the page, derived from observations."""

import json

import pytest

from services.balances.dashboard.derive import COUNTS, Memory, derive
from services.balances.dashboard.observed import WANTED, Answer, Instance, Seen
from services.balances.dashboard.snapshot import Snapshot, State, encode_snapshot
from shared.events import catalogue as topics
from shared.telemetry import catalogue
from tests.live import AT_MS, BOOKS, STARTED_S, Series, drained, instance, run, seen, state, view, with_instance


def shown(*rounds: Seen) -> Snapshot:
    memory = Memory()
    for one in rounds:
        memory, snapshot = derive(memory, one)
    return snapshot


def lagging(lag: float, **more: object) -> tuple[object, ...]:
    series = {
        catalogue.RECORDS_LAG: {("ledger.transfers", "0"): lag, ("ledger.transfers", "1"): 2.0},
        catalogue.OPEN_TRANSACTION_AGE: {("a",): 0.0, ("b",): 0.2, ("c",): 3.5},
        catalogue.RESTORE_REMAINING: {("0",): 40.0},
    }
    return with_instance(seen(), instance("ledger", series, **more))  # type: ignore[arg-type]


def test_every_count_is_of_metrics_that_are_scraped() -> None:
    assert {count.metric for count in COUNTS} <= set(WANTED)


def test_a_service_is_the_sum_of_its_instances() -> None:
    two = with_instance(seen(), drained("ledger"), drained("ledger", port=9101, answer=Answer.SILENT, address="gone"))
    service = shown(seen(instances=two)).services["ledger"]
    assert (service.state, service.instances, service.ready) == (State.PARTLY, 2, 1)
    assert service.reasons == ("address: gone",)
    service = shown(seen(instances=lagging(5.0))).services["ledger"]
    assert (service.state, service.open_transactions, service.oldest_open_s) == (State.READY, 2, 3.5)
    assert service.restoring == 40


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ([], State.UNWATCHED),
        ([Answer.READY, Answer.READY], State.READY),
        ([Answer.SILENT, Answer.SILENT], State.SILENT),
        ([Answer.SILENT, Answer.NOT_READY], State.NOT_READY),
        ([Answer.READY, Answer.NOT_READY], State.PARTLY),
    ],
)
def test_states(answers: list[Answer], state: State) -> None:
    changed = tuple(instance("outbox", {}, answer=answer, port=port) for port, answer in enumerate(answers, 1))
    instances = (*(one for one in seen().instances if one.watched.service != "outbox"), *changed)
    assert shown(seen(instances=instances)).services["outbox"].state is state


def test_the_start_of_a_state() -> None:
    down = with_instance(seen(), instance("ingest", None, answer=Answer.SILENT))
    snapshot = shown(seen(0.0), seen(1.0, instances=down), seen(2.0, instances=down))
    assert snapshot.services["ingest"].since_ms == AT_MS + 1000
    assert snapshot.services["transform"].since_ms == AT_MS
    snapshot = shown(seen(0.0), seen(1.0, instances=down), seen(2.0))
    assert snapshot.services["ingest"].since_ms == AT_MS + 2000


def test_the_view_itself_is_a_service() -> None:
    service = shown(seen(own={"restoring": "reads the topic"})).services["balances"]
    assert (service.state, service.reasons) == (State.NOT_READY, ("restoring: reads the topic",))


def test_lag_is_the_readers_own_or_its_groups_while_the_reader_is_silent() -> None:
    transfers = topics.LEDGER_TRANSFERS
    hop = shown(seen(instances=lagging(5.0))).hops[transfers]
    assert (hop.lag, hop.lag_with_markers) == (7, False)
    behind = state(lso_lag={transfers: 9}, behind={"ledger": 1234})
    hop = shown(seen(instances=lagging(5.0, answer=Answer.SILENT), cluster=behind)).hops[transfers]
    assert (hop.lag, hop.lag_with_markers, hop.lso_lag) == (1234, True, 9)
    hop = shown(seen(instances=lagging(5.0, answer=Answer.SILENT), cluster=None)).hops[transfers]
    assert (hop.lag, hop.lag_with_markers, hop.lso_lag) == (None, False, None)


def test_the_views_lag_is_that_of_its_tables() -> None:
    postings = topics.LEDGER_POSTINGS
    assert shown(seen(view=view(BOOKS, behind=3))).hops[postings].lag == 18
    assert shown(seen(view=view(BOOKS))).hops[postings].lag == 0
    assert shown(seen(view=view(BOOKS, behind=None))).hops[postings].lag is None
    assert shown(seen(view=None)).hops[postings].lag is None


def test_rates_of_hops() -> None:
    first = with_instance(seen(), drained("ledger", consumed=100))
    later = with_instance(seen(), drained("ledger", consumed=350))
    snapshot = shown(seen(0.0, instances=first), seen(0.5, instances=later, view=view(BOOKS, debits=26)))
    assert snapshot.hops[topics.LEDGER_TRANSFERS].per_s == 500
    assert snapshot.hops[topics.LEDGER_POSTINGS].per_s == 50
    assert shown(seen(0.0)).hops[topics.LEDGER_POSTINGS].per_s is None
    rebuilt = shown(seen(0.0, view=view(BOOKS, debits=900)), seen(0.5, view=view(BOOKS, debits=1)))
    assert rebuilt.hops[topics.LEDGER_POSTINGS].per_s is None


def test_the_age_of_what_is_written_is_the_mean_over_the_window() -> None:
    name = catalogue.END_TO_END_LATENCY.name
    rounds = []
    for at_s, total, count in ((0.0, 100.0, 1000.0), (1.0, 101.0, 1004.0)):
        ledger = drained("ledger")
        assert isinstance(ledger.scrape, dict)
        ledger.scrape[f"{name}_sum"] = {("ledger.postings",): total}
        ledger.scrape[f"{name}_count"] = {("ledger.postings",): count}
        rounds.append(seen(at_s, instances=with_instance(seen(), ledger)))
    assert shown(*rounds).hops[topics.LEDGER_POSTINGS].latency_s == 0.25
    assert shown(*rounds[:1]).hops[topics.LEDGER_POSTINGS].latency_s is None


def test_counts_go_by_name() -> None:
    ingest = instance(
        "ingest",
        {
            catalogue.RECORDS_CONSUMED: {("payments.raw",): 10.0},
            catalogue.DEDUPLICATED: {(): 2.0},
            catalogue.DEAD_LETTERS: {("same_account",): 1.0, ("currency_unknown",): 0.0},
            catalogue.TRANSACTIONS: {("committed", "none"): 5.0, ("aborted", "a"): 1.0, ("aborted", "b"): 2.0},
        },
    )
    outbox = instance(
        "outbox",
        {
            catalogue.EFFECTS: {("receipt", "sent"): 3.0, ("notice", "sent"): 4.0, ("receipt", "in_doubt"): 1.0},
            catalogue.REDIS_TRUSTED: {(): 1.0},
            catalogue.EFFECTS_WAITING: {("0",): 1.0, ("1",): 1.0},
        },
    )
    snapshot = shown(seen(instances=with_instance(seen(), ingest, outbox)))
    values = {name: counter.value for name, counter in snapshot.counts.items()}
    assert values["received"] == 10
    assert values["deduplicated"] == 2
    assert (values["committed"], values["aborted"], values["unknown"]) == (5, 3, 0)
    assert (values["effects_sent"], values["effects_in_doubt"]) == (7, 1)
    assert {reason: counter.value for reason, counter in snapshot.dead_letters.items()} == {
        "currency_unknown": 0,
        "same_account": 1,
    }
    assert (snapshot.effects_waiting, snapshot.redis_trusted) == (2, True)
    assert snapshot.since_ms == STARTED_S * 1000


def test_the_gateways_records_are_those_of_singles_and_batches() -> None:
    def gateway(written: float) -> Instance:
        series: Series = {
            catalogue.RECORD_SEND: {(topics.PAYMENTS_RAW,): written, (topics.OPERATIONS_AUDIT,): 7.0},
            catalogue.HTTP_REQUESTS: {("POST", "/v1/payments/batch", "207"): 3.0},
        }
        return instance("gateway", series)

    rounds = [
        seen(at_s, instances=with_instance(seen(), gateway(written))) for at_s, written in ((0.0, 0.0), (1.0, 2500.0))
    ]
    taken = shown(*rounds).counts["taken"]
    assert (taken.value, taken.at_least, taken.per_s) == (2500, False, 2500)


def test_redis_is_not_trusted_when_one_outbox_does_not() -> None:
    each = [
        instance("outbox", {catalogue.REDIS_TRUSTED: {(): value}}, port=port) for port, value in ((1, 1.0), (2, 0.0))
    ]
    assert shown(seen(instances=with_instance(seen(), *each))).redis_trusted is False
    assert shown(seen()).redis_trusted is None


def test_money_is_text_with_every_digit() -> None:
    huge = 2**63 * 10 + 1
    result = json.loads(encode_snapshot(shown(seen(view=view({("clients", "EUR"): -huge, ("fees", "EUR"): huge})))))
    assert result["view"]["currencies"] == [
        {"currency": "EUR", "digits": 2, "clients": str(-huge), "house": {"fees": str(huge)}, "sum": "0"}
    ]


def test_unknown_values_are_null_and_not_0() -> None:
    result = json.loads(encode_snapshot(shown(seen(instances=(), view=None, cluster=None, runs_known=False))))
    assert result["view"] is None
    assert result["brokers"] is None
    assert result["reconciliation"] is None
    assert result["runs_known"] is False
    assert result["since_ms"] is None
    assert {hop["lag"] for hop in result["hops"].values()} == {None}
    assert {hop["lso_lag"] for hop in result["hops"].values()} == {None}
    assert result["services"]["ledger"]["open_transactions"] is None


def test_the_last_reconciliation() -> None:
    result = shown(seen(run=run(2, full=False))).reconciliation
    assert result is not None
    assert (result.at_ms, result.verdict, result.breaks, result.explained) == (2, "clean", {}, 0)


def test_the_brokers_that_were_seen_are_remembered() -> None:
    snapshot = shown(seen(0.0), seen(1.0, cluster=state(2)))
    assert (snapshot.brokers, snapshot.brokers_seen) == (2, 3)


def texts(snapshot: Snapshot) -> list[tuple[str, bool]]:
    return [(event.text, event.bad) for event in snapshot.events]


def test_each_event_is_shown_once_and_none_at_first() -> None:
    down = with_instance(seen(), instance("ingest", None, answer=Answer.SILENT, address="no connection"))
    rounds = [seen(0.0, instances=down), seen(1.0), seen(2.0), seen(3.0, instances=down), seen(5.5, instances=down)]
    assert texts(shown(*rounds[:1])) == []
    assert texts(shown(*rounds[:3])) == [("ingest is ready again, after 1.0 s", False)]
    snapshot = shown(*rounds, seen(7.5))
    assert texts(snapshot)[:2] == [("ingest is ready again, after 4.5 s", False), ("ingest does not answer", True)]
    assert [event.number for event in snapshot.events] == [3, 2, 1]
    assert snapshot.events[1].at_ms == AT_MS + 3000


def test_a_recovery_counts_from_the_first_failure() -> None:
    silent = with_instance(seen(), instance("ledger", None, answer=Answer.SILENT))
    starting = with_instance(seen(), instance("ledger", {}, answer=Answer.NOT_READY, kafka="not connected"))
    result = texts(shown(seen(0.0), seen(1.0, instances=silent), seen(3.0, instances=starting), seen(6.0)))
    assert result[0] == ("ledger is ready again, after 5.0 s", False)
    assert result[1] == ("ledger is not ready: kafka: not connected", True)


def test_a_restart_between_two_polls_is_shown() -> None:
    restarted = with_instance(seen(), drained("transform", started_s=STARTED_S + 5))
    assert texts(shown(seen(0.0), seen(1.0, instances=restarted))) == [("transform was restarted", False)]


def test_changes_of_brokers_and_lights_are_shown() -> None:
    off = view({**BOOKS, ("fees", "EUR"): 1})
    snapshot = shown(
        seen(0.0),
        seen(1.0, cluster=state(2), view=off),
        seen(2.0, cluster=None, cluster_failure="the monitor does not answer in time"),
        seen(3.0),
    )
    assert texts(snapshot) == [
        ("the brokers' state is known again: 3 of 3 brokers are alive", False),
        ("I1 holds again", False),
        ("the monitor does not answer in time", True),
        ("I1 is broken", True),
        ("2 of 3 brokers are alive", True),
    ]


def test_few_events_are_kept() -> None:
    down = with_instance(seen(), instance("ingest", None, answer=Answer.SILENT))
    rounds = [seen(float(at), **({"instances": down} if at % 2 else {})) for at in range(50)]
    events = shown(*rounds).events
    assert len(events) == 8
    assert events[0].number == 49
