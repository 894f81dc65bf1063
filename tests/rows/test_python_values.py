"""Convert Python values to columns and back: each is equal afterwards, or is refused with its
location.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import Field, Schema
from statestore.rows.column_types import arrow_schema
from statestore.rows.fit_columns import fit_column
from statestore.rows.python_values import column_of, guess_column, rows_to_dicts, table_of_dicts
from tests.support.examples import examples
from tests.support.strategies import Kind, nullable, value_kinds

BERLIN = timezone(timedelta(hours=1))

kinds = value_kinds.map(nullable)

numbers = (
    st.integers(-(2**70), 2**70)
    | st.integers(-300, 300)
    | st.floats()
    | st.floats(width=32)
    | st.integers(-9, 9).map(float)
    | st.decimals()
    | st.decimals(places=2, allow_nan=False, allow_infinity=False)
)
scalars = (
    numbers
    | st.booleans()
    | st.text(max_size=4)
    | st.sampled_from(["\ud800", "7"])
    | st.binary(max_size=4)
    | st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.sampled_from([UTC, BERLIN]))
    | st.times()
    | st.integers(-100, 100).map(np.int16)
    | st.floats(width=32).map(np.float32)
    | st.booleans().map(np.bool_)
    | st.integers(-(2**60), 2**60).map(lambda n: np.datetime64(n, "ns"))
    | st.integers(-(2**60), 2**60).map(pd.Timestamp)
    | st.sampled_from([pd.NaT, pd.NA, np.datetime64("NaT"), object(), timedelta(1)])
)
anything = st.recursive(
    st.none() | scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["f0", "f1", "g"]), inner, max_size=3)
        | st.lists(st.tuples(scalars, inner), max_size=2)
        | st.tuples(inner)
    ),
    max_leaves=4,
)


def is_null(value: Any) -> bool:
    return value is None or value is pd.NaT or value is pd.NA or _is_nat(value)


def _is_nearest(given: float, found: Any) -> bool:
    """Return whether a value is the nearest 32-bit float to the given one."""
    if not isinstance(found, float) or abs(found) > 3.5e38 or found == 0:
        return False
    return math.isclose(given, found, rel_tol=2**-24, abs_tol=2**-150)


def _is_nat(value: Any) -> bool:
    return isinstance(value, np.datetime64) and bool(np.isnat(value))


def is_equal_after(given: Any, found: Any) -> bool:
    """Return whether a value equals the input, according to Python."""
    if is_null(given):
        return found is None
    if isinstance(found, dict):
        names = isinstance(given, Mapping) and set(given) <= set(found)
        return names and all(is_equal_after(given.get(name), item) for name, item in found.items())
    if isinstance(found, list):
        if isinstance(given, Mapping):
            given = list(given.items())
        return (
            isinstance(given, list | tuple)
            and len(given) == len(found)
            and all(map(is_equal_after, given, found))
        )
    if isinstance(found, tuple):
        return isinstance(given, tuple | list) and all(map(is_equal_after, given, found))
    if isinstance(given, np.datetime64):
        exact = np.datetime64(found.replace(tzinfo=None)) if isinstance(found, datetime) else found
        return bool(given == exact)
    if isinstance(given, bool | np.bool_) or isinstance(found, bool):
        return isinstance(given, bool | np.bool_) and bool(given) is found
    for kind in (str, bytes, datetime, date, time):
        if isinstance(given, kind) or isinstance(found, kind):
            both = isinstance(given, kind) and isinstance(found, kind)
            return both and bool(given == found)
    if isinstance(found, float) and math.isnan(found):
        return bool(given != given)
    return bool(given == found) or (isinstance(given, float) and _is_nearest(given, found))


def outcome(make: Callable[[], Any]) -> tuple[list[Any] | None, str]:
    """Return the values of a column, or the error."""
    try:
        return make().to_pylist(), ""
    except InvalidArgumentError as error:
        return None, str(error)


def with_another_leaf(draw: st.DrawFn, value: Any) -> Any:
    """Return a value in which one part, at any depth, is replaced by an arbitrary value."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from([*value, "more"]))
        return {**value, name: with_another_leaf(draw, value.get(name))}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], with_another_leaf(draw, value[at]), *value[at + 1 :]]
    if isinstance(value, tuple) and draw(st.booleans()):
        return (value[0], with_another_leaf(draw, value[1]))
    return draw(anything)


@st.composite
def kinds_and_values(draw: st.DrawFn) -> tuple[Kind, list[Any]]:
    kind = draw(kinds)
    values = draw(st.lists(kind.values, max_size=3))
    return kind, [*values, with_another_leaf(draw, draw(kind.values))]


@given(kinds.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(kind.values, max_size=4))))
def test_values_of_the_type_are_accepted(case: tuple[Kind, list[Any]]) -> None:
    """Types have three levels, and every value can be null."""
    kind, values = case
    found = column_of(values, kind.type, name="c")
    assert found.type == kind.type
    assert all(map(is_equal_after, values, found.to_pylist()))
    found.validate(full=True)


@pytest.mark.slow
@examples(400)
@given(kinds_and_values())
def test_a_value_is_equal_afterwards_or_refused(case: tuple[Kind, list[Any]]) -> None:
    """Any value can replace another at any depth, and the message has the location."""
    kind, values = case
    subject = "state 'n' of operator 'u'"
    found, why = outcome(lambda: column_of(values, kind.type, name="c", subject=subject))
    if found is None:
        assert f"row {len(values) - 1} of {subject} has " in why
        assert " in the column 'c" in why.replace('"', "'")
    else:
        assert all(map(is_equal_after, values, found))


@examples(300)
@given(st.lists(anything, max_size=4))
def test_inferred_types_mix_no_values(values: list[Any]) -> None:
    """A list of values becomes a column in which each value is equal, or it is refused."""
    found, why = outcome(lambda: guess_column(values, name="c"))
    if found is None:
        assert "row " in why
    else:
        assert all(map(is_equal_after, values, found))


@pytest.mark.slow
@examples(300)
@given(st.data())
def test_an_arrow_column_is_accepted_like_its_values(data: st.DataObject) -> None:
    """The same rule applies to input with and without a type."""
    source = data.draw(kinds)
    values = data.draw(st.lists(source.values, max_size=3))
    target = data.draw(st.sampled_from([source, *(data.draw(kinds) for _ in range(3))]))
    column = pa.chunked_array([pa.array(values, source.type)])
    assume(column.null_count < len(column))  # a column of only nulls has a type
    found, why = outcome(lambda: fit_column(column, target.type, name="c"))
    wanted, _ = outcome(lambda: column_of(column.to_pylist(), target.type, name="c"))
    if found is None:
        assert "column 'c" in why.replace('"', "'")
    else:
        assert repr(found) == repr(wanted)


LOSSES = [
    ({"type": "struct", "fields": [{"name": "a", "type": "long"}]}, {"a": 10.7}, "c.a"),
    (
        {"type": "struct", "fields": [{"name": "a", "type": "long"}]},
        {"a": 1, "b": 2},
        "c.b",
    ),
    ({"type": "array", "elementType": "long"}, [1, 1.9], "c[1]"),
    ({"type": "map", "keyType": "string", "valueType": "long"}, {"x": 1.5}, "c['x']"),
    ("long", Decimal("1.5"), "c"),
    ("long", float("nan"), "c"),
    ("long", True, "c"),
    ("byte", 300, "c"),
    ("date", datetime(2026, 1, 31, 12), "c"),
    ("timestamp_ntz", datetime(2026, 1, 31, tzinfo=BERLIN), "c"),
    ("timestamp", datetime(2026, 1, 31), "c"),
    ("timestamp_ntz", date(2026, 1, 31), "c"),
    ("timestamp_ntz", pd.Timestamp("2026-01-31T00:00:00.000000001"), "c"),
    ("timestamp_ntz", np.datetime64("2026-01-31T00:00:00.000000001"), "c"),
    ("float", 1e300, "c"),
    ("float", -1e-300, "c"),
    ("float", Decimal("0.1"), "c"),
    ("float", 2**24 + 1, "c"),
    ("double", 2**53 + 1, "c"),
    ("double", Decimal("0.1"), "c"),
    ("decimal(4,1)", Decimal("1.25"), "c"),
    ("decimal(4,1)", 1000, "c"),
    ("decimal(4,1)", Decimal("1e999999"), "c"),
    ("boolean", 1, "c"),
    ("string", b"x", "c"),
    ("string", "\ud800", "c"),
    ("binary", "x", "c"),
]


@pytest.mark.parametrize(("kind", "value", "path"), LOSSES, ids=str)
def test_nothing_is_lost_on_input(kind: Any, value: Any, path: str) -> None:
    """The message names the column, the path within it, the row and the value."""
    schema = Schema((Field("c", kind),))
    with pytest.raises(InvalidArgumentError) as caught:
        table_of_dicts([{}, {"c": value}], schema, subject="state 'n' of operator 'u'")
    assert "row 1 of state 'n' of operator 'u' has" in str(caught.value)
    assert f"in the column {path!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("long", 2.0, 2),
        ("long", Decimal("2.00"), 2),
        ("long", np.uint8(7), 7),
        ("double", 3, 3.0),
        ("float", np.float32(0.1), float(np.float32(0.1))),
        ("float", 0.1, float(np.float32(0.1))),
        ("decimal(4,1)", 1.5, Decimal("1.5")),
        ("decimal(38,38)", Decimal("-1e-38"), Decimal("-1e-38")),
        ("boolean", np.True_, True),
        ("binary", bytearray(b"x"), b"x"),
        ("timestamp", datetime(2026, 1, 31, 1, tzinfo=BERLIN), datetime(2026, 1, 31, tzinfo=UTC)),
        ("timestamp", pd.Timestamp("2026-01-31", tz="UTC"), datetime(2026, 1, 31, tzinfo=UTC)),
        ("timestamp_ntz", np.datetime64("2026-01-31T00:00", "ns"), datetime(2026, 1, 31)),
        ("timestamp_ntz", pd.NaT, None),
        ("date", np.datetime64("2026-01-31"), date(2026, 1, 31)),
        ("string", pd.NA, None),
        ({"type": "array", "elementType": "long"}, np.array([1, 2], np.int16), [1, 2]),
    ],
    ids=str,
)
def test_an_equal_value_of_another_type_is_accepted(kind: Any, value: Any, stored: Any) -> None:
    """The type differs, and the value does not."""
    schema = Schema((Field("c", kind),))
    assert table_of_dicts([{"c": value}], schema).to_pylist() == [{"c": stored}]


@pytest.mark.parametrize(
    "values",
    [
        [date(2026, 1, 31), datetime(2026, 1, 31, 12)],
        [datetime(2026, 1, 31, 12), date(2026, 1, 31)],
        ["x", b"x"],
        [b"x", "x"],
        [datetime(2026, 1, 31), datetime(2026, 1, 31, tzinfo=UTC)],
        [datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 1, 31)],
        [1, True],
        [True, 1],
        [2**53 + 1, 0.5],
        [{"a": 1}, {"a": True}],
    ],
    ids=str,
)
def test_values_of_two_types_are_not_a_column(values: list[Any]) -> None:
    """Arrow alone would convert them to another value."""
    with pytest.raises(InvalidArgumentError, match=r"row [01] of the rows has .* in .*'a"):
        table_of_dicts([{"a": value} for value in values], None)


def test_numbers_of_two_types_are_one_column_if_nothing_is_lost() -> None:
    """An integer can equal a double, and a decimal."""
    assert guess_column([1, 2.5], name="c").type == pa.float64()
    found = guess_column([1000, Decimal("2.5")], name="c")
    assert found.type == pa.decimal128(5, 1)
    assert found.to_pylist() == [Decimal(1000), Decimal("2.5")]
    assert guess_column([Decimal("0E-38")], name="c").type == pa.decimal128(38, 38)
    assert guess_column([Decimal("0E+3"), Decimal(0)], name="c").to_pylist() == [0, 0]


@pytest.mark.parametrize("row", [{"\ud800": 1}, {"a": {"\ud800": 1}}, {1: 2}, {"a": {1: 2}}])
def test_a_name_that_no_file_can_have_is_refused(row: dict[Any, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="valid Unicode"):
        table_of_dicts([row], None)


def test_a_name_that_is_not_in_the_schema_is_refused() -> None:
    """The message names the first row with it, all such names, and the stored columns."""
    schema = Schema((Field("count", "long"),))
    with pytest.raises(SchemaMismatchError) as raised:
        table_of_dicts([{}, {"cuont": 1, "x": 2}], schema, subject="state 'n'")
    assert str(raised.value) == (
        "row 1 of state 'n' has a value for 'cuont', and 'x', but its columns are (count long); "
        "did you mean 'count'?"
    )
    with pytest.raises(SchemaMismatchError, match=r"\(count long\); did you mean 'count'\?$"):
        table_of_dicts([{"COUNT": 1}], schema)
    with pytest.raises(SchemaMismatchError, match=r"\(count long\); leave it out$"):
        table_of_dicts([{"x": 1}], schema)


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_that_python_cannot_represent_is_named(kind: pa.DataType, sign: int) -> None:
    """Arrow has the years -290,307 to 294,246, and Python has 1 to 9999."""
    many = 2**60 if pa.types.is_timestamp(kind) else 2**30
    column = pa.array([0, sign * many], pa.int32() if kind == pa.date32() else pa.int64())
    rows = pa.table([pa.array([1, 2]), column.view(kind)], names=["n", "at"])
    with pytest.raises(
        InvalidArgumentError, match="state 'n' has a timestamp in 'at' outside the years"
    ):
        rows_to_dicts(rows, "state 'n'")
    assert rows_to_dicts(rows.slice(0, 1))[0]["n"] == 1


def test_the_schema_of_no_rows() -> None:
    """It has every column, and no values."""
    schema = Schema((Field("a", "long"), Field("b", "string")))
    assert table_of_dicts([], schema).schema == arrow_schema(schema)


def test_dictionaries_form_columns_of_all_their_names() -> None:
    """A name that only a later row has is kept, and rows without it get null."""
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": "x"}, {}]
    assert table_of_dicts(rows, None).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        {"a": None, "b": None},
    ]


def test_dictionaries_get_the_types_of_a_schema() -> None:
    """The columns are in the schema's order, and an unknown name is refused."""
    schema = Schema((Field("b", "string"), Field("a", "integer")))
    table = table_of_dicts([{"a": 1}], schema)
    assert table.schema == arrow_schema(schema)
    with pytest.raises(
        SchemaMismatchError, match=r"row 0 of the rows has a value for 'c', .* \(b string, a in"
    ):
        table_of_dicts([{"a": 1, "c": 2}], schema)


@pytest.mark.parametrize("values", [[1, "x"], [{"x": 1}, 1], [1.5, b"x"], [object()]])
def test_values_without_a_common_type_are_refused(values: list[Any]) -> None:
    """The message names the column."""
    with pytest.raises(InvalidArgumentError, match="values of 'a' do not have one type"):
        table_of_dicts([{"a": value} for value in values], None)


@pytest.mark.parametrize("value", [2**63, "\ud800"])
def test_a_value_that_no_column_can_hold_is_refused_for_its_own_reason(value: Any) -> None:
    """Its column has one type, so the message does not mention the other values."""
    with pytest.raises(InvalidArgumentError, match=r"^row 1 of the rows has .* 'a' of type"):
        table_of_dicts([{"a": None}, {"a": value}], None)


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (1.1, pa.decimal128(10, 2), r"exactly 1\.1000000000000000888.*…, and not 1\.1; pass D"),
        (1.125, pa.decimal128(10, 2), "it has more decimal places than the type$"),
        (0.1 + 0.2, pa.decimal128(10, 2), "it has more decimal places than the type$"),
        (1e30, pa.decimal128(10, 2), "it has more digits than the type$"),
        (math.nan, pa.decimal128(10, 2), "neither NaN nor infinity; pass None for null$"),
        (math.inf, pa.int64(), "neither NaN nor infinity; pass None for null$"),
        (Decimal("NaN"), pa.int64(), "neither NaN nor infinity; pass None for null$"),
        (Decimal("1E+999999"), pa.int64(), r"the type's range is -9223372036854775808\.\."),
        (128.5, pa.int8(), r"the type's range is -128\.\.127"),
        (127.5, pa.int8(), "it would become 127; store fractions"),
        (-128.5, pa.int8(), "it would become -128; store fractions"),
        (Decimal("0.1"), pa.float64(), r"become 0\.100000000000000005.*…; .* pass the float 0\.1$"),
        (2**53 + 1, pa.float64(), "it would become 9007199254740992$"),
        (Decimal("NaN"), pa.float64(), r"pass float\('nan'\)$"),
        (True, pa.decimal128(10, 2), "a value of Python type bool does not fit$"),
    ],
)  # fmt: skip
def test_the_reason_for_a_number_is_its_own(value: Any, kind: pa.DataType, reason: str) -> None:
    """A float is not the decimal that Python prints for it, unless the two are equal."""
    with pytest.raises(InvalidArgumentError, match=reason):
        column_of([value], kind, name="v")


def test_a_float_that_is_exactly_a_decimal_is_accepted() -> None:
    column = column_of([0.25, 2.0, -0.5], pa.decimal128(10, 2), name="v")
    assert column.to_pylist() == [Decimal("0.25"), Decimal("2.00"), Decimal("-0.50")]
