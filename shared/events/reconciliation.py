"""The outcome of a reconciliation: a record of reconciliation.runs. Pure."""

import msgspec

from shared.events.codec import decoder

SCHEMA_VERSION = 1


class RunOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run's outcome. A repeated run gives the same outcome."""

    schema_version: int
    cut_id: str  # the cut's name, and the record's key
    manifest: str  # digest of the manifest that was read, SHA-256 in hex
    report: str  # digest of report.json, likewise
    verdict: str  # clean or breaks
    full: bool  # whether the run began at the start of the topics
    breaks: dict[str, int]  # number of breaks of each kind


encode_run_outcome = msgspec.json.Encoder(order="sorted").encode
decode_run_outcome = decoder(RunOutcome)
