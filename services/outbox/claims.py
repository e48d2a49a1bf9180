"""Who may make an effect now: claims and marks of one input partition, kept in Redis.

What holds here:
- Redis is fast and forgets; effects.results is the memory. Each call is one script, and each script first asks
  whether this Redis is still the one that was trusted. Flushed, restarted, failed over, a replica or silent: the
  answer is DistrustedError, and nothing is given that a predecessor may have had.
- A claim outlives its lease: whoever finds it afterwards learns that a call may have been made.
- Only the owner that entered last has its claims and marks taken, and a lower epoch of the same producer_id cannot
  enter (KIP-98, KIP-360). Kafka stays the judge: an owner that it fenced cannot commit.
- Nothing is asked twice. A command without an answer may have been executed, so the client must not retry by itself;
  `connection.connect` makes one that does not.

`scripts` says what each script does, and README.md which keys there are. This module must not know what an effect
is, nor Kafka.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Sequence
from typing import Final, Protocol, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.outbox import scripts
from services.outbox.marks import Claim, Mark, Status, Wanted, decode_mark, encode_mark
from shared.eos.errors import FencedError, RejoinError, UnsafeSettingsError

KEYS_PER_CALL_MAX: Final = 500
"""A script keeps everybody else waiting."""
REBUILD_REST_MS: Final = 600_000
"""A rebuild whose next step takes longer than this has to begin anew: its nonce has expired."""
_EPOCH_BITS: Final = 16
_REASONS: Final = {
    "flushed": "it was flushed, or is another one",
    "restarted": "it was restarted, or failed over to another server",
    "followed": "it followed another master since, or got its first replica",
    "rebuilt": "its claims were rebuilt by another owner",
    "replica": "it is a replica, not a master",
    "late": "it executed the claim after its time was up",
    "lost": "a claim is gone that was not given back",
}


class DistrustedError(RejoinError):
    """What Redis says of the partition's effects cannot be relied on; the message says why.

    It was flushed, restarted, failed over, is a replica, or did not answer in time.
    """


Reply = list[bytes]


class _Script(Protocol):
    def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Awaitable[Reply]: ...


class Claims:
    """The claims of one partition under one owner. Not for concurrent calls.

    Every method raises DistrustedError, and FencedError when another owner entered. After either, this object is of
    no more use.

    Args:
        redis: from `connection.connect`.
        partition: of effects.requests.
        token: `producer_id << 16 | producer_epoch` of the partition's transactional producer, just initialised.
        owner: name of the instance, to be seen in the claims.
        lease_ms: how long a claim belongs to this owner alone, milliseconds.
        retention_ms: how long claims and marks are kept, milliseconds.
        timeout_s: seconds until a call counts as unanswered.

    Attributes:
        holder: as this owner's claims name it.
    """

    def __init__(
        self,
        redis: Redis,
        partition: int,
        token: int,
        owner: str,
        *,
        lease_ms: int,
        retention_ms: int,
        timeout_s: float,
    ) -> None:
        self.partition = partition
        self._epoch = (str(token >> _EPOCH_BITS), str(token & ((1 << _EPOCH_BITS) - 1)))
        self.holder = ".".join(self._epoch)
        self._owner = owner
        self._lease_ms = lease_ms
        self._retention_ms = retention_ms
        self._timeout_s = timeout_s
        self._incarnation = ""
        self._clock_ahead_ms = 0.0  # of Redis' clock before this process's monotonic one
        texts = (scripts.CHECK, scripts.ENTER, scripts.CLAIM, scripts.BEGIN_CALL, scripts.MARK)
        self._check, self._enter, self._claim, self._begin_call, self._mark = (
            cast("_Script", redis.register_script(text)) for text in texts
        )
        texts_of_rebuild = (scripts.BEGIN, scripts.RESTORE, scripts.CLOSE)
        self._begin, self._restore, self._close = (cast("_Script", redis.register_script(t)) for t in texts_of_rebuild)

    async def enter(self) -> str | None:
        """Become the owner.

        Returns:
            The incarnation in force, or None: then `rebuild` comes next.

        Raises:
            UnsafeSettingsError: this Redis may evict keys when its memory is full.
        """
        reply = await self._run(self._enter, "", [REBUILD_REST_MS])
        self._incarnation = reply[0].decode()
        return self._incarnation or None

    async def check(self) -> None:
        """Ask only whether this Redis is still trusted, and this owner still the last one."""
        await self._run(self._check, self._incarnation)

    async def claim(self, wanted: Sequence[Wanted]) -> list[Claim]:
        """Claim effects; the answers are in the same order.

        Up to KEYS_PER_CALL_MAX effects are claimed in one step. A step that Redis executes when half of `timeout_s` has
        passed already (it was stopped, say) claims nothing: its answer might come too late, and a successor would have
        to take claims that nobody knows of for calls.

        Raises:
            ValueError: an effect is wanted twice.
        """
        if len({item.effect_id for item in wanted}) != len(wanted):
            raise ValueError("each effect can be wanted only once in a call")
        claims: list[Claim] = []
        for first in range(0, len(wanted), KEYS_PER_CALL_MAX):
            chunk = wanted[first : first + KEYS_PER_CALL_MAX]
            not_after_ms = int((time.monotonic() + self._timeout_s / 2) * 1000 + self._clock_ahead_ms)
            args: list[str | int] = [not_after_ms, self._lease_ms, self._retention_ms, self._owner]
            for item in chunk:
                args += (item.mode.value, item.reopen_revision, item.resends)
                args += (int(item.resend_if_new), int(item.resend_if_again), item.void)
            reply = await self._run(self._claim, self._incarnation, args, [item.effect_id for item in chunk])
            claims += map(_claim_of, reply)
        return claims

    async def begin(self, effect_id: str) -> None:
        """Begin a call to a destination without keys: from now on a successor takes it for made.

        A claim that was not begun is a successor's as if it had never been, so an owner that was overtaken learns of it
        here, and makes no call. May be called while others are.

        Raises:
            DistrustedError: also where the claim is no longer this owner's. There must be no call.
        """
        await self._run(self._begin_call, self._incarnation, (), [effect_id])

    async def mark(self, marks: Sequence[tuple[str, Mark | None]]) -> None:
        """Write what became of claimed effects; None gives the claim back, as if it had never been.

        Raises:
            DistrustedError: also for an effect that this owner has no claim on; nothing of that step was written.
        """
        for first in range(0, len(marks), KEYS_PER_CALL_MAX):
            chunk = marks[first : first + KEYS_PER_CALL_MAX]
            args: list[bytes | int] = []
            for _, mark in chunk:
                args += (b"", 0) if mark is None else (encode_mark(mark), mark.at_ms + self._retention_ms)
            await self._run(self._mark, self._incarnation, args, [effect_id for effect_id, _ in chunk])

    async def rebuild(self, marks: Iterable[tuple[str, Mark]] | AsyncIterable[tuple[str, Mark]]) -> str:
        """Write what Kafka remembers into this Redis, and trust it from then on.

        What Redis kept stays where it is newer: claims, and marks whose owner died before it could commit them. A mark
        older than the retention is left out.

        Args:
            marks: of several of one effect the highest revision counts. The first is asked for when the rebuild has
                begun. Before it is given, Kafka must have confirmed that this producer is not fenced: a rebuild that
                began before a successor entered is ended by it; one that begins later could be refused by Kafka only.

        Returns:
            The new incarnation.

        Raises:
            DistrustedError: also when Redis was flushed, restarted or entered by another owner on the way.
        """
        nonce = uuid.uuid4().hex
        await self._run(self._begin, nonce, [REBUILD_REST_MS])
        async for chunk in _chunks(marks):
            args: list[bytes | int] = [REBUILD_REST_MS]
            for _, mark in chunk:
                args += (encode_mark(mark), mark.revision, mark.at_ms + self._retention_ms)
            await self._run(self._restore, nonce, args, [effect_id for effect_id, _ in chunk])
        incarnation = uuid.uuid4().hex
        await self._run(self._close, nonce, [incarnation])
        self._incarnation = incarnation
        return incarnation

    async def _run(
        self, script: _Script, incarnation: str, args: Sequence[str | bytes | int] = (), effect_ids: Sequence[str] = ()
    ) -> Reply:
        """Run a script once; what follows `ok` and the time in its reply."""
        prefix = f"once:{{{self.partition}}}:"
        keys = [prefix + "trust", prefix + "rebuild", *(prefix + effect_id for effect_id in effect_ids)]
        asked_s = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await script(keys=keys, args=[*self._epoch, incarnation, *args])
        except TimeoutError:
            raise DistrustedError(f"{self._name()}: no answer within {self._timeout_s} s") from None
        except (RedisError, OSError) as error:
            raise DistrustedError(f"{self._name()}: {type(error).__name__}: {error}") from error
        status = reply[0].decode()
        if status == "ok":
            # Too far ahead by the time that the question took to be heard, so that a slow one is not called late
            self._clock_ahead_ms = int(reply[1]) - asked_s * 1000
            return reply[2:]
        if status == "fenced":
            raise FencedError(f"{self._name()}: another owner entered after {self.holder}")
        if status == "evicting":
            policy = reply[1].decode()
            raise UnsafeSettingsError(
                f"{self._name()}: maxmemory-policy is {policy}, which forgets claims; set it to noeviction"
            )
        raise DistrustedError(f"{self._name()}: {_REASONS[status]}")

    def _name(self) -> str:
        return f"Redis, partition {self.partition}"


def _claim_of(status: bytes) -> Claim:
    name, _, rest = status.partition(b"|")
    if name == b"held":
        return Claim(Status.HELD, lease_left_ms=int(rest))
    if name == b"retaken":
        return Claim(Status.RETAKEN, resends=int(rest))
    return Claim(Status(name.decode()), mark=decode_mark(rest) if rest else None)


async def _chunks(
    marks: Iterable[tuple[str, Mark]] | AsyncIterable[tuple[str, Mark]],
) -> AsyncIterator[list[tuple[str, Mark]]]:
    chunk: list[tuple[str, Mark]] = []
    async for item in marks if isinstance(marks, AsyncIterable) else _each(marks):
        chunk.append(item)
        if len(chunk) == KEYS_PER_CALL_MAX:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def _each(marks: Iterable[tuple[str, Mark]]) -> AsyncIterator[tuple[str, Mark]]:
    for item in marks:
        yield item
