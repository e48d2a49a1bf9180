"""The verdict on a history: the logs' committed records and offsets before the checkers, read without any client."""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final

from deploy.checkers.audit import INPUTS, TOPICS, Audit
from deploy.checkers.verdict import Kind, Verdict
from shared.eos.progress import NEXT_OFFSET_KEY, TransactionNote, decode_next_offset, offset_metadata
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.installation import (
    OWNERSHIP_KEY,
    Installation,
    Ownership,
    encode_installation,
    encode_ownership,
)
from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, partition_of
from shared.kafka.client.batches import Batch, Marker
from shared.kafka.protocol.headers import api_key, decode_request, decode_request_header, decode_response
from tests.installation import INSTALLATION
from tests.simulation.cluster import Cluster, Note, Partition
from tests.simulation.coordinator import LATE
from tests.simulation.errors import INVALID_PRODUCER_EPOCH, PRODUCER_FENCED
from tests.simulation.network import Frame
from tests.simulation.offsets import Offsets, Place, entries_of
from tests.simulation.plan import CHANGELOGS

_ALL_BYTES: Final = 2**31
_FENCED: Final = "ERROR: fenced"
"""What the runtime logs."""
_INIT_PRODUCER_ID: Final = api_key("InitProducerId").to_bytes(2, "big")
_NOT_RUN: Final = frozenset({Kind.EFFECT_MISSING.value})
"""Findings for want of an outbox, which no history runs."""


def committed_batches(partition: Partition) -> list[Batch]:
    """The data batches that no transaction, or a committed one, has written, in order."""
    committed = (batch for batch, marker in _ended(partition) if marker in {None, Marker.COMMIT})
    return sorted(committed, key=attrgetter("base_offset"))


def committed_offsets(cluster: Cluster) -> dict[str, dict[int, int]]:
    """The committed offsets of the services on their inputs, by group and partition."""
    partitions = cluster.topic(OFFSETS_TOPIC)
    found: dict[str, dict[int, int]] = {}
    for group, topic in INPUTS.items():
        offsets = Offsets(partitions[partition_of(group, len(partitions))]).of(group)
        found[group] = {number: at.offset for (name, number), at in offsets.items() if name == topic}
    return found


def moved_back(cluster: Cluster) -> Iterator[str]:
    """Input partitions of which a group committed an older offset after a newer one."""
    for partition in cluster.topic(OFFSETS_TOPIC):
        newest: dict[Place, int] = {}
        for batch in committed_batches(partition):
            for place, at in entries_of(batch, partition.target):
                if at.offset < newest.get(place, 0):
                    yield f"{place.topic}:{place.partition}"
                newest[place] = max(newest.get(place, 0), at.offset)


def needlessly_completed(cluster: Cluster) -> Iterator[str]:
    """Transactions that a new owner completed although all of their markers are commits."""
    offsets = {
        at.metadata: marker
        for partition in cluster.topic(OFFSETS_TOPIC)
        for batch, marker in _ended(partition)
        for _, at in entries_of(batch, partition.target)
    }
    for service, topic in CHANGELOGS.items():
        for partition in cluster.topic(topic):
            for record in _records(partition):
                note = decode_next_offset(record.value or b"").transaction if record.key == NEXT_OFFSET_KEY else None
                completed = None if note is None else note.completes
                if completed is None:
                    continue
                markers = {offsets.get(offset_metadata(completed.id))}
                for name, numbers in completed.records.items():
                    for number in numbers:
                        markers |= _markers(cluster.partitions[name, number], completed)
                if markers == {Marker.COMMIT}:
                    yield f"{service} {partition.target[1]}: {completed.id}"


def _ended(partition: Partition) -> Iterator[tuple[Batch, Marker | None]]:
    """The data batches, each with the marker that ended its transaction; None where it is of none."""
    log = partition.log
    waiting: dict[int, list[Batch]] = {}
    for batch in log.read(log.start, log.high_watermark, _ALL_BYTES):
        if batch.is_control:
            yield from ((one, batch.marker) for one in waiting.pop(batch.producer_id, []))
        elif batch.is_transactional:
            waiting.setdefault(batch.producer_id, []).append(batch)
        else:
            yield batch, None


def _markers(partition: Partition, note: TransactionNote) -> set[Marker | None]:
    """How one transaction ended in a partition."""
    producer = note.id.producer_id, note.id.producer_epoch
    return {
        marker
        for batch, marker in _ended(partition)
        if (batch.producer_id, batch.producer_epoch) == producer
        and note.id.begun_ms <= batch.timestamp_ms <= note.ended_ms
    }


def behind(cluster: Cluster, services: Iterable[str]) -> Iterator[str]:
    """What is not booked yet: each service's input partition whose committed records are not all consumed."""
    committed = committed_offsets(cluster)
    for service in services:
        for partition in cluster.topic(INPUTS[service]):
            batches = committed_batches(partition)
            end = batches[-1].last_offset + 1 if batches else 0
            at = committed[service].get(partition.target[1], 0)
            if at < end:
                yield f"{service} is at {at} of {end} in {INPUTS[service]}:{partition.target[1]}"
            if partition.log.last_stable_offset < partition.log.end:
                yield f"a transaction is open in {INPUTS[service]}:{partition.target[1]}"


def audit(cluster: Cluster) -> Verdict:
    """Judge everything that was committed."""
    partitions = len(cluster.topic(catalogue.PAYMENTS_RAW))
    ends = {
        (topic, number): cluster.partitions[topic, number].log.last_stable_offset
        for topic in TOPICS
        for number in range(partitions)
    }
    judged = Audit(ends, partitions=partitions)
    # The services of a history are given it as well
    made = encode_installation(Installation(INSTALLATION, 0))
    enforced = encode_ownership(Ownership((0,) * partitions, 0))
    given = (INSTALLATION.encode(), made), (OWNERSHIP_KEY, enforced)
    records = [Record(catalogue.INSTALLATION, 0, at, 0, key, value, ()) for at, (key, value) in enumerate(given)]
    judged.feed(catalogue.INSTALLATION, 0, records)
    for topic in TOPICS:
        for partition in cluster.topic(topic):
            judged.feed(topic, partition.target[1], _records(partition))
    return judged.finish(committed_offsets(cluster))


def findings(verdict: Verdict) -> Mapping[str, int]:
    """The violations by kind, without those for want of an outbox."""
    return {kind: count for kind, count in verdict.kinds.items() if count and kind not in _NOT_RUN}


def fenced_without_successor(frames: Iterable[Frame], notes: Iterable[Note]) -> Iterator[str]:
    """Processes that ended as fenced although no other one had their transactional.id."""
    ends = [note for note in notes if _FENCED in note.text]
    asked = [frame for frame in frames if frame.request[:2] == _INIT_PRODUCER_ID]
    refused = {(frame.client, frame.request) for frame in asked if _is_fenced(frame)}
    inits = [frame for frame in asked if frame.answer is None and (frame.client, frame.request) not in refused]
    for end in ends:
        owners: dict[str, list[str]] = {}
        for frame in inits:
            if frame.at_s < end.at_s:
                owners.setdefault(_transactional_id(frame), []).append(frame.client)
        if any(end.who in had and had[-1] != end.who for had in owners.values()):
            continue
        own = {f"{LATE}{name}" for name, had in owners.items() if had[-1] == end.who}
        late = [note.text for note in notes if note.text in own and note.at_s < end.at_s]
        yield f"{end.who} ended as fenced at {end.at_s:.3f}, and no instance had taken over. {', '.join(late)}"


def _is_fenced(frame: Frame) -> bool:
    """Whether this is the answer that another process has the transactional.id. Any other one may have taken it."""
    if frame.answer is None:
        return False
    answer = decode_response("InitProducerId", decode_request_header(frame.request).version, frame.answer)
    return answer["ErrorCode"] in {INVALID_PRODUCER_EPOCH, PRODUCER_FENCED}


def _transactional_id(frame: Frame) -> str:
    version = decode_request_header(frame.request).version
    name: str = decode_request("InitProducerId", version, frame.request)["TransactionalId"]
    return name


def _records(partition: Partition) -> list[Record]:
    return [record for batch in committed_batches(partition) for record in batch.records(partition.target)]
