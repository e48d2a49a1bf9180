"""A model of a cluster with append-only registers, which makes correct histories from any choices. Pure.

It has the semantics of Kafka's transactions and nothing of its implementation: values of a commit become visible at
once, a read_committed reader stops at the first value of an open transaction, and an `init` fences earlier producers.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field

from deploy.drills.history import Event, Function, History, Look, Type, Value

PARTITIONS = 3
IDS = ("one", "two")
READERS = ("reader-0", "reader-1")


@dataclass
class Entry:
    """A place in a partition's log; a marker has no value."""

    value: int | None
    transaction: int


@dataclass
class Producer:
    """A producer and its open transaction; -1 for none."""

    process: str
    transactional_id: str
    transaction: int = -1
    values: list[Value] = field(default_factory=list)


class Registers:
    """The cluster and its clients.

    Args:
        chance: makes all choices.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._logs: dict[int, list[Entry]] = defaultdict(list)
        self._open: dict[int, set[int]] = {}  # partitions by transaction
        self._aborted: set[int] = set()
        self._producers: dict[str, Producer] = {}
        self._zombies: list[Producer] = []
        self._positions: dict[tuple[str, int], int] = defaultdict(int)
        self._now_s = 0.0
        self._made = 0
        self.history = History()

    def run(self, steps: int) -> History:
        """Take so many steps, end what is open, and read the logs."""
        for _ in range(steps):
            self._chance.choice(
                [self._write, self._write, self._end, self._end, self._poll, self._succeed, self._wake]
            )()
            self._look()
        for transaction in list(self._open):
            self._mark(transaction, commits=False)
        for reader in READERS:
            for _ in range(2):
                self._poll(reader)
        self.history.is_complete = True
        self.history.log = [value for partition in range(PARTITIONS) for value in self._visible(partition, 0)]
        return self.history

    def _note(self, process: str, kind: Type, function: Function, **parts: object) -> None:
        self._now_s += self._chance.uniform(0.0, 0.5)
        self.history.events.append(Event(round(self._now_s, 3), process, kind, function, **parts))  # type: ignore[arg-type]

    def _producer(self) -> Producer:
        name = self._chance.choice(IDS)
        return self._producers.get(name) or self._init(name)

    def _init(self, name: str) -> Producer:
        """Initialise a producer, which ends the transaction that its predecessor left open."""
        self._made += 1
        process = f"{name}-{self._made}"
        self._note(process, Type.INVOKE, Function.INIT, transactional_id=name)
        before = self._producers.get(name)
        if before is not None and before.transaction in self._open:
            self._mark(before.transaction, commits=False)
        self._note(process, Type.OK, Function.INIT, transactional_id=name)
        self._producers[name] = Producer(process, name)
        return self._producers[name]

    def _write(self) -> None:
        producer = self._producer()
        if producer.transaction < 0:
            self._made += 1
            producer.transaction, producer.values = self._made, []
            self._open[self._made] = set()
        partitions = self._chance.sample(range(PARTITIONS), self._chance.randint(1, PARTITIONS))
        values = []
        for partition in partitions:
            self._made += 1
            values.append(Value(partition, self._made))
        self._note(producer.process, Type.INVOKE, Function.APPEND, transaction=producer.transaction, values=values)
        for value in values:
            self._logs[value.partition].append(Entry(value.value, producer.transaction))
            self._open[producer.transaction].add(value.partition)
        producer.values += values
        self._note(producer.process, Type.OK, Function.APPEND, transaction=producer.transaction, values=values)

    def _end(self) -> None:
        """Commit or abort; the answer may be lost, whether the commit took effect or not."""
        producer = self._producer()
        transaction, producer.transaction = producer.transaction, -1
        if transaction < 0:
            return
        function = self._chance.choice([Function.COMMIT, Function.COMMIT, Function.ABORT])
        self._note(producer.process, Type.INVOKE, function, transaction=transaction)
        if self._chance.random() < 0.5:
            self._poll()  # while it is under way
        answered = self._chance.random() < 0.7
        takes_effect = answered or self._chance.random() < 0.5
        if takes_effect:
            self._mark(transaction, commits=function is Function.COMMIT)
        if self._chance.random() < 0.5:
            self._poll()
        kind = Type.OK if answered else Type.INFO
        self._note(producer.process, kind, function, transaction=transaction)
        if not answered:  # as the runtime does: another producer settles it
            producer.transaction = transaction
            self._init(producer.transactional_id)

    def _succeed(self) -> None:
        """Initialise another producer with an id in use; the one before wakes up later."""
        producer = self._producer()
        if producer.transaction >= 0:
            self._zombies.append(producer)
            self._init(producer.transactional_id)

    def _wake(self) -> None:
        """Let a zombie commit: it is fenced."""
        if self._zombies:
            zombie = self._zombies.pop()
            for kind in (Type.INVOKE, Type.FAIL):
                self._note(zombie.process, kind, Function.COMMIT, transaction=zombie.transaction)

    def _mark(self, transaction: int, *, commits: bool) -> None:
        """Write the markers of a transaction."""
        if not commits:
            self._aborted.add(transaction)
        for partition in self._open.pop(transaction):
            self._logs[partition].append(Entry(None, transaction))

    def _stable(self, partition: int) -> int:
        log = self._logs[partition]
        return next((place for place, entry in enumerate(log) if entry.transaction in self._open), len(log))

    def _visible(self, partition: int, position: int) -> list[Value]:
        return [
            Value(partition, entry.value, place)
            for place, entry in enumerate(self._logs[partition][: self._stable(partition)])
            if place >= position and entry.value is not None and entry.transaction not in self._aborted
        ]

    def _poll(self, reader: str = "") -> None:
        process = reader or self._chance.choice(READERS)
        self._note(process, Type.INVOKE, Function.POLL)
        found = []
        for partition in range(PARTITIONS):
            found += self._visible(partition, self._positions[process, partition])
            self._positions[process, partition] = self._stable(partition)
        self._note(process, Type.OK, Function.POLL, values=found)

    def _look(self) -> None:
        for partition in range(PARTITIONS):
            look = Look(self._now_s, partition, self._stable(partition), len(self._logs[partition]))
            self.history.looks.append(look)
