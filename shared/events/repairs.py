"""A repair: a record of operations.repairs. Pure."""

import msgspec

from shared.events.codec import decoder

SCHEMA_VERSION = 1


class Repaired(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One transaction in which `once repair` wrote missing records; it is part of that transaction.

    Attributes:
        schema_version: of this structure.
        repair_id: of the run, and the record's key. The header `repair` of each record written begins with it.
        by: the operator.
        at_ms: when, milliseconds since 1970 UTC.
        service, partition: the service and input partition whose transactional.id it was written under.
        inputs: coordinates of the input records whose outputs were missing.
        records: number of records written, by topic; changes of the service's state are not counted.
        state_records: number of changes of the service's state.
    """

    schema_version: int
    repair_id: str
    by: str
    at_ms: int
    service: str
    partition: int
    inputs: tuple[str, ...]
    records: dict[str, int]
    state_records: int


encode_repaired = msgspec.json.Encoder(order="sorted").encode
decode_repaired = decoder(Repaired)
