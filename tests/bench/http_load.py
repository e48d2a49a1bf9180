"""A load generator for the gateway, for a process of its own: KEY PORT CONNECTIONS BATCH.

It prints a line when every connection has had an answer. A line on stdin begins the count, the next one ends it and
gets the figures as JSON. BATCH is payments in a request; 0 sends them singly. Any other answer than 202 or 207 with all
payments accepted ends it with an error.
"""

import asyncio
import itertools
import json
import sys
import time
from dataclasses import dataclass, field

import msgspec
import uvloop

ACCOUNTS = 5_000


def payment(prefix: str, number: int) -> bytes:
    """A payment of 200 bytes between accounts that were never opened: the operator's."""
    return (
        b'{"schema_version":2,"payment_id":"%b-%010d","debtor":"a-%d","creditor":"b-%d","amount_minor":1250,'
        b'"currency":"EUR","value_date":"2026-11-26","reference":"rent of november, flat 17, second floor rear"}'
        % (prefix.encode(), number, number % ACCOUNTS, number * 7 % ACCOUNTS)
    )


@dataclass
class Load:
    """Requests under way, and what was counted of them."""

    key: str
    port: int
    batch: int
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    prefix: str = field(default_factory=lambda: f"{time.time_ns():x}")
    payments: int = 0
    taken_s: list[float] = field(default_factory=list)
    answered: int = 0
    stopping: bool = False

    def request(self) -> bytes:
        if self.batch:
            path = b"/v1/payments/batch"
            body = b'{"payments":[%b]}' % b",".join(payment(self.prefix, next(self.numbers)) for _ in range(self.batch))
        else:
            path, body = b"/v1/payments", payment(self.prefix, next(self.numbers))
        return (
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %b\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path, self.port, self.key.encode(), len(body), body)
        )

    async def connection(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1024 * 1024)
        while not self.stopping:
            request = self.request()
            begun = time.monotonic()
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            accepted = 1 if b" 202 " in head else msgspec.json.decode(body).get("accepted", 0)
            if accepted != (self.batch or 1):
                raise RuntimeError(f"{head!r} {body[:500]!r}")
            self.payments += accepted
            self.answered += 1
            self.taken_s.append(time.monotonic() - begun)
        writer.close()


async def main(key: str, port: int, connections: int, batch: int) -> None:
    """Send until stdin ends."""
    load = Load(key, port, batch)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(load.connection())
        while load.answered < connections:
            await asyncio.sleep(0.05)
        print("answered", flush=True)
        await lines.readline()
        load.payments, begun = 0, time.monotonic()
        load.taken_s.clear()
        print("counting", flush=True)
        await lines.readline()
        taken = sorted(load.taken_s)
        figures = {
            "payments": load.payments,
            "seconds": time.monotonic() - begun,
            "p50_ms": round(taken[len(taken) // 2] * 1000, 1),
            "p99_ms": round(taken[int(len(taken) * 0.99)] * 1000, 1),
        }
        print(json.dumps(figures), flush=True)
        load.stopping = True


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], *map(int, sys.argv[2:])))
