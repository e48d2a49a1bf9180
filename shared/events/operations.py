"""Operations: a repair, a record of operations.repairs; a reconciliation's outcome, of reconciliation.runs. Pure."""

import msgspec

from shared.events.codec import decoder

REPAIR_SCHEMA_VERSION = 1


class Repaired(msgspec.Struct, frozen=True):
    """One transaction in which `once repair` wrote missing records; it is part of that transaction."""

    schema_version: int
    repair_id: str  # of the run, and the record's key. The header `repair` of each record written begins with it
    by: str  # the operator
    at_ms: int  # when, since 1970 UTC
    service: str  # the service and input partition whose transactional.id it was written under
    partition: int
    inputs: tuple[str, ...]  # coordinates of the input records whose outputs were missing
    records: dict[str, int]  # number written, by topic; changes of the service's state are not counted
    state_records: int  # number of changes of the service's state


encode_repaired = msgspec.json.Encoder(order="sorted").encode
decode_repaired = decoder(Repaired)


RUN_SCHEMA_VERSION = 2
"""Version 1 counts the breaks that the run found, version 2 all that are open."""


class RunOutcome(msgspec.Struct, frozen=True):
    """One run's outcome. A repeated run gives the same outcome."""

    schema_version: int
    cut_id: str  # the cut's name, and the record's key
    manifest: str  # digest of the manifest that was read, SHA-256 in hex
    report: str  # digest of report.json, likewise
    verdict: str  # clean, explained or breaks
    full: bool  # whether the run began at the start of the topics
    breaks: dict[str, int]  # number of open breaks of each kind, without those that are explained
    explained: int = 0  # number of open breaks that are
    oldest_at_ms: int | None = None  # when the cut was taken that showed the oldest of `breaks`, since 1970 UTC
    at_risk_minor: dict[str, str] = {}  # by currency, decimal: the sum of all amounts that are known of `breaks`


encode_run_outcome = msgspec.json.Encoder(order="sorted").encode
decode_run_outcome = decoder(RunOutcome)
