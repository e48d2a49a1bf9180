"""Faust's Kafka transport with another consumer: read_committed, whole pages, from offsets of the view.

Faust reads uncommitted, begins at the group's committed offsets, and does its work (message, event, queue, ack) for
each record. Here its consumer thread passes a page of records as one message, so that this work is done once a page.
Invariant: a page that Faust drops, as it does in a rebalance, is noticed by the receiver of the next one. The offset
committed to the group is never ahead of the database.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import faust
from faust.app.base import BootStrategy
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage, Message, ServiceT

from services.balances.projection.domain import Page
from shared.events.catalogue import LEDGER_POSTINGS
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Target
from shared.kafka.runtime.committed import CommittedPage, Pages, committed_consumer

GROUP: Final = "balances"
POLL_MS: Final = 200  # a marker alone ends no poll, so passing it takes as long
BUFFER_PAGES: Final = 4  # that wait in Faust; with more, nothing is polled
COMMIT_INTERVAL_S: Final = 0.5

log = logging.getLogger(__name__)
_THEIRS: Final = logging.getLogger("faust.view")  # else what Faust says of itself would come in this module's name


class Member(NamedTuple):
    """A member of the group."""

    bootstrap_servers: Bootstrap
    instance: str  # unique in the group and stable over restarts
    session_timeout_ms: int  # without a heartbeat for this long, the group gives the partitions to others


class Owner(Protocol):
    """Decides where partitions begin, and takes their pages."""

    def assigned(self, partitions: frozenset[int]) -> None:
        """These are its partitions from now on; none is read before `PageConsumer.begin`."""

    def revoked(self) -> None:
        """It may have none in a moment."""

    def removed(self) -> None:
        """The group has removed it, and gives its partitions to others."""

    def next_offset(self, partition: int) -> int | None:
        """How far a partition is processed; None if unknown."""


class PageThread(driver.AIOKafkaConsumerThread):
    """Faust's consumer thread around a consumer that gives committed pages."""

    logger = _THEIRS
    transport: "PageTransport"
    _pages: Pages
    _removed = False

    def _create_worker_consumer(self, transport: driver.Transport) -> Any:
        del transport  # the same, as its base class
        brokers, instance, session_timeout_ms = self.transport.member
        consumer = committed_consumer(brokers, group=GROUP, instance=instance, session_timeout_ms=session_timeout_ms)
        self._pages = Pages(consumer)
        return consumer

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        self._pages.release()
        await self._stop_if_removed()
        await super().on_partitions_revoked(revoked)

    async def _stop_if_removed(self) -> None:
        """Stop a member that the group has removed: two under one id would otherwise take turns for ever."""
        if self._pages.removed:
            self._removed = True
            self.parent_loop.call_soon_threadsafe(self.transport.owner.removed)
            await asyncio.Event().wait()  # the client would go on as soon as this returned

    async def on_thread_stop(self) -> None:
        if self._removed:
            await super(driver.AIOKafkaConsumerThread, self).on_thread_stop()  # all but the client's stop
            await self._pages.abandon()
        else:
            await super().on_thread_stop()

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        await self._stop_if_removed()
        self._pages.hold(assigned)
        await super().on_partitions_assigned(assigned, generation_id)

    async def begin(self, offsets: Mapping[Target, int]) -> None:
        await self.call_thread(self._pages.begin, offsets)

    async def _fetch_records(self, *_: Any, **__: Any) -> dict[TP, list[CommittedPage]]:
        if not self.consumer.flow_active:
            return {}
        return {TP(*page.target): [page] for page in await self._pages.poll(POLL_MS)}

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        return await self._pages.tell(offsets)

    def highwater(self, tp: TP) -> int:
        """It only feeds Faust's own monitor, which is not used; the client has no answer during a rebalance."""
        del tp
        return 0

    def on_crash(self, msg: str, *fmt: Any, **kwargs: Any) -> None:
        """Log what Faust would print."""
        del kwargs
        log.error("the consumer's thread ended", extra={"reason": msg.format(*fmt)})


class _Forgetful(dict[TP, int | None]):
    """Faust's read offsets, forgotten: Faust drops what is below them, and so what is read again after a seek."""

    def __missing__(self, key: TP) -> None:
        return None

    def __setitem__(self, key: TP, value: int | None) -> None:
        pass


class PageConsumer(driver.Consumer):
    """Faust's consumer: a message for each page."""

    logger = _THEIRS
    transport: "PageTransport"
    _thread: PageThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._read_offset = _Forgetful()

    def _new_consumer_thread(self) -> PageThread:
        return PageThread(self, loop=self.loop, beacon=self.beacon)

    def _to_message(self, tp: TP, record: CommittedPage) -> ConsumerMessage:
        page = Page(tp.partition, record.start, record.next_offset, record.records)
        return ConsumerMessage(
            tp.topic,
            tp.partition,
            page.next_offset - 1,
            timestamp=0.0,
            timestamp_type=0,
            headers=None,
            key=None,
            value=page,  # type: ignore[arg-type] # bytes to Faust; `Whole` takes it as it is
            checksum=None,
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        await super().on_partitions_assigned(assigned, generation_id)
        self.transport.owner.assigned(frozenset(tp.partition for tp in assigned))

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        self.transport.owner.revoked()
        await super().on_partitions_revoked(revoked)

    async def begin(self, offsets: Mapping[int, int]) -> None:
        """Begin partitions at these offsets, also those that were read already."""
        await self._thread.begin({(LEDGER_POSTINGS, number): offset for number, offset in offsets.items()})

    async def perform_seek(self) -> None:
        """Leave it to the owner, once it knows where to: Faust would go to the group's offsets."""

    def on_buffer_full(self, tp: TP) -> None:
        """Wait for room instead: Faust would leave the partition out, and sleep a second when it has left out all."""

    def on_buffer_drop(self, tp: TP) -> None:
        """Nothing was left out."""

    def verify_event_path(self, now: float, tp: TP) -> None:
        """The view's own lag shows its progress."""

    def _new_offset(self, tp: TP) -> int | None:
        """Commit up to the database's position, whatever was acknowledged."""
        self._acked[tp].clear()
        self._acked_index[tp].clear()
        return self.transport.owner.next_offset(tp.partition)


class PageTransport(driver.Transport):
    Consumer = PageConsumer

    def __init__(self, *args: Any, member: Member, owner: Owner) -> None:
        super().__init__(*args)
        self.member = member
        self.owner = owner


class _ConsumerOnly(BootStrategy):
    """The parts of Faust that start: consumer, conductor, agents. No producer, no leader topic, no replies, no web."""

    enable_kafka_producer = False
    enable_web = False

    def kafka_consumer(self) -> Iterable[ServiceT]:
        return [self.app.consumer]


class ViewApp(faust.App):
    """The Faust application of the view."""

    BootStrategy = _ConsumerOnly
    logger = _THEIRS

    def __init__(self, member: Member, owner: Owner) -> None:
        self._member = member
        self._owner = owner
        super().__init__(
            GROUP,
            broker=[f"kafka://{server}" for server in str(member.bootstrap_servers).split(",")],
            autodiscover=False,
            web_enabled=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            stream_buffer_maxsize=BUFFER_PAGES,
            stream_recovery_delay=0.0,
            stream_wait_empty=False,
            broker_commit_interval=COMMIT_INTERVAL_S,
        )

    def _new_transport(self) -> PageTransport:
        return PageTransport(self.conf.broker_consumer, self, member=self._member, owner=self._owner)

    def _create_directories(self) -> None:
        """Faust keeps nothing on this disk."""


class Whole(faust.Schema[None, Page]):
    """A page as it is: there is nothing to deserialize."""

    def loads_key(self, app: object, message: Message, **_: object) -> None:
        del app, message

    def loads_value(self, app: object, message: Message, **_: object) -> Any:
        del app
        return message.value
