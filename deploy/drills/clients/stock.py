"""The stock aiokafka producer and consumer, for tests of what happens between any client and the brokers.

The project's own clients differ from it in what they send again, and when.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

REQUEST_TIMEOUT_S = 2.0


@asynccontextmanager
async def stock_producer(bootstrap_servers: str, **options: Any) -> AsyncIterator[Any]:
    """Start a producer; `options` are the client's. It waits 2 s for an answer unless they say otherwise."""
    options = {"request_timeout_ms": int(REQUEST_TIMEOUT_S * 1000), **options}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def stock_consumer(bootstrap_servers: str, *topics: str, **options: Any) -> AsyncIterator[Any]:
    """Start a consumer; `options` are the client's."""
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap_servers, **options)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def stock_records(bootstrap_servers: str, topic: str, partition: int, offset: int) -> AsyncGenerator[Any, None]:
    """Yield the committed records of a partition from an offset on, without end."""
    target = TopicPartition(topic, partition)
    async with stock_consumer(bootstrap_servers, isolation_level="read_committed") as consumer:
        consumer.assign([target])
        consumer.seek(target, offset)
        async for record in consumer:
            yield record
