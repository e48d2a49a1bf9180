"""Who submitted a payment, and from where on that counts (I3).

A record names the client and key as the header of raw records does: `client:key_id`, and `:house` where the key may
debit the house. A payment whose raw record is below the offsets of the record `ownership` counts as the operator's. So
does every payment while there is no such record. Former versions name no client, which is right below these offsets
only.

Invariant: links compare digests, which are narrow in a shuffle.
"""

from dataclasses import replace
from typing import Final

from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from shared.events.catalogue import INSTALLATION
from shared.events.clients import OPERATOR, OWNER_UNNAMED, encode_submitted_by
from spark.history import whole
from spark.links import Agreement, Link
from spark.night import Few, Night, by_partition
from spark.places import offset_of, partition_of

TABLE: Final = "ownership"
CARRIED: Final = "ownership_from"
_FROM: Final = StructType([StructField("partition", IntegerType()), StructField("raw_from", LongType())])

OPERATORS: Final = encode_submitted_by(OPERATOR).decode()
OWNER: Final = OWNER_UNNAMED
DIGEST: Final = "if(submitted_by is null, null, xxhash64(submitted_by))"
"""A column of a link's side: who submitted it."""


def raw_from(night: Night) -> dict[int, int]:
    """Return by partition of payments.raw the first offset that needs a client; empty where none does."""
    before = {row["partition"]: row["raw_from"] for row in night.few(CARRIED)}
    if before or INSTALLATION not in night.manifest.topics:
        return before
    rows = night.new(TABLE)
    if night.few_carried(CARRIED) is None and night.carried(CARRIED) is None:
        rows = rows.unionByName(night.history(TABLE, whole(night, INSTALLATION)))
    elif not night.count(TABLE):
        return {}
    first = rows.where("not deleted").orderBy("partition", "offset").select("raw_from").first()
    return {} if first is None else dict(enumerate(first["raw_from"]))


def to_carry(night: Night) -> dict[str, Few]:
    """Return what later runs need: none of them reads the record again."""
    if INSTALLATION not in night.manifest.topics:
        return {}
    found = sorted(raw_from(night).items())
    return {CARRIED: Few(_FROM, [{"partition": number, "raw_from": offset} for number, offset in found])}


def counts(night: Night, partition: str, offset: str) -> str:
    """Return whether a raw record needs a client, an expression by its coordinates."""
    return f"coalesce({offset} >= {by_partition(partition, raw_from(night))}, false)"


def client(submitted_by: str) -> str:
    """Return the name of the client, an expression; null where there is none."""
    return f"substring_index({submitted_by}, ':', 1)"


def with_clients(night: Night, link: Link, *, effective: bool = False) -> Link:
    """Return a link that compares `submitted` of each child with that of its parent.

    Args:
        effective: whether the child names for whom it counts, as the ledger's records do. An operator's command is an
            `opening` there, and names no client.
    """
    needed = counts(night, partition_of("p_origin"), offset_of("p_origin"))
    of_ledger = f"if(p_kind = 'opening', null, if({needed}, p_submitted, xxhash64('{OPERATORS}')))"
    right = of_ledger if effective else "p_submitted"
    # A former version landed no client of a record that its last run carried
    unnamed = "c_submitted is null" if effective else "(c_submitted is null or p_submitted is null)"
    strict = f"(c_submitted <=> {right} or {unnamed} and not {needed})"
    rules = {True: f"(c_submitted is null or {strict})", False: strict}
    text = "'submitted by another client or key, or another scope'"
    agreements = {
        kind: Agreement(
            one.parents,
            one.fields,
            f"({one.rule}) and {rules[one.client_may_be_absent]}",
            f"concat_ws('; ', if({one.rule}, null, {one.text}), if({rules[one.client_may_be_absent]}, null, {text}))",
        )
        if one.has_client
        else one
        for kind, one in link.agreements.items()
    }
    return replace(link, agreements=agreements)
