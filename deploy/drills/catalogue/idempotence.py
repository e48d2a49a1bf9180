"""A: the idempotent producer."""

import asyncio
from collections import Counter

from deploy.drills.clients.raw import log_of, values_of
from deploy.drills.clients.stock import stock_producer
from deploy.drills.drill import Anomaly, drill
from deploy.drills.faults.requests import OnRequests
from deploy.drills.proxy.rules import Drop, Part, Rule
from deploy.drills.stage import Stage

KIP_98 = "KIP-98"


@drill(
    "A2",
    "lost-acknowledgement",
    "A batch whose acknowledgement is lost is sent again and stored once",
    tags=["requests", "idempotence"],
    quick=True,
    reading=[KIP_98],
)
async def lost_acknowledgement(stage: Stage) -> None:
    """Lose the broker's answer to a Produce request. The client sends the same batch again, with the same sequence,
    and the broker answers with the offset at which it is stored already.
    """
    topic, proxy = await stage.topic(), await stage.proxy()
    async with stock_producer(proxy.bootstrap_servers, enable_idempotence=True, client_id=stage.name) as producer:
        first = await producer.send_and_wait(topic, b"before")
        rule = Rule(api="Produce", client_id=stage.name, action=Drop(Part.ANSWER))
        async with stage.fault(OnRequests(proxy, rule, "answer to Produce lost")) as lost:
            sending = asyncio.ensure_future(producer.send_and_wait(topic, b"payment"))
            stage.evidence(lost.name, await lost.acted())
            metadata = await sending
    stage.expect("offset in the second answer", metadata.offset, first.offset + 1)
    copies = Counter(await values_of(stage.bootstrap_servers, topic))
    stage.journal.records = sum(copies.values())
    stage.expect("copies of the record", copies[b"payment"], 1)
    stage.anomaly(Anomaly.DUPLICATE, [f"{value!r}: {count} copies" for value, count in copies.items() if count > 1])
    sequences = [batch.base_sequence for batch in await log_of(stage.bootstrap_servers, topic)]
    stage.expect("sequences in the log", sequences, [0, 1])
