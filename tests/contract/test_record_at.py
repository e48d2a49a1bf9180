"""Single records at their coordinates, and a payment's whole way, against real brokers."""

import pytest

from services.balances.api.answers import Way
from services.balances.dashboard.tables import Posted, ways_of
from services.monitor.steps import steps_of
from shared.eos.records import Output, Record
from shared.events.headers import ORIGIN, SOURCE, Coordinates
from shared.events.postings import CREDIT, DEBIT
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import end_offsets, record_at
from tests.contract.steps import (
    ACCEPTED,
    AWAY,
    DEBTOR,
    HOME,
    POSTINGS,
    RAW,
    TRANSFERS,
    Pipeline,
    event,
    posting,
    send_raw,
)

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]


async def at_end(brokers: str, topic: str, partition: int = HOME) -> Coordinates:
    """Return the coordinates of the next record."""
    return Coordinates(topic, partition, (await end_offsets(brokers, [topic]))[topic, partition])


async def both(brokers: str, at: Coordinates) -> tuple[Record | None, Record | None]:
    """Read the record as committed, and without that condition."""
    async with Cluster(brokers) as cluster:
        return await record_at(cluster, at), await record_at(cluster, at, committed=False)


async def test_a_record_is_found_when_its_transaction_is_committed(brokers: str, pipeline: Pipeline) -> None:
    raw = await send_raw(brokers, "one")
    at = await at_end(brokers, ACCEPTED)
    assert await both(brokers, at) == (None, None)
    values = [b"first", b"second", b"third"]
    await pipeline.begin([Output(ACCEPTED, HOME, b"key", value, ()) for value in values])
    for place, value in enumerate(values):
        committed, any_ = await both(brokers, at._replace(offset=at.offset + place))
        assert committed is None
        assert any_ is not None
        assert any_.value == value
    await pipeline.end(ACCEPTED, commit=True)
    for place, value in enumerate(values):
        committed, any_ = await both(brokers, at._replace(offset=at.offset + place))
        assert committed == any_
        assert committed is not None
        assert (committed.value, committed.offset) == (value, at.offset + place)
    assert await both(brokers, at._replace(offset=at.offset + 3)) == (None, None), "a marker is not a record"
    assert (await both(brokers, raw))[0] is not None


async def test_an_aborted_record_is_not_found(brokers: str, pipeline: Pipeline) -> None:
    at = await at_end(brokers, ACCEPTED)
    await pipeline.write(ACCEPTED, b"aborted", await send_raw(brokers, "two"), commit=False)
    committed, any_ = await both(brokers, at)
    assert committed is None
    assert any_ is not None


@pytest.mark.parametrize(("partition", "offset"), [(HOME, -1), (HOME, 10**9), (17, 0)])
async def test_no_record_is_found_at_coordinates_that_do_not_exist(brokers: str, partition: int, offset: int) -> None:
    assert await both(brokers, Coordinates(RAW, partition, offset)) == (None, None)


class Written:
    """Writes records that name their source, as the services do."""

    def __init__(self, brokers: str, pipeline: Pipeline, raw: Coordinates) -> None:
        self._brokers = brokers
        self._pipeline = pipeline
        self._raw = raw

    async def write(
        self, topic: str, value: bytes, source: Coordinates, partition: int = HOME, *, commit: bool = True
    ) -> Coordinates:
        at = await at_end(self._brokers, topic, partition)
        headers = ((ORIGIN, self._raw.encode()), (SOURCE, source.encode()))
        await self._pipeline.begin([Output(topic, partition, b"key", value, headers)])
        await self._pipeline.end(topic, commit=commit)
        return at


async def followed(brokers: str, posted: list[Posted]) -> Way:
    """Follow postings of one debtor, as the monitor and the page do."""
    found = await steps_of(brokers, [one.at for one in posted])
    [way] = ways_of("followed", posted, {step.at: step for step in found.steps}).ways
    return way


async def test_a_payments_way_is_followed_from_both_legs_to_its_raw_record(brokers: str, pipeline: Pipeline) -> None:
    raw = await send_raw(brokers, "way")
    written = Written(brokers, pipeline, raw)
    accepted = await written.write(ACCEPTED, b"{}", raw)
    transfer = await written.write(TRANSFERS, b'{"type":"transfer"}', accepted)
    debit = await written.write(POSTINGS, event(posting(DEBIT)), transfer)
    leg = await written.write(TRANSFERS, b'{"type":"credit_leg"}', transfer, AWAY)
    credit = await written.write(POSTINGS, event(posting(CREDIT)), leg, AWAY)
    posted = [Posted(at.partition, at.offset, DEBTOR) for at in (credit, debit)]
    way = await followed(brokers, posted)
    assert way.debtor == DEBTOR
    assert [(step.what, step.at) for step in way.steps] == [
        ("raw", str(raw)),
        ("accepted", str(accepted)),
        ("transfer", str(transfer)),
        ("debit posting", str(debit)),
        ("credit leg", str(leg)),
        ("credit posting", str(credit)),
    ]
    assert all(step.found for step in way.steps)


async def test_a_way_ends_at_a_missing_record(brokers: str, pipeline: Pipeline) -> None:
    raw = await send_raw(brokers, "torn")
    written = Written(brokers, pipeline, raw)
    aborted = await written.write(TRANSFERS, b'{"type":"transfer"}', raw, commit=False)
    debit = await written.write(POSTINGS, event(posting(DEBIT)), aborted)
    way = await followed(brokers, [Posted(debit.partition, debit.offset, DEBTOR)])
    assert [(step.at, step.found) for step in way.steps] == [(str(aborted), False), (str(debit), True)]


async def test_a_way_that_is_not_found_in_time_is_an_error(brokers: str) -> None:
    with pytest.raises(KafkaUnavailableError, match=r"within 0\.001 s"):
        await steps_of(brokers, [Coordinates(POSTINGS, HOME, 0)], deadline_s=0.001)
