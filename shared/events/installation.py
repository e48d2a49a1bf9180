"""The installation's own records: its id, and from where on ownership is enforced. Pure.

The id is a part of every effect id, so that two installations never name an effect alike.

Invariant: the first record of each kind counts. Each maker writes its id under that id as the key. So makers that run
at once agree, and compaction, which keeps the last record of each key, keeps the first record. All makers of the record
`ownership` write under one key: who finds two that differ writes the first one again, behind them. A mirrored cluster
has the records in the same order, and so the same id and offsets.
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
"""Key of the record Ownership."""


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
