"""Outcomes of raw records, from real brokers, with a transactional producer instead of the services."""

import uuid

import pytest

from shared.events import catalogue
from shared.events.clients import SubmittedBy, encode_submitted_by
from shared.events.headers import DETAIL, REASON, SUBMITTED_BY, Coordinates, Headers
from shared.events.payments import Repeat, encode_repeat
from shared.events.postings import CREDIT, DEBIT, Decline
from shared.events.transfers import AccountOpened
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.lineage.outcome import RecordNotFoundError, State, outcome
from tests.contract.steps import (
    ACCEPTED,
    AWAY,
    DEBTOR,
    HOME,
    POSTINGS,
    RAW,
    Pipeline,
    event,
    posting,
    send_raw,
    send_raw_ahead,
)

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]


async def state_of(brokers: str, raw: Coordinates) -> State:
    return (await outcome(brokers, raw.partition, raw.offset, deadline_s=20)).state


def test_the_two_accounts_are_on_two_partitions() -> None:
    assert HOME != AWAY


async def test_an_outcome_follows_a_payment_until_it_is_completed(brokers: str, pipeline: Pipeline) -> None:
    other = await send_raw(brokers, "other")
    raw = await send_raw(brokers, f"way-{uuid.uuid4()}")
    later = Coordinates(RAW, raw.partition, raw.offset * 1000)  # its coordinates begin with this record's
    assert await state_of(brokers, raw) is State.RECEIVED
    await pipeline.write(ACCEPTED, b"{}", raw, commit=False)
    assert await state_of(brokers, raw) is State.RECEIVED
    await pipeline.write(ACCEPTED, b"{}", other)
    await pipeline.write(ACCEPTED, b"{}", later)
    assert await state_of(brokers, raw) is State.RECEIVED
    await pipeline.write(ACCEPTED, b"{}", raw)
    assert await state_of(brokers, raw) is State.ACCEPTED
    await pipeline.write(POSTINGS, event(posting(DEBIT)), raw, commit=False)
    assert await state_of(brokers, raw) is State.ACCEPTED
    await pipeline.write(POSTINGS, event(posting(DEBIT)), raw)
    assert await state_of(brokers, raw) is State.POSTED
    await pipeline.write(POSTINGS, event(posting(CREDIT)), raw, partition=AWAY)
    done = await outcome(brokers, raw.partition, raw.offset, deadline_s=20)
    assert done.state is State.COMPLETED
    assert (done.at.topic, done.at.partition) == (POSTINGS, AWAY)
    assert await state_of(brokers, other) is State.ACCEPTED


async def test_outcomes_that_end_early_say_why(brokers: str, pipeline: Pipeline) -> None:
    repeat, bad, declined = [await send_raw(brokers, f"early-{n}") for n in range(3)]
    await pipeline.write(
        catalogue.PAYMENTS_DEDUPLICATED, encode_repeat(Repeat("early-0", DEBTOR, "payments.raw:0:1")), repeat
    )
    letter: Headers = ((REASON, b"same_account"), (DETAIL, b"name two accounts"))
    await pipeline.write(catalogue.PAYMENTS_DEAD_LETTER, b"\xff", bad, extra=letter)
    await pipeline.write(ACCEPTED, b"{}", declined)
    await pipeline.write(POSTINGS, event(Decline("early-2", DEBTOR, "insufficient_funds", "2026-11-02")), declined)
    found = [await outcome(brokers, raw.partition, raw.offset, deadline_s=20) for raw in (repeat, bad, declined)]
    assert [(one.state, one.reason, one.detail) for one in found] == [
        (State.DEDUPLICATED, None, "payments.raw:0:1"),
        (State.DEAD_LETTERED, "same_account", "name two accounts"),
        (State.DECLINED, "insufficient_funds", None),
    ]


async def test_an_opening_is_completed_by_its_account_event_and_names_its_client(
    brokers: str, pipeline: Pipeline
) -> None:
    by = SubmittedBy("acme", "0123456789abcdef")
    headers: Headers = ((SUBMITTED_BY, encode_submitted_by(by)),)
    opened = await send_raw(brokers, "opened", headers, type="account_opening")
    declined = await send_raw(brokers, "stale", headers, type="account_opening")
    await pipeline.write(ACCEPTED, b"{}", opened)
    assert await state_of(brokers, opened) is State.ACCEPTED
    await pipeline.write(POSTINGS, event(AccountOpened(DEBTOR, 0, "acme", 1)), opened)
    await pipeline.write(ACCEPTED, b"{}", declined)
    await pipeline.write(
        POSTINGS, event(Decline("stale", DEBTOR, "stale_version", "2026-11-02", opening=True)), declined
    )
    found = [await outcome(brokers, raw.partition, raw.offset, deadline_s=20) for raw in (opened, declined)]
    assert [(one.state, one.reason, one.submitted_by) for one in found] == [
        (State.COMPLETED, None, by),
        (State.DECLINED, "stale_version", by),
    ]
    assert (await outcome(brokers, *(await send_raw(brokers, "nobody"))[1:], deadline_s=20)).submitted_by is None


@pytest.mark.parametrize("ahead_s", [15, 3600])
async def test_an_outcome_is_found_whatever_the_clock_of_its_producer_shows(
    brokers: str, pipeline: Pipeline, ahead_s: int
) -> None:
    raw = await send_raw_ahead(brokers, "ahead", ahead_ms=ahead_s * 1000)
    await pipeline.write(ACCEPTED, b"{}", raw)
    assert await state_of(brokers, raw) is State.ACCEPTED


@pytest.mark.parametrize(("partition", "offset"), [(HOME, 1_000_000), (HOME, -1), (17, 0)])
async def test_a_missing_record_has_no_outcome(brokers: str, partition: int, offset: int) -> None:
    with pytest.raises(RecordNotFoundError):
        await outcome(brokers, partition, offset, deadline_s=20)


async def test_an_outcome_that_is_not_found_in_time_is_an_error(brokers: str) -> None:
    raw = await send_raw(brokers, "late")
    with pytest.raises(KafkaUnavailableError, match=r"within 0\.001 s"):
        await outcome(brokers, raw.partition, raw.offset, deadline_s=0.001)
