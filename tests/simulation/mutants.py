"""The runtime, broken on purpose: each way must be found by a history, or the histories prove nothing.

A mutant replaces functions of the runtime while histories run. `python -m tests.simulation --mutants` prints what finds
each.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Final, NamedTuple, cast
from unittest import mock

from services.ingest.service import IngestHandler
from shared.eos.audit import Outcome
from shared.eos.progress import committed_offset
from shared.kafka.client import fetcher, reader
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.leaving import forget
from shared.kafka.runtime import recovery, scope
from shared.kafka.runtime.member import Member
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.scope import TransactionScope
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.transaction_requests import GroupMember, TransactionRequests
from shared.kafka.runtime.worker import Worker

Patch = tuple[ModuleType | type, str, Any]


class Mutant(NamedTuple):
    """A way to break the runtime.

    Attributes:
        what: what it does instead, for people.
    """

    what: str
    patches: tuple[Patch, ...]


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Have the runtime broken by this mutant."""
    with ExitStack() as stack:
        for owner, attribute, replacement in MUTANTS[name].patches:
            stack.enter_context(mock.patch.object(owner, attribute, replacement))
        yield


_send_offsets = TransactionalProducer.send_offsets


async def _offsets_not_awaited(self: TransactionalProducer, *args: Any) -> None:
    asyncio.ensure_future(_send_offsets(self, *args)).add_done_callback(forget)


async def _next_offsets_first(self: Any, member: GroupMember, offsets: dict[Any, int], *rest: Any) -> None:
    await _send_offsets(self, member, {target: offset + 1 for target, offset in offsets.items()}, *rest)


async def _of_another_group(self: Any, member: GroupMember, *rest: Any) -> None:
    await _send_offsets(self, GroupMember(f"{member.group}-2"), *rest)


def _not_rewound(self: Any, firsts: Mapping[Task, int]) -> None:
    for task in firsts:
        self._fetcher.add(task.target, self._fetcher.position(task.target))


async def _begun_before_restored(self: Any, task: Task, **_: Any) -> None:
    task.next_offset = 0
    task.last = None
    found = await reader.group_offsets(self._settings.bootstrap_servers, self._group, task.topic)
    task.next_offset = found.get(task.partition, 0)


def _silent(self: Any, response: Any) -> None:
    _follow(self, response)
    self._interval_s = 10**6


_follow = Member._follow  # likewise
_outcome = TransactionScope._outcome  # likewise


async def _taken_for_aborted(self: Any, task: Task) -> Any:
    return Outcome.ABORTED if await _outcome(self, task) is Outcome.COMMITTED else None


def _uncommitted(*args: Any, committed: bool, **options: Any) -> Any:
    del committed
    return _fetch_request(*args, committed=False, **options)


_fetch_request: Any = vars(fetcher)["fetch_request"]  # likewise


async def _nothing_torn(*_: Any) -> None:
    return None


async def _nothing_open(*_: Any) -> list[Any]:
    return []


_initialise = TransactionalProducer._initialise  # likewise


async def _same_epoch(self: Any, *, own: bool) -> None:
    if not own:
        await _initialise(self, own=own)


async def _outside_the_group(self: Any, member: GroupMember, *rest: Any) -> None:
    await _send_offsets(self, GroupMember(member.group), *rest)


async def _released_at_once(self: Any, partitions: set[int]) -> None:
    self._owned -= partitions
    self._wake.set()
    await self._revoked(partitions)


async def _taken_for_committed(self: Any, task: Task) -> Any:
    found = await _outcome(self, task)
    if found is None or task.open is None or task.open.noted is None:
        return found
    return Outcome.COMMITTED


class _StableEnds:
    """A cluster whose partitions end where the first open transaction begins."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def offsets(self, targets: list[Any], at: int) -> Any:
        return await self._cluster.offsets(targets, at, committed=True)


_restore = recovery.restore


async def _restored_to_stable(cluster: Cluster, *rest: Any) -> None:
    await _restore(cast("Cluster", _StableEnds(cluster)), *rest)


async def _offset_before_stable(cluster: Cluster, group: str, topic: str, partition: int) -> Any:
    rows = await vars(reader)["_offset_rows"](cluster, group, [(topic, [partition])])
    return next((committed_offset(offset, metadata) for *_, offset, metadata in rows), None)


_end = TransactionRequests.end  # likewise


async def _returned_epoch_ignored(self: Any, node_id: int, *, commit: bool) -> None:
    before = self.producer_id, self.epoch
    await _end(self, node_id, commit=commit)
    self.producer_id, self.epoch = before


_handler = IngestHandler.__init__


def _with_one_identity(self: IngestHandler, partition: int, _: int, *, partitions: int) -> None:
    _handler(self, partition, 1, partitions=partitions)


MUTANTS: Final[Mapping[str, Mutant]] = {
    "offsets-not-awaited": Mutant(
        "commits before the offsets were acknowledged", ((TransactionalProducer, "send_offsets", _offsets_not_awaited),)
    ),
    "offset-too-far": Mutant(
        "commits one offset too many", ((TransactionalProducer, "send_offsets", _next_offsets_first),)
    ),
    "wrong-group": Mutant(
        "commits offsets for another group", ((TransactionalProducer, "send_offsets", _of_another_group),)
    ),
    "begun-before-restored": Mutant(
        "begins to work without its state", ((TransactionScope, "recover", _begun_before_restored),)
    ),
    "no-heartbeat": Mutant("sends one heartbeat", ((Member, "_follow", _silent),)),
    "unknown-is-aborted": Mutant(
        "takes a committed transaction of unknown outcome for aborted",
        ((TransactionScope, "_outcome", _taken_for_aborted),),
    ),
    "unknown-is-committed": Mutant(
        "takes an aborted transaction of unknown outcome for committed",
        ((TransactionScope, "_outcome", _taken_for_committed),),
    ),
    "no-member": Mutant(
        "commits offsets without the member and its epoch",
        ((TransactionalProducer, "send_offsets", _outside_the_group),),
    ),
    "released-at-once": Mutant(
        "releases a partition before its transaction has ended", ((Member, "_give_back", _released_at_once),)
    ),
    "unstable-offsets": Mutant(
        "reads offsets that a transaction is about to change", ((scope, "committed_at", _offset_before_stable),)
    ),
    "restored-to-stable": Mutant(
        "restores its state up to the first open transaction only",
        ((scope, "restore", _restored_to_stable), (scope, "raise_if_state_lost", lambda *_: None)),
    ),
    "moved-coordinator-trusted": Mutant(
        "trusts the end of a transaction whose coordinator moved",
        ((TransactionalProducer, "_raise_if_moved", lambda _: None),),
    ),
    "no-rewind": Mutant("goes on behind an aborted batch", ((Worker, "_seek", _not_rewound),)),
    "no-rollback": Mutant(
        "keeps the state's changes of an aborted transaction",
        ((Task, "rollback", lambda self: setattr(self, "open", None)),),
    ),
    "epoch-kept": Mutant(
        "keeps its epoch after a request without an answer", ((TransactionalProducer, "_initialise", _same_epoch),)
    ),
    "returned-epoch-ignored": Mutant(
        "keeps its epoch after EndTxn has given it another", ((TransactionRequests, "end", _returned_epoch_ignored),)
    ),
    "no-dedup": Mutant(
        "ingest remembers one identity",
        ((IngestHandler, "__init__", _with_one_identity),),
    ),
    "read-uncommitted": Mutant("reads what is not committed", ((fetcher, "fetch_request", _uncommitted),)),
    "open-parts-left": Mutant(
        "a new owner leaves open what it finds under its producer id", ((scope, "left_open", _nothing_open),)
    ),
    "torn-left": Mutant("does not complete torn transactions", ((scope, "find_torn", _nothing_torn),)),
}
