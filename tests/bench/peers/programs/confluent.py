"""confluent-kafka (librdkafka): consume, transform and produce in batches, in transactions."""

import importlib
import signal
import time
from typing import Any

from tests.bench.peers.programs.work import Job, handle, job, report_first


def main(work: Job) -> None:
    """Work until SIGTERM."""
    kafka: Any = importlib.import_module("confluent_kafka")  # it has no types, and only `make bench-peers` installs it
    running = True

    def stop(*_: object) -> None:
        nonlocal running
        running = False

    signal.signal(signal.SIGTERM, stop)
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": work.bootstrap_servers,
            "group.id": work.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = kafka.Producer(
        {
            "bootstrap.servers": work.bootstrap_servers,
            "transactional.id": f"{work.group}-0",
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
        }
    )
    producer.init_transactions()
    consumer.subscribe([work.source], on_revoke=lambda *_: None)
    begun = reported = False
    offsets: dict[int, int] = {}
    deadline = 0.0
    while running:
        if not begun:
            producer.begin_transaction()
            offsets, begun, deadline = {}, True, time.monotonic() + work.open_s
        for message in consumer.consume(2000, max(0.001, min(0.02, deadline - time.monotonic()))):
            if message.error():
                raise SystemExit(str(message.error()))
            if not reported:
                reported = True
                report_first()
            out = handle(message.value())
            if out is None:
                producer.produce(work.dead_letters, message.value(), message.key())
            else:
                producer.produce(work.sink, out[1], out[0])
            offsets[message.partition()] = message.offset() + 1
        producer.poll(0)
        if not offsets:
            deadline = time.monotonic() + work.open_s
        elif time.monotonic() >= deadline:
            consumed = [kafka.TopicPartition(work.source, partition, offset) for partition, offset in offsets.items()]
            producer.send_offsets_to_transaction(consumed, consumer.consumer_group_metadata())
            producer.commit_transaction()
            begun = False
    consumer.close()


if __name__ == "__main__":
    main(job())
