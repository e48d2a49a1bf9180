"""The landed tables hold every field of the events: a new field cannot be forgotten."""

import types
import typing

import msgspec
import pytest
from pyspark.sql.types import ArrayType, BooleanType, DataType, LongType, MapType, StringType

from shared.events.catalogue import BY_NAME
from shared.events.clients import SubmittedBy
from shared.events.effects import Subscription
from shared.events.payments import AccountOpening, Payment, Reversal
from shared.events.postings import Entry, NotifiedBy
from shared.events.transfers import AccountOpened, PricedBy
from spark.decode import NOT_FIELDS, STRUCTS
from spark.manifest import LANDED_TOPICS
from spark.schemas import DAY, ENTRY, MONEY, SUBSCRIPTION, TABLES, UNDECODABLE, WHERE, tables_of
from tests.pipeline.records import NOT_LANDED

FROM_KEY = {
    "account_states": "account",
    "account_terms": "account",
    "reference_fees": "currency",
    "reference_rates": "pair",
    "reference_subscriptions": "account",
}
NO_EVENT = {"payments_raw", "dead_letters", "effect_dead_letters", UNDECODABLE}
TYPES: dict[object, DataType] = {
    str: StringType(),
    int: LongType(),
    bool: BooleanType(),
    tuple[Entry, ...]: ArrayType(ENTRY),
    tuple[Subscription, ...]: ArrayType(SUBSCRIPTION),
    PricedBy: ArrayType(StringType()),
    NotifiedBy: ArrayType(StringType()),
    SubmittedBy: StringType(),  # as the header of raw records has it
    tuple[int, ...]: ArrayType(LongType()),
    dict[str, int]: MapType(StringType(), MONEY),
}


def kind(annotation: object) -> tuple[DataType, bool]:
    """The column type of a field, and whether null is one of its values."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if origin in {types.UnionType, typing.Union}:
        [given] = [part for part in typing.get_args(annotation) if part is not type(None)]
        return kind(given)[0], True
    return TYPES[annotation], False


def fields(struct: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(struct)}


def columns(table: str) -> dict[str, DataType]:
    return {field.name: field.dataType for field in TABLES[table].columns}


def test_every_table_is_of_one_event_or_of_none() -> None:
    assert set(STRUCTS) | NO_EVENT == set(TABLES)
    assert not set(STRUCTS) & NO_EVENT
    assert {name for name, table in TABLES.items() if table.name != name} == set()


@pytest.mark.parametrize("table", sorted(STRUCTS))
def test_a_table_has_the_fields_of_its_event(table: str) -> None:
    expected = {
        name: kind(field.type)[0]
        for name, field in fields(STRUCTS[table]).items()
        if name not in NOT_LANDED.get(table, set())
    }
    found = columns(table)
    assert set(found) - set(NOT_FIELDS.get(table, ())) == set(expected)
    assert {name: found[name] for name in expected} == expected
    assert STRUCTS[table].__struct_config__.tag == (TABLES[table].tag or None)


@pytest.mark.parametrize("table", sorted(set(STRUCTS) - {"effects_waiting"}))
def test_a_row_requires_what_its_event_requires(table: str) -> None:
    needed = {
        name
        for name, field in fields(STRUCTS[table]).items()
        if name not in NOT_LANDED.get(table, set()) and field.required and not kind(field.type)[1]
    }
    from_key = {FROM_KEY[table]} if table in FROM_KEY else set()
    derived = {"first_partition", "first_offset"} if table == "repeats" else set()
    assert set(TABLES[table].required) == needed | from_key | derived


def test_a_tombstone_requires_only_its_key() -> None:
    assert TABLES["effects_waiting"].required == ("effect_id",)
    assert TABLES["account_states"].required == ("account",)


def test_a_raw_record_has_the_fields_of_every_instruction_and_its_client() -> None:
    every = {**fields(Payment), **fields(Reversal), **fields(AccountOpening)}
    assert set(columns("payments_raw")) == {"value", "type", "submitted_by", *every}


def test_every_landed_topic_has_its_tables_and_each_tag_once() -> None:
    assert {table.topic for table in TABLES.values()} - {""} == set(LANDED_TOPICS) <= set(BY_NAME)
    for topic in LANDED_TOPICS:
        tags = [table.tag for table in tables_of(topic)]
        assert len(set(tags)) == len(tags)
        assert "" not in tags or len(tags) == 1


def test_the_columns_of_one_topic_agree_in_type() -> None:
    for topic in LANDED_TOPICS:
        found: dict[str, DataType] = {}
        for table in tables_of(topic):
            for field in table.columns:
                assert found.setdefault(field.name, field.dataType) == field.dataType


def test_every_table_begins_with_where_and_ends_with_the_day() -> None:
    for table in TABLES.values():
        names = table.schema.names
        assert names[: len(WHERE)] == [field.name for field in WHERE]
        assert names[-1] == DAY.name
        assert len(set(names)) == len(names)
        assert table.purpose


def test_the_check_itself_notices_a_new_field() -> None:
    extended = msgspec.defstruct("Extended", [("new", str, "")], bases=(AccountOpened,))
    assert set(fields(extended)) - set(columns("accounts_opened")) == {"new"}
    assert kind(fields(extended)["overdraft_minor"].type) == (LongType(), True)
