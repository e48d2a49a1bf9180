"""Cuts of a system in memory, landed by the pipeline itself, without brokers."""

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from shared.events.effects import EffectState
from shared.events.transfers import AccountOpened
from spark import session
from spark.evidence import evidence_of
from spark.lake import Lake
from spark.land import land
from spark.manifest import Manifest, Settings, seal
from spark.metrics import Progress
from spark.nightly import work
from spark.report import Report
from tests.pipeline import nights
from tests.pipeline.landed import json_line, read_records
from tests.planted import FILE, MAIL
from tests.world import Trail, World
from tests.world_effects import Effects, EffectTrail

DAY_MS = 86_400_000


class Landings:
    """A lake, and a system whose records land in it cut by cut.

    Args:
        monkeypatch: replaces Spark's Kafka source, for as long as its context.

    Attributes:
        progress: with the seconds of the last landing and run.
    """

    def __init__(self, spark: SparkSession, world: World, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark = spark
        self.world = world
        self.lake = Lake(root / "lake")
        self.settings = Settings()
        self.progress = Progress()
        self._root = root
        monkeypatch.setattr(session, "read_topic", self._read)

    def cut(self) -> Manifest:
        """Take a cut of the whole system at rest, a day after the last one."""
        cuts = self.lake.cuts()
        cut = nights.manifest(self.world, previous=cuts[-1] if cuts else None)
        evidence = evidence_of(self.lake, cuts)
        return seal(
            msgspec.structs.replace(
                cut, taken_at_ms=(len(cuts) + 1) * DAY_MS, evidence=evidence, settings=self.settings, digest=""
            )
        )

    def land(self, cut: Manifest) -> None:
        land(self.spark, cut, "none", self.lake, self.progress)

    def run(self, cut: Manifest) -> Report:
        """Land a cut, unless it has landed, and make its run."""
        with self.lake.lock():
            return work(self.spark, self.lake, cut, "none", progress=self.progress).reports[-1]

    def _read(self, spark: SparkSession, _: object, topic: str, offsets: dict[int, tuple[int, int]]) -> DataFrame:
        path = self._root / f"{topic}.json"
        lines = [
            json_line(record)
            for partition, (begin, end) in sorted(offsets.items())
            for record in self.world.logs[topic, partition]
            if begin <= record.offset < end
        ]
        path.write_bytes(b"\n".join(lines))
        return read_records(spark, path)


class EqualNights(Effects):
    """A system whose nights are alike: the same payments between the same accounts, with an outcome each."""

    def __init__(self) -> None:
        super().__init__()
        self._nights = 0
        self._before: tuple[Trail, EffectTrail] | None = None
        for number in range(7):
            self.account_event(AccountOpened(f"client-{number}", None))

    def night(self, payments: int = 6) -> None:
        """Do a night's work: payments, one of them reversed, one declined, one repeated, one refused; some notified."""
        self._nights += 1
        names = [f"night-{self._nights}-{number}" for number in range(payments)]
        trails = [self.pay(name, f"client-{n}", f"client-{n + 1}", 100, fee_minor=3) for n, name in enumerate(names)]
        self.reverse(f"night-{self._nights}-back", "client-0", names[0])
        self.decline(f"night-{self._nights}-declined", "broke", "client-1")
        self.repeat(trails[1].raw)
        self.refuse(b"%012d is no payment" % self._nights)
        self.notify(trails[2].debit, "receipt", FILE)
        self.notify(trails[2].credit, "notice", MAIL)

    def look_back(self) -> None:
        """Do what earlier nights' records are looked up for.

        A payment of the night before is repeated and reversed, and a person decides of an effect. An account gets terms
        that it does not have, and some that it has: the ledger posts the first alone.
        """
        if self._before is not None:
            paid, doubtful = self._before
            self.repeat(paid.raw)
            self.reverse(f"night-{self._nights}-undone", "client-0", f"night-{self._nights - 1}-kept")
            self.decide(doubtful.effect, doubtful.result.partition, EffectState.SENT, revision=2)
        paid = self.pay(f"night-{self._nights}-kept", "client-0", "client-1", 100)
        self._before = paid, self.notify(paid.debit, "receipt", MAIL, EffectState.IN_DOUBT)
        terms = AccountOpened("changing", self._nights)
        self.account_event(terms)
        self.remove(self.account_event(terms)[1])
