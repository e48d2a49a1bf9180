"""Kafka records to typed rows: each record is parsed once, then assigned to a table of its topic.

A record is decodable when its bytes are UTF-8 and one JSON object whose fields can be read with the types of their
columns, the required ones included. The service that reads it checks the finer rules.

Invariant: every record of a topic goes to exactly one table; only other keys of the two changelogs go to none. A record
that is not an event of its topic goes to `undecodable` with its bytes. Raw records and dead letters never do: they may
be any bytes. Defaults are the event structs' own. No record fails the read: text that is not UTF-8 is made valid, and a
header that is not `topic:partition:offset` gives nulls.
"""

from collections.abc import Mapping
from functools import reduce
from operator import and_, or_
from typing import Final, get_args

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, VariantType

from shared.events import catalogue, clients, effects, headers, installation, payments, postings, reference, transfers
from spark.manifest import OFFSETS_MAX, PARTITIONS_MAX
from spark.schemas import DAY, ENTRY, TABLES, UNDECODABLE, WHERE, Table, tables_of

NOTES = (headers.REASON, headers.DETAIL, headers.SERVICE)
"""Headers of dead letters, for people."""
_HEADERS = (*NOTES, headers.REPAIR)
"""Headers that are columns of their names."""

_LINKS = (headers.ORIGIN, headers.SOURCE)


def located(records: DataFrame) -> DataFrame:
    """Return WHERE of `spark.schemas`, `value`, and columns `header_<name>` of other headers.

    The records have the columns of `spark.session.COLUMNS`.
    """
    # In steps: Spark evaluates what one step names once, however often the next one uses it
    split = records.withColumns(
        {
            "key": F.make_valid_utf8(F.col("key").cast("string")),
            **{f"{name}_parts": F.split(_header(name), ":") for name in _LINKS},
        }
    )
    numbered = split.withColumns(
        {
            f"{name}_{unit}": F.get(f"{name}_parts", F.lit(place)).try_cast(kind)
            for name in _LINKS
            for unit, place, kind in (("partition", 1, "int"), ("offset", 2, "long"))
        }
    )
    return numbered.select(
        *("topic", "partition", "offset", "timestamp", "key"),
        *(column for name in _LINKS for column in _coordinates(name)),
        "value",
        *(_header(name).alias(f"header_{name}") for name in (*_HEADERS, headers.SUBMITTED_BY)),
    )


def _header(name: str) -> Column:
    """Return the value of the first header of that name, or null."""
    place = F.array_position("headers.key", name) - 1
    return F.make_valid_utf8(F.get("headers.value", place.cast("int")).cast("string"))


def _coordinates(name: str) -> tuple[Column, ...]:
    """Return topic, partition and offset of a link; all three null where it is malformed, or no record can be there."""
    parts, partition, offset = (F.col(f"{name}_{unit}") for unit in ("parts", "partition", "offset"))
    # Beyond these bounds, a place would be another record's
    possible = partition.between(0, PARTITIONS_MAX - 1) & offset.between(0, OFFSETS_MAX - 1)
    whole = (F.size(parts) == 3) & possible
    return tuple(
        F.when(whole, value).alias(f"{name}_{unit}")
        for unit, value in (("topic", F.get(parts, F.lit(0))), ("partition", partition), ("offset", offset))
    )


STRUCTS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "payments": payments.AcceptedPayment,
    "reversals": payments.AcceptedReversal,
    "openings": payments.AcceptedOpening,
    "repeats": payments.Repeat,
    "transfers": transfers.Transfer,
    "transfer_reversals": transfers.TransferReversal,
    "credit_legs": transfers.CreditLeg,
    "account_openings": transfers.AccountOpened,
    "account_closings": transfers.AccountClosed,
    "postings": postings.Posting,
    "declines": postings.Decline,
    "accounts_opened": transfers.AccountOpened,
    "accounts_closed": transfers.AccountClosed,
    "account_states": postings.Account,
    "account_terms": postings.AccountTerms,
    "ownership": installation.Ownership,
    "effect_requests": effects.EffectRequest,
    "effect_resolutions": effects.Resolution,
    "effect_results": effects.EffectResult,
    "effects_waiting": effects.Waiting,
    "reference_fees": reference.Fee,
    "reference_rates": reference.Rate,
    "reference_subscriptions": effects.Subscriptions,
}
"""The event of each table that holds one type of event; the source of its defaults."""

TABLE: Final = "table"
"""Column of parsed rows: the table that the row belongs to."""

UNKNOWN: Final = "unknown"
"""Column of parsed rows: whether the record has a field that no event of its topic has."""

_RAW = "payments_raw"
_OPENING = "account_opening"
_TYPES = [struct.__struct_config__.tag for struct in get_args(payments.Instruction)]
_KEYED = {
    "account_states": ("account", postings.ACCOUNT_PREFIX.decode()),
    "account_terms": ("account", ""),
    "ownership": ("", installation.OWNERSHIP_KEY.decode()),
    "effects_waiting": ("effect_id", effects.WAITING_PREFIX.decode()),
    "reference_fees": ("currency", ""),
    "reference_rates": ("pair", ""),
    "reference_subscriptions": ("account", ""),
}
"""Tables of compacted topics: the column that the key names, if any, and the prefix of the keys that are landed."""
NOT_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    _RAW: ("value", "submitted_by"),
    "dead_letters": ("value", "submitted_by", *_HEADERS),
    "effect_dead_letters": ("value", *NOTES),
    "repeats": ("first_partition", "first_offset", headers.REPAIR),
    **{table.name: (headers.REPAIR,) for table in tables_of(catalogue.LEDGER_POSTINGS)},
    "account_states": ("account", "deleted"),
    "account_terms": ("account", "deleted"),
    "ownership": ("deleted",),
    "effects_waiting": ("effect_id", "deleted"),
    "reference_fees": ("currency", "deleted"),
    "reference_rates": ("pair", "deleted"),
    "reference_subscriptions": ("account", "deleted"),
}
"""Columns by table that come from somewhere else than the event's field of that name."""
_OF_VERSION_1 = ("account_from", "account_to", "occurred_at", "memo")
_READ_AS: Final[Mapping[str, DataType]] = {
    # An entry is [account, currency, amount_minor]: an array of several types can be read as text only
    "entries": ArrayType(ArrayType(StringType())),
    "submitted_by": ArrayType(StringType()),  # [client, key_id, house], likewise
    # Absent is the default and null is unlimited: only a variant distinguishes them
    "overdraft_minor": VariantType(),
}
_CORRUPT = "corrupt"
_JSON = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def parse(topic: str, records: DataFrame) -> DataFrame:
    """Parse every record of a topic once, and name the table that it belongs to.

    The records have the columns of `spark.session.COLUMNS`.

    Returns:
        WHERE, DAY, TABLE, UNKNOWN, `value`, and the columns of all the topic's tables; rows of no table are left out.
        Put a barrier, a cache or an observation, between this and a filter on TABLE: without one, Spark pushes the
        filter down to the records and parses them once more for it.
    """
    tables = tables_of(topic)
    rows = _with_event(located(records), _json_fields(tables))
    columns = {field.name: table for table in tables for field in table.columns}
    # Under another name, for an event may have a column of any
    typed = rows.select("*", *(_column(name, table).alias(f"_{name}") for name, table in columns.items()))
    dealt = typed.withColumn(TABLE, _table_of_row(tables)).where(F.col(TABLE).isNotNull())
    value = F.col("value") if "value" in columns else F.when(F.col(TABLE) == UNDECODABLE, F.col("value"))
    return dealt.select(
        *(field.name for field in WHERE),
        F.to_date("timestamp").alias(DAY.name),
        TABLE,
        _has_unknown(tables).alias(UNKNOWN),
        value.alias("value"),
        *(F.col(f"_{name}").alias(name) for name in columns if name != "value"),
    )


def typed_rows(topic: str, parsed: DataFrame) -> DataFrame:
    """Return all rows of `parse`, each with its own table's columns and defaults; columns of other tables are null.

    Returns:
        WHERE, the columns of all the topic's tables, `value` for `undecodable`, TABLE and DAY.
    """
    tables = (*tables_of(topic), TABLES[UNDECODABLE])
    columns = dict.fromkeys(field.name for table in tables for field in table.columns)
    return parsed.select(
        *(field.name for field in WHERE),
        *(_of_its_table(name, tables).alias(name) for name in columns),
        TABLE,
        DAY.name,
    )


def _of_its_table(name: str, tables: tuple[Table, ...]) -> Column:
    """Return a column with the default of the row's table; null in a row whose table does not have it."""
    # Types by their texts here and below: for a type, pyspark asks the JVM four times, each night for each column
    values = [
        (F.col(TABLE) == table.name, _with_default(table, field).cast(field.dataType.simpleString()))
        for table in tables
        for field in table.columns
        if field.name == name
    ]
    return F.coalesce(*(F.when(of_table, value) for of_table, value in values))


def default_of(table: str, name: str) -> object:
    """Return the default of an event's field; None where there is none."""
    struct = STRUCTS.get(table)
    for field in msgspec.structs.fields(struct) if struct is not None else ():
        if field.name == name:
            if field.default_factory is not msgspec.NODEFAULT:
                return field.default_factory()
            return None if field.default is msgspec.NODEFAULT else field.default
    return None


def _json_fields(tables: tuple[Table, ...]) -> list[StructField]:
    """Return the fields to read of the topic's records; none where only bytes and headers are wanted."""
    found: dict[str, DataType] = {}
    for table in tables:
        elsewhere = NOT_FIELDS.get(table.name, ())
        wanted = {field.name: field.dataType for field in table.columns if field.name not in elsewhere}
        if table.tag:
            wanted["type"] = StringType()
        if table.name == _RAW:
            wanted |= dict.fromkeys(_OF_VERSION_1, StringType())
        found |= wanted
    return [StructField(name, _READ_AS.get(name, kind)) for name, kind in found.items()]


def _with_event(rows: DataFrame, fields: list[StructField]) -> DataFrame:
    """Add the fields as the struct `event`, and `sound`: whether the value could be read without a fault."""
    if not fields:
        return rows
    text = F.col("value").cast("string")
    # In an enclosing object, so that bytes after the record's own object are a fault and not left unread
    framed = F.concat(F.lit('{"event":'), F.when(F.is_valid_utf8(text), text), F.lit("}"))
    schema = StructType([StructField("event", StructType(fields)), StructField(_CORRUPT, StringType())])
    sound = F.col("json.event").isNotNull() & F.col(f"json.{_CORRUPT}").isNull()
    return (
        rows.withColumn("json", F.from_json(framed, schema, _JSON))
        .withColumns({"event": F.col("json.event"), "sound": sound})
        .drop("json")
    )


def _has_unknown(tables: tuple[Table, ...]) -> Column:
    """Return whether a record has a field that no event of its topic has; false where its bytes are landed."""
    structs = [STRUCTS[table.name] for table in tables if table.name in STRUCTS]
    if not structs:
        return F.lit(False)
    names = {field.encode_name for struct in structs for field in msgspec.structs.fields(struct)}
    known = F.array(*map(F.lit, sorted(names | {"type"})))
    return F.coalesce(
        F.size(F.array_except(F.json_object_keys(F.col("value").cast("string")), known)) > 0, F.lit(False)
    )


def _column(name: str, table: Table) -> Column:
    """Return a table's column, without its default."""
    found = F.col(f"event.{name}")
    if name == "value":
        found = F.col("value")
    elif table.name == _RAW:
        found = _of_raw(name)
    elif name == "entries":
        found = _entries()
    elif name == "overdraft_minor":
        found = _overdraft(default_of(table.name, name))
    elif name == "submitted_by":
        found = _submitted_by_header() if name in NOT_FIELDS.get(table.name, ()) else _submitted_by()
    elif name in NOT_FIELDS.get(table.name, ()):
        found = _from_elsewhere(name, table)
    return found


def _from_elsewhere(name: str, table: Table) -> Column:
    if name in _HEADERS:
        return F.col(f"header_{name}")
    if name == "deleted":
        return F.col("value").isNull()
    if table.name in _KEYED:
        return F.substring("key", len(_KEYED[table.name][1]) + 1, 2**31 - 1)
    place, kind = (1, "int") if name == "first_partition" else (2, "long")
    return F.get(F.split("event.first", ":"), F.lit(place)).try_cast(kind)


def _of_raw(name: str) -> Column:
    """Return a field of a raw record in the current version (`shared.events.payments`); null where it is unknown."""
    if name == "submitted_by":
        return _submitted_by_header()
    of_version_1 = {
        "schema_version": F.lit(payments.SCHEMA_VERSION),
        "type": F.lit("payment"),
        "payment_id": F.col("event.payment_id"),
        "debtor": F.col("event.account_from"),
        "creditor": F.col("event.account_to"),
        "amount_minor": F.col("event.amount_minor"),
        "currency": F.col("event.currency"),
        "value_date": F.substring("event.occurred_at", 1, 10),
        "reference": F.coalesce("event.memo", F.lit("")),
    }
    defaults = {"type": "payment", "reference": ""}
    if name == "overdraft_minor":
        current = F.when(F.col("event.type") == _OPENING, _overdraft(default_of("openings", name)))
    else:
        current = F.coalesce(f"event.{name}", F.lit(defaults.get(name)))
    if name == "type":
        current = F.when(current.isin(*_TYPES), current)  # a record of another type is refused
    version = F.col("event.schema_version")
    return F.when(F.col("sound") & (version == 1), of_version_1.get(name, F.lit(None))).when(
        F.col("sound") & (version == payments.SCHEMA_VERSION), current
    )


def _entries() -> Column:
    """Return the entries of a posting; null where one of them is malformed."""
    return F.when(
        ~F.exists("event.entries", lambda entry: reduce(or_, (part.isNull() for part in _parts(entry)))),
        F.transform(
            "event.entries",
            lambda entry: F.struct(
                *(part.alias(name) for part, name in zip(_parts(entry), ENTRY.names, strict=True)),
            ),
        ),
    )


def _parts(entry: Column) -> tuple[Column, ...]:
    """Return account, currency and amount of an entry, null where they are absent."""
    return F.get(entry, F.lit(0)), F.get(entry, F.lit(1)), F.get(entry, F.lit(2)).try_cast("long")


def _overdraft(default: object) -> Column:
    """Return the overdraft: null is unlimited, and absent is the event's default."""
    given = F.col("event.overdraft_minor")
    return F.when(given.isNull(), F.lit(default)).otherwise(F.try_variant_get(given, "$", "long"))


_SUBMITTED_BY = rf"^{clients.CLIENT_PATTERN.pattern}:({clients.KEY_ID_PATTERN.pattern})?(:house)?\z"


def _submitted_by_header() -> Column:
    """Return the header of a raw record or dead letter; null where it is malformed."""
    said = F.col(f"header_{headers.SUBMITTED_BY}")
    return F.when(said.rlike(_SUBMITTED_BY), said)


def _submitted_by() -> Column:
    """Return who submitted a payment, as the header of raw records says it: `client:key_id[:house]`."""
    client, key_id, house = (F.get("event.submitted_by", F.lit(place)) for place in range(3))
    scope = F.when(house == "true", F.lit(":house")).otherwise(F.lit(""))
    return F.concat(client, F.lit(":"), F.coalesce(key_id, F.lit("")), scope)


def _table_of_row(tables: tuple[Table, ...]) -> Column:
    """Return the table of each row; null for a row that is not landed."""
    first = tables[0]
    if not any(table.required for table in tables):
        return F.lit(first.name)
    sound = F.col("sound")
    if any(field.name == "overdraft_minor" for table in tables for field in table.columns):
        given = F.col("event.overdraft_minor")
        sound &= given.isNull() | F.is_variant_null(given) | F.col("_overdraft_minor").isNotNull()
    found = F.lit(UNDECODABLE)
    for table in tables:
        whole = reduce(and_, (F.col(f"_{name}").isNotNull() for name in table.required), sound)
        found = F.when(whole & (F.col("event.type") == table.tag) if table.tag else whole, table.name).otherwise(found)
    if first.name not in _KEYED:
        return found
    _, prefix = _KEYED[first.name]
    return F.when(F.col("key").startswith(prefix), F.when(F.col("value").isNull(), first.name).otherwise(found))


def _with_default(table: Table, field: StructField) -> Column:
    """Return a column of parsed rows with its default; a deleted key has none."""
    filled, default = F.col(field.name), default_of(table.name, field.name)
    if default is not None and field.name != "overdraft_minor":  # that one has it already
        value = F.create_map() if isinstance(field.dataType, MapType) else F.lit(default)
        filled = F.coalesce(filled, value.cast(field.dataType.simpleString()))
    if table.name not in _KEYED or field.name in NOT_FIELDS[table.name]:
        return filled
    return F.when(~F.col("deleted"), filled)
