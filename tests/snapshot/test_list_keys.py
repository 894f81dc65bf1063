"""Lists, and structs with lists inside, as keys, namespaces and map keys of stored state."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statestore import OperatorKey, StateStore, key_group_of
from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    UnsupportedTypeError,
)
from statestore.format.layers import CompactionRule
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.state_spec import Changes
from statestore.testing.reference import canonical

NAN = float("nan")
POINT = pa.struct([("x", pa.float64()), ("names", pa.list_(pa.string()))])
SCHEMA = pa.schema(
    [
        ("k", pa.list_(pa.list_(pa.string()))),
        ("n", pa.list_(pa.int64())),
        ("e", pa.list_(POINT)),
        ("v", pa.int64()),
    ]
)
KEYS: tuple[Any, ...] = ([], [[]], [None], [[None]], [[""]], [["a"], ["b"]], [["a", "b"]], [["\0"]])
SPACES: tuple[Any, ...] = (None, [], [None], [-1], [1, 2])
ENTRIES: tuple[Any, ...] = (
    None,
    [],
    [None],
    [{"x": None, "names": None}],
    [{"x": 0.0, "names": []}],
    [{"x": -0.0, "names": []}],
    [{"x": NAN, "names": ["é"]}],
)
IDENTITIES = [*product(KEYS, SPACES, ENTRIES)]
OPTIONS: dict[str, Any] = {"key": "k", "namespace": "n", "entry": "e", "max_parallelism": 8}
FOLD_ALL = CompactionRule(share=0, most_share=0)
Rows = dict[Any, tuple[Any, int]]


def rows_of(rows: Rows) -> pa.Table:
    columns = zip(*((*identity, value) for identity, value in rows.values()), strict=True)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA.names
    )


def taken(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted((canonical([row[name] for name in SCHEMA.names]) for row in rows), key=repr)


def wanted(rows: Rows, key: Any = ...) -> list[Any]:
    those = [(*i, v) for i, v in rows.values() if key is ... or canonical(i[0]) == canonical(key)]
    return sorted(map(canonical, those), key=repr)


def some(every: int, value: int) -> Rows:
    return {canonical(one): (one, value) for one in IDENTITIES[::every]}


def without(rows: Rows, key: Any) -> Rows:
    return {one: row for one, row in rows.items() if row[0][0] != key}


def opened(folder: Path, layout: str, **options: Any) -> StateStore:
    parquet = ParquetOptions(row_group_rows=50)
    return StateStore.open(
        str(folder / "store"), layout=layout, parquet=parquet, compaction=None, **options
    )


def check(store: StateStore, rows: Rows) -> None:
    """Check that every reader returns these rows, in the subtasks that their keys determine."""
    state = store.restore(parallelism=3).keyed("u", "s")
    found = [row for i in range(3) for row in state.to_arrow(i).to_pylist()]
    assert taken(found) == wanted(rows)
    for row in found:
        assert row["key_group"] == key_group_of(row["k"], max_parallelism=8)
    for key in KEYS:
        assert taken(state.get(key)) == wanted(rows, key)
        (shown,) = store.inspect.key(key, operator="u").states
        assert taken(list(shown.rows)) == wanted(rows, key)
    asked = pa.table({"k": pa.array(KEYS, SCHEMA.field("k").type)})
    assert taken(state.lookup(asked).to_pylist()) == wanted(rows)
    assert taken(store.query("SELECT * FROM s").read_all().to_pylist()) == wanted(rows)
    counted = store.query("SELECT count(*) AS n FROM s WHERE k = [['a'], ['b']]").read_all()
    assert counted.to_pylist() == [{"n": len(wanted(rows, [["a"], ["b"]]))}]
    assert store.maintenance.verify("all", deep=True).is_intact


@pytest.mark.long_cases("ranged")
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ranged", pytest.param("partitioned", marks=pytest.mark.long)])
def test_a_history_of_lists(tmp_path: Path, layout: str) -> None:
    """Snapshot, changes, compaction, edit, rekey and purge; every reader checks each of them."""
    store = opened(tmp_path, layout, table_format="parquet")
    rows = some(1, 1)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows_of(rows), kind="map", **OPTIONS)
    check(store, rows)

    gone = [one for one in IDENTITIES[::7] if one[0] != [["a", "b"]]]
    of_gone = set(map(canonical, gone))
    came = without({i: row for i, row in some(3, 2).items() if i not in of_gone}, [["a", "b"]])
    deletes = [dict(zip("kne", one, strict=True)) for one in gone]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", Changes(rows_of(came), [*deletes, {"k": [["a", "b"]]}]))
    left = without({i: row for i, row in rows.items() if i not in of_gone}, [["a", "b"]]) | came
    check(store, left)

    (found,) = store.inspect.diff(1, 2).states
    assert (found.added, found.removed, found.changed) == (0, len(rows) - len(left), len(came))
    beside = store.inspect.as_of(1, 2, "u", "s").read_all().column("change").to_pylist()
    assert (beside.count("removed"), beside.count("changed")) == (found.removed, found.changed)
    for key in KEYS:
        history = store.inspect.history(key, "u", "s")
        assert [taken(list(one.rows or ())) for one in history] == [
            wanted(rows, key),
            wanted(left, key),
        ]

    store.maintenance.compact(rule=FOLD_ALL, everything=True)
    check(store, left)
    with store.snapshot(parallelism=2) as checkpoint:
        entry = checkpoint.write_changes_against("u", "s", rows_of(left))
    assert entry.layers == ()
    put = dict(zip(SCHEMA.names, (*IDENTITIES[-1], 7), strict=True))
    store.maintenance.edit("u", "s", delete=[[[""]]], put=[put])
    left = without(left, [[""]]) | {canonical(IDENTITIES[-1]): (IDENTITIES[-1], 7)}
    check(store, left)
    store.maintenance.rekey("u", "s", hash_scheme="pyflink")
    store.maintenance.rekey("u", "s", hash_scheme="java")
    check(store, left)
    store.maintenance.forget(OperatorKey("u", [[None]]), search=False)
    check(store, without(left, [[None]]))


def test_rows_are_sorted_by_lists(tmp_path: Path) -> None:
    """Element by element, a shorter list first, null before everything."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    lists = [[2], None, [1, 2], [], [1], [None], [-1], [1, None]]
    rows = pa.table({"k": ["a"] * len(lists), "n": pa.array(lists, pa.list_(pa.int64()))})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", namespace="n", max_parallelism=1)
    found = store.restore(parallelism=1).keyed("u", "s").to_arrow(0)
    ordered = [None, [], [None], [-1], [1], [1, None], [1, 2], [2]]
    assert found.column("n").to_pylist() == ordered


def test_invalid_keys_are_refused(tmp_path: Path) -> None:
    """A null list has no key group, equal lists are one key, and a map has no order."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    lists = pa.list_(pa.float64())
    options: dict[str, Any] = {"key": "k", "max_parallelism": 1}
    with pytest.raises(NullKeyError), store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", pa.table({"k": pa.array([[1], None], lists)}), **options)
    twice = pa.table({"k": pa.array([[NAN, None], [0.0], [NAN, None]], lists)})
    with pytest.raises(DuplicateKeyError), store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", twice, **options)
    maps = pa.table({"k": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
    why = "'k' has type map<string, long>.*entries of a map have no order"
    with (
        pytest.raises(UnsupportedTypeError, match=why),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("u", "s", maps, **options)
    assert [*store.checkpoints()] == []


def test_a_key_must_have_all_fields_in_its_lists(tmp_path: Path) -> None:
    """An omitted field is not interpreted as null, which is a different key."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    found: dict[str, Any] = {"x": None, "names": []}
    rows = pa.table({"k": pa.array([[found, None], []], pa.list_(POINT))})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=4)
    state = store.restore(parallelism=1).keyed("u", "s")
    assert [state.get(key) for key in ([found, None], [])] == [[{"k": [found, None]}], [{"k": []}]]
    with pytest.raises(InvalidArgumentError, match="name every key field"):
        state.get([{"names": []}, None])
    for no_key in (None, "[]", [[found]], 7):
        with pytest.raises(InvalidArgumentError, match=r"not a key|null"):
            state.get(no_key)


@pytest.mark.long_cases("ranged")
@pytest.mark.parametrize("layout", ["ranged", pytest.param("partitioned", marks=pytest.mark.long)])
def test_spark_and_delta_read_the_lists(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    """Written from a DataFrame; read as one, by the data source, by keys, and as a Delta table."""
    store = opened(tmp_path, layout, spark=spark)
    rows, came = some(1, 1), without(some(3, 2), [[None]])
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed(
            "u", "s", spark.createDataFrame(rows_of(rows)), kind="map", **OPTIONS
        )
    path = f"{store.url}/{store.checkpoint(1).manifest.keyed_entry('u', 's').table.path}"
    for read in (spark.read.format("delta").load(path), spark.sql(f"SELECT * FROM delta.`{path}`")):
        assert taken(read.toArrow().to_pylist()) == wanted(rows)
    equal = spark.read.format("delta").load(path).where("k = array(array('a'), array('b'))")
    assert taken(equal.toArrow().to_pylist()) == wanted(rows, [["a"], ["b"]])

    with store.snapshot(parallelism=2) as checkpoint:
        deleted = spark.createDataFrame([([[None]],)], "k array<array<string>>")
        checkpoint.write_changes("u", "s", Changes(spark.createDataFrame(rows_of(came)), deleted))
    left = without(rows, [[None]]) | came
    check(store, left)
    restored = store.restore(parallelism=2).keyed("u", "s")
    assert taken(restored.to_spark().toArrow().to_pylist()) == wanted(left)
    options: dict[str, Any] = {"store": store.url, "operator": "u", "state": "s", "parallelism": 2}
    source = spark.read.format("keyed_state").options(**options).load()
    assert taken(source.toArrow().to_pylist()) == wanted(left)
    asked = pa.table({"k": pa.array(KEYS[::2], SCHEMA.field("k").type)})
    found = restored.lookup_in_spark(asked).toArrow().to_pylist()
    assert taken(found) == sorted((one for key in KEYS[::2] for one in wanted(left, key)), key=repr)
