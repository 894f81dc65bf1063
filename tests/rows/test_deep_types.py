"""Nested types: every reader reads an accepted type, and all other types are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from statestore import CheckpointWriter, RowUpdate, StateStore, key_group_of
from statestore.errors import StateStoreError, UnsupportedTypeError
from statestore.format.schema import MOST_REPEATED_LEVELS, MOST_WRITTEN_LEVELS

Typed = tuple[pa.DataType, Any]


def wrapped(inner: Typed, kind: str) -> Typed:
    """Return a type with one more level, and a value of it."""
    data_type, value = inner
    if kind == "list":
        return pa.list_(data_type), [value]
    if kind == "map":
        return pa.map_(pa.string(), data_type), [("a", value)]
    return pa.struct([("a", data_type)]), {"a": value}


def nested(kinds: list[str]) -> Typed:
    return reduce(wrapped, kinds, (pa.int64(), 7))


ALLOWED = {
    "structs": ["struct"] * (MOST_WRITTEN_LEVELS - 1),
    "lists": ["list"] * MOST_REPEATED_LEVELS,
    "maps": ["map"] * MOST_REPEATED_LEVELS,
    "all": (["list", "struct", "map", "struct"] * MOST_WRITTEN_LEVELS)[: MOST_WRITTEN_LEVELS - 1],
}
REFUSED = {
    "structs": ["struct"] * MOST_WRITTEN_LEVELS,
    "lists": ["list"] * (MOST_REPEATED_LEVELS + 1),
    "maps": ["map"] * (MOST_REPEATED_LEVELS + 1),
    "no reader's": ["map"] * 60,
}


def write(store: StateStore, typed: Typed) -> None:
    data_type, value = typed
    rows = pa.table({"k": ["a"], "v": pa.array([value], data_type)})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=1)
        checkpoint.write_split("u", "e", [[{"x": _plain(value)}]])


def _plain(value: Any) -> Any:
    """Return an element as a Python value, in which a list of pairs is a dictionary."""
    match value:
        case [(str(key), inner)]:
            return {key: _plain(inner)}
        case [inner]:
            return [_plain(inner)]
        case {"a": inner}:
            return {"a": _plain(inner)}
    return value


def read_by_all(store: StateStore, typed: Typed) -> None:
    _, value = typed
    assert store.restore().keyed("u", "s").get("a")[0]["v"] == value
    assert store.restore().operator_state("u", "e").subtask(0) == [{"x": _plain(value)}]
    assert store.maintenance.verify(deep=True).is_intact
    assert store.query("SELECT v FROM s").read_all().num_rows == 1
    table = f"{store.url}/operators/u/keyed/s"
    assert DeltaTable(table).to_pyarrow_table()["v"].to_pylist() == [value]
    (file,) = Path(table).rglob("0*.parquet")
    assert pl.read_parquet(file).height == 1
    with duckdb.connect() as connection:
        (row,) = connection.execute("SELECT v FROM read_parquet(?)", [str(file)]).fetchall()
    assert row[0] is not None
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "s", pa.table({"k": ["b"], "v": pa.array([value], typed[0])}))
        checkpoint.carry_rest()
    store.maintenance.compact(everything=True)
    assert store.restore().keyed("u", "s").get("b")[0]["v"] == value


@pytest.mark.long_cases("structs", "lists", "maps")
@pytest.mark.slow
@pytest.mark.parametrize("kinds", ALLOWED.values(), ids=ALLOWED)
def test_the_deepest_accepted_type_is_read(tmp_path: Path, kinds: list[str]) -> None:
    store = StateStore.open(str(tmp_path / "store"))
    write(store, nested(kinds))
    read_by_all(store, nested(kinds))


@pytest.mark.spark
def test_spark_reads_the_deepest_type(tmp_path: Path, spark: SparkSession) -> None:
    for name, kinds in ALLOWED.items():
        store = StateStore.open(str(tmp_path / name), spark=spark)
        write(store, nested(kinds))
        frame = store.restore().keyed("u", "s").to_spark()
        assert frame.select("k").collect() == [("a",)]
        assert frame.where("v IS NOT NULL").count() == 1


@pytest.mark.parametrize("kinds", REFUSED.values(), ids=REFUSED)
def test_a_deeper_type_is_refused_before_anything_is_written(
    tmp_path: Path, kinds: list[str]
) -> None:
    store = StateStore.open(str(tmp_path / "store"))
    with pytest.raises(UnsupportedTypeError, match=r"type of column 'v' of .* has \d+ levels"):
        write(store, nested(kinds))
    data_type, value = nested(kinds)
    elements = pa.table({"subtask": [0], "position": [0], "x": pa.array([value], data_type)})
    with pytest.raises(UnsupportedTypeError, match=r"type of column 'x' of .* has \d+ levels"):  # noqa: SIM117
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_split("u", "e", elements)
    assert store.checkpoints() == ()
    assert not list(Path(store.url).rglob("*.parquet"))


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(st.sampled_from(["list", "map", "struct"]), max_size=40))
def test_every_accepted_type_is_read(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    store = StateStore.open(str(tmp_path_factory.mktemp("deep") / "store"))
    try:
        write(store, nested(kinds))
    except UnsupportedTypeError:
        repeated = sum(kind != "struct" for kind in kinds)
        assert len(kinds) >= MOST_WRITTEN_LEVELS or repeated > MOST_REPEATED_LEVELS
        return
    read_by_all(store, nested(kinds))


def deep_value(levels: int, form: str) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if form == "list" else {"a": value}
    return value


@pytest.mark.parametrize("form", ["list", "struct"])
@pytest.mark.parametrize("levels", [1200, 5000])
def test_a_value_that_python_cannot_walk_is_refused(
    store: StateStore, form: str, levels: int
) -> None:
    """Each call that takes a value raises a StateStoreError, and nothing is committed."""
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", [{"k": 1, "v": "x"}], key="k")
    state, deep = store.restore().keyed("u", "n"), deep_value(levels, form)

    def write(call: Callable[[CheckpointWriter], Any]) -> None:
        with store.snapshot(parallelism=1) as checkpoint:
            call(checkpoint)
            checkpoint.carry_rest()

    calls: list[Callable[[], Any]] = [
        lambda: write(lambda writer: writer.write_keyed("u", "x", [{"k": 1, "v": deep}], key="k")),
        lambda: write(lambda writer: writer.write_keyed("u", "x", [{"k": deep}], key="k")),
        lambda: write(lambda writer: writer.write_changes("u", "n", [{"k": 1, "v": deep}])),
        lambda: write(lambda writer: writer.write_broadcast("o", "e", [{"v": deep}])),
        lambda: state.get(deep),
        lambda: state.lookup([{"k": deep}]),
        lambda: store.inspect.key(deep),
        lambda: store.maintenance.edit("u", "n", delete=[deep]),
        lambda: store.maintenance.edit("u", "n", update=RowUpdate(keys=[1], values={"v": deep})),
        lambda: key_group_of(deep, max_parallelism=8),
    ]
    for call in calls:
        with pytest.raises(StateStoreError):
            call()
    assert store.checkpoints() == (1,)
