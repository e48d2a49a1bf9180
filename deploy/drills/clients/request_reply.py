"""Ask a question over Kafka and wait for the answer: within the transaction that asks it, or after its commit.

Within is wrong. The service that answers sees the question when the transaction is committed, and the transaction is
committed when the answer is there. Both wait until the coordinator aborts the transaction.
"""

from deploy.drills.clients.stock import stock_consumer, stock_producer

COMMITTED = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}


async def answer(bootstrap_servers: str, questions: str, answers: str) -> None:
    """Answer each committed question, until cancelled."""
    consumer_of = stock_consumer(bootstrap_servers, questions, **COMMITTED)
    async with consumer_of as consumer, stock_producer(bootstrap_servers) as producer:
        async for question in consumer:
            await producer.send_and_wait(answers, question.value)


async def ask(bootstrap_servers: str, questions: str, answers: str, question: bytes, *, within: bool) -> None:
    """Ask a question, and return when it is answered.

    Args:
        within: wait for the answer within the transaction, which the coordinator aborts after 3 s.
    """
    options = {"transactional_id": question.decode(), "transaction_timeout_ms": 3_000}
    consumer_of = stock_consumer(bootstrap_servers, answers, **COMMITTED)
    async with consumer_of as consumer, stock_producer(bootstrap_servers, **options) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(questions, question)
        if not within:
            await producer.commit_transaction()
        async for answered in consumer:
            if answered.value == question:
                break
        if within:
            await producer.commit_transaction()
