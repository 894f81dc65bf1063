"""Columns and types as values, in Delta's notation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.format.schema import (
    DataType,
    Field,
    Schema,
    is_ordered,
    same_type,
    schema_from_json,
    type_text,
)
from tests.support.key_values import data_types, schemas

STRUCT: DataType = {
    "type": "struct",
    "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}],
}
ARRAY: DataType = {"type": "array", "elementType": STRUCT, "containsNull": True}
MAP: DataType = {
    "type": "map",
    "keyType": "string",
    "valueType": ARRAY,
    "valueContainsNull": True,
}


def schema(*columns: tuple[str, DataType]) -> Schema:
    return Schema(tuple(Field(name, data_type) for name, data_type in columns))


@given(schemas)
def test_a_schema_survives_a_round_trip_through_json(written: Schema) -> None:
    """This includes every nested type."""
    assert schema_from_json(written.to_json()) == written


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("a", "long"), ("a", "string")], "two columns are named 'a' and 'a'"),
        ([("a", "long"), ("A", "string")], "two columns are named 'a' and 'A'"),
        ([("É", "long"), ("é", "string")], "two columns are named"),
        ([("", "long")], "empty name"),
    ],
)
def test_names_that_spark_cannot_distinguish_are_refused(
    columns: list[tuple[str, str]], message: str
) -> None:
    """They are refused before anything is written that no reader could select."""
    with pytest.raises(InvalidArgumentError, match=message):
        schema(*columns)


@pytest.mark.parametrize(
    "data_type",
    [
        "int",
        "LONG",
        "void",
        "char(5)",
        "interval",
        "decimal",
        "decimal(0,0)",
        "decimal(39,0)",
        "decimal(5,6)",
        "decimal(5,-1)",
        "decimal(٣,١)",
        {"type": "struct", "fields": []},
        {"type": "udt"},
        {},
        {"type": "array", "elementType": "void", "containsNull": True},
        {"type": "map", "keyType": "void", "valueType": "long"},
        {"type": "struct", "fields": [{"name": "a", "type": "void"}]},
        {"type": "struct", "fields": [{"name": "a", "type": "long"}] * 2},
        {
            "type": "struct",
            "fields": [{"name": "a", "type": "long"}, {"name": "A", "type": "long"}],
        },
        {"type": "struct", "fields": [{"name": "", "type": "long"}]},
    ],
)
def test_a_type_that_cannot_be_stored_is_refused(data_type: Any) -> None:
    """This holds at any depth."""
    with pytest.raises(UnsupportedTypeError):
        schema(("c", data_type))
    with pytest.raises(UnsupportedTypeError):
        schema(("c", {"type": "array", "elementType": data_type, "containsNull": True}))


def test_columns_are_found_by_name() -> None:
    """The error for a missing column lists the existing ones. Case matters."""
    columns = schema(("b", "long"), ("a", MAP))
    assert columns.names == ("b", "a")
    assert columns.type_of("a") == MAP
    assert columns.select(["a", "b"]).names == ("a", "b")
    with pytest.raises(InvalidArgumentError, match="no column 'A'; the columns are b, a"):
        columns.type_of("A")


def test_types_are_shown_as_sql() -> None:
    """This includes nested types."""
    assert type_text(MAP) == "map<string, array<struct<a: long>>>"
    assert str(schema(("x", MAP), ("y", "decimal(10,2)"))) == (
        "x map<string, array<struct<a: long>>>, y decimal(10,2)"
    )


@given(data_types, data_types)
def test_types_are_equal_if_their_texts_are(left: DataType, right: DataType) -> None:
    """This holds for types from any writer."""
    assert same_type(left, left)
    assert same_type(left, right) == (type_text(left) == type_text(right))


def test_nullability_metadata_and_spaces_do_not_make_types_differ() -> None:
    """Spark writes these parts in its own way."""
    other = {
        "type": "struct",
        "fields": [{"name": "a", "type": "long", "nullable": False, "metadata": {"x": 1}}],
    }
    assert same_type(STRUCT, other)
    assert same_type("decimal(10,2)", "decimal(10, 2)")
    assert not same_type("decimal(10,2)", "decimal(10,3)")
    assert not same_type(STRUCT, ARRAY)


def test_maps_have_no_order() -> None:
    """This holds at any depth. A map cannot be part of a row's identity."""
    with_array, with_map = (
        {"type": "struct", "fields": [{"name": "a", "type": kind}]} for kind in (ARRAY, MAP)
    )
    assert all(map(is_ordered, ("long", STRUCT, ARRAY, with_array)))
    of_maps = {"type": "array", "elementType": with_map, "containsNull": True}
    assert not any(map(is_ordered, (MAP, with_map, of_maps)))
