"""The drained state of the pipeline, against real brokers."""

import pytest

from shared.eos.records import Output
from shared.kafka.admin.groups import Lag, wait_drained
from shared.kafka.client.errors import DrainTimeoutError
from tests.contract.steps import ACCEPTED, AWAY, HOME, RAW, TRANSFERS, Pipeline, send_raw

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]


async def lagging(brokers: str) -> list[Lag]:
    lags: list[Lag] = []

    def note(seen: list[Lag]) -> None:
        lags[:] = seen

    with pytest.raises(DrainTimeoutError):
        await wait_drained(brokers, deadline_s=3, on_progress=note, poll_s=0.05)
    return lags


async def test_drained_means_no_committed_record_left_and_no_open_transaction(brokers: str, pipeline: Pipeline) -> None:
    await send_raw(brokers, "drain")
    await pipeline.advance()
    await wait_drained(brokers, deadline_s=20)

    raw = await send_raw(brokers, "drain-more")
    assert [(lag.group, lag.topic, lag.partition, lag.committed) for lag in await lagging(brokers)] == [
        ("ingest", RAW, HOME, raw.offset)
    ]
    await pipeline.advance()
    # Markers and aborted records after the committed offset are not lag
    await pipeline.write(ACCEPTED, b"{}", raw, commit=False)
    await wait_drained(brokers, deadline_s=20)

    await pipeline.begin([Output(TRANSFERS, AWAY, b"k", b"{}", ())])
    [lag] = await lagging(brokers)
    assert (lag.group, lag.topic, lag.partition) == ("ledger", TRANSFERS, AWAY)
    assert lag.stable < lag.end
    assert "an open transaction" in str(lag)
    await pipeline.end(TRANSFERS, commit=True)
    [lag] = await lagging(brokers)
    assert lag.stable == lag.end
    with pytest.raises(DrainTimeoutError, match=rf"ledger on ledger\.transfers:{AWAY} \(committed"):
        await wait_drained(brokers, deadline_s=3)


async def test_drained_takes_two_looks_with_the_same_offsets(brokers: str, pipeline: Pipeline) -> None:
    await pipeline.advance()
    await wait_drained(brokers, deadline_s=20)  # the offsets count once their markers are written
    looks: list[int] = []
    await wait_drained(brokers, deadline_s=20, on_progress=lambda lags: looks.append(len(lags)))
    assert looks == [0, 0]
