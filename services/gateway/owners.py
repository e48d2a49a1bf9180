"""The owners of accounts, followed in ledger.accounts.

Invariant: after `start` the gateway knows every account that was opened before it. While brokers are away it answers by
what it knew last. An account that is not in the topic belongs to OWNER_UNNAMED.

An opening that this gateway has submitted is remembered for `PENDING_S`, so that its client learns to wait. It gives no
right to debit: the ledger may decline it, and a payment that was written uses up its payment_id for the real owner.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Final

from shared.events.catalogue import LEDGER_ACCOUNTS
from shared.events.clients import OWNER_UNNAMED
from shared.events.postings import AccountTerms, decode_terms
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.runtime.global_table import GlobalTable

RETRY_S: Final = 2.0  # from one attempt to read the topic again to the next
PENDING_S: Final = 60.0
PENDING_MAX: Final = 10_000  # openings; beyond them the oldest are forgotten

log = logging.getLogger(__name__)

_decode_shared = lru_cache(maxsize=4096)(decode_terms)
"""Most accounts have equal terms: one struct serves them all."""


class Owners:
    """Terms of accounts, and openings under way.

    Args:
        clock: a monotonic clock, seconds.
    """

    def __init__(self, bootstrap_servers: Bootstrap, clock: Callable[[], float] = time.monotonic) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._clock = clock
        self._table = self._new_table()
        self._pending: dict[tuple[str, str], float] = {}  # the end, by account and client; the oldest first

    async def start(self) -> None:
        """Read what is committed now.

        Raises KafkaUnavailableError if the cluster does not answer, or the topic does not exist.
        """
        await self._table.start()

    async def follow(self) -> None:
        """Follow the topic until cancelled. A table that ends is replaced once another one has read all of it.

        Raises ValueError if a record is not AccountTerms.
        """
        try:
            while True:
                try:
                    await self._table.failed()
                except KafkaUnavailableError as error:
                    log.warning("owners are not followed", extra={"reason": str(error)})
                await self._replace()
                log.info("owners are followed again")
        finally:
            await self._table.stop()

    async def _replace(self) -> None:
        while True:
            table = self._new_table()
            try:
                async with AsyncExitStack() as stack:
                    stack.push_async_callback(table.stop)
                    await table.start()
                    stack.pop_all()
            except KafkaUnavailableError:
                await asyncio.sleep(RETRY_S)
            else:
                former, self._table = self._table, table
                await former.stop()
                return

    def terms(self, account: str) -> AccountTerms | None:
        """The account's terms; None if it was never opened."""
        return self._table.values.get(account)

    def owner_of(self, account: str) -> str:
        """The client that owns the account by the ledger's events."""
        terms = self._table.values.get(account)
        return OWNER_UNNAMED if terms is None else terms.owner

    def is_opening(self, account: str, client: str) -> bool:
        """Whether the account was never opened, and its opening for this client is under way."""
        return account not in self._table.values and self._pending.get((account, client), 0.0) > self._clock()

    def opens(self, account: str, owner: str) -> None:
        """Note that an opening was submitted."""
        self._pending.pop((account, owner), None)
        self._pending[account, owner] = self._clock() + PENDING_S
        if len(self._pending) > PENDING_MAX:
            del self._pending[next(iter(self._pending))]

    def _new_table(self) -> GlobalTable[str, AccountTerms]:
        return GlobalTable(self._bootstrap_servers, LEDGER_ACCOUNTS, bytes.decode, _decode_shared)
