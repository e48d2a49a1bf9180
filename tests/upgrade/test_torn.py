"""Torn transactions of one version, which the other one completes or refuses, by the notes in the changelogs."""

import sys
from collections.abc import Collection

import pytest

from deploy.drills.tearing import commit_parts, open_transaction
from deploy.local.process import ManagedProcess
from shared.eos import crash
from shared.eos.errors import EXIT_FENCED
from shared.eos.open_transactions import Transaction
from shared.events import catalogue
from shared.kafka.admin.groups import PIPELINE, wait_drained
from shared.kafka.client.brokers import Brokers
from tests.harness import ROOT, Service, wait_until
from tests.partitions import PARTITIONS
from tests.proof import send_raw
from tests.tearing import CREDITORS, payment
from tests.tiers import full
from tests.upgrade.installation import Installation, Version

pytestmark = [pytest.mark.timeout(300), full]

ALONE = 2
"""Partition of the debtor where a transaction is to be over one, and of the postings that are committed."""
CREDITOR = CREDITORS[4]
MANY = 100
COMPLETED = "torn transaction completed"


async def pay(installation: Installation, prefix: str, count: int, debtors: Collection[int]) -> None:
    """Send payments on some partitions, all of them to one account."""
    numbers = range(count)
    values = [payment(f"{prefix}-{at}-{n}", f"cash@{at}", CREDITOR, 1 + n) for n in numbers for at in debtors]
    await send_raw(installation.brokers, values)


async def stopped_in(brokers: Brokers, ledger: Service, transactional_id: str) -> Transaction:
    """Wait until a ledger has stopped in a transaction."""
    wait_until(lambda: ledger.suspended, "the ledger stopped in a transaction")
    return await open_transaction(brokers, transactional_id)


def postings_of(transaction: Transaction) -> list[int]:
    """The partitions of ledger.postings that a transaction writes to: those of the debtors."""
    return [partition for topic, partition in transaction.partitions if topic == catalogue.LEDGER_POSTINGS]


@pytest.mark.parametrize("version", list(Version))
async def test_the_other_version_completes_a_torn_transaction(installation: Installation, version: Version) -> None:
    installation.start(version, ledger=f"{crash.AFTER_OFFSETS}=stop:1")
    await pay(installation, version.value, 1, [ALONE])
    own = "ledger-0" if version is Version.PRESENT else f"ledger-{catalogue.LEDGER_TRANSFERS}-{ALONE}"
    async with Brokers(installation.brokers) as brokers:
        transaction = await stopped_in(brokers, installation.running["ledger"], own)
        assert postings_of(transaction) == [ALONE]
        await commit_parts(brokers, transaction, [(catalogue.LEDGER_POSTINGS, ALONE)])
    installation.kill()
    if version is Version.PRESENT:
        installation.wait_closed()

    installation.start(version.other)
    installation.verify()
    completed = [line for line in installation.running["ledger"].log() if line["event"] == COMPLETED]
    assert [line["partition"] for line in completed] == [ALONE]
    installation.stop()


def gathering(ledger: Service) -> Service:
    """Have a ledger that is not started yet take records of all partitions at once."""
    before = ledger.process
    argv = [sys.executable, "-m", "tests.upgrade.gathering_ledger"]
    ledger.process = ManagedProcess(before.name, argv, before.env, before.log_path, cwd=ROOT)
    return ledger


async def test_the_previous_version_refuses_a_torn_transaction_over_several_partitions(
    installation: Installation,
) -> None:
    """Its notes count the records of one input partition each, and the previous version knows no other kind."""
    installation.start(Version.PRESENT, ("ingest", "transform"))
    await pay(installation, "several", MANY, range(PARTITIONS))
    await wait_drained(installation.brokers, deadline_s=60, pipeline=PIPELINE[:2])
    doomed = gathering(installation.make(Version.PRESENT, "ledger", CRASH_POINT=f"{crash.AFTER_OFFSETS}=stop:1"))
    installation.running["ledger"] = doomed.start()
    async with Brokers(installation.brokers) as brokers:
        transaction = await stopped_in(brokers, doomed, "ledger-0")
        assert set(postings_of(transaction)) == set(range(PARTITIONS))
        await commit_parts(brokers, transaction, [(catalogue.LEDGER_POSTINGS, ALONE)])
    installation.kill()
    installation.wait_closed()

    refusing = installation.make(Version.PREVIOUS, "ledger").start()
    assert refusing.wait_exit() == EXIT_FENCED
    (fatal,) = [str(line["reason"]) for line in refusing.log() if line["event"] == "fatal"]
    torn = f"the brokers committed only a part of the transaction over {catalogue.LEDGER_TRANSFERS}:{ALONE} "
    assert fatal.startswith(torn)

    installation.start(Version.PRESENT)
    installation.verify()
    assert COMPLETED in [line["event"] for line in installation.running["ledger"].log()]
    installation.stop()
