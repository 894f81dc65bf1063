"""Every type of DuckDB: a query returns the value that DuckDB returns, or its text."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.restore.row_files import json_value
from statestore.rows.python_values import display_values

EVERY_TYPE = "SELECT * FROM test_all_types()"
# JSON has no type for these. As elsewhere in this project, times are ISO 8601 and bytes are hex.
ISO: dict[str, list[Any]] = {
    "timestamp_ns": ["1677-09-22T00:00:00", "2262-04-11T23:47:16.854775806", None],
    "timestamp_tz_ns": ["1677-09-22T00:00:00Z", "2262-04-11T23:47:16.854775806Z", None],
    "blob": [b"thisisalongblob\0withnullbytes".hex(), b"\0\0\0a".hex(), None],
    "date_array": [[], ["1970-01-01", "infinity", "-infinity", None, "2022-05-12"], None],
    "timestamp_array": [
        [],
        ["1970-01-01T00:00:00", "infinity", "-infinity", None, "2022-05-12T16:23:45"],
        None,
    ],
    "timestamptz_array": [
        [],
        ["1970-01-01T00:00:00Z", "infinity", "-infinity", None, "2022-05-12T23:23:45Z"],
        None,
    ],
    "tuple": [
        {"element1": None, "element2": None},
        {"element1": 42, "element2": "🦆🦆🦆🦆🦆🦆"},
        None,
    ],
}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    made = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with made.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", pa.table({"k": ["a"]}), key="k")
    return made


def column_names() -> list[str]:
    with duckdb.connect() as connection:
        return list(connection.sql(EVERY_TYPE).columns)


def shown(rows: Any) -> dict[str, list[Any]]:
    """Return the values of each column as the command and the page show them."""
    return {
        name: [json_value(value) for value in display_values(rows[name], of_duckdb=True)]
        for name in rows.column_names
    }


def expected(name: str) -> list[Any]:
    """Return a column as DuckDB returns it: Python values where JSON has the type, otherwise text.

    This does not use Arrow.
    """
    if name in ISO:
        return ISO[name]
    column = f'"{name}"'
    with duckdb.connect() as connection:
        relation = connection.sql(f"SELECT {column} FROM test_all_types()")
        kind = relation.types[0].id
        if kind in ("struct", "list", "array", "map", "float", "double", "boolean"):
            values = [json_value(value) for (value,) in relation.fetchall()]
            if kind == "map":
                return [
                    None if value is None else [[*pair] for pair in value.items()]
                    for value in values
                ]
            return [list(value) if isinstance(value, tuple) else value for value in values]
        texts = connection.sql(f"SELECT {column}::VARCHAR FROM test_all_types()").fetchall()
        is_integer = kind.endswith(("int", "integer")) and "huge" not in kind
        return [int(text) if text and is_integer else text for (text,) in texts]


def test_each_type_is_shown_as_duckdb_shows_it(store: StateStore) -> None:
    """One query returns all types, and each is also valid in JSON."""
    rows = store.query(EVERY_TYPE).read_all()
    assert rows.column_names == column_names()
    found = shown(rows)
    assert found == {name: expected(name) for name in column_names()}
    assert {len(values) for values in found.values()} == {3}
    json.dumps(found)


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("TIME '10:00'", "10:00:00"),
        ("TIME '10:00:00.5'", "10:00:00.5"),
        ("TIME '24:00:00'", "24:00:00"),
        ("'10:00:00+02'::TIMETZ", "10:00:00+02"),
        ("340282366920938463463374607431768211455::UHUGEINT", f"{2**128 - 1}"),
        ("(-170141183460469231731687303715884105728)::HUGEINT", f"{-(2**127)}"),
        ("9223372036854775807", 2**63 - 1),
        ("18446744073709551615::UBIGINT", 2**64 - 1),
        ("0.1::DECIMAL(38, 30)", "0.100000000000000000000000000000"),
        ("BIT '0101'", "0101"),
        ("INTERVAL 3 DAY", "3 days"),
        ("to_microseconds(9223372036854775807)", "2562047788:00:54.775807"),
        ("TIMESTAMP 'infinity'", "infinity"),
        ("TIMESTAMP_S '-infinity'", "-infinity"),
        ("TIMESTAMP_MS 'infinity'", "infinity"),
        ("TIMESTAMP_NS '-infinity'", "-infinity"),
        ("TIMESTAMPTZ 'infinity'", "infinity"),
        ("DATE '-infinity'", "-infinity"),
        ("TIMESTAMP '0044-03-15 (BC) 12:00:00.25'", "0044-03-15 (BC) 12:00:00.25"),
        ("TIMESTAMPTZ '12026-03-15 12:00:00+00'", "12026-03-15 12:00:00+00"),
        ("TIMESTAMPTZ '2026-03-15 12:00:00.5+00'", "2026-03-15T12:00:00.500000Z"),
        ("uuid()::VARCHAR = ''", False),
        ("['340282366920938463463374607431768211455'::UHUGEINT]", [f"{2**128 - 1}"]),
        ("""{'x "y"': BIT '101', 'n': [1]}""", {'x "y"': "101", "n": [1]}),
        ("MAP {'a': INTERVAL 1 DAY}", [["a", "1 day"]]),
        ("[INTERVAL 1 DAY]::INTERVAL[1]", ["1 day"]),
        ("(1, BIT '1')", {"element1": 1, "element2": "1"}),
        ("union_value(a := 5)", "5"),
        ("{'t': TIME '24:00:00', 'd': [DATE 'infinity']}", {"t": "24:00:00", "d": ["infinity"]}),
    ],
)
def test_values_outside_the_range_of_arrow_or_python_are_exact(
    store: StateStore, sql: str, value: Any
) -> None:
    assert shown(store.query(f"SELECT {sql} AS x").read_all()) == {"x": [value]}


def test_columns_with_the_same_name_stay_separate(store: StateStore) -> None:
    rows = store.query("SELECT BIT '1' AS x, 2 AS x, INTERVAL 1 DAY AS y ORDER BY ALL").read_all()
    assert [column.to_pylist() for column in rows.columns] == [["1"], [2], ["1 day"]]


def test_the_order_of_rows_is_kept(store: StateStore) -> None:
    sql = "SELECT INTERVAL (i) DAY AS x FROM range(3) r(i) ORDER BY i DESC"
    assert shown(store.query(sql).read_all()) == {"x": ["2 days", "1 day", "00:00:00"]}


DAY = 86_400 * 10**6
MOMENTS = [
    *(2**63 - 2, -(2**62), -1, 0, 1, 10**15 + 1),
    *(day * DAY + extra for day in range(-900_000, 3_100_000, 19_997) for extra in (0, 500_000)),
]


def test_times_equal_those_of_duckdb_and_python() -> None:
    """DuckDB alone takes the greatest timestamp for infinity; in a state it is a timestamp."""
    texts = display_values(pa.array([*MOMENTS, 2**63 - 1], pa.timestamp("us", "UTC")))
    assert texts.pop() == "294247-01-10 04:00:54.775807+00"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        sql = "SELECT make_timestamptz(unnest(?::BIGINT[]))::VARCHAR"
        of_duckdb = [text for (text,) in connection.execute(sql, [MOMENTS]).fetchall()]
    for moment, text, own in zip(MOMENTS, texts, of_duckdb, strict=True):
        try:
            since = timedelta(microseconds=moment)
            iso = (datetime(1970, 1, 1, tzinfo=UTC) + since).isoformat()
        except OverflowError:
            assert text == own
        else:
            assert text == iso.replace("+00:00", "Z")
