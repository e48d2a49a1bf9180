"""Read the records of effects from the topics, for `once effects`.

Invariant: the last record of a key counts; an effect that waits is waiting, whatever an older result says. Only effects
that an operator may have to look at are kept.
"""

import heapq
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_REQUESTS, EFFECTS_RESULTS, EFFECTS_WAITING
from shared.events.effects import (
    WAITING_PREFIX,
    EffectRequest,
    EffectResult,
    EffectState,
    Waiting,
    decode_request,
    decode_result,
    decode_waiting,
)
from shared.events.headers import Coordinates, header
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.reader import read_topics

WAITING = "waiting"
REQUESTED = "requested"


class Listed(msgspec.Struct, frozen=True):
    """An effect in a list, with the fields of its request that identify it.

    Attributes:
        time: of the decision, or of the next try; ISO 8601 in UTC.
        kind, account, destination: empty where the request is no longer with the result.
    """

    effect_id: str
    state: str
    time: str
    attempts: int
    kind: str
    account: str
    destination: str
    reason: str
    detail: str


def _listed(
    effect_id: str, state: str, at_ms: int, attempts: int, request: EffectRequest | None, reason: str, detail: str
) -> Listed:
    about = ("", "", "") if request is None else (request.kind, request.account, request.destination)
    time = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return Listed(effect_id, state, time, attempts, *about, reason, detail)


class _Book:
    """Effects that wait, are in doubt or have failed, by id; of those sent, the youngest."""

    def __init__(self, sent_kept: int) -> None:
        self._sent_kept = sent_kept
        self._sent: dict[str, Listed] = {}
        self._sent_order: list[tuple[int, str]] = []
        self._decided: dict[str, Listed] = {}
        self._waiting: dict[str, Listed] = {}

    def take(self, topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            if topic == EFFECTS_WAITING:
                self._take_waiting(record.key or b"", record.value)
            else:
                self._take_result((record.key or b"").decode(), record.value)

    def _take_waiting(self, key: bytes, value: bytes | None) -> None:
        if not key.startswith(WAITING_PREFIX):
            return
        effect_id = key[len(WAITING_PREFIX) :].decode()
        if value is None:
            self._waiting.pop(effect_id, None)
            return
        found = decode_waiting(value)
        self._waiting[effect_id] = _listed(
            effect_id, WAITING, found.not_before_ms, found.attempts, found.request, "", found.detail
        )

    def _take_result(self, effect_id: str, value: bytes | None) -> None:
        self._decided.pop(effect_id, None)
        if value is None:
            return
        found = decode_result(value)
        if found.state == EffectState.SENT and not self._sent_kept:
            return
        effect = _listed(effect_id, found.state, found.at_ms, found.attempts, found.request, found.reason, found.detail)
        if found.state == EffectState.SENT:
            self._keep_sent(found.at_ms, effect)
        else:
            self._decided[effect_id] = effect

    def _keep_sent(self, at_ms: int, effect: Listed) -> None:
        if effect.effect_id in self._sent:
            return
        self._sent[effect.effect_id] = effect
        heapq.heappush(self._sent_order, (at_ms, effect.effect_id))
        if len(self._sent) > self._sent_kept:
            del self._sent[heapq.heappop(self._sent_order)[1]]

    def by_state(self) -> dict[str, list[Listed]]:
        found: dict[str, list[Listed]] = {state.value: [] for state in EffectState}
        for effect_id, effect in self._decided.items():
            if effect_id not in self._waiting:
                found[effect.state].append(effect)
        return {**found, EffectState.SENT.value: list(self._sent.values()), WAITING: list(self._waiting.values())}


async def read_all(bootstrap_servers: Bootstrap, *, sent_kept: int) -> dict[str, list[Listed]]:
    """The effects by state: all that are in doubt, failed or waiting, and the youngest of those sent.

    Args:
        bootstrap_servers: brokers, comma separated, or an `Access`.
        sent_kept: how many of those sent.

    Raises:
        KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
    """
    book = _Book(sent_kept)
    await read_topics(bootstrap_servers, [EFFECTS_WAITING, EFFECTS_RESULTS], book.take)
    return book.by_state()


@dataclass(slots=True)
class Found:
    """One effect, as far as the topics know it. A record is the last one of its topic.

    Attributes:
        result, waiting, asked: what the records of effects.results, effects.waiting and effects.requests say.
    """

    effect_id: str
    asked_record: Record | None = None
    asked: EffectRequest | None = None
    result_record: Record | None = None
    result: EffectResult | None = None
    waiting: Waiting | None = None
    letter_record: Record | None = None

    @property
    def state(self) -> str:
        """An EffectState, `waiting`, or `requested` while the outbox has not taken it up."""
        if self.waiting is not None:
            return WAITING
        return REQUESTED if self.result is None else self.result.state

    @property
    def request(self) -> EffectRequest | None:
        """The effect itself: it is with its result while that can be decided on, else in effects.requests."""
        for holder in (self.waiting, self.result):
            if holder is not None and holder.request is not None:
                return holder.request
        return self.asked

    def header(self, name: str) -> bytes | None:
        """A header of the result."""
        return None if self.result_record is None else header(self.result_record.headers, name)

    def coordinates(self) -> dict[str, str | None]:
        """Coordinates of its records: the request, the result, the dead letter; None where there is none."""
        records = {"asked_at": self.asked_record, "decided_at": self.result_record, "dead_letter": self.letter_record}
        return {
            name: None if record is None else str(Coordinates(record.topic, record.partition, record.offset))
            for name, record in records.items()
        }

    def take(self, topic: str, _partition: int, records: list[Record]) -> None:
        """Take records of one of the four topics."""
        wanted = self.effect_id.encode()
        for record in records:
            if topic == EFFECTS_RESULTS:
                if record.key == wanted:
                    self._take_result(record)
            elif topic == EFFECTS_WAITING:
                if record.key == WAITING_PREFIX + wanted:
                    self.waiting = None if record.value is None else decode_waiting(record.value)
            elif wanted in (record.value or b""):
                self._take_request(topic, record, record.value or b"")

    def _take_result(self, record: Record) -> None:
        if record.value is None:
            self.result_record = self.result = None
        else:
            self.result_record, self.result = record, decode_result(record.value)

    def _take_request(self, topic: str, record: Record, value: bytes) -> None:
        request = decode_request(value)
        if not isinstance(request, EffectRequest) or request.effect_id != self.effect_id:
            return
        if topic == EFFECTS_DEAD_LETTER:
            self.letter_record = record
        else:
            self.asked_record, self.asked = record, request


async def find(bootstrap_servers: Bootstrap, effect_id: str) -> Found | None:
    """An effect by its id, or None if no topic knows it.

    Raises:
        KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
    """
    found = Found(effect_id)
    topics = [EFFECTS_REQUESTS, EFFECTS_RESULTS, EFFECTS_WAITING, EFFECTS_DEAD_LETTER]
    await read_topics(bootstrap_servers, topics, found.take)
    known = (found.asked, found.result, found.waiting)
    return None if all(part is None for part in known) else found
