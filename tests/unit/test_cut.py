"""The queries that make a cut, their order, and the cut made of their answers."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import pytest

from deploy import cut
from deploy.cut import gone, take_cut
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.client.identities import LogEnd
from spark.manifest import (
    INPUTS,
    LANDED_TOPICS,
    PARTITIONS_MAX,
    Evidence,
    Manifest,
    ManifestError,
    Range,
    Settings,
    decode,
    encode,
)
from spark.places import PARTITION_BITS

PARTITIONS = range(6)
Answer = Callable[[str], int]


class Brokers:
    """A stand-in for a cluster's connection: answers with set figures, and records the queries.

    Attributes:
        end, high, beginning, epoch: for any partition of a topic.
        topic_id: of any topic.
        partitions_of: partition numbers of any topic.
        committed: by group, the same for each partition but 5, which has none.
        looks: the number of full rounds of queries.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.end: Answer = lambda _: 10
        self.high: Answer = lambda _: 10
        self.beginning: Answer = lambda _: 0
        self.committed: Answer = lambda _: 7
        self.epoch: Answer = lambda _: 3
        self.topic_id: Callable[[str], str] = lambda topic: f"id of {topic}"
        self.partitions_of: Callable[[str], Iterable[int]] = lambda _: PARTITIONS
        self.identity = "first"
        self.looks = 0

    def __call__(self, _: str) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.asked.append("closed")

    async def cluster_id(self) -> str:
        return self.identity

    async def partitions(self, topics: Iterable[str]) -> list[Target]:
        return [(topic, number) for topic in topics for number in self.partitions_of(topic)]

    async def offsets(self, targets: Iterable[Target], timestamp: int, *, committed: bool = False) -> dict[Target, int]:
        assert not committed
        kind = {EARLIEST: "beginning", LATEST: "high"}[timestamp]
        found = self._answer(kind, targets)
        self.looks += kind == "high"
        return found

    def _answer(self, kind: str, targets: Iterable[Target]) -> dict[Target, int]:
        wanted = list(targets)
        self.asked += [f"{kind} {topic}" for topic in dict.fromkeys(topic for topic, _ in wanted)]
        answer: Answer = getattr(self, kind)
        return {(topic, number): answer(topic) for topic, number in wanted}

    async def stable_ends(self, _: Cluster, targets: Iterable[Target]) -> dict[Target, LogEnd]:
        found = self._answer("end", targets)
        return {(topic, number): LogEnd(end, self.epoch(topic)) for (topic, number), end in found.items()}

    async def topic_ids(self, _: Cluster, topics: Iterable[str]) -> dict[str, str]:
        return {topic: self.topic_id(topic) for topic in topics}

    async def committed_offsets(self, _: Cluster, group: str, topic: str) -> dict[int, int]:
        self.asked.append(f"group {group} {topic}")
        return dict.fromkeys(range(5), self.committed(group))


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(cut, "Cluster", made)
    for name in ("committed_offsets", "stable_ends", "topic_ids"):
        monkeypatch.setattr(cut, name, getattr(made, name))
    return made


async def take(previous: Manifest | None = None, deadline_s: float = 0) -> Manifest:
    taken = await take_cut("any", previous, now_ms=5, settle_s=0.001, deadline_s=deadline_s)
    assert decode(encode(taken)) == taken
    return taken


async def test_groups_are_read_first_then_ends_from_the_last_topic_to_the_first_then_the_others(
    brokers: Brokers,
) -> None:
    await take()
    assert brokers.asked == [
        *(f"group {group} {topic}" for group, topic in INPUTS.items()),
        *(f"end {topic}" for topic in reversed(LANDED_TOPICS)),
        *(f"beginning {topic}" for topic in LANDED_TOPICS),
        *(f"high {topic}" for topic in LANDED_TOPICS),
        "closed",
    ]


async def test_a_first_cut_begins_where_the_logs_begin(brokers: Brokers) -> None:
    brokers.beginning = lambda topic: 4 if topic == "effects.requests" else 0
    brokers.high = lambda topic: 12 if topic == "payments.raw" else 10
    taken = await take()
    assert taken.topics == {
        topic: dict.fromkeys(
            PARTITIONS, Range(brokers.beginning(topic), 10, brokers.high(topic), brokers.beginning(topic), 3)
        )
        for topic in LANDED_TOPICS
    }
    assert taken.groups == {group: {0: 7, 1: 7, 2: 7, 3: 7, 4: 7, 5: None} for group in INPUTS}
    assert taken.committed("ingest") == {0: 7, 1: 7, 2: 7, 3: 7, 4: 7, 5: 0}
    assert (taken.sequence, taken.previous, taken.taken_at_ms, taken.cluster_id) == (1, "", 5, "first")
    assert taken.topic_ids == {topic: f"id of {topic}" for topic in LANDED_TOPICS}


async def test_the_next_cut_begins_at_the_ends_even_if_records_have_expired_since(brokers: Brokers) -> None:
    first = await take()
    brokers.end = brokers.high = lambda _: 30
    brokers.beginning = lambda topic: 20 if topic == "effects.requests" else 0
    second = await take(first)
    assert second.topics["payments.raw"][5] == Range(10, 30, 30, 0, 3)
    assert second.topics["effects.requests"][5] == Range(10, 30, 30, 20, 3)
    assert (second.sequence, second.previous) == (2, first.digest)


async def test_records_that_expire_between_two_queries_do_not_invert_a_range(brokers: Brokers) -> None:
    brokers.beginning = lambda _: 15
    brokers.high = lambda _: 20
    taken = await take()
    assert taken.topics["effects.requests"][0] == Range(10, 10, 20, 15, 3)


async def test_a_cluster_that_lost_records_or_is_another_one_is_refused(brokers: Brokers) -> None:
    first = await take()
    brokers.identity = "second"
    with pytest.raises(ManifestError, match="of another cluster"):
        await take(first)
    brokers.identity = "first"
    brokers.end = lambda topic: 9 if topic == "ledger.postings" else 10
    with pytest.raises(ManifestError, match=r"the end of ledger\.postings:0 is 9, and was 10 .* has lost records"):
        await take(first)


async def test_a_topic_that_was_created_again_or_has_other_partitions_is_refused_by_name(brokers: Brokers) -> None:
    first = await take()
    brokers.topic_id = lambda topic: "other" if topic == "ledger.postings" else f"id of {topic}"
    brokers.end = brokers.high = lambda _: 30  # a longer log hides that it is another one
    with pytest.raises(ManifestError, match=r"ledger\.postings was deleted and created again: its id is other"):
        await take(first)
    brokers.topic_id = lambda topic: f"id of {topic}"
    for numbers, said in ((range(12), "12 partitions"), (range(5), "5 partitions"), ([0, 2], "partitions 0, 2")):
        brokers.partitions_of = lambda topic, numbers=numbers: numbers if topic == "payments.raw" else PARTITIONS  # type: ignore[misc]
        with pytest.raises(ManifestError, match=rf"payments\.raw has {said}, the cut before has 6 partitions"):
            await take(first)


async def test_a_topic_with_more_partitions_than_places_have_numbers_for_is_refused(brokers: Brokers) -> None:
    assert PARTITIONS_MAX == 1 << PARTITION_BITS
    for count in (PARTITIONS_MAX, PARTITIONS_MAX + 1):
        brokers.partitions_of = lambda topic, count=count: range(count) if topic == "payments.raw" else PARTITIONS  # type: ignore[misc]
        if count <= PARTITIONS_MAX:
            assert len((await take()).topics["payments.raw"]) == count
        else:
            with pytest.raises(ManifestError, match=r"payments\.raw has 1025 partitions: .* takes 1024"):
                await take()


async def test_a_group_whose_offset_is_gone_or_moved_backwards_does_not_stop_a_cut(brokers: Brokers) -> None:
    first = await take()
    brokers.committed = lambda group: 2 if group == "ledger" else 7
    second = await take(first)
    assert second.groups["ledger"] == {0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 5: None}


async def test_a_cut_holds_what_it_is_given(brokers: Brokers) -> None:
    settings, evidence = Settings(identity_window=5, late_after_cuts=2), Evidence("a" * 64, {"000001-00000000": "b"})
    taken = await take_cut(
        "any", None, now_ms=5, deadline_s=0, settings=settings, evidence=evidence, explanations="c" * 64
    )
    assert (taken.settings, taken.evidence, taken.explanations) == (settings, evidence, "c" * 64)
    assert decode(encode(taken)) == taken
    assert brokers.looks == 1


async def test_records_of_a_cut_that_have_expired_are_named_by_partition(brokers: Brokers) -> None:
    taken = await take()
    assert await gone("any", taken) == []
    brokers.beginning = lambda topic: 10 if topic == "effects.requests" else 0
    assert await gone("any", taken) == [f"effects.requests:{number}" for number in PARTITIONS]


async def test_two_equal_looks_with_nothing_open_settle_a_cut(brokers: Brokers) -> None:
    taken = await take(deadline_s=10)
    assert taken.settled
    assert brokers.looks == 2


async def test_a_cut_of_a_topic_that_grows_is_the_last_look_unsettled(brokers: Brokers) -> None:
    # Nothing looks open, as when every transaction ends between two looks
    brokers.end = brokers.high = lambda _: 10 + brokers.looks
    taken = await take(deadline_s=0.1)
    assert not taken.settled
    assert brokers.looks > 2
    assert taken.topics["payments.raw"][0].end == 9 + brokers.looks


async def test_a_group_that_passes_markers_leaves_a_cut_settled_and_counts_as_it_is(brokers: Brokers) -> None:
    brokers.committed = lambda group: 7 + brokers.looks if group == "outbox" else 7
    taken = await take(deadline_s=10)
    assert taken.settled
    assert (brokers.looks, taken.groups["outbox"][0]) == (2, 8)


async def test_a_cut_settles_once_nothing_moves(brokers: Brokers) -> None:
    brokers.end = brokers.high = lambda _: min(12, 10 + brokers.looks)
    taken = await take(deadline_s=10)
    assert taken.settled
    assert (brokers.looks, taken.topics["ledger.postings"][0].end) == (4, 12)


async def test_an_open_transaction_delays_a_cut_to_its_deadline_only(brokers: Brokers) -> None:
    brokers.high = lambda topic: 11 if topic == "ledger.postings" else 10
    taken = await take(deadline_s=0.05)
    assert not taken.settled
    assert not taken.topics["ledger.postings"][0].stable
    assert taken.topics["ledger.transfers"][0].stable
