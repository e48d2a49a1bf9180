"""A rebuild of a partition's entries in Redis: what is there is moved to the present layout, then Kafka's is added.

Invariant: any step may be repeated, in any order with others of its kind. Marks are merged by revision, and a key of
another layout is deleted only after its entries have been written. So a rebuild that was interrupted is simply begun
again. Several steps are under way at once: Redis works while the next records are read.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, Self

from services.outbox import rebuilding
from services.outbox.keys import Keys
from services.outbox.marks import Mark, decode_former_mark, encode_mark

REBUILD_REST_MS: Final = 600_000  # a rebuild must start over if its next step takes longer: its nonce has expired
STEP_EFFECTS_MAX: Final = 500  # a script keeps every other client waiting
STEPS_UNDER_WAY: Final = 4
FIND_KEYS: Final = 1000  # that Redis looks at in one step
_CLAIMS: Final = (b"c", b"b")
_END: Final = b"0"


class Step(Protocol):
    """Runs one script, with arguments and keys after those that all have; gives its reply after status and time."""

    def __call__(
        self, script: str, args: Sequence[str | bytes | int] = ..., keys: Sequence[str] = ..., /
    ) -> Awaitable[list[bytes]]: ...


class Rebuild:
    """One rebuild, under a nonce that the steps carry.

    Args:
        step: runs its scripts.
        keys: those of the present layout.
        buckets: their number.
        retention_ms: how long marks are kept after they were decided.
    """

    def __init__(self, step: Step, keys: Keys, buckets: int, retention_ms: int) -> None:
        self._step = step
        self._keys = keys
        self._buckets = buckets
        self._retention_ms = retention_ms

    async def run(self, marks: Iterable[tuple[str, Mark]] | AsyncIterable[tuple[str, Mark]]) -> str:
        """Write the marks, and return the incarnation that is trusted from now on."""
        await self._step(rebuilding.BEGIN, [REBUILD_REST_MS], [self._keys.former_trust])
        async with _UnderWay() as steps:
            async for keys in self._found(self._keys.every_former):
                await self._move_former(keys)
            async for keys in self._found(self._keys.every_bucket):
                for bucket in filter(self._keys.misplaces, keys):
                    await steps.start(self._move_bucket(bucket))
            async for chunk in _chunks(marks):
                await steps.start(self._restore([(effect_id, encode_mark(mark)) for effect_id, mark in chunk]))
        incarnation = uuid.uuid4().hex
        await self._step(rebuilding.CLOSE, [incarnation, self._buckets, self._retention_ms])
        return incarnation

    async def _found(self, pattern: str) -> AsyncIterator[list[str]]:
        """All keys of a pattern, some of them more than once."""
        cursor = _END
        while True:
            cursor, *found = await self._step(rebuilding.FIND, [cursor, pattern, FIND_KEYS])
            if found:
                yield [key.decode() for key in found]
            if cursor == _END:
                return

    async def _move_former(self, keys: Sequence[str]) -> None:
        """Move entries of the layout in which each effect had a string."""
        effects = [(key, effect_id) for key in keys if (effect_id := self._keys.former_id(key)) is not None]
        if not effects:
            return
        former = [key for key, _ in effects]
        entries = await self._step(rebuilding.READ_FORMER, (), former)
        claims: list[tuple[str, bytes]] = []
        marks: list[tuple[str, bytes]] = []
        for (_, effect_id), entry in zip(effects, entries, strict=True):
            if entry[:1] in _CLAIMS:
                claims.append((effect_id, entry))
            elif entry:  # else it has expired
                marks.append((effect_id, encode_mark(decode_former_mark(entry))))
        if claims:
            await self._step(rebuilding.ADOPT, [self._retention_ms, *_arguments(claims)], self._of(claims))
        await self._restore(marks)
        await self._step(rebuilding.DROP, (), former)

    async def _move_bucket(self, bucket: str) -> None:
        """Move the marks of a bucket of another number to their present buckets."""
        entries = await self._step(rebuilding.READ_BUCKET, (), [bucket])
        marks = [(effect_id.hex(), mark) for effect_id, mark in zip(entries[::2], entries[1::2], strict=True)]
        for first in range(0, len(marks), STEP_EFFECTS_MAX):
            await self._restore(marks[first : first + STEP_EFFECTS_MAX])
        await self._step(rebuilding.DROP, (), [bucket])

    async def _restore(self, marks: Sequence[tuple[str, bytes]]) -> None:
        args: list[bytes | int] = [REBUILD_REST_MS, self._retention_ms, *_arguments(marks)]
        await self._step(rebuilding.RESTORE, args, self._of(marks))

    def _of(self, entries: Sequence[tuple[str, bytes]]) -> list[str]:
        return [key for effect_id, _ in entries for key in self._keys.of(effect_id)]


class _UnderWay:
    """Steps that run at the same time, STEPS_UNDER_WAY at most. The first error ends all of them."""

    def __init__(self) -> None:
        self._tasks: deque[asyncio.Task[None]] = deque()

    async def start(self, step: Coroutine[Any, Any, None]) -> None:
        """Start a step, once there is room; raises what an earlier one raised."""
        self._tasks.append(asyncio.create_task(step))
        if len(self._tasks) == STEPS_UNDER_WAY:
            await self._tasks.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while kind is None and self._tasks:
                await self._tasks.popleft()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _arguments(entries: Sequence[tuple[str, bytes]]) -> list[bytes]:
    return [argument for effect_id, entry in entries for argument in (bytes.fromhex(effect_id), entry)]


async def _chunks(
    marks: Iterable[tuple[str, Mark]] | AsyncIterable[tuple[str, Mark]],
) -> AsyncIterator[list[tuple[str, Mark]]]:
    chunk: list[tuple[str, Mark]] = []
    async for item in marks if isinstance(marks, AsyncIterable) else _each(marks):
        chunk.append(item)
        if len(chunk) == STEP_EFFECTS_MAX:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def _each(marks: Iterable[tuple[str, Mark]]) -> AsyncIterator[tuple[str, Mark]]:
    for item in marks:
        yield item
