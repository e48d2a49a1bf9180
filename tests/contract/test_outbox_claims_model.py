"""Random histories of claims in a real Redis against a model: takeovers, lost data and operators' decisions.

The model describes the scripts in a few lines. The guarantee is checked separately: an undecided effect whose call may
have been made is never given as new, unless Redis lost it.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deploy.local.redis.server import LocalRedis
from services.outbox.claims import Claims, DistrustedError
from services.outbox.marks import Claim, Mark, Mode, Status, encode_mark
from shared.eos.errors import FencedError
from shared.events.effects import EffectState
from tests.redis import (
    LEASE_MS,
    PRODUCER_ID,
    TRUST_KEY,
    claim_one,
    client_at,
    effect_id,
    effect_key,
    mark_one,
    owner,
    running_redis,
    sent,
)

T = TypeVar("T")
PATIENT_S = 20.0  # late requests are refused, which the model does not cover
NUMBERS_MAX = 3
NUMBERS = st.integers(0, NUMBERS_MAX)
STATES = st.sampled_from([state.value for state in EffectState])
GIVEN = {Status.NEW, Status.RETAKEN, Status.REOPENED}


@dataclass(frozen=True)
class Held:
    """A claim that is held.

    Attributes:
        epoch: that of its owner.
        leased: whether its lease has not ended.
        base: the revision that it was reopened from.
        resends: those that its owner may make.
        begun: whether a call may have been made.
    """

    epoch: int
    leased: bool
    base: int
    resends: int = 0
    begun: bool = True


Entry = Held | Mark | None


def expected(
    entry: Entry, epoch: int, mode: Mode, reopen: int, leased: bool, again: bool, begin: bool
) -> tuple[Claim, Entry]:
    """Return the expected answer to a claim and the entry after it."""
    claimed = Held(epoch, leased, reopen)
    new = replace(claimed, begun=begin or mode is Mode.KEYED)
    if entry is None:
        return Claim(Status.NEW), new
    if isinstance(entry, Held) and mode is Mode.KEYLESS and entry.epoch != epoch and not entry.begun:
        return Claim(Status.NEW), new
    if isinstance(entry, Held):
        if mode is Mode.KEYLESS and entry.epoch != epoch and entry.leased:
            return Claim(Status.HELD, LEASE_MS), entry
        counted = replace(claimed, base=max(reopen, entry.base), resends=entry.resends + again)
        return Claim(Status.RETAKEN, resends=entry.resends), counted
    if reopen and entry.revision == reopen and entry.state != EffectState.SENT:
        return Claim(Status.REOPENED, mark=entry), replace(claimed, resends=entry.resends + again)
    return Claim(Status.KNOWN, mark=entry), entry


def rebuilt(entry: Entry, mark: Mark) -> Entry:
    """Return the entry after a rebuild with this mark."""
    if isinstance(entry, Held):
        return entry if entry.base >= mark.revision else mark
    return entry if entry is not None and entry.revision > mark.revision else mark


class ClaimsMachine(RuleBasedStateMachine):
    """Owners of one partition, one after the other, and what Redis and Kafka hold."""

    server: LocalRedis

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.client = client_at(self.server.url, PATIENT_S)
        self.redis: dict[int, Entry] = {}
        self.kafka: dict[int, Mark] = {}
        self.undecided: set[int] = set()  # begun, and neither marked nor released since
        self.trusted = False
        self.owners: list[Claims] = []
        self.leased = True

    def run(self, asked: Awaitable[T]) -> T:
        async def answered() -> T:
            return await asked

        return self.runner.run(answered())

    @property
    def epoch(self) -> int:
        return len(self.owners)

    @initialize(leased=st.booleans())
    def begin(self, leased: bool) -> None:
        self.run(self.client.flushall())
        self.takeover(leased)

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        for number in range(NUMBERS_MAX + 1):
            value = self.run(self.client.get(effect_key(number)))
            entry = self.redis.get(number)
            if isinstance(entry, Held):
                assert isinstance(value, bytes)
                kind, token, _, base, resends, _ = value.decode().split("|")
                assert (kind, token) == ("b" if entry.begun else "c", f"{PRODUCER_ID}.{entry.epoch}")
                assert (int(base), int(resends)) == (entry.base, entry.resends)
            else:
                assert value == (None if entry is None else encode_mark(entry))

    @rule(leased=st.booleans())
    def takeover(self, leased: bool) -> None:
        self.leased = leased
        successor = owner(self.client, self.epoch + 1, lease_ms=LEASE_MS if leased else 0, timeout_s=PATIENT_S)
        self.owners.append(successor)
        assert (self.run(successor.enter()) is not None) == self.trusted
        if not self.trusted:
            self.run(successor.rebuild((effect_id(number), mark) for number, mark in self.kafka.items()))
            for number, mark in self.kafka.items():
                self.redis[number] = rebuilt(self.redis.get(number), mark)
                if self.redis[number] == mark:
                    self.undecided.discard(number)
            self.trusted = True

    @precondition(lambda self: self.trusted)
    @rule(
        number=NUMBERS,
        mode=st.sampled_from(Mode),
        reopen=st.integers(0, 2),
        again=st.booleans(),
        begin=st.booleans(),
    )
    def claim(self, number: int, mode: Mode, reopen: int, again: bool, begin: bool) -> None:
        answer, entry = expected(self.redis.get(number), self.epoch, mode, reopen, self.leased, again, begin)
        got = self.run(claim_one(self.owners[-1], number, mode, reopen, again=again, begin=begin))
        if got.status is Status.HELD:
            assert 0 < got.lease_left_ms <= LEASE_MS
            got = got._replace(lease_left_ms=LEASE_MS)
        assert got == answer
        assert not (got.status is Status.NEW and number in self.undecided), "an undecided call is given as new"
        self.redis[number] = entry
        if got.status in GIVEN and isinstance(entry, Held) and entry.begun:
            self.undecided.add(number)

    @precondition(lambda self: self.trusted)
    @rule(number=NUMBERS, state=STATES, release=st.booleans(), committed=st.booleans())
    def mark(self, number: int, state: str, release: bool, committed: bool) -> None:
        entry = self.redis.get(number)
        revision = entry.base + 1 if isinstance(entry, Held) else 1
        mark = None if release else sent(revision)._replace(state=state)
        if not isinstance(entry, Held) or entry.epoch != self.epoch:
            with pytest.raises(DistrustedError, match="a claim is gone"):
                self.run(mark_one(self.owners[-1], number, mark))
            return
        self.run(mark_one(self.owners[-1], number, mark))
        self.redis[number] = mark
        self.undecided.discard(number)
        if mark is not None and committed:
            self.kafka[number] = mark

    @precondition(lambda self: self.epoch > 1 and self.trusted)
    @rule(number=NUMBERS, mode=st.sampled_from(Mode), data=st.data())
    def zombie(self, number: int, mode: Mode, data: st.DataObject) -> None:
        before = data.draw(st.sampled_from(self.owners[:-1]))
        for asked in (claim_one(before, number, mode), mark_one(before, number, sent(9)), before.enter()):
            with pytest.raises(FencedError):
                self.run(asked)

    @rule(data_kept=st.booleans())
    def lose(self, data_kept: bool) -> None:
        if data_kept:  # like a restart: all data remains, under another run_id
            self.run(self.lose_run_id())
        else:
            self.run(self.client.flushall())
            self.redis.clear()
            self.undecided.clear()
        self.trusted = False
        for asked in (claim_one(self.owners[-1], 0), mark_one(self.owners[-1], 0, None), self.owners[-1].check()):
            with pytest.raises(DistrustedError):
                self.run(asked)

    @precondition(lambda self: not self.trusted)
    @rule(number=NUMBERS, state=STATES)
    def settle(self, number: int, state: str) -> None:
        """Commit the outcome of a call although the owner distrusts Redis."""
        entry = self.redis.get(number)
        if isinstance(entry, Held) and entry.epoch == self.epoch:
            self.kafka[number] = sent(entry.base + 1)._replace(state=state)

    async def lose_run_id(self) -> None:
        if await self.client.exists(TRUST_KEY):
            await self.client.hset(TRUST_KEY, "run_id", "0" * 40)

    def teardown(self) -> None:
        self.run(self.client.aclose())
        self.runner.close()


@contextmanager
def server() -> Iterator[LocalRedis]:
    with TemporaryDirectory() as directory, running_redis(Path(directory)) as redis:
        yield redis


def test_random_histories_agree_with_the_model() -> None:
    with server() as redis:
        ClaimsMachine.server = redis
        run_state_machine_as_test(
            ClaimsMachine,
            settings=settings(
                max_examples=settings().max_examples // 3,  # each is a history of 30 steps on a real Redis
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
