"""The two stores of a side of a join must agree, also if one was changed since its import."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore import OperatorKey, StateStore
from statestore.errors import UnsupportedTypeError
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import import_checkpoint
from statestore.snapshot.state_spec import Changes
from tests.interop.spark.queries import QUERIES, events, run

UID, ROWS, COUNTS = "symmetricHashJoin-0", "left-keyWithIndexToValue", "left-keyToNumValues"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def imported(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the state of a join."""
    folder = tmp_path_factory.mktemp("join")
    events(folder / "events", 0, 2)
    location = str(folder / "location")
    run(
        spark,
        QUERIES["join"],
        source=folder / "events",
        location=location,
        provider="hdfs",
        partitions=2,
    )
    import_checkpoint(spark, location, StateStore.open(str(folder / "store"), spark=spark))
    return folder / "store"


@pytest.fixture
def store(spark: SparkSession, imported: Path, tmp_path: Path) -> StateStore:
    shutil.copytree(imported, tmp_path / "store")
    return StateStore.open(str(tmp_path / "store"), spark=spark)


def rows_of(store: StateStore, state: str) -> list[Row]:
    rows = store.restore().keyed(UID, state).to_spark().drop("key_group").collect()
    return [row.asDict(recursive=True) for row in rows]


def key_of(row: Row) -> Row:
    return {name: value for name, value in row.items() if name.startswith("field")}


def longest(store: StateStore) -> Row:
    """Return the row with the greatest number, so that its key has several rows."""
    return max(rows_of(store, ROWS), key=lambda row: row["index"])


def count_of(store: StateStore, key: Row) -> Row:
    return next(row for row in rows_of(store, COUNTS) if key_of(row) == key)


def drop(store: StateStore, entry: Row) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes(UID, ROWS, Changes(deletes=[entry]))
        checkpoint.carry_rest()


def drop_first(store: StateStore) -> None:
    drop(store, {**key_of(longest(store)), "index": 0})


def drop_last(store: StateStore) -> None:
    last = longest(store)
    drop(store, {**key_of(last), "index": last["index"]})


def lower_count(store: StateStore) -> None:
    count = count_of(store, key_of(longest(store)))
    store.maintenance.edit(UID, COUNTS, put=[{**count, "value": count["value"] - 1}])


def drop_count(store: StateStore) -> None:
    store.maintenance.edit(UID, COUNTS, delete=[key_of(longest(store))])


def drop_rows(store: StateStore) -> None:
    store.maintenance.edit(UID, ROWS, delete=[key_of(longest(store))])


@pytest.mark.long
@pytest.mark.parametrize("change", [drop_first, drop_last, lower_count, drop_count, drop_rows])
def test_one_changed_store_of_a_side_is_refused(
    store: StateStore, tmp_path: Path, change: Callable[[StateStore], None]
) -> None:
    key = repr(next(iter(key_of(longest(store)).values())))
    change(store)
    with pytest.raises(UnsupportedTypeError, match=rf"contradict each other: .*{key}"):
        export_checkpoint(store, str(tmp_path / "target"), partitions=3)
    assert not (tmp_path / "target").exists()


@pytest.mark.long
def test_both_stores_of_a_side_can_be_changed(
    spark: SparkSession, store: StateStore, tmp_path: Path
) -> None:
    store.maintenance.forget(
        OperatorKey(UID, tuple(key_of(rows_of(store, COUNTS)[0]).values())), search=False
    )
    lower_count(store)
    drop_last(store)
    target = str(tmp_path / "target")
    export_checkpoint(store, target, partitions=3)
    exported = StateStore.open(str(tmp_path / "exported"), spark=spark)
    import_checkpoint(spark, target, exported)
    for state in (ROWS, COUNTS):
        assert sorted(map(repr, rows_of(exported, state))) == sorted(
            map(repr, rows_of(store, state))
        )
