"""A filter on a state's Delta table finds every matching row, for every reader of the table and
every writer of its log.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statestore import Acknowledgement, OperatorKey, StateStore, key_group_of
from statestore.delta.log_cleanup import INTERVAL
from tests.support.delta_filters import (
    ROWS,
    VALUES,
    Filter,
    filters,
    readers,
    spark_answers,
    table,
    wrong,
)

pytestmark = pytest.mark.slow

ROWS_TAKEN = table()
NAMESPACE = [name for name in ROWS_TAKEN.column_names if name.startswith("n_")]
GROUPS = 4


def take(store: StateStore, rows: Any, layout: str) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        options: dict[str, Any] = {"key": "k", "namespace": NAMESPACE, "layout": layout}
        checkpoint.write_keyed("u", "s", rows, max_parallelism=GROUPS, **options)


def table_of(store: StateStore) -> str:
    return f"{store.url}/operators/u/keyed/s"


def last_of_each(asked: list[Filter]) -> list[Filter]:
    """Return one filter for each column and operator. For equality it compares with the last value,
    which is the greatest.
    """
    return [*{(one.column, one.operator): one for one in asked}.values()]


def logged(store: StateStore) -> list[dict[str, Any]]:
    """Return the statistics of the files in the log's entries, oldest first."""
    entries = sorted(Path(table_of(store), "_delta_log").glob("*.json"))
    actions = [json.loads(line) for entry in entries for line in entry.read_bytes().splitlines()]
    return [json.loads(action["add"]["stats"]) for action in actions if "add" in action]


# In each run, the tests of Spark and of each command have partitioned tables.
@pytest.mark.long
@pytest.mark.parametrize("layout", ["ranged", pytest.param("partitioned", marks=pytest.mark.long)])
@pytest.mark.parametrize("every_value", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_type_by_every_operator(tmp_path: Path, layout: str, every_value: bool) -> None:
    """Each run filters value columns, which have no bounds in the log, only by equality."""
    store = StateStore.open(str(tmp_path / "store"))
    take(store, ROWS_TAKEN, layout)
    bounded = {*NAMESPACE} - {"n_double", "n_float", "n_boolean", "n_binary"}
    for statistics in logged(store):
        assert statistics["minValues"].keys() == statistics["maxValues"].keys() >= bounded
    every = [*filters(ROWS_TAKEN)]
    some = [one for one in last_of_each(every) if one.operator == "= ?" or one.column[0] != "v"]
    assert wrong(ROWS_TAKEN, readers(table_of(store)), every if every_value else some) == []
    grouped = store.restore(parallelism=1).keyed("u", "s").to_arrow(0)
    asked = [Filter("key_group", "= ?", (group,)) for group in range(GROUPS)]
    asked += [Filter("key_group", "IN (?, ?)", (0, 3)), Filter("key_group", ">= ?", (2,))]
    assert wrong(grouped, readers(table_of(store)), asked) == []


@pytest.mark.long
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("layout", "every_operator"),
    [
        ("partitioned", False),
        ("partitioned", True),
        ("ranged", True),
    ],
)
def test_every_type_by_every_operator_in_spark(
    spark: SparkSession, tmp_path: Path, layout: str, every_operator: bool
) -> None:
    """The snapshot is taken by Spark. Each run tests equality for every type, and one further
    operator for each type in rotation.
    """
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    pq.write_table(ROWS_TAKEN, tmp_path / "rows.parquet")
    take(store, spark.read.parquet(str(tmp_path / "rows.parquet")), layout)
    every = [*filters(ROWS_TAKEN, NAMESPACE)]
    operators = ("= ?", ">= ?", "IN (?, ?)", "IS NULL")
    asked = [one for one in last_of_each(every) if one.operator in operators]
    if not every_operator:
        turns = cycle(range(1, len(operators)))
        wanted = {(name, operators[next(turns)]) for name in NAMESPACE}
        asked = [
            one for one in asked if one.operator == "= ?" or (one.column, one.operator) in wanted
        ]
    answer = spark_answers(spark, table_of(store), asked)
    assert wrong(ROWS_TAKEN, {"spark": answer}, asked) == []
    assert wrong(ROWS_TAKEN, readers(table_of(store)), asked[::4]) == []


COLUMNS = ["k", "n_uuid", "n_text", "n_instant", "n_local", "n_decimal", "n_double", "n_date"]


def assert_right(store: StateStore, share: int = 10) -> None:
    """Compare filters on the newest checkpoint's table with its restored rows.

    One in ``share`` filters is compared, and the test of null in each column.
    """
    rows = store.restore(parallelism=1).keyed("u", "s").to_arrow(0)
    assert rows.num_rows
    every = [*filters(rows, COLUMNS)]
    asked = every[::share] + [wanted for wanted in every if wanted.operator == "IS NULL"]
    assert {one.column for one in every[::share]} == {*COLUMNS}
    assert wrong(rows, readers(table_of(store)), asked) == []


def edited(store: StateStore, _: Path) -> StateStore:
    row = ROWS_TAKEN.slice(0, 1).to_pylist()[0]
    store.maintenance.edit("u", "s", delete=[0], put=[row | {"k": 77}])
    return store


def compacted(store: StateStore, _: Path) -> StateStore:
    more = ROWS_TAKEN.set_column(0, "k", pa.array(range(ROWS, 2 * ROWS), pa.int64()))
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", more)
    store.maintenance.compact(everything=True)
    return store


def purged(store: StateStore, _: Path) -> StateStore:
    store.maintenance.forget(OperatorKey("u", 5), search=False)
    return store


def rekeyed(store: StateStore, _: Path) -> StateStore:
    store.maintenance.rekey("u", max_parallelism=2 * GROUPS)
    return store


def copied(store: StateStore, folder: Path) -> StateStore:
    store.maintenance.copy("latest", str(folder / "copy"))
    return StateStore.open(str(folder / "copy"))


def forked(store: StateStore, folder: Path) -> StateStore:
    store.maintenance.copy("latest", str(folder / "fork"), linked=True)
    return StateStore.open(str(folder / "fork"))


def salvaged(store: StateStore, _: Path) -> StateStore:
    take(store, ROWS_TAKEN.slice(0, 9), "partitioned")
    (entry,) = store.checkpoint().manifest.keyed
    Path(table_of(store), entry.handles[0].path).unlink()
    store.maintenance.salvage("latest")
    return store


def repaired(store: StateStore, _: Path) -> StateStore:
    for _number in range(2):
        take(store, ROWS_TAKEN, "partitioned")
    Path(table_of(store), "_delta_log", f"{1:020}.json").unlink()
    assert store.maintenance.repair().repaired
    return store


def checkpointed(store: StateStore, _: Path) -> StateStore:
    """The log's own checkpoint has the statistics."""
    for _number in range(INTERVAL + 1):
        take(store, ROWS_TAKEN, "partitioned")
    assert [*Path(table_of(store), "_delta_log").glob("*.checkpoint.parquet")]
    return store


def acknowledged(store: StateStore, _: Path) -> StateStore:
    with store.snapshot(parallelism=2) as checkpoint:
        writer = checkpoint.declare_keyed(
            "u", "s", ROWS_TAKEN.schema, key="k", namespace=NAMESPACE, max_parallelism=GROUPS
        )
        for subtask in range(2):
            mine = writer.subtask(subtask)
            groups = [key_group_of(k, max_parallelism=GROUPS) for k in range(ROWS)]
            own = pa.array(group in mine.key_groups for group in groups)
            answer = mine.write(ROWS_TAKEN.filter(own))
            checkpoint.acknowledge(Acknowledgement.from_json(answer.to_json()))
    return store


COMMANDS = [
    *(edited, compacted, purged, rekeyed, copied, forked, salvaged, repaired, checkpointed),
    acknowledged,
]


@pytest.mark.long_cases(
    "compacted-10",
    "purged-10",
    "repaired-10",
    "acknowledged-10",
    "checkpointed-10",
    "copied-10",
    "forked-10",
    "rekeyed-10",
    "salvaged-10",
)
@pytest.mark.parametrize("share", [10, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("command", COMMANDS, ids=[command.__name__ for command in COMMANDS])
def test_after_every_command_that_writes_a_log(
    tmp_path: Path, command: Callable[[StateStore, Path], StateStore], share: int
) -> None:
    store = StateStore.open(str(tmp_path / "store"), compaction=None)
    take(store, ROWS_TAKEN, "partitioned")
    assert_right(command(store, tmp_path), share)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        *("text", "instant", "decimal"),
        *(name for name in ("uuid", "long", "date", "local")),
    ],
)
def test_every_type_as_the_key(tmp_path: Path, name: str) -> None:
    """A partition then has a file whose lower and upper bound can be equal."""
    kind, values = VALUES[name]
    column = f"n_{name}"
    rows = pa.table({"k": range(len(values)), column: pa.array(values, kind)})
    asked = [Filter(column, "= ?", (value,)) for value in values]
    asked.append(Filter(column, "IN (?, ?)", (values[0], values[2])))
    for layout in ("partitioned", "ranged"):
        store = StateStore.open(str(tmp_path / layout))
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed(
                "u", "s", rows, key=column, max_parallelism=GROUPS, layout=layout
            )
        assert wrong(rows, readers(table_of(store)), asked) == []


def test_a_file_without_a_bound_for_one_column_has_no_bounds_at_all(tmp_path: Path) -> None:
    """JSON has no time after the year 9999. Readers use the file for all columns."""
    far = 2**60  # in the year 38505
    instants = pa.array([far, 0, 1, 2], pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"k": [0, 1, 2, 3], "n_uuid": ["a", "b", "c", "d"], "n_instant": instants})
    store = StateStore.open(str(tmp_path / "store"))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed(
            "u", "s", rows, key="k", namespace=["n_uuid", "n_instant"], max_parallelism=GROUPS,
            layout="partitioned",
        )  # fmt: skip
    with_bounds = ["minValues" in statistics for statistics in logged(store)]
    assert {*with_bounds} == {True, False}
    asked = [Filter("n_uuid", "= ?", (value,)) for value in "abcd"]
    asked += [Filter("k", ">= ?", (0,)), Filter("k", "IN (?, ?)", (0, 3))]
    assert wrong(rows, readers(table_of(store)), asked) == []


@pytest.mark.long
def test_the_next_checkpoint_repairs_the_log_of_an_older_release(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The older release omitted the upper bounds of long text and all bounds of times, but not
    their null counts. The repair includes the files that the checkpoint reuses.
    """
    store = StateStore.open(str(tmp_path / "store"))
    take(store, ROWS_TAKEN, "partitioned")
    entry = Path(table_of(store), "_delta_log", f"{0:020}.json")
    actions = [json.loads(line) for line in entry.read_bytes().splitlines()]
    for action in actions:
        if add := action.get("add"):
            statistics = json.loads(add["stats"])
            del statistics["maxValues"]["n_text"], statistics["minValues"]["n_instant"]
            add["stats"] = json.dumps(statistics)
    entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    asked = [
        Filter("n_text", "= ?", ("short",)),
        Filter("n_instant", ">= ?", (dt.datetime(1, 1, 1, tzinfo=dt.UTC),)),
    ]
    assert wrong(ROWS_TAKEN, readers(table_of(store)), asked)
    row = ROWS_TAKEN.slice(0, 1).to_pylist()[0]
    store.maintenance.edit("u", "s", put=[row | {"v_long": 5}])
    (before, after) = (store.checkpoint(number).manifest.keyed[0].handles for number in (1, 2))
    assert {*before} & {*after}
    rows = store.restore(parallelism=1).keyed("u", "s").to_arrow(0)
    assert wrong(rows, readers(table_of(store)), asked) == []
    assert spark.read.format("delta").load(table_of(store)).count() == ROWS


@pytest.mark.long
def test_a_redefined_table_keeps_its_files_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """No entry adds and removes the same file, because Spark would treat it as removed."""
    store = StateStore.open(str(tmp_path / "store"))
    take(store, ROWS_TAKEN, "partitioned")
    spark.sql(
        f"ALTER TABLE delta.`{table_of(store)}` UNSET TBLPROPERTIES ('delta.logRetentionDuration')"
    )
    row = ROWS_TAKEN.slice(0, 1).to_pylist()[0]
    store.maintenance.edit("u", "s", put=[row | {"v_long": 5}])
    frame = spark.read.format("delta").load(table_of(store))
    assert frame.count() == ROWS == DeltaTable(table_of(store)).to_pyarrow_table().num_rows
