"""Claims and marks of one input partition in Redis: which owner may make an effect now.

Invariants:
- Redis is fast and forgets; effects.results is the memory. Each call runs one script, and each script first checks that
  this Redis is still the trusted one. If it was flushed, restarted or failed over, is a replica, has a clock that
  jumped or is silent, the call raises DistrustedError and gives nothing that a predecessor may have had.
- A claim outlives its lease: an owner that finds it afterwards learns that a call may have been made.
- Redis accepts claims and marks only from the owner that entered last. A lower epoch of the same producer_id cannot
  enter (KIP-98, KIP-360). Kafka decides in the end: an owner that it fenced cannot commit.
- No command is sent twice, because one without an answer may have been executed. `connection.connect` makes a client
  that does not retry.

README.md lists the keys, and `scripts` and `rebuild` define the steps.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.outbox import scripts
from services.outbox.domain import Done, Later, Superseded
from services.outbox.limits import Capacity, raise_if_too_small
from services.outbox.marks import Claim, Keys, Mark, Mode, Status, Wanted, decode_mark, encode_mark, mark_of
from services.outbox.rebuild import REBUILD_REST_MS, Rebuild
from shared.eos.errors import FencedError, RejoinError, UnsafeSettingsError

KEYS_PER_CALL_MAX: Final = 500  # a script keeps every other client waiting
CLOCK_SKEW_MS: Final = 30_000
"""Redis' clock may differ from this machine's by so much, which was compared with the brokers' at start."""
_EPOCH_BITS: Final = 16
_MODES: Final = (b"keyed", b"keyless")
_FLAGS: Final = (b"0", b"1")
_REASONS: Final = {
    "flushed": "it was flushed, or is another one",
    "restarted": "it was restarted, or failed over to another server",
    "followed": "it followed another master since, or got its first replica",
    "rebuilt": "its claims were rebuilt by another owner",
    "replica": "it is a replica, not a master",
    "jumped": "its clock jumped, so keys may have expired before their time",
    "late": "it executed the claim after its time was up",
    "lost": "a claim is gone that was not given back",
}


class DistrustedError(RejoinError):
    """The content of this Redis cannot be trusted; the message says why."""


Reply = list[bytes]
Argument = str | bytes | int


class _Script(Protocol):
    def __call__(self, keys: Sequence[str], args: Sequence[Argument]) -> Awaitable[Reply]: ...


class Claims:
    """The claims of one partition under one owner. Its methods may run at once, each for effects of its own.

    Every method raises DistrustedError, and FencedError when another owner entered. Discard the object after either.

    Args:
        token: `producer_id << 16 | producer_epoch` of the partition's transactional producer, just initialised.
        owner: name of the instance, to be seen in the claims.
        installation: its id; a part of every key. Several installations may share a Redis.
        capacity: how many effects Redis is planned to remember, and for how long.
        lease_ms: how long a claim belongs to this owner alone.
        timeout_s: seconds until a call counts as unanswered.

    Attributes:
        outdated: whether entries are in another layout: after `enter`, call `rebuild` although it gave an incarnation.
    """

    def __init__(
        self,
        redis: Redis,
        partition: int,
        token: int,
        owner: str,
        *,
        installation: str,
        capacity: Capacity,
        lease_ms: int,
        timeout_s: float,
    ) -> None:
        self.partition = partition
        self.outdated = False
        self._redis = redis
        self._name = f"Redis, partition {partition}"
        self._keys = Keys(installation, partition, capacity.buckets)
        self._epoch = (str(token >> _EPOCH_BITS), str(token & ((1 << _EPOCH_BITS) - 1)))
        self.holder = ".".join(self._epoch)  # as this owner's claims name it
        self._owner = owner
        self._capacity = capacity
        self._lease_ms = lease_ms
        self._retention_ms = capacity.retention_ms
        self._timeout_s = timeout_s
        self._incarnation = ""
        # Of Redis' clock before this process's monotonic one; before its first answer, by this machine's clock
        self._clock_ahead_ms = (time.time() - time.monotonic()) * 1000
        self._scripts: dict[str, _Script] = {}
        self._under_way = asyncio.Semaphore(scripts.UNDER_WAY)

    async def enter(self) -> str | None:
        """Become the owner, and return the incarnation in force; after None, or if `outdated`, call `rebuild`.

        Raises UnsafeSettingsError if this Redis may evict keys when its memory is full, keeps buckets in more memory
        than planned, or has too little memory for the planned effects.
        """
        earliest_ms = int(time.monotonic() * 1000 + self._clock_ahead_ms) - CLOCK_SKEW_MS
        args = [earliest_ms, REBUILD_REST_MS, self._capacity.buckets, self._retention_ms]
        keys = [self._keys.former_trust, self._keys.probe]
        reply = await self._run(scripts.ENTER, "", args, keys, clock_slack_ms=CLOCK_SKEW_MS)
        incarnation, outdated, limit, machine = (each.decode() for each in reply)
        raise_if_too_small(self._capacity, int(limit), int(machine))
        self.outdated = bool(outdated)
        self._incarnation = "" if outdated else incarnation
        return incarnation or None

    async def check(self) -> None:
        """Check only that this Redis is still trusted and this owner still the last one."""
        await self._run(scripts.CHECK, self._incarnation)

    async def claim(self, wanted: Sequence[Wanted]) -> list[Claim]:
        """Claim effects, none of them twice; the answers are in the same order.

        Up to KEYS_PER_CALL_MAX effects are claimed in one step. A step that Redis executes after half of `timeout_s`
        claims nothing. Its answer might come too late, and a successor would have to count claims that no owner knows
        of as calls.
        """
        if len({item.effect_id for item in wanted}) != len(wanted):
            raise ValueError("each effect can be wanted only once in a call")
        claims: list[Claim] = []
        for first in range(0, len(wanted), KEYS_PER_CALL_MAX):
            chunk = wanted[first : first + KEYS_PER_CALL_MAX]
            not_after_ms = int((time.monotonic() + self._timeout_s / 2) * 1000 + self._clock_ahead_ms)
            args: list[Argument] = [not_after_ms, self._lease_ms, self._retention_ms, self._owner]
            for item in chunk:
                # The client passes bytes on as they are; anything else takes it a third of a microsecond
                args += (bytes.fromhex(item.effect_id), _MODES[item.mode is Mode.KEYLESS], b"%d" % item.reopen_revision)
                args += (b"%d" % item.resends, _FLAGS[item.resend_if_new], _FLAGS[item.resend_if_again])
                args.append(item.void.encode())
            reply = await self._run(scripts.CLAIM, self._incarnation, args, self._of(item.effect_id for item in chunk))
            claims += map(_claim_of, reply)
        return claims

    async def begin(self, effect_id: str) -> None:
        """Begin a call to a destination without keys: from now on a successor counts it as made. Other calls may run.

        A claim that was not begun does not bind a successor. An owner that was overtaken therefore learns of it here,
        by DistrustedError, and must not make the call.
        """
        await self._run(scripts.BEGIN_CALL, self._incarnation, (), self._keys.of(effect_id))

    async def mark(self, marks: Sequence[tuple[str, Mark | None]]) -> None:
        """Write the outcomes of claimed effects; None gives the claim back, as if it had never been made.

        Raises DistrustedError also for an effect that this owner has no claim on; then nothing of that step was
        written.
        """
        for first in range(0, len(marks), KEYS_PER_CALL_MAX):
            chunk = marks[first : first + KEYS_PER_CALL_MAX]
            args: list[Argument] = [self._retention_ms]
            for effect_id, mark in chunk:
                args += (bytes.fromhex(effect_id), b"" if mark is None else encode_mark(mark))
            await self._run(scripts.MARK, self._incarnation, args, self._of(effect_id for effect_id, _ in chunk))

    async def rebuild(self, marks: Iterable[tuple[str, Mark]] | AsyncIterable[tuple[str, Mark]]) -> str:
        """Write what Kafka remembers into this Redis, trust it from then on, and return the new incarnation.

        Newer entries of Redis stay: claims, and marks whose owner died before it could commit them. Those of another
        layout are moved. A mark older than the retention is left out. Raises DistrustedError also if Redis was flushed,
        restarted or entered by another owner meanwhile.

        Args:
            marks: of several of one effect the highest revision counts. The first is requested when the rebuild has
                begun. Before giving it, have Kafka confirm that this producer is not fenced. A successor that enters
                ends a rebuild that began before, but only Kafka could refuse one that begins later.
        """
        nonce = uuid.uuid4().hex

        async def step(script: str, args: Sequence[Argument] = (), keys: Sequence[str] = ()) -> Reply:
            return await self._run(script, nonce, args, keys)

        incarnation = await Rebuild(step, self._keys, self._capacity.buckets, self._retention_ms).run(marks)
        self._incarnation, self.outdated = incarnation, False
        return incarnation

    def _of(self, effect_ids: Iterable[str]) -> list[str]:
        return [key for effect_id in effect_ids for key in self._keys.of(effect_id)]

    async def _run(
        self,
        script: str,
        incarnation: str,
        args: Sequence[Argument] = (),
        keys: Sequence[str] = (),
        *,
        clock_slack_ms: int = scripts.CLOCK_JUMP_MS,
    ) -> Reply:
        """Run a script once, and return its reply without `ok` and the time."""
        run = self._scripts.get(script)
        if run is None:
            run = self._scripts[script] = cast("_Script", self._redis.register_script(script))
        latest_ms = int((time.monotonic() + self._timeout_s) * 1000 + self._clock_ahead_ms) + clock_slack_ms
        try:
            async with asyncio.timeout(self._timeout_s), self._under_way:
                asked_s = time.monotonic()
                reply = await run(
                    keys=[self._keys.trust, self._keys.rebuild, *keys],
                    args=[*self._epoch, incarnation, latest_ms, *args],
                )
        except TimeoutError:
            raise DistrustedError(f"{self._name}: no answer within {self._timeout_s} s") from None
        except (RedisError, OSError) as error:
            raise DistrustedError(f"{self._name}: {type(error).__name__}: {error}") from error
        status = reply[0].decode()
        if status != "ok":
            raise await self._refused(status, reply[1:])
        # Too far ahead by the time that the question took to be heard, so that a slow one is not called late
        self._clock_ahead_ms = int(reply[1]) - asked_s * 1000
        return reply[2:]

    async def _refused(self, status: str, reply: Reply) -> Exception:
        if status == "fenced":
            return FencedError(f"{self._name}: another owner entered after {self.holder}")
        if status == "evicting":
            return UnsafeSettingsError(
                f"{self._name}: maxmemory-policy is {reply[0].decode()}, which forgets claims; set it to noeviction"
            )
        if status == "spacious":
            return UnsafeSettingsError(
                f"{self._name}: it keeps a hash of {scripts.PROBE_FIELDS} small fields as a {reply[0].decode()}, in "
                "three times the memory; set hash-max-listpack-entries to 128 and hash-max-listpack-value to 64, the "
                "defaults of Redis 7, or higher"
            )
        if status == "skewed":
            off_s = int(reply[0]) / 1000 - time.time()
            return DistrustedError(
                f"{self._name}: its clock is {abs(off_s):.0f} s {'ahead of' if off_s > 0 else 'behind'} this "
                "machine's; correct the one that is wrong"
            )
        if status == "replica":  # the master may be elsewhere now: with Sentinel, a new connection asks for it
            await self._redis.connection_pool.disconnect()
        return DistrustedError(f"{self._name}: {_REASONS[status]}")


def _claim_of(status: bytes) -> Claim:
    name, _, rest = status.partition(b"|")
    if name == b"held":
        return Claim(Status.HELD, lease_left_ms=int(rest))
    if name == b"retaken":
        return Claim(Status.RETAKEN, resends=int(rest))
    return Claim(Status(name.decode()), mark=decode_mark(rest) if rest else None)


class ClaimSession:
    """An owner's requests to Redis between its claims and its commits: calls begun, effects marked.

    Invariant: once Redis failed or another owner entered, nothing more is requested and no further call begins. The
    failure is kept in `distrusted` or `fenced`, not raised: calls that are under way must end first.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._marked: set[str] = set()
        self.distrusted: DistrustedError | None = None
        self.fenced: FencedError | None = None

    async def begin(self, effect_id: str) -> str | None:
        """Begin a call; return why there must be none, or None."""
        return await self._ask(lambda: self._claims.begin(effect_id))

    async def mark_one(self, done: Done) -> None:
        """Mark the outcome of one effect, without waiting for others."""
        marks = [(done.job.effect_id, mark_of(done.result))]
        if await self._ask(lambda: self._claims.mark(marks)) is None:
            self._marked.add(done.job.effect_id)

    async def mark(self, decided: Sequence[Done | Later | Superseded]) -> list[Done | Later | Superseded]:
        """Mark what is not marked yet, and give back the claims that are to be released.

        Returns the decisions as they are to be stored, with what Redis could not be asked to release.
        """
        marks: list[tuple[str, Mark | None]] = []
        for decision in decided:
            effect_id = decision.job.effect_id
            if effect_id in self._marked:
                self._marked.remove(effect_id)
            elif isinstance(decision, Done) and not decision.known:
                marks.append((effect_id, mark_of(decision.result)))
            elif isinstance(decision, Later) and decision.release:
                marks.append((effect_id, None))
        if marks:
            await self._ask(lambda: self._claims.mark(marks))
        if self.distrusted is None:
            return list(decided)
        # Redis may come back with claims whose calls were begun in it and then not made
        holder = self._claims.holder
        return [decision.unreleased(holder) if isinstance(decision, Later) else decision for decision in decided]

    async def _ask(self, request: Callable[[], Awaitable[None]]) -> str | None:
        """Make a request unless one has failed before; return why it was not granted, or None."""
        if self._why() is None:
            try:
                await request()
            except FencedError as error:
                self.fenced = error
            except DistrustedError as error:
                self.distrusted = error
        return self._why()

    def _why(self) -> str | None:
        failure = self.fenced or self.distrusted
        return None if failure is None else str(failure)
