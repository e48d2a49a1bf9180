"""The default number of partitions, which most tests run with, and where accounts live then."""

from typing import Final

from shared.events import partitions
from shared.settings import InstallationSettings

PARTITIONS: Final = InstallationSettings.partitions


def partition_for(account: str) -> int:
    return partitions.partition_for(account, PARTITIONS)


def partition_for_bytes(value: bytes) -> int:
    return partitions.partition_for_bytes(value, PARTITIONS)
