"""The outcome of a reconciliation: a record of reconciliation.runs. Pure."""

import msgspec

from shared.events.codec import decoder

SCHEMA_VERSION = 1


class RunOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run's outcome. A repeated run gives the same outcome.

    Attributes:
        schema_version: of this structure.
        cut_id: the cut's name, and the record's key.
        manifest: digest of the manifest that was read, SHA-256 in hex.
        report: digest of report.json, likewise.
        verdict: clean or breaks.
        full: whether the run began at the start of the topics.
        breaks: number of breaks of each kind.
    """

    schema_version: int
    cut_id: str
    manifest: str
    report: str
    verdict: str
    full: bool
    breaks: dict[str, int]


encode_run_outcome = msgspec.json.Encoder(order="sorted").encode
decode_run_outcome = decoder(RunOutcome)
