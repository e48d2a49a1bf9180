"""The data that a repair decides by: what is in force now, the former subscriptions, and the installation's records."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from services.transform.domain import ReferenceData
from shared.eos.records import Record
from shared.events.catalogue import REFERENCE_FEES, REFERENCE_RATES, REFERENCE_SUBSCRIPTIONS
from shared.events.effects import Subscriptions, decode_subscriptions
from shared.events.reference import decode_fee, decode_rate
from shared.kafka.admin.installation import installation_id, ownership
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.reader import read_topics

V = TypeVar("V")


class History(Generic[V]):
    """A compacted topic.

    Attributes:
        values: in force now, by key.
        places: their coordinates by key, `partition:offset`.
        versions: all that are still in the log, by their coordinates.
    """

    def __init__(self, decode: Callable[[bytes], V]) -> None:
        self._decode = decode
        self.values: dict[str, V] = {}
        self.places: dict[str, str] = {}
        self.versions: dict[str, V] = {}

    def take(self, _topic: str, partition: int, records: list[Record]) -> None:
        """Take records of one partition, in their order."""
        for record in records:
            key, place = (record.key or b"").decode(), f"{partition}:{record.offset}"
            if record.value is None:
                self.values.pop(key, None)
                self.places.pop(key, None)
            else:
                self.versions[place] = self.values[key] = self._decode(record.value)
                self.places[key] = place


class Reference(NamedTuple):
    data: ReferenceData
    subscriptions: History[Subscriptions]
    installation: str
    raw_from: tuple[int, ...]  # from which offset of payments.raw on ownership is enforced, by partition


async def read_reference(bootstrap_servers: Bootstrap) -> Reference:
    """Read all of it.

    Raises KafkaUnavailableError, and TopicMismatchError if the installation has no id, or ownership is not enforced.
    """
    fees, rates, subscriptions = History(decode_fee), History(decode_rate), History(decode_subscriptions)
    await read_topics(bootstrap_servers, [REFERENCE_FEES], fees.take)
    await read_topics(bootstrap_servers, [REFERENCE_RATES], rates.take)
    await read_topics(bootstrap_servers, [REFERENCE_SUBSCRIPTIONS], subscriptions.take)
    data = ReferenceData(fees.values, rates.values, fees.places, rates.places)
    raw_from = (await ownership(bootstrap_servers)).raw_from
    return Reference(data, subscriptions, await installation_id(bootstrap_servers), raw_from)
