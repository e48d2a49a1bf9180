"""The client of docs/api.md against the gateway's handlers."""

import asyncio

import pytest

from tests.api_page import LINES_MAX, SOURCE, page_client
from tests.gateways import gateway
from tests.harness import eventually
from tests.keys import KEY
from tests.unit.test_gateway_v1 import outcome

PAYMENT = {"debtor": "2378", "creditor": "576", "amount_minor": 1250, "currency": "EUR"}


def test_it_fits_on_a_screen() -> None:
    assert len([line for line in SOURCE.splitlines() if line.strip()]) <= LINES_MAX


async def test_it_sends_again_what_was_not_accepted_and_returns_the_outcome() -> None:
    async with gateway() as site:
        site.view.outcomes["2378", "p / 1"] = outcome("2378", "p / 1")
        site.log.failing = True
        paying = asyncio.create_task(asyncio.to_thread(page_client(str(site.url), KEY).pay, "p / 1", **PAYMENT))

        async def tried() -> bool:
            return site.log.tried > 0

        await eventually(tried, "the first attempt")
        site.log.failing = False
        found = await paying
    assert (found["payment_id"], found["state"]) == ("p / 1", "completed")
    assert len(site.log.records) == 1


async def test_it_raises_what_it_should_change() -> None:
    async with gateway() as site:
        with pytest.raises(ValueError, match="amount_minor is 0"):
            await asyncio.to_thread(page_client(str(site.url), KEY).pay, "p-1", **PAYMENT | {"amount_minor": 0})
