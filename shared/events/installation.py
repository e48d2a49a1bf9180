"""The installation's id: a part of every effect id, so that two installations never name an effect alike. Pure.

Invariant: the first record of the topic counts. Each maker writes its id under that id as the key. So makers that run
at once agree, and compaction, which keeps the last record of each key, keeps the first record. A mirrored cluster has
the records in the same order, and so the same id.
"""

from typing import Final

import msgspec

from shared.events.codec import decoder

PARTITION: Final = 0
"""Of the topic, where all records are."""


class Installation(msgspec.Struct, frozen=True):
    """One installation: a record under its id as the key."""

    id: str  # 32 hex digits, a UUID of version 4
    made_at_ms: int  # milliseconds since 1970 UTC


OWNERSHIP_KEY: Final = b"ownership"
"""Key of the record that says from where on ownership is enforced; of several such records, the first counts."""


class Ownership(msgspec.Struct, frozen=True):
    """From which offset on a record of payments.raw needs a client. Earlier ones belong to clients.OPERATOR.

    Attributes:
        raw_from: an offset for each partition of payments.raw: its end when ownership came into force, 0 in a new
            installation.
        made_at_ms: milliseconds since 1970 UTC.
    """

    raw_from: tuple[int, ...]
    made_at_ms: int


encode_ownership = msgspec.json.Encoder().encode
decode_ownership = decoder(Ownership)

encode_installation = msgspec.json.Encoder().encode
decode_installation = decoder(Installation)
