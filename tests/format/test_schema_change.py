"""Which changes of columns a state accepts between checkpoints."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import DataType, Field, Schema, changed_columns, same_columns, widens

SIMPLE = [
    *("byte", "short", "integer", "long", "float", "double", "boolean", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz"),
]
# The complete list from the Delta protocol, "Type Widening", except decimals.
DELTAS_LIST = {
    ("byte", "short"), ("byte", "integer"), ("byte", "long"), ("byte", "double"),
    ("short", "integer"), ("short", "long"), ("short", "double"),
    ("integer", "long"), ("integer", "double"),
    ("float", "double"), ("date", "timestamp_ntz"),
}  # fmt: skip
BOUNDS = {"byte": 2**7, "short": 2**15, "integer": 2**31, "long": 2**63}
DECIMALS = st.integers(1, 38).flatmap(
    lambda digits: st.integers(0, digits).map(lambda scale: (digits, scale))
)
SIMPLE_TYPES: st.SearchStrategy[DataType] = st.one_of(
    st.sampled_from(SIMPLE), DECIMALS.map(lambda parts: f"decimal({parts[0]},{parts[1]})")
)


def struct(**fields: DataType) -> dict[str, Any]:
    return {"type": "struct", "fields": [Field(*field).to_json() for field in fields.items()]}


def array(element: DataType) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def map_of(key: DataType, value: DataType) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


TYPES: st.SearchStrategy[DataType] = st.recursive(
    SIMPLE_TYPES,
    lambda inner: st.one_of(
        inner.map(array),
        st.tuples(SIMPLE_TYPES, inner).map(lambda pair: map_of(*pair)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(lambda f: struct(**f)),
    ),
    max_leaves=4,
)


def schema(**columns: DataType) -> Schema:
    return Schema(tuple(Field(*column) for column in columns.items()))


def change(stored: Schema, now: Schema, **options: Any) -> Schema:
    told: dict[str, Any] = {"fixed": ("k",), "renamed": {}, "dropped": ()}
    return changed_columns(stored, now, subject="state 's'", **(told | options))


# --- types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", SIMPLE)
def test_simple_types_widen_as_deltas_do(old: str) -> None:
    found = {(old, new) for new in SIMPLE if old != new and widens(old, new)}
    assert found == {pair for pair in DELTAS_LIST if pair[0] == old}
    assert widens(old, old)


@given(old=DECIMALS, new=DECIMALS)
def test_a_decimal_widens_exactly_when_every_value_keeps_its_digits(
    old: tuple[int, int], new: tuple[int, int]
) -> None:
    largest = Decimal((0, (9,) * old[0], -old[1]))
    limit = Decimal(10) ** (new[0] - new[1])
    fits = new[1] >= old[1] and (largest < limit or old[0] == old[1])
    whole = f"decimal({old[0]},{old[1]})", f"decimal({new[0]}, {new[1]})"
    assert widens(*whole) is fits


@given(old=st.sampled_from(sorted(BOUNDS)), new=DECIMALS)
def test_an_integer_widens_to_a_decimal_that_holds_all_of_its_values(
    old: str, new: tuple[int, int]
) -> None:
    digits = 20 if old == "long" else 10
    found = widens(old, f"decimal({new[0]},{new[1]})")
    assert found is (new[0] - new[1] >= digits)
    if found:
        assert BOUNDS[old] < 10 ** (new[0] - new[1])


@given(a=TYPES, b=TYPES, c=TYPES)
def test_widening_is_an_order(a: DataType, b: DataType, c: DataType) -> None:
    """After two widenings the last type contains the first, and no widening leads back."""
    assert widens(a, a)
    if widens(a, b) and widens(b, c):
        assert widens(a, c)
    if widens(a, b) and widens(b, a):
        assert same_columns(schema(x=a), schema(x=b)) or "struct" in str(a)


@pytest.mark.parametrize(
    ("old", "new", "fits"),
    [
        (struct(a="integer"), struct(a="long"), True),
        (struct(a="integer"), struct(b="string", a="integer"), True),
        (struct(a="integer", b="string"), struct(a="integer"), False),
        (struct(a="long"), struct(a="integer"), False),
        (array("float"), array("double"), True),
        (array("double"), array("float"), False),
        (map_of("string", "short"), map_of("string", "integer"), True),
        (map_of("short", "short"), map_of("integer", "short"), False),
        (map_of("string", "long"), map_of("string", "byte"), False),
        (array(struct(a="byte")), array(struct(a="long", b="date")), True),
        (array("string"), "string", False),
        ("string", array("string"), False),
        (array("string"), struct(a="string"), False),
    ],
)
def test_nested_types_widen_inside(old: DataType, new: DataType, fits: bool) -> None:
    assert widens(old, new) is fits


# --- columns --------------------------------------------------------------------------------------


@given(data=st.data())
def test_an_accepted_change_drops_nothing_silently(data: st.DataObject) -> None:
    """For any two consecutive schemas, an accepted change has the new columns. Every stored column
    is in it or was dropped explicitly, and no column replaces another. An error shows both schemas.
    """
    names = st.sampled_from("abcd")
    values = st.dictionaries(names, SIMPLE_TYPES, max_size=4)
    stored = schema(k="string", **data.draw(values))
    now = schema(k="string", **data.draw(values))
    dropped = data.draw(st.sets(names.filter(lambda name: name not in now.names)))
    gone = [field for field in stored.fields if field.name not in now.names]
    added = [field for field in now.fields if field.name not in stored.names]
    kept = [field for field in stored.fields if field.name in now.names]
    guesses = [
        (old.name, new.name)
        for old in gone
        for new in added
        if widens(old.type, new.type) and old.name not in dropped
    ]
    fits = all(widens(field.type, now.type_of(field.name)) for field in kept)
    if fits and not guesses:
        taken = change(stored, now, dropped=dropped)
        assert same_columns(taken, now)
        assert taken.names == (*(field.name for field in kept), *(field.name for field in added))
        assert change(taken, now, dropped=dropped) == taken
        return
    with pytest.raises(SchemaMismatchError) as caught:
        change(stored, now, dropped=dropped)
    assert f"({stored})" in str(caught.value)
    assert f"({now})" in str(caught.value)


@given(
    values=st.dictionaries(st.sampled_from("abcd"), SIMPLE_TYPES, min_size=1),
    data=st.data(),
)
def test_a_rename_is_the_same_column_under_another_name(
    values: dict[str, DataType], data: st.DataObject
) -> None:
    """It keeps its position. If the next checkpoint repeats the rename, it has no effect."""
    renamed = {old: old * 2 for old in data.draw(st.sets(st.sampled_from(sorted(values))))}
    stored = schema(k="string", **values)
    new = {renamed.get(name, name): kind for name, kind in values.items()}
    columns = data.draw(st.permutations(sorted(new.items())))
    now = schema(k="string", **dict(columns))
    taken = change(stored, now, renamed=renamed)
    assert taken == schema(k="string", **new)
    assert change(taken, now, renamed=renamed) == taken


@pytest.mark.parametrize(
    ("stored", "now", "message"),
    [
        (schema(k="string"), schema(k="binary"), "the type of 'k' cannot change"),
        (schema(k="integer"), schema(k="long"), "the type of 'k' cannot change"),
        (
            schema(k="string", a="long"),
            schema(a="long"),
            "'k' is one of .* is missing; keep the co",
        ),
        (
            schema(k="string", a="long", b="date", c="long"),
            schema(k="long", a="double", b="date", c="string"),
            "'k' cannot change .* and 'a' was stored as long, .* and 'c' was .* widened to string;",
        ),
        (
            schema(a="long"),
            schema(a="integer"),
            "'a' was stored as long, which cannot be widened to integer",
        ),
        (
            schema(a="long"),
            schema(a="double"),
            "'a' was stored as long, which cannot be widened to double",
        ),
        (
            schema(a="long"),
            schema(A="long"),
            r"renamed=\{'a': 'A'\} if .* or dropped=\['a'\]",
        ),
        (schema(a="byte"), schema(b="long"), r"renamed=\{'a': 'b'\}"),
    ],
)
def test_a_refused_change_has_a_reason(stored: Schema, now: Schema, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        change(stored, now)


@pytest.mark.parametrize(
    ("stored", "now"),
    [
        (schema(a="long"), schema(b="string")),
        (schema(a="long"), schema()),
        (schema(), schema(a="long", b="long")),
        (schema(a="long", b="date"), schema(a="long", c="long")),
    ],
)
def test_columns_that_cannot_be_a_rename_need_no_declaration(stored: Schema, now: Schema) -> None:
    assert change(stored, now, fixed=()) == now


@pytest.mark.parametrize(
    ("renamed", "dropped", "message"),
    [
        ({"a": "x"}, (), "the rows have no column 'x'"),
        ({"x": "c"}, (), "the stored state has no column 'x'"),
        ({"k": "c"}, (), "identity columns cannot be renamed"),
        ({"b": "k"}, (), "identity columns cannot be renamed"),
        ({"a": "c"}, (), "the rows still have the column 'a'"),
        ({"b": "a"}, (), "the stored state already has a column 'a'"),
        ({"b": "c"}, ("b",), "dropped also names 'b'"),
        ({"b": "c", "d": "c"}, (), "two columns would be named 'c'"),
        ({}, ("a",), "dropped names 'a', but the rows still have it"),
        ({}, ("k",), "dropped names 'k', but the rows still have it"),
    ],
)
def test_a_mapping_that_fits_neither_schema_is_refused(
    renamed: dict[str, str], dropped: tuple[str, ...], message: str
) -> None:
    stored = schema(k="string", a="long", b="long", d="long")
    now = schema(k="string", a="long", c="long")
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        change(stored, now, renamed=renamed, dropped=dropped)
    assert f"({stored})" in str(caught.value)
    assert f"({now})" in str(caught.value)


def test_a_rename_may_widen_and_free_a_name() -> None:
    stored = schema(k="string", a="integer", b="long")
    now = schema(k="string", c="long", a="string")
    with pytest.raises(InvalidArgumentError, match="the rows still have the column 'a'"):
        change(stored, now, renamed={"a": "c"}, dropped=["b"])
    taken = change(stored, schema(k="string", c="long"), renamed={"a": "c"}, dropped=["b"])
    assert change(taken, now, renamed={"a": "c"}, dropped=["b"]) == now
