"""The runtime, broken on purpose: each way must be found by a history, or the histories prove nothing.

A mutant replaces functions of the runtime while histories run. `python -m tests.simulation --mutants` prints what finds
each.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Final, NamedTuple
from unittest import mock

import services.ingest.__main__ as ingest
from services.ingest.service import IngestHandler
from shared.eos.errors import FencedError
from shared.kafka.client.leaving import forget
from shared.kafka.runtime import owned, session
from shared.kafka.runtime.owned import OwnedPartition
from shared.kafka.runtime.partition import PartitionScope
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.scope import Scope
from shared.kafka.runtime.transaction_requests import TransactionRequests

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


async def _offsets_outside(self: Any, next_offset: int) -> None:
    await self._producer.flush()
    await self._consumer.commit({self._target: next_offset})


async def _next_offset_first(self: Any, next_offset: int) -> None:
    await self._producer.flush()
    await _send_offsets(self._producer, self._group, {(self._topic, self._partition): next_offset + 1})


def _shared_id(pattern: str, service: str, topic: str, number: int) -> str:
    return pattern.format(service=service, topic=topic, partition=number // 2)


_rewind = PartitionScope._rewind  # the runtime's own, to be broken


async def _not_rewound(self: Any, _: int, error: Any) -> None:
    await _rewind(self, await self._position(), error)


async def _restored_before_the_fence(self: Any) -> None:
    recovered = await _recover(self)
    with mock.patch.object(self, "_recover", mock.AsyncMock(return_value=recovered)):
        await _take_over(self)


_recover = OwnedPartition._recover  # likewise
_take_over = PartitionScope._take_over  # likewise


async def _resumed_before_restored(self: Any) -> None:
    await self._producer.init(60.0)
    found = await self._consumer.committed(self._target)
    self._next_offset = found or 0
    self._consumer.seek(self._target, self._next_offset)
    self._consumer.resume(self._target)
    self.ready = True
    asyncio.ensure_future(_recover(self)).add_done_callback(forget)


_transaction = Scope._transaction  # likewise


async def _goes_on(self: Any, records: list[Any]) -> None:
    try:
        await _transaction(self, records)
    except FencedError:
        self._producer = TransactionalProducer(
            self._settings.bootstrap_servers,
            self._producer.transactional_id,
            self._settings.transaction_timeout_ms,
            self._producer._crash_points,
        )
        await self._producer.init(60.0)
        self._roll_back()
        self._consumer.seek(self._target, records[0].offset)


_group_member = session.group_member


def _uncommitted(*args: Any, **options: Any) -> Any:
    made = _group_member(*args, **options)
    made._isolation_level = "read_uncommitted"  # the client's
    return made


def _silent(*args: Any, **options: Any) -> Any:
    return _group_member(*args, **(options | {"heartbeat_interval_ms": 10**6}))


async def _nothing_torn(*_: Any) -> None:
    return None


async def _nothing_open(*_: Any) -> list[Any]:
    return []


_initialise = TransactionalProducer._initialise  # likewise


async def _same_epoch(self: Any, *, own: bool) -> None:
    if not own:
        await _initialise(self, own=own)


_end = TransactionRequests.end  # likewise


async def _returned_epoch_ignored(self: Any, node_id: int, *, commit: bool) -> None:
    before = self.producer_id, self.epoch
    await _end(self, node_id, commit=commit)
    self.producer_id, self.epoch = before


MUTANTS: Final[Mapping[str, Mutant]] = {
    "offsets-not-awaited": Mutant(
        "commits before the offsets were acknowledged", ((TransactionalProducer, "send_offsets", _offsets_not_awaited),)
    ),
    "offsets-outside": Mutant(
        "commits offsets by the consumer, before the transaction", ((OwnedPartition, "_send", _offsets_outside),)
    ),
    "offset-too-far": Mutant("commits one offset too many", ((OwnedPartition, "_send", _next_offset_first),)),
    "one-id-for-two": Mutant("two partitions have one transactional.id", ((owned, "transactional_id", _shared_id),)),
    "no-rewind": Mutant("goes on behind an aborted batch", ((PartitionScope, "_rewind", _not_rewound),)),
    "no-rollback": Mutant(
        "keeps the state's changes of an aborted transaction", ((OwnedPartition, "_roll_back", lambda _: None),)
    ),
    "epoch-kept": Mutant(
        "keeps its epoch after a request without an answer", ((TransactionalProducer, "_initialise", _same_epoch),)
    ),
    "returned-epoch-ignored": Mutant(
        "keeps its epoch after EndTxn has given it another", ((TransactionRequests, "end", _returned_epoch_ignored),)
    ),
    "restored-before-fence": Mutant(
        "reads state and offset before InitProducerId", ((PartitionScope, "_take_over", _restored_before_the_fence),)
    ),
    "resumed-before-restored": Mutant(
        "begins to work while the state is read", ((PartitionScope, "_take_over", _resumed_before_restored),)
    ),
    "fenced-goes-on": Mutant("initialises again when it is fenced", ((Scope, "_transaction", _goes_on),)),
    "no-dedup": Mutant(
        "ingest remembers one identity",
        ((ingest, "IngestHandler", lambda number, _: IngestHandler(number, 1)),),
    ),
    "read-uncommitted": Mutant("reads what is not committed", ((session, "group_member", _uncommitted),)),
    "no-heartbeat": Mutant("sends no heartbeat", ((session, "group_member", _silent),)),
    "wrong-group": Mutant(
        "commits offsets for another group",
        (
            (
                TransactionalProducer,
                "send_offsets",
                lambda self, group, *rest: _send_offsets(self, f"{group}-2", *rest),
            ),
        ),
    ),
    "moved-coordinator-trusted": Mutant(
        "takes a transaction for ended although its coordinator moved",
        ((TransactionalProducer, "_raise_if_moved", lambda _: None),),
    ),
    "open-parts-left": Mutant(
        "a new owner leaves open what it finds under its producer id", ((owned, "left_open", _nothing_open),)
    ),
    "torn-left": Mutant("does not complete torn transactions", ((owned, "find_torn", _nothing_torn),)),
}
