"""Kill all services of one version, one of them at a named point of a transaction, and start the other version."""

import asyncio
import signal

import pytest

from shared.eos import crash
from tests.harness import wait_until
from tests.tiers import full
from tests.upgrade.installation import Installation, Version

pytestmark = [pytest.mark.timeout(300), full]

PAYMENTS = 100
ROWS = [
    ("ingest", crash.AFTER_OFFSETS),
    ("ledger", crash.AFTER_OFFSETS),
    ("ledger", crash.END_TXN_SENT),
]


async def kill_at(installation: Installation, version: Version, name: str, point: str) -> set[str]:
    """Run a version under load until a service dies at a point; kill the others, and return the open transactions."""
    installation.start(version, **{name: f"{point}=kill:2"})
    doomed = installation.running[name]
    while doomed.process.running:
        await installation.pay(PAYMENTS)
        await asyncio.sleep(0.1)
    installation.kill()
    assert doomed.process.returncode == -signal.SIGKILL
    opened = installation.open_ids()
    assert opened is not None
    return {one for one in opened if one.startswith(name)}


@pytest.mark.parametrize(("name", "point"), ROWS)
async def test_the_present_version_waits_for_transactions_of_the_previous_one(
    installation: Installation, name: str, point: str
) -> None:
    opened = await kill_at(installation, Version.PREVIOUS, name, point)
    assert opened or point == crash.END_TXN_SENT  # the markers may have been written by now
    installation.start(Version.PRESENT)
    await installation.pay(PAYMENTS)
    installation.verify()
    installation.stop()
    if point == crash.END_TXN_SENT:
        installation.wait_closed()  # the coordinator may note the end of a commit 30 s after its markers
    assert installation.open_ids() == set()


@pytest.mark.parametrize(("name", "point"), ROWS)
async def test_the_previous_version_goes_on_when_no_transaction_is_open(
    installation: Installation, name: str, point: str
) -> None:
    opened = await kill_at(installation, Version.PRESENT, name, point)
    assert opened == ({f"{name}-0"} if point == crash.AFTER_OFFSETS else set())
    installation.wait_closed()
    installation.start(Version.PREVIOUS)
    await installation.pay(PAYMENTS)
    installation.verify()
    installation.stop()


async def test_an_instance_of_the_present_version_that_resumes_after_a_roll_back_commits_nothing(
    installation: Installation,
) -> None:
    """The group refuses its offsets. The other way round nothing would fence it: docs/deployment.md."""
    installation.start(Version.PRESENT, ledger=f"{crash.END_TXN_ACKNOWLEDGED}=stop:2")
    zombie = installation.running["ledger"]
    while not zombie.suspended:
        await installation.pay(5 * PAYMENTS)
        await asyncio.sleep(0.1)
    for name in ("ingest", "transform"):
        installation.running[name].process.terminate()
    installation.wait_closed()
    installation.start(Version.PREVIOUS)
    try:
        booked = installation.verify()
        zombie.process.resume()
        wait_until(lambda: zombie.logged("leaving the group to rejoin"), "it knows that it was removed")
        zombie.process.terminate()  # before the others: its leave rebalances the previous version's group
        await installation.pay(PAYMENTS)
        assert installation.verify() == booked + PAYMENTS
    finally:
        zombie.process.kill()
        installation.stop()
