"""Random histories of claims in a real Redis against a model: takeovers, lost data and operators' decisions.

Two installations share that Redis, with equal ids of effects and producers. The model describes the scripts in a few
lines. The guarantee is checked separately: an undecided effect whose call may have been made is never given as new,
unless Redis lost it.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from services.outbox.marks import Claim, Keys, Mark, Mode, Status
from shared.eos.errors import FencedError
from shared.events.effects import EffectState
from tests.redis import (
    LEASE_MS,
    PARTITION,
    PRODUCER_ID,
    claim_one,
    client_at,
    effect_id,
    entry_of,
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
INSTALLATIONS = ("one", "another")
SITES = st.sampled_from(INSTALLATIONS)
BUCKETS = st.sampled_from([1, 3])  # all marks in one bucket, or not
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
        resends = entry.resends if entry.epoch != epoch else 0
        counted = replace(claimed, base=max(reopen, entry.base), resends=resends + again)
        return Claim(Status.RETAKEN, resends=resends), counted
    if reopen and entry.revision == reopen and entry.state != EffectState.SENT:
        return Claim(Status.REOPENED, mark=entry), replace(claimed, resends=entry.resends + again)
    return Claim(Status.KNOWN, mark=entry), entry


def rebuilt(entry: Entry, mark: Mark) -> Entry:
    """Return the entry after a rebuild with this mark."""
    if isinstance(entry, Held):
        return entry if entry.base >= mark.revision else mark
    return entry if entry is not None and entry.revision > mark.revision else mark


@dataclass
class Site:
    """An installation: the owners of its partition, one after the other, and what Redis and Kafka hold."""

    installation: str
    redis: dict[int, Entry] = field(default_factory=dict)
    kafka: dict[int, Mark] = field(default_factory=dict)
    undecided: set[int] = field(default_factory=set)  # begun, and neither marked nor released since
    trusted: bool = False
    owners: list[Claims] = field(default_factory=list)
    leased: bool = True
    buckets: int = 1

    @property
    def epoch(self) -> int:
        return len(self.owners)

    @property
    def keys(self) -> Keys:
        return Keys(self.installation, PARTITION, self.buckets)


class ClaimsMachine(RuleBasedStateMachine):
    """Two installations on one Redis."""

    server: LocalRedis

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.client = client_at(self.server.url, PATIENT_S)
        self.sites = {name: Site(name) for name in INSTALLATIONS}

    def run(self, asked: Awaitable[T]) -> T:
        async def answered() -> T:
            return await asked

        return self.runner.run(answered())

    @initialize(leased=st.booleans())
    def begin(self, leased: bool) -> None:
        self.run(self.client.flushall())
        for name in INSTALLATIONS:
            self.takeover(name, leased, 1)

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        for site in self.sites.values():
            for number in range(NUMBERS_MAX + 1):
                value = self.run(entry_of(self.client, number, site.keys))
                entry = site.redis.get(number)
                if isinstance(entry, Held):
                    assert isinstance(value, bytes)
                    kind, token, _, base, resends, _ = value.decode().split("|")
                    assert (kind, token) == ("b" if entry.begun else "c", f"{PRODUCER_ID}.{entry.epoch}")
                    assert (int(base), int(resends)) == (entry.base, entry.resends)
                else:
                    assert value == entry

    @rule(name=SITES, leased=st.booleans(), buckets=BUCKETS)
    def takeover(self, name: str, leased: bool, buckets: int) -> None:
        site = self.sites[name]
        outdated = site.trusted and buckets != site.buckets
        site.leased, site.buckets = leased, buckets
        successor = owner(
            self.client,
            site.epoch + 1,
            installation=name,
            buckets=buckets,
            lease_ms=LEASE_MS if leased else 0,
            timeout_s=PATIENT_S,
        )
        site.owners.append(successor)
        assert (self.run(successor.enter()) is not None) == site.trusted
        assert successor.outdated == outdated
        if outdated or not site.trusted:
            self.run(successor.rebuild((effect_id(number), mark) for number, mark in site.kafka.items()))
            for number, mark in site.kafka.items():
                site.redis[number] = rebuilt(site.redis.get(number), mark)
                if site.redis[number] == mark:
                    site.undecided.discard(number)
            site.trusted = True

    @precondition(lambda self: self.any_trusted)
    @rule(
        name=SITES,
        number=NUMBERS,
        mode=st.sampled_from(Mode),
        reopen=st.integers(0, 2),
        again=st.booleans(),
        begin=st.booleans(),
    )
    def claim(self, name: str, number: int, mode: Mode, reopen: int, again: bool, begin: bool) -> None:
        site = self.sites[name]
        if not site.trusted:
            return
        answer, entry = expected(site.redis.get(number), site.epoch, mode, reopen, site.leased, again, begin)
        got = self.run(claim_one(site.owners[-1], number, mode, reopen, again=again, begin=begin))
        if got.status is Status.HELD:
            assert 0 < got.lease_left_ms <= LEASE_MS
            got = got._replace(lease_left_ms=LEASE_MS)
        assert got == answer
        assert not (got.status is Status.NEW and number in site.undecided), "an undecided call is given as new"
        site.redis[number] = entry
        if got.status in GIVEN and isinstance(entry, Held) and entry.begun:
            site.undecided.add(number)

    @precondition(lambda self: self.any_trusted)
    @rule(name=SITES, number=NUMBERS, state=STATES, release=st.booleans(), committed=st.booleans())
    def mark(self, name: str, number: int, state: str, release: bool, committed: bool) -> None:
        site = self.sites[name]
        if not site.trusted:
            return
        entry = site.redis.get(number)
        revision = entry.base + 1 if isinstance(entry, Held) else 1
        mark = None if release else sent(revision)._replace(state=state)
        if not isinstance(entry, Held) or entry.epoch != site.epoch:
            with pytest.raises(DistrustedError, match="a claim is gone"):
                self.run(mark_one(site.owners[-1], number, mark))
            return
        self.run(mark_one(site.owners[-1], number, mark))
        site.redis[number] = mark
        site.undecided.discard(number)
        if mark is not None and committed:
            site.kafka[number] = mark

    @precondition(lambda self: any(site.trusted and site.epoch > 1 for site in self.sites.values()))
    @rule(number=NUMBERS, mode=st.sampled_from(Mode), data=st.data())
    def zombie(self, number: int, mode: Mode, data: st.DataObject) -> None:
        site = data.draw(st.sampled_from([site for site in self.sites.values() if site.trusted and site.epoch > 1]))
        before = data.draw(st.sampled_from(site.owners[:-1]))
        for asked in (claim_one(before, number, mode), mark_one(before, number, sent(9)), before.enter()):
            with pytest.raises(FencedError):
                self.run(asked)

    @rule(data_kept=st.booleans())
    def lose(self, data_kept: bool) -> None:
        if data_kept:  # like a restart: all data remains, under another run_id
            self.run(self.lose_run_id())
        else:
            self.run(self.client.flushall())
        for site in self.sites.values():
            if not data_kept:
                site.redis.clear()
                site.undecided.clear()
            site.trusted = False
            last = site.owners[-1]
            for asked in (claim_one(last, 0), mark_one(last, 0, None), last.check()):
                with pytest.raises(DistrustedError):
                    self.run(asked)

    @precondition(lambda self: not all(site.trusted for site in self.sites.values()))
    @rule(name=SITES, number=NUMBERS, state=STATES)
    def settle(self, name: str, number: int, state: str) -> None:
        """Commit the outcome of a call although the owner distrusts Redis."""
        site = self.sites[name]
        entry = site.redis.get(number)
        if not site.trusted and isinstance(entry, Held) and entry.epoch == site.epoch:
            site.kafka[number] = sent(entry.base + 1)._replace(state=state)

    @property
    def any_trusted(self) -> bool:
        return any(site.trusted for site in self.sites.values())

    async def lose_run_id(self) -> None:
        for site in self.sites.values():
            if await self.client.exists(site.keys.trust):
                await self.client.hset(site.keys.trust, "run_id", "0" * 40)

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
