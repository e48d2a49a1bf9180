"""A stalled partition or client ends the service; a slow one does not."""

import asyncio
from types import SimpleNamespace

import pytest

from shared.eos.errors import FatalError
from shared.kafka.runtime.session import STANDING_S, refuse_dead, refuse_standing


def test_a_stalled_partition_is_named() -> None:
    with pytest.raises(FatalError, match=f"partition 4 has not gone on for {STANDING_S + 1:.0f} s"):
        refuse_standing({3: 1000.0, 4: 1000.0 - STANDING_S - 1}, 1000.0)


def test_a_slow_partition_is_accepted() -> None:
    refuse_standing({}, 1000.0)
    refuse_standing({3: 1000.0 - STANDING_S, 4: 1000.0}, 1000.0)


async def test_a_client_that_no_longer_fetches_is_a_fatal_error() -> None:
    defect = AssertionError("two positions at once")
    fetching: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    refuse_dead(None)
    refuse_dead(SimpleNamespace(error_future=fetching))
    fetching.set_exception(defect)
    with pytest.raises(FatalError, match="the client fetches no more") as raised:
        refuse_dead(SimpleNamespace(error_future=fetching))
    assert raised.value.__cause__ is defect
