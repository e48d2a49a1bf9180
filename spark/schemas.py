"""The landed tables: names, topics, and the schema of each. The contract of the pipeline.

Invariant: every table begins with the same columns, the record's own place and its origin and source. Then come the
fields of its event, one column each, with defaults; last `day`, the UTC date of arrival, which partitions the files.
Money is BIGINT in events, whose amounts are bound to 53 bits, and DECIMAL(38,0) in balances and sums. An optional field
that is absent is null.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shared.events import catalogue

MONEY: Final = DecimalType(38, 0)  # of balances and sums: exact, and with ANSI mode an overflow raises

WHERE: Final = (
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("key", StringType()),
    StructField("origin_topic", StringType()),
    StructField("origin_partition", IntegerType()),
    StructField("origin_offset", LongType()),
    StructField("source_topic", StringType()),
    StructField("source_partition", IntegerType()),
    StructField("source_offset", LongType()),
)
"""A record's place, arrival, origin and source; null where a header is absent or malformed."""
DAY: Final = StructField("day", DateType())


@dataclass(frozen=True)
class Table:
    """One landed table."""

    name: str  # of the table and its folder
    topic: str  # of its records
    tag: str  # value of the event's `type` field; empty where the topic has one type of record only
    columns: tuple[StructField, ...]  # the event's own, between WHERE and DAY
    required: tuple[str, ...]  # columns of these without which a record is undecodable
    purpose: str  # one sentence, for the documentation

    @property
    def schema(self) -> StructType:
        return StructType([*WHERE, *self.columns, DAY])


def _fields(text: str, **other: DataType) -> tuple[StructField, ...]:
    """Return columns by name: strings, unless another type is given."""
    return tuple(StructField(name, other.get(name, StringType())) for name in text.split())


_LONG, _BOOL, _BYTES = LongType(), BooleanType(), BinaryType()
ENTRY: Final = StructType(
    [
        StructField("account", StringType()),
        StructField("currency", StringType()),
        StructField("amount_minor", LongType()),
    ]
)
SUBSCRIPTION: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("destination", StringType()),
        StructField("ordered", BooleanType()),
    ]
)
_PLACES = ArrayType(StringType())  # of reference records, `partition:offset` or null
_OPENED = "account overdraft_minor owner version command_id expected_version value_date submitted_by"
_OPENING = "payment_id debtor overdraft_minor expected_version owner schema_version"
_INSTRUCTION = "payment_id debtor creditor amount_minor currency schema_version credit_currency value_date reference"
_REVERSAL = "payment_id debtor reverses schema_version value_date reference"
_REQUEST = (
    "effect_id kind event destination account payment_id debtor value_date creditor amount_minor currency fee_minor "
    "reason reversal reference ordered"
)

TABLES: Final = {
    table.name: table
    for table in (
        Table(
            "payments_raw",
            catalogue.PAYMENTS_RAW,
            "",
            (
                *_fields("value type", value=_BYTES),
                *_fields(f"{_INSTRUCTION} reverses", amount_minor=_LONG, schema_version=_LONG),
                *_fields(
                    "overdraft_minor expected_version owner submitted_by", overdraft_minor=_LONG, expected_version=_LONG
                ),
            ),
            (),
            "Payments as received: the bytes, and their fields in the current version where they can be read.",
        ),
        Table(
            "payments",
            catalogue.PAYMENTS_ACCEPTED,
            "payment",
            _fields(
                f"{_INSTRUCTION} received_at_ms submitted_by",
                amount_minor=_LONG,
                schema_version=_LONG,
                received_at_ms=_LONG,
            ),
            ("payment_id", "debtor", "creditor", "amount_minor", "currency"),
            "Accepted payments.",
        ),
        Table(
            "reversals",
            catalogue.PAYMENTS_ACCEPTED,
            "reversal",
            _fields(f"{_REVERSAL} received_at_ms submitted_by", schema_version=_LONG, received_at_ms=_LONG),
            ("payment_id", "debtor", "reverses"),
            "Accepted reversals.",
        ),
        Table(
            "openings",
            catalogue.PAYMENTS_ACCEPTED,
            "account_opening",
            _fields(
                f"{_OPENING} received_at_ms submitted_by",
                **dict.fromkeys(("overdraft_minor", "expected_version", "schema_version", "received_at_ms"), _LONG),
            ),
            ("payment_id", "debtor"),
            "Accepted instructions to open an account.",
        ),
        Table(
            "repeats",
            catalogue.PAYMENTS_DEDUPLICATED,
            "",
            _fields(
                "payment_id debtor first first_partition first_offset repair",
                first_partition=IntegerType(),
                first_offset=_LONG,
            ),
            ("payment_id", "debtor", "first", "first_partition", "first_offset"),
            "Repeats of accepted payments, where the first one is in payments.raw, and which repair wrote them.",
        ),
        Table(
            "dead_letters",
            catalogue.PAYMENTS_DEAD_LETTER,
            "",
            _fields("value reason detail service submitted_by repair", value=_BYTES),
            (),
            "Refused records: their bytes, the reason, for whom they count when they are sent again, and which repair "
            "wrote them.",
        ),
        Table(
            "transfers",
            catalogue.LEDGER_TRANSFERS,
            "transfer",
            _fields(
                "payment_id debtor creditor amount_minor currency credit_minor credit_currency value_date fee_minor "
                "rate reference decline priced_by submitted_by",
                amount_minor=_LONG,
                credit_minor=_LONG,
                fee_minor=_LONG,
                priced_by=_PLACES,
            ),
            (
                "payment_id",
                "debtor",
                "creditor",
                "amount_minor",
                "currency",
                "credit_minor",
                "credit_currency",
                "value_date",
            ),
            "Priced payments, as ordered from the ledger.",
        ),
        Table(
            "transfer_reversals",
            catalogue.LEDGER_TRANSFERS,
            "reversal",
            _fields("payment_id debtor reverses value_date reference submitted_by"),
            ("payment_id", "debtor", "reverses", "value_date"),
            "Reversals, as ordered from the ledger.",
        ),
        Table(
            "credit_legs",
            catalogue.LEDGER_TRANSFERS,
            "credit_leg",
            _fields(
                "payment_id debtor creditor amount_minor currency value_date reversal",
                amount_minor=_LONG,
                reversal=_BOOL,
            ),
            ("payment_id", "debtor", "creditor", "amount_minor", "currency", "value_date"),
            "Credit legs, on the creditor's partition.",
        ),
        Table(
            "account_openings",
            catalogue.LEDGER_TRANSFERS,
            "account_opened",
            _fields(_OPENED, **dict.fromkeys(("overdraft_minor", "version", "expected_version"), _LONG)),
            ("account",),
            "Accounts to be opened, or given other terms.",
        ),
        Table(
            "account_closings",
            catalogue.LEDGER_TRANSFERS,
            "account_closed",
            _fields("account version", version=_LONG),
            ("account",),
            "Accounts to be closed.",
        ),
        Table(
            "postings",
            catalogue.LEDGER_POSTINGS,
            "posting",
            _fields(
                "payment_id leg debtor creditor entries value_date reversal reverses fee_minor rate reference "
                "notified_by submitted_by repair",
                entries=ArrayType(ENTRY),
                reversal=_BOOL,
                fee_minor=_LONG,
                notified_by=_PLACES,
            ),
            ("payment_id", "leg", "debtor", "creditor", "entries", "value_date"),
            "The truth: one leg of a payment or reversal, its entries, and which repair wrote it.",
        ),
        Table(
            "declines",
            catalogue.LEDGER_POSTINGS,
            "decline",
            _fields(
                "payment_id debtor reason value_date reversal opening notified_by submitted_by repair",
                reversal=_BOOL,
                opening=_BOOL,
                notified_by=_PLACES,
            ),
            ("payment_id", "debtor", "reason", "value_date"),
            "Payments, reversals and openings of accounts that were not done, and which repair wrote these records.",
        ),
        Table(
            "accounts_opened",
            catalogue.LEDGER_POSTINGS,
            "account_opened",
            _fields(f"{_OPENED} repair", **dict.fromkeys(("overdraft_minor", "version", "expected_version"), _LONG)),
            ("account",),
            "Accounts that were opened, or got other terms, and which repair wrote these records.",
        ),
        Table(
            "accounts_closed",
            catalogue.LEDGER_POSTINGS,
            "account_closed",
            _fields("account version repair", version=_LONG),
            ("account",),
            "Accounts that were closed, and which repair wrote these records.",
        ),
        Table(
            "account_states",
            catalogue.LEDGER_BALANCES,
            "",
            _fields(
                "account balances overdraft_minor closed owner version deleted",
                balances=MapType(StringType(), MONEY),
                overdraft_minor=_LONG,
                closed=_BOOL,
                version=_LONG,
                deleted=_BOOL,
            ),
            ("account",),
            "Changelog of the ledger: an account's balances by currency. Only keys account/... are landed.",
        ),
        Table(
            "account_terms",
            catalogue.LEDGER_ACCOUNTS,
            "",
            _fields(
                "account owner version overdraft_minor closed deleted",
                version=_LONG,
                overdraft_minor=_LONG,
                closed=_BOOL,
                deleted=_BOOL,
            ),
            ("account", "owner", "version"),
            "An account's owner and terms after each account event; earlier ones may be compacted away.",
        ),
        Table(
            "ownership",
            catalogue.INSTALLATION,
            "",
            _fields("raw_from made_at_ms deleted", raw_from=ArrayType(_LONG), made_at_ms=_LONG, deleted=_BOOL),
            ("raw_from", "made_at_ms"),
            "From which offset of each partition on a raw record needs a client; the first one counts. Only the key "
            "ownership is landed.",
        ),
        Table(
            "effect_requests",
            catalogue.EFFECTS_REQUESTS,
            "effect",
            _fields(_REQUEST, amount_minor=_LONG, fee_minor=_LONG, reversal=_BOOL, ordered=_BOOL),
            ("effect_id", "kind", "event", "destination", "account", "payment_id", "debtor", "value_date"),
            "Effects that the ledger asks for.",
        ),
        Table(
            "effect_resolutions",
            catalogue.EFFECTS_REQUESTS,
            "resolution",
            _fields("effect_id revision action", revision=_LONG),
            ("effect_id", "revision", "action"),
            "What persons decided of effects.",
        ),
        Table(
            "effect_results",
            catalogue.EFFECTS_RESULTS,
            "",
            _fields(
                "effect_id state at_ms attempts revision resends reason detail",
                **dict.fromkeys(("at_ms", "attempts", "revision", "resends"), _LONG),
            ),
            ("effect_id", "state", "at_ms"),
            "What became of effects; the last revision of each counts, earlier ones may be compacted away.",
        ),
        Table(
            "effects_waiting",
            catalogue.EFFECTS_WAITING,
            "",
            _fields(
                "effect_id attempts first_ms not_before_ms detail deleted",
                attempts=_LONG,
                first_ms=_LONG,
                not_before_ms=_LONG,
                deleted=_BOOL,
            ),
            ("effect_id",),
            "Changelog of the outbox: effects to be tried again. Only keys waiting/... are landed.",
        ),
        Table(
            "effect_dead_letters",
            catalogue.EFFECTS_DEAD_LETTER,
            "",
            _fields("effect_id value reason detail", value=_BYTES),
            (),
            "Effects that were refused for good or given up.",
        ),
        Table(
            "reference_fees",
            catalogue.REFERENCE_FEES,
            "",
            _fields(
                "currency fixed_minor basis_points min_minor max_minor deleted",
                **dict.fromkeys(("fixed_minor", "basis_points", "min_minor", "max_minor"), _LONG),
                deleted=_BOOL,
            ),
            ("currency",),
            "The fee schedule, with its history as far as it was not compacted away.",
        ),
        Table(
            "reference_rates",
            catalogue.REFERENCE_RATES,
            "",
            _fields("pair rate deleted", deleted=_BOOL),
            ("pair", "rate"),
            "The conversion rates, likewise.",
        ),
        Table(
            "reference_subscriptions",
            catalogue.REFERENCE_SUBSCRIPTIONS,
            "",
            _fields("account subscriptions deleted", subscriptions=ArrayType(SUBSCRIPTION), deleted=_BOOL),
            ("account", "subscriptions"),
            "Subscriptions to notifications by account, `*` for every client account, likewise.",
        ),
        Table(
            "undecodable",
            "",
            "",
            _fields("value", value=_BYTES),
            (),
            "Records of any landed topic that are no event of it: their bytes. Between services each is a defect.",
        ),
    )
}

UNDECODABLE: Final = "undecodable"


def tables_of(topic: str) -> tuple[Table, ...]:
    """Return the tables that a topic's records go to, without `undecodable`."""
    return tuple(table for table in TABLES.values() if table.topic == topic)
