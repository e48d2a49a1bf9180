"""The queries that make a cut, their order, and the cut made of their answers."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import pytest

from deploy import cut
from deploy.cut import take_cut
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from spark.manifest import INPUTS, LANDED_TOPICS, Manifest, ManifestError, Range, decode, encode

PARTITIONS = range(6)
Answer = Callable[[str], int]


class Brokers:
    """A stand-in for a cluster's connection: answers with set figures, and records the queries.

    Attributes:
        end, high, beginning: for any partition of a topic.
        committed: by group, the same for each partition but 5, which has none.
        looks: the number of full rounds of queries.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.end: Answer = lambda _: 10
        self.high: Answer = lambda _: 10
        self.beginning: Answer = lambda _: 0
        self.committed: Answer = lambda _: 7
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
        return [(topic, number) for topic in topics for number in PARTITIONS]

    async def offsets(self, targets: Iterable[Target], timestamp: int, *, committed: bool = False) -> dict[Target, int]:
        topics = list(dict.fromkeys(topic for topic, _ in targets))
        kind = {EARLIEST: "beginning", LATEST: "end" if committed else "high"}[timestamp]
        self.asked += [f"{kind} {topic}" for topic in topics]
        answer: Answer = getattr(self, kind)
        found = {(topic, number): answer(topic) for topic in topics for number in PARTITIONS}
        self.looks += kind == "high"
        return found

    async def committed_offsets(self, _: Cluster, group: str, topic: str) -> dict[int, int]:
        self.asked.append(f"group {group} {topic}")
        return dict.fromkeys(range(5), self.committed(group))


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(cut, "Cluster", made)
    monkeypatch.setattr(cut, "committed_offsets", made.committed_offsets)
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
            PARTITIONS, Range(brokers.beginning(topic), 10, brokers.high(topic), brokers.beginning(topic))
        )
        for topic in LANDED_TOPICS
    }
    assert taken.groups == {group: {0: 7, 1: 7, 2: 7, 3: 7, 4: 7, 5: 0} for group in INPUTS}
    assert (taken.sequence, taken.previous, taken.taken_at_ms, taken.cluster_id) == (1, "", 5, "first")


async def test_the_next_cut_begins_at_the_ends_even_if_records_have_expired_since(brokers: Brokers) -> None:
    first = await take()
    brokers.end = brokers.high = lambda _: 30
    brokers.beginning = lambda topic: 20 if topic == "effects.requests" else 0
    second = await take(first)
    assert second.topics["payments.raw"][5] == Range(10, 30, 30, 0)
    assert second.topics["effects.requests"][5] == Range(10, 30, 30, 20)
    assert (second.sequence, second.previous) == (2, first.digest)


async def test_records_that_expire_between_two_queries_do_not_invert_a_range(brokers: Brokers) -> None:
    brokers.beginning = lambda _: 15
    brokers.high = lambda _: 20
    taken = await take()
    assert taken.topics["effects.requests"][0] == Range(10, 10, 20, 15)


async def test_a_cluster_that_lost_records_or_is_another_one_is_refused(brokers: Brokers) -> None:
    first = await take()
    brokers.identity = "second"
    with pytest.raises(ManifestError, match="of another cluster"):
        await take(first)
    brokers.end = lambda topic: 9 if topic == "ledger.postings" else 10
    with pytest.raises(ManifestError, match=r"ledger\.postings:0 ends at 9, .* the cluster has lost records"):
        await take(first)


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
