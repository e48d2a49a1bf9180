"""A payment's way through the topics, and the command that shows it, against real brokers."""

import json
import uuid

import pytest
from click.testing import Result

from shared.eos.records import Output
from shared.events import catalogue
from shared.events.effects import EffectRequest, EffectResult, encode_request, encode_result
from shared.events.headers import ORIGIN, REPAIR, SOURCE, Coordinates, Headers
from shared.events.payments import Repeat, encode_repeat
from shared.events.postings import CREDIT, DEBIT
from shared.events.transfers import CreditLeg, Transfer, encode_transfer
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.lineage.trace import Hop, Transaction, trace
from shared.kafka.runtime.producer import TransactionalProducer
from tests.commands import once
from tests.contract.steps import (
    ACCEPTED,
    AWAY,
    CREDITOR,
    DEBTOR,
    HOME,
    POSTINGS,
    TRANSFERS,
    Pipeline,
    event,
    posting,
    send_raw,
    send_raw_ahead,
)

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]


async def made_way(brokers: str, pipeline: Pipeline, payment_id: str) -> Coordinates:
    raw = await send_raw(brokers, payment_id)
    transfer = Transfer(payment_id, DEBTOR, CREDITOR, 100, "EUR", 100, "EUR", "2026-11-02")
    leg = CreditLeg(payment_id, DEBTOR, CREDITOR, 100, "EUR", "2026-11-02")
    await pipeline.write(ACCEPTED, b"{}", raw, commit=False)
    await pipeline.write(ACCEPTED, b"{}", raw)
    await pipeline.write(TRANSFERS, encode_transfer(transfer), raw)
    headers: Headers = ((ORIGIN, raw.encode()), (SOURCE, b"ledger.transfers:0:0"))
    debit = Output(POSTINGS, HOME, DEBTOR.encode(), event(posting(DEBIT)), headers)
    credit = Output(TRANSFERS, AWAY, CREDITOR.encode(), encode_transfer(leg), headers)
    await pipeline.begin([debit, credit])
    await pipeline.end(POSTINGS, commit=True)
    await pipeline.write(POSTINGS, event(posting(CREDIT)), raw, partition=AWAY)
    return raw


async def test_a_trace_shows_every_hop_with_its_producer_and_transaction(
    brokers: str, pipeline: Pipeline, producer: TransactionalProducer
) -> None:
    payment_id = f"trace-{uuid.uuid4()}"
    raw = await made_way(brokers, pipeline, payment_id)
    other = await send_raw(brokers, f"{payment_id}-other")
    await pipeline.write(ACCEPTED, b"{}", other)
    [way] = await trace(brokers, payment_id=payment_id)
    assert way.origin == str(raw)
    hops = {(hop.what, hop.transaction): hop for hop in way.hops}
    committed = Transaction.COMMITTED
    assert set(hops) == {
        ("raw", Transaction.NONE),
        ("accepted", Transaction.ABORTED),
        ("accepted", committed),
        ("transfer", committed),
        ("debit posting", committed),
        ("credit leg", committed),
        ("credit posting", committed),
    }
    assert len(way.hops) == len(hops)
    assert way.hops[0].what == "raw"
    assert (way.hops[0].partition, way.hops[0].offset, way.hops[0].key) == (HOME, raw.offset, DEBTOR)
    for hop in way.hops[1:]:
        assert hop.producer_id == producer.epoch[0]
        assert hop.source is not None
        assert hop.marker_offset is not None
        assert hop.marker_offset > hop.offset
        assert hop.marker_timestamp_ms is not None
    aborted, kept = hops["accepted", Transaction.ABORTED], hops["accepted", committed]
    assert aborted.marker_offset is not None
    assert aborted.offset < aborted.marker_offset < kept.offset
    assert hops["credit leg", committed].partition == AWAY


async def test_a_trace_shows_a_transaction_that_is_open(brokers: str, pipeline: Pipeline) -> None:
    payment_id = f"open-{uuid.uuid4()}"
    raw = await send_raw(brokers, payment_id)
    await pipeline.begin([Output(ACCEPTED, HOME, b"k", b"{}", ((ORIGIN, raw.encode()),))])
    [way] = await trace(brokers, payment_id=payment_id, debtor=DEBTOR)
    await pipeline.end(ACCEPTED, commit=True)

    def only(hops: tuple[Hop, ...]) -> Hop:
        [hop] = [hop for hop in hops if hop.topic == ACCEPTED]
        return hop

    assert (only(way.hops).transaction, only(way.hops).marker_offset) == (Transaction.OPEN, None)
    [way] = await trace(brokers, payment_id=payment_id, debtor=DEBTOR)
    assert only(way.hops).transaction is Transaction.COMMITTED


async def test_a_trace_gives_one_way_for_each_raw_record_and_knows_older_schema_versions(
    brokers: str, pipeline: Pipeline
) -> None:
    payment_id = f"twice-{uuid.uuid4()}"
    first = await send_raw(brokers, payment_id)
    second = await send_raw(brokers, payment_id, debtor=None, account_from=DEBTOR, schema_version=1)
    await pipeline.write(ACCEPTED, b"{}", first)
    repeat = encode_repeat(Repeat(payment_id, DEBTOR, str(first)))
    await pipeline.write(catalogue.PAYMENTS_DEDUPLICATED, repeat, second)
    ways = {way.origin: [hop.what for hop in way.hops] for way in await trace(brokers, payment_id=payment_id)}
    assert ways == {str(first): ["raw", "accepted"], str(second): ["raw", f"repeat of {first}"]}
    assert len(await trace(brokers, payment_id=payment_id, debtor=DEBTOR)) == 2
    assert await trace(brokers, payment_id=payment_id, debtor=CREDITOR) == ()
    assert await trace(brokers, payment_id="unknown") == ()


async def test_a_trace_shows_the_effects_of_a_payment(brokers: str, pipeline: Pipeline) -> None:
    payment_id = f"effect-{uuid.uuid4()}"
    raw = await send_raw(brokers, payment_id)
    request = encode_request(
        EffectRequest("0" * 32, "receipt", "debit", "file:a", DEBTOR, payment_id, DEBTOR, "2026-11-02")
    )
    await pipeline.write(catalogue.EFFECTS_REQUESTS, request, raw, commit=False)
    await pipeline.write(catalogue.EFFECTS_REQUESTS, request, raw)
    await pipeline.write(catalogue.EFFECTS_RESULTS, encode_result(EffectResult("0" * 32, "sent", 1)), raw)
    [way] = await trace(brokers, payment_id=payment_id)
    assert [(hop.what, hop.transaction) for hop in way.hops[1:]] == [
        ("receipt asked for", Transaction.ABORTED),
        ("receipt asked for", Transaction.COMMITTED),
        ("effect sent", Transaction.COMMITTED),
    ]


@pytest.mark.usefixtures("own_kafka")
async def test_a_record_whose_source_was_committed_before_is_a_repeat(brokers: str, pipeline: Pipeline) -> None:
    payment_id = f"repeat-{uuid.uuid4()}"
    raw = await send_raw(brokers, payment_id)
    await pipeline.write(ACCEPTED, b"{}", raw, commit=False)
    await pipeline.write(ACCEPTED, b"{}", raw)
    await pipeline.write(ACCEPTED, b"{}", raw, commit=False)
    await pipeline.write(ACCEPTED, b"{}", raw)
    await pipeline.write(POSTINGS, event(posting(DEBIT)), raw)
    await pipeline.write(POSTINGS, event(posting(CREDIT)), raw, partition=AWAY)
    [way] = await trace(brokers, payment_id=payment_id)

    aborted, committed = Transaction.ABORTED, Transaction.COMMITTED
    accepted = [(hop.transaction, hop.repeat) for hop in way.hops if hop.topic == ACCEPTED]
    assert accepted == [(aborted, False), (committed, False), (aborted, False), (committed, True)]
    assert not any(hop.repeat for hop in way.hops if hop.topic != ACCEPTED)

    shown = command(brokers, payment_id).stdout.splitlines()
    [line] = [line for line in shown if "repeat: ignored" in line]
    assert ACCEPTED in line
    [found] = json.loads(command(brokers, payment_id, "--json").stdout)["ways"]
    assert [hop["repeat"] for hop in found["hops"] if hop["topic"] == ACCEPTED] == [False, False, False, True]


async def test_effects_of_one_source_and_repaired_records_are_not_repeats(brokers: str, pipeline: Pipeline) -> None:
    payment_id = f"no-repeat-{uuid.uuid4()}"
    raw = await send_raw(brokers, payment_id)
    for digit in "010":
        request = EffectRequest(digit * 32, "receipt", "debit", "file:a", DEBTOR, payment_id, DEBTOR, "2026-11-02")
        await pipeline.write(catalogue.EFFECTS_REQUESTS, encode_request(request), raw)
    await pipeline.write(ACCEPTED, b"{}", raw)
    for number in (b"0", b"1", b"1"):
        await pipeline.write(ACCEPTED, b"{}", raw, extra=((REPAIR, b"r-1:" + number),))
    [way] = await trace(brokers, payment_id=payment_id)

    requests = [hop.repeat for hop in way.hops if hop.topic == catalogue.EFFECTS_REQUESTS]
    accepted = [hop.repeat for hop in way.hops if hop.topic == ACCEPTED]
    assert (requests, accepted) == ([False, False, True], [False, False, False, True])


async def test_a_raw_record_of_another_clock_with_a_source_of_its_own_is_followed(
    brokers: str, pipeline: Pipeline
) -> None:
    payment_id = f"ahead-{uuid.uuid4()}"
    raw = await send_raw_ahead(brokers, payment_id, ((SOURCE, b"\xff"),), ahead_ms=15_000)
    await pipeline.write(ACCEPTED, b"{}", raw)
    [way] = await trace(brokers, payment_id=payment_id)
    assert [(hop.what, hop.source) for hop in way.hops] == [("raw", None), ("accepted", str(raw))]


def command(brokers: str, *words: str) -> Result:
    """Run `once trace` on these brokers."""
    return once("trace", *words, "--bootstrap-servers", brokers)


@pytest.mark.usefixtures("own_kafka")
async def test_the_command_prints_the_way(brokers: str, pipeline: Pipeline) -> None:
    payment_id = f"command-{uuid.uuid4()}"
    raw = await made_way(brokers, pipeline, payment_id)
    shown = command(brokers, payment_id)
    assert shown.exit_code == 0, shown.output
    assert str(raw) in shown.stdout
    for word in ("debit posting", "credit leg", "aborted", "committed", POSTINGS):
        assert word in shown.stdout
    as_json = json.loads(command(brokers, payment_id, "--json").stdout)
    assert [hop["what"] for hop in as_json["ways"][0]["hops"]].count("accepted") == 2
    missing = command(brokers, "unknown")
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert "no payment unknown" in missing.stderr


@pytest.mark.usefixtures("own_kafka")
async def test_the_command_says_that_no_cluster_answers() -> None:
    failed = command("127.0.0.1:1", "any")
    assert isinstance(failed.exception, KafkaUnavailableError)
    assert failed.stdout == ""
