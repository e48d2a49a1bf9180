"""Upgrade and roll back in the orders of docs/deployment.md, all services stopped in between."""

import pytest

from tests.upgrade.installation import NAMES, Installation, Version

pytestmark = pytest.mark.timeout(300)

PAYMENTS = 300


async def test_every_payment_is_booked_once_across_upgrade_and_roll_back(installation: Installation) -> None:
    turns = (Version.PREVIOUS, Version.PRESENT, Version.PREVIOUS, Version.PRESENT)
    for turn, version in enumerate(turns, 1):
        present = version is Version.PRESENT
        if not present:
            installation.wait_closed()
        installation.start(version)
        await installation.pay(PAYMENTS)
        assert installation.verify() == turn * PAYMENTS
        assert await installation.members() == {name: {f"{name}-0"} if present else set() for name in NAMES}
        installation.stop()
