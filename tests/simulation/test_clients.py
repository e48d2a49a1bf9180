"""Histories with several clients: their payments are booked, and those that they may not send are declined."""

from collections import Counter

from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.clients import OPERATOR
from shared.events.postings import Decline, Posting, decode_ledger_event
from shared.events.transfers import AccountOpened, DeclineReason
from tests.simulation.histories import Result, Run
from tests.simulation.judge import committed_batches
from tests.simulation.plan import CLIENTS_EVERY, plan
from tests.simulation.world import World, history

SEEDS = range(CLIENTS_EVERY - 2, 4 * CLIENTS_EVERY, CLIENTS_EVERY)


def decided(seed: int) -> Counter[str]:
    """Count the decisions of a history that concern clients."""
    found: Counter[str] = Counter()
    planned = plan(seed)

    async def main(world: World) -> None:
        result = Result()
        await Run(world, planned, result).run()
        assert not result.findings
        for partition in world.cluster.topic(LEDGER_POSTINGS):
            for batch in committed_batches(partition):
                for record in batch.records(partition.target):
                    event = decode_ledger_event(record.value or b"")
                    if isinstance(event, Decline):
                        found[event.reason] += 1
                    elif isinstance(event, AccountOpened):
                        found["opened"] += 1
                    elif isinstance(event, Posting) and event.submitted_by not in {None, OPERATOR}:
                        found["booked"] += 1

    history(main, seed, planned.first_wait_s, planned.transaction_version, partitions=planned.partitions)
    return found


def test_clients_are_booked_opened_and_declined() -> None:
    found = sum((decided(seed) for seed in SEEDS), Counter())
    wanted = "booked", "opened", DeclineReason.NOT_AUTHORISED.value, DeclineReason.STALE_VERSION.value
    assert all(found[name] >= len(SEEDS) for name in wanted), found
