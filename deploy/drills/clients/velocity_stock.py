"""examples/velocity.py with the stock client: an alert for each payment that follows three others within a minute.

    python -m deploy.drills.clients.velocity_stock BROKERS INPUT ALERTS RECENT GROUP

The state is a dictionary; its changes go to RECENT in the transaction, and are read from there at the start. It holds
while one process works: another one must not share the partitions, a late EndTxn may end the next transaction, and an
outcome that stays unknown ends the process (docs/adr/0004-unknown-outcomes.md).
"""

import asyncio
import sys
from typing import Any

import msgspec

from deploy.drills.clients.stock import stock_consumer, stock_producer

PAYMENTS_MAX, WINDOW_MS = 3, 60_000
_COMMITTED = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "earliest"}


async def restored(brokers: str, recent: str) -> dict[bytes, list[int]]:
    """Read the state up to the end of its topic."""
    state: dict[bytes, list[int]] = {}
    async with stock_consumer(brokers, recent, **_COMMITTED) as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        while any([await consumer.position(one) < end for one, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                state.update({record.key: msgspec.json.decode(record.value) for record in records})
    return state


def alert_of(record: Any, state: dict[bytes, list[int]]) -> bytes | None:
    """Note a payment in the state, and return the alert that it causes, if any."""
    payment = msgspec.json.decode(record.value)
    if payment["type"] != "payment" or "@" in payment["debtor"]:
        return None
    at_ms = payment.get("received_at_ms", record.timestamp)
    recent = state.get(record.key, [])
    state[record.key] = [*recent, at_ms][-PAYMENTS_MAX:]
    if len(recent) < PAYMENTS_MAX or at_ms - recent[0] >= WINDOW_MS:
        return None
    return msgspec.json.encode({"payment_id": payment["payment_id"], "since_ms": recent[0], "at_ms": at_ms})


async def main(brokers: str, source: str, alerts: str, recent: str, group: str) -> None:
    """Work until the process is killed."""
    producer_of = stock_producer(brokers, transactional_id=f"{group}-0")
    async with producer_of as producer:  # it has aborted what the process before has left open
        state = await restored(brokers, recent)
        # A static member has its partitions back at once after a restart
        async with stock_consumer(brokers, source, group_id=group, group_instance_id=group, **_COMMITTED) as consumer:
            while True:
                batches = await consumer.getmany(timeout_ms=100)
                if not batches:
                    continue
                async with producer.transaction():
                    written = []
                    for target, records in batches.items():
                        for record in records:
                            alert = alert_of(record, state)
                            if alert is not None:
                                written.append(await producer.send(alerts, alert, record.key, target.partition))
                        for key in {record.key for record in records} & state.keys():
                            value = msgspec.json.encode(state[key])
                            written.append(await producer.send(recent, value, key, target.partition))
                    await asyncio.gather(*written)  # the client commits although a record failed
                    ends = {target: records[-1].offset + 1 for target, records in batches.items()}
                    await producer.send_offsets_to_transaction(ends, group)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
