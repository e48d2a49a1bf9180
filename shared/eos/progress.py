"""How far an input partition was processed, as part of the state. Pure.

The state holds next_offset, written to the changelog in the transaction that consumed up to it. A record below it was
processed already, whatever the consumer group's offset says: a group rewound to 0 changes nothing.
"""

import msgspec

from shared.events.codec import decoder

NEXT_OFFSET_KEY = b"next_offset"


class NextOffset(msgspec.Struct, frozen=True):
    """The changelog's record under NEXT_OFFSET_KEY; the changelog's partition is the input's."""

    next_offset: int


encode_next_offset = msgspec.json.Encoder().encode
decode_next_offset = decoder(NextOffset)


def start_offset(committed: int | None, next_offset: int | None, beginning: int) -> int:
    """Where processing starts.

    Args:
        committed: the consumer group's offset, None where there is none.
        next_offset: the state's, None for a new state.
        beginning: the input partition's first offset, taken only where both are None.
    """
    known = [offset for offset in (committed, next_offset) if offset is not None]
    return max(known) if known else beginning
