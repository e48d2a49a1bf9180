"""A rebuild of a partition's entries in Redis from what Kafka remembers, and its Lua scripts in the order of use.

Entries that Redis kept may be newer than Kafka: an effect was reopened at this revision, or marked with a later one,
and its owner died before it could commit. They stay. Those of another layout are moved: strings under the former names,
and buckets of another number.

Invariant: any step may be repeated, in any order with others of its kind. Marks are merged by revision, and a key of
another layout is deleted only after its entries have been written. So a rebuild that was interrupted is simply begun
again. Several steps are under way at once: Redis works while the next records are read.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, Self

from services.outbox.marks import Keys, Mark, decode_former_mark, encode_mark
from services.outbox.scripts import TRUST, UNDER_WAY

REBUILD_REST_MS: Final = 600_000  # a rebuild must start over if its next step takes longer: its nonce has expired
STEP_EFFECTS_MAX: Final = 500  # a script keeps every other client waiting
FIND_KEYS: Final = 1000  # that Redis looks at in one step
_CLAIMS: Final = (b"c", b"b")
_END: Final = b"0"

_CHECKED: Final = f"""{TRUST}
-- Why the rebuild may not go on, or nothing; and the time. There is no trust yet
local function rebuild_refusal()
  local run_id, replication_id = server()
  if not run_id then
    return 'replica'
  elseif fenced() then
    return 'fenced'
  end
  local rebuild = redis.call('GET', KEYS[2])
  local own = token .. '|' .. ARGV[3] .. '|'
  if not rebuild then
    return 'flushed'
  elseif string.sub(rebuild, 1, #own) ~= own then
    return 'rebuilt'
  elseif rebuild ~= own .. run_id .. '|' .. replication_id then
    return 'restarted'
  end
  local now = now_ms()
  if now > tonumber(ARGV[4]) then
    redis.call('DEL', KEYS[2])
    return 'jumped'
  end
  return nil, now
end

local why, now = rebuild_refusal()
if why then
  return {{why}}
end
"""

BEGIN: Final = f"""{TRUST}
-- KEYS: 3 the former layout's trust
-- ARGV: 5 how long the rebuild may rest between two steps
local run_id, replication_id = server()
if not run_id then
  return {{'replica'}}
elseif fenced() then
  return {{'fenced'}}
end
redis.call('DEL', KEYS[1], KEYS[3])
redis.call('SET', KEYS[2], token .. '|' .. ARGV[3] .. '|' .. run_id .. '|' .. replication_id, 'PX', ARGV[5])
return {{'ok', whole(now_ms())}}
"""
"""Ends the trust and returns ok and the time."""

FIND: Final = f"""{_CHECKED}
-- ARGV: 5 cursor, 6 pattern of keys, 7 how many keys to look at
local found = redis.call('SCAN', ARGV[5], 'MATCH', ARGV[6], 'COUNT', ARGV[7])
local reply = {{'ok', whole(now), found[1]}}
for _, key in ipairs(found[2]) do
  reply[#reply + 1] = key
end
return reply
"""
"""Returns ok, the time, the next cursor, 0 for none, and keys."""

READ_FORMER: Final = f"""{_CHECKED}
local reply = {{'ok', whole(now)}}
for i = 3, #KEYS do
  reply[#reply + 1] = redis.call('GET', KEYS[i]) or ''
end
return reply
"""
"""Returns ok, the time and the claim or mark of each key of the former layout, empty if it has expired."""

READ_BUCKET: Final = f"""{_CHECKED}
local reply = redis.call('HGETALL', KEYS[3])
table.insert(reply, 1, whole(now))
table.insert(reply, 1, 'ok')
return reply
"""
"""Returns ok, the time and ids and marks of a bucket, in turns."""

RESTORE: Final = f"""{_CHECKED}
-- ARGV: 5 how long the rebuild may rest, 6 retention; then for each effect its id and its mark
local retention = tonumber(ARGV[6])
for i = 3, #KEYS, 2 do
  local id, mark = ARGV[i + 4], ARGV[i + 5]
  local revision, base, marked = counts(mark), -1, -1
  local claim = redis.call('GET', KEYS[i])
  local known = redis.call('HGET', KEYS[i + 1], id)
  if claim then
    base = tonumber(string.match(claim, '^[bc]|[%d.]+|%d+|(%d+)|'))
  end
  if known then
    marked = counts(known)
  end
  if revision > base and revision >= marked and decided_ms(mark) + retention > now then
    if claim then
      redis.call('DEL', KEYS[i])
    end
    remember(KEYS[i + 1], id, mark, retention, now)
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return {{'ok', whole(now)}}
"""
"""Sets marks that have not expired, and returns ok and the time. A mark does not replace a newer entry."""

ADOPT: Final = f"""{_CHECKED}
-- ARGV: 5 retention; then for each effect its id and a claim of the former layout
for i = 3, #KEYS, 2 do
  local id, claim = ARGV[i + 3], ARGV[i + 4]
  local base = tonumber(string.match(claim, '^[bc]|[%d.]+|%d+|(%d+)|'))
  local held, known = redis.call('GET', KEYS[i]), redis.call('HGET', KEYS[i + 1], id)
  -- A call that may have been made counts more than one that was only claimed
  if not (held and string.sub(held, 1, 1) == 'b') and not (known and counts(known) > base) then
    redis.call('HDEL', KEYS[i + 1], id)
    redis.call('SET', KEYS[i], claim, 'PX', ARGV[5])
  end
end
return {{'ok', whole(now)}}
"""
"""Takes claims over, and returns ok and the time."""

DROP: Final = f"""{_CHECKED}
for i = 3, #KEYS do
  redis.call('DEL', KEYS[i])
end
return {{'ok', whole(now)}}
"""
"""Deletes keys whose entries have been moved, and returns ok and the time."""

CLOSE: Final = f"""{_CHECKED}
-- ARGV: 5 the new incarnation, 6 number of buckets, 7 retention
local run_id, replication_id = server()
redis.call('DEL', KEYS[2])
redis.call(
  'HSET', KEYS[1], 'run_id', run_id, 'replication_id', replication_id, 'incarnation', ARGV[5], 'token', token,
  'buckets', ARGV[6], 'retention', ARGV[7], 'seen', whole(now)
)
return {{'ok', whole(now)}}
"""
"""Begins the trust and returns ok and the time."""


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
        await self._step(BEGIN, [REBUILD_REST_MS], [self._keys.former_trust])
        async with _UnderWay() as steps:
            async for keys in self._found(self._keys.every_former):
                await self._move_former(keys)
            async for keys in self._found(self._keys.every_bucket):
                for bucket in filter(self._keys.misplaces, keys):
                    await steps.start(self._move_bucket(bucket))
            async for chunk in _chunks(marks):
                await steps.start(self._restore([(effect_id, encode_mark(mark)) for effect_id, mark in chunk]))
        incarnation = uuid.uuid4().hex
        await self._step(CLOSE, [incarnation, self._buckets, self._retention_ms])
        return incarnation

    async def _found(self, pattern: str) -> AsyncIterator[list[str]]:
        """All keys of a pattern, some of them more than once."""
        cursor = _END
        while True:
            cursor, *found = await self._step(FIND, [cursor, pattern, FIND_KEYS])
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
        entries = await self._step(READ_FORMER, (), former)
        claims: list[tuple[str, bytes]] = []
        marks: list[tuple[str, bytes]] = []
        for (_, effect_id), entry in zip(effects, entries, strict=True):
            if entry[:1] in _CLAIMS:
                claims.append((effect_id, entry))
            elif entry:  # else it has expired
                marks.append((effect_id, encode_mark(decode_former_mark(entry))))
        if claims:
            await self._step(ADOPT, [self._retention_ms, *_arguments(claims)], self._of(claims))
        await self._restore(marks)
        await self._step(DROP, (), former)

    async def _move_bucket(self, bucket: str) -> None:
        """Move the marks of a bucket of another number to their present buckets."""
        entries = await self._step(READ_BUCKET, (), [bucket])
        marks = [(effect_id.hex(), mark) for effect_id, mark in zip(entries[::2], entries[1::2], strict=True)]
        for first in range(0, len(marks), STEP_EFFECTS_MAX):
            await self._restore(marks[first : first + STEP_EFFECTS_MAX])
        await self._step(DROP, (), [bucket])

    async def _restore(self, marks: Sequence[tuple[str, bytes]]) -> None:
        args: list[bytes | int] = [REBUILD_REST_MS, self._retention_ms, *_arguments(marks)]
        await self._step(RESTORE, args, self._of(marks))

    def _of(self, entries: Sequence[tuple[str, bytes]]) -> list[str]:
        return [key for effect_id, _ in entries for key in self._keys.of(effect_id)]


class _UnderWay:
    """Steps that run at the same time, UNDER_WAY at most. The first error ends all of them."""

    def __init__(self) -> None:
        self._tasks: deque[asyncio.Task[None]] = deque()

    async def start(self, step: Coroutine[Any, Any, None]) -> None:
        """Start a step, once there is room; raises what an earlier one raised."""
        self._tasks.append(asyncio.create_task(step))
        if len(self._tasks) == UNDER_WAY:
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
