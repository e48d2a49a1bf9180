"""Drills for the other side of deploy/drills/compose.py, without brokers: `python -m tests.unit.inside_planted`."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from deploy.drills.drill import COMPOSE, Drill, drill
from deploy.drills.faults.processes import Kill, Pause, TakeAway
from deploy.drills.inside import ComposeTarget, Link, run
from deploy.drills.stage import Stage
from deploy.local.kafka.probe import ClusterView
from shared.kafka.client.access import Access


@drill("Z1", "planted-faults", "Faults are made outside of the container", targets=[COMPOSE])
async def planted_faults(stage: Stage) -> None:
    """Kill, pause and take away a container, which is brought back."""
    for fault in (Kill("ledger"), Pause("outbox"), TakeAway("broker-1")):
        async with stage.fault(fault):
            stage.expect("components away", len(stage.target.taken), 0 if isinstance(fault, Kill) else 1)
    stage.expect("the ledger is ready", stage.target.is_ready("ledger"), expected=True)
    stage.journal.records = 1


@drill("Z2", "waits", "It never ends", targets=[COMPOSE])
async def waits(stage: Stage) -> None:
    """Take a broker away, and wait for ever."""
    async with stage.fault(TakeAway("broker-1")):
        await asyncio.Event().wait()


@drill("Z3", "not-there", "It needs a process of this machine", targets=[COMPOSE])
async def not_there(stage: Stage) -> None:
    """Ask for a process."""
    stage.target.component("ledger")


@drill("Z4", "refused", "A fault that cannot be made is no pass", targets=[COMPOSE])
async def refused(stage: Stage) -> None:
    """Kill what has no container."""
    async with stage.fault(Kill("nothing")):
        stage.expect("this is not reached", len(stage.name), 0)


DRILLS: dict[str, Drill] = {one.row: one for one in (planted_faults, waits, not_there, refused)}


class WithoutBrokers(ComposeTarget):
    """A target of which all brokers are well."""

    async def settle(self) -> None: ...

    def views(self) -> Iterator[ClusterView]:
        yield ClusterView(frozenset({0, 1, 2}), 0, ())


def main() -> None:
    _, seed, *names = sys.argv
    target = WithoutBrokers(Link(sys.stdin.buffer, sys.stdout.buffer), Access("broker-0:9092", None), Path("/tmp"))  # noqa: S108 # nothing is written there
    drills = [DRILLS[name.rpartition(":")[2]] for name in names]
    sys.exit(0 if asyncio.run(run(target.link, int(seed), drills, target)) else 130)


if __name__ == "__main__":
    main()
