"""A program that sends the payments of a file, one by one, with an idempotent producer and no transactional.id.

It writes down how far it came after each acknowledgement, and begins there when it is started again. What is wrong with
it: a payment that was written, and whose acknowledgement it did not see before it died, is sent again by a new process.
That process has a new producer id, so the broker takes the payment for a new one and stores it twice.

    python -m deploy.drills.clients.from_a_file BOOTSTRAP_SERVERS CLIENT_ID FILE PARTITIONS
"""

import asyncio
import sys
from pathlib import Path

from deploy.drills.clients.stock import stock_producer
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.clients import BY_OPERATOR
from shared.events.validation import key_of


class Progress:
    """How many payments were acknowledged, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int:
        """Return the number; 0 at first."""
        return int(self._path.read_text()) if self._path.exists() else 0

    def write(self, count: int) -> None:
        """Write the number down."""
        self._path.write_text(str(count))


async def main(servers: str, client_id: str, values: list[bytes], progress: Progress, partitions: int) -> None:
    """Send every payment that is not written down as acknowledged."""
    begin = progress.read()
    options = {"client_id": client_id, "enable_idempotence": True, "request_timeout_ms": 60_000}
    async with stock_producer(servers, **options) as producer:
        for number, value in enumerate(values[begin:], begin + 1):
            key, partition = key_of(value, partitions)
            await producer.send_and_wait(PAYMENTS_RAW, value, key, partition, headers=list(BY_OPERATOR))
            progress.write(number)


if __name__ == "__main__":
    brokers, client, name, count = sys.argv[1:]
    file = Path(name)
    acknowledged = Progress(file.with_suffix(".acknowledged"))
    asyncio.run(main(brokers, client, file.read_bytes().splitlines(), acknowledged, int(count)))
