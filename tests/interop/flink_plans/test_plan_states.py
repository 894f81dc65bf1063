"""States of plans that few real jobs have: all types, lists with a TTL, one key group."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateOptions
from statestore.errors import InvalidArgumentError, SchemaMismatchError, UnsupportedTypeError
from statestore.interop.flink import export_savepoint, open_savepoint
from statestore.interop.flink_plans import FlinkPlan, bootstrap_flink_state, read_flink_plan
from statestore.store import StateStore

NO_TTL = [{"index": 0, "ttl": "0 ms", "name": "state"}]
NEVER = [{"index": 0, "ttl": "100000 d", "name": "state"}]
TOP: dict[str, Any] = {
    "rankType": "ROW_NUMBER",
    "partition": {"fields": [0]},
    "orderBy": {"fields": [{"index": 1, "isAscending": False, "nullIsLast": True}]},
    "rankRange": {"type": "Constant", "start": 1, "end": 3},
    "rankStrategy": {"type": "AppendFast"},
}
COUNT = {"name": "n", "internalName": "$COUNT$1", "argList": [], "filterArg": -1}


def make_plan(
    folder: Path,
    kind: str,
    row: Any,
    members: Mapping[str, Any],
    *,
    distribution: str = "HASH",
    state: Sequence[Mapping[str, Any]] = tuple(NO_TTL),
) -> FlinkPlan:
    """Return a plan of one operator with an input of the row type."""
    exchange = {"requiredDistribution": {"type": distribution}}
    nodes = [
        {"id": 1, "type": "stream-exec-exchange_1", "outputType": row},
        {"id": 2, "type": f"stream-exec-{kind}_1", "outputType": row, "state": state},
    ]
    nodes[0]["inputProperties"] = [exchange]
    nodes[1] |= members
    edges = [{"source": 1, "target": 2}]
    text = json.dumps({"flinkVersion": "2.3", "nodes": nodes, "edges": edges})
    (folder / "plan.json").write_text(text)
    return read_flink_plan(str(folder / "plan.json"))


TYPES = {
    "k": ("BIGINT NOT NULL", pa.int64(), 7),
    "tiny": ("TINYINT", pa.int8(), -3),
    "small": ("SMALLINT", pa.int16(), 300),
    "whole": ("INT", pa.int32(), -70_000),
    "real": ("FLOAT", pa.float32(), 0.5),
    "wide": ("DOUBLE", pa.float64(), 0.1),
    "flag": ("BOOLEAN", pa.bool_(), True),
    "price": ("DECIMAL(10, 2)", pa.decimal128(10, 2), Decimal("-1.25")),
    "exact": ("DECIMAL(38, 10)", pa.decimal128(38, 10), Decimal("12345678901234567890.5")),
    "code": ("CHAR(3)", pa.string(), "abc"),
    "text": ("VARCHAR(2147483647)", pa.string(), "a text of several bytes"),
    "raw": ("VARBINARY(4)", pa.binary(), b"\0\1"),
    "day": ("DATE", pa.date32(), date(2026, 2, 28)),
    "clock": ("TIME(3)", pa.time32("ms"), time(23, 59, 59, 999_000)),
    "second": ("TIMESTAMP(0)", pa.timestamp("s"), datetime(2026, 1, 2, 3, 4, 5)),
    "milli": ("TIMESTAMP(3)", pa.timestamp("ms"), datetime(2026, 1, 2, 3, 4, 5, 6000)),
    "micro": ("TIMESTAMP(6)", pa.timestamp("us"), datetime(1969, 1, 2, 3, 4, 5, 6)),
    "nano": ("TIMESTAMP(9)", pa.timestamp("us"), datetime(2026, 1, 2, 3, 4, 5, 6)),
    "local": (
        "TIMESTAMP(3) WITH LOCAL TIME ZONE",
        pa.timestamp("ms", "Europe/Berlin"),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    ),
}
"""A column of each type: its type in a plan, its type in a table, and a value."""


def row_type(columns: Mapping[str, str]) -> str:
    return f"ROW<{', '.join(f'`{name}` {text}' for name, text in columns.items())}>"


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    schema = pa.schema([(name, stored) for name, (_, stored, _) in TYPES.items()])
    return pa.Table.from_pylist([{name: row.get(name) for name in TYPES} for row in rows], schema)


def all_types(folder: Path) -> FlinkPlan:
    columns = {name: text for name, (text, _, _) in TYPES.items()}
    members = {"uniqueKeys": [0], "isRowtime": False, "keepLastRow": True}
    return make_plan(folder, "deduplicate", row_type(columns), members)


def test_values_of_all_types_are_written(store: StateStore, tmp_path: Path) -> None:
    plan = all_types(tmp_path)
    filled = {name: value for name, (_, _, value) in TYPES.items()}
    table = table_of([filled, {"k": 8}])
    bootstrap_flink_state(store, plan, "2_deduplicate", "deduplicate-state", table)
    done = export_savepoint(store, str(tmp_path / "to"))
    found: dict[int, list[Any]] = {}
    for rows in open_savepoint(done.savepoint).operator("2_deduplicate").rows("deduplicate-state"):
        assert rows.value is not None
        found |= {row["f0"]: list(row.values())[1:] for row in rows.value.to_pylist()}
    seconds = {"second": 1_767_323_045, "nano": 6000}
    assert found[8] == [8, *[None] * (len(TYPES) - 1)]
    read = dict(zip(TYPES, found[7], strict=True))
    nano = read.pop("nano")
    assert nano == {"second": seconds["second"], "nano": seconds["nano"]}
    assert read == {name: value for name, value in filled.items() if name != "nano"}


@pytest.mark.parametrize(
    ("name", "stored", "value", "message"),
    [
        ("code", pa.string(), "abcd", "is longer than CHAR"),
        ("raw", pa.binary(), b"12345", "is longer than VARBINARY"),
        ("clock", pa.time64("us"), time(1, 2, 3, 4), "more digits of the second than TIME"),
        ("second", pa.timestamp("ms"), datetime(2026, 1, 1, 0, 0, 0, 1000), "digits of the second"),
        ("milli", pa.timestamp("us"), datetime(2026, 1, 1, 0, 0, 0, 1), "digits of the second"),
        ("tiny", pa.int64(), 128, "tiny"),
        ("price", pa.decimal128(12, 3), Decimal("1.125"), "price"),
    ],
)
def test_a_value_that_its_type_cannot_hold_is_refused(
    name: str, stored: pa.DataType, value: Any, message: str, store: StateStore, tmp_path: Path
) -> None:
    table = table_of([{"k": 1}, {"k": 2}])
    place = table.schema.get_field_index(name)
    table = table.set_column(place, name, pa.array([None, value], stored))
    plan = all_types(tmp_path)
    with pytest.raises(InvalidArgumentError, match=message):
        bootstrap_flink_state(store, plan, "2_deduplicate", "deduplicate-state", table)
    assert not Path(store.url).exists()


def test_a_time_without_a_zone_is_no_instant(store: StateStore, tmp_path: Path) -> None:
    table = table_of([{"k": 1}])
    place = table.schema.get_field_index("local")
    table = table.set_column(place, "local", pa.array([None], pa.timestamp("us")))
    with pytest.raises(SchemaMismatchError, match=r"'local' is timestamp.us., but the plan has"):
        bootstrap_flink_state(
            store, all_types(tmp_path), "2_deduplicate", "deduplicate-state", table
        )


def test_columns_that_no_table_has_are_named(store: StateStore, tmp_path: Path) -> None:
    row = row_type({"k": "INT", "tags": "ARRAY<VARCHAR(5)>", "more": "MAP<INT, ROW<`a` INT>>"})
    members = {"uniqueKeys": [0], "keepLastRow": True}
    plan = make_plan(tmp_path, "deduplicate", row, members)
    with pytest.raises(
        UnsupportedTypeError, match=r"type of tags ARRAY<VARCHAR\(5\)>, more MAP<INT, ROW<`a` INT>>"
    ):
        bootstrap_flink_state(store, plan, "2_deduplicate", "deduplicate-state", pa.table({}))


def test_a_name_that_occurs_twice_gets_a_number(tmp_path: Path) -> None:
    row = row_type({"k": "INT", "K": "INT", "a``b": "INT", "position": "INT"})
    members = {"uniqueKeys": [1], "keepLastRow": True}
    (state,) = make_plan(tmp_path, "deduplicate", row, members).states
    names = [column.name for column in state.table_columns]
    assert names == ["k", "K_2", "a`b", "position_2"]
    assert state.key_columns == ("K_2",)


BEST = row_type({"shop": "VARCHAR(9)", "amount": "INT", "id": "BIGINT"})


def best_rows(**columns: Any) -> pa.Table:
    rows = {"shop": ["x", "x", "x", "y"], "amount": [9, 5, 9, 5], "id": [1, 2, 3, 4]}
    return pa.table(rows | {"position": [1, 0, 0, 0]} | columns)


def lists_of(savepoint: str) -> dict[tuple[str, int], Any]:
    found = {}
    for rows in open_savepoint(savepoint).operator("2_rank").rows("data-state-with-append"):
        assert rows.map_key is not None
        assert rows.value is not None
        keys = zip(rows.key.to_pylist(), rows.map_key.to_pylist(), strict=True)
        for (key, map_key), value in zip(keys, rows.value.to_pylist(), strict=True):
            found[key["f0"], map_key["f0"]] = value
    return found


def test_rows_with_the_same_sort_key_keep_their_order(store: StateStore, tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "rank", BEST, TOP)
    bootstrap_flink_state(store, plan, "2_rank", "data-state-with-append", best_rows())
    done = export_savepoint(store, str(tmp_path / "to"), max_parallelism=32, parallelism=3)
    lists = {key: [row["f2"] for row in value] for key, value in lists_of(done.savepoint).items()}
    assert lists == {("x", 9): [3, 1], ("x", 5): [2], ("y", 5): [4]}


def test_more_rows_than_a_top_n_keeps_are_refused(store: StateStore, tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "rank", BEST, TOP)
    rows = best_rows(shop=["x"] * 4, amount=[9, 5, 9, 4])
    bootstrap_flink_state(store, plan, "2_rank", "data-state-with-append", rows)
    with pytest.raises(
        InvalidArgumentError, match=r"has 4 rows of the key {'shop': 'x'}, but .* the best 3"
    ):
        export_savepoint(store, str(tmp_path / "to"))
    assert not (tmp_path / "to" / "_metadata").exists()


def test_a_list_has_the_latest_time_of_its_rows(store: StateStore, tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "rank", BEST, TOP, state=NEVER)
    now = int(datetime.now(UTC).timestamp() * 1000)
    times = [now - 30, now - 20, now - 10, now - 40]
    rows = best_rows(last_access=times)
    bootstrap_flink_state(store, plan, "2_rank", "data-state-with-append", rows)
    done = export_savepoint(store, str(tmp_path / "to"))
    found = {key: value["last_access"] for key, value in lists_of(done.savepoint).items()}
    assert found == {("x", 9): now - 10, ("x", 5): now - 20, ("y", 5): now - 40}


def test_an_operator_without_a_key_has_one_key_group(store: StateStore, tmp_path: Path) -> None:
    members = {
        "grouping": [],
        "aggCalls": [COUNT],
        "aggCallNeedRetractions": [False],
        "outputType": "ROW<`n` BIGINT NOT NULL>",
    }
    row = row_type({"a": "INT"})
    plan = make_plan(tmp_path, "group-aggregate", row, members, distribution="SINGLETON")
    table = pa.table({"n": [5]})
    with pytest.raises(InvalidArgumentError, match="has one key group"):
        bootstrap_flink_state(
            store, plan, "2_group-aggregate", "accState", table, max_parallelism=8
        )
    bootstrap_flink_state(store, plan, "2_group-aggregate", "accState", table)
    done = export_savepoint(store, str(tmp_path / "to"), max_parallelism=720, parallelism=4)
    (operator,) = done.operators
    assert (operator.max_parallelism, operator.parallelism, operator.rows) == (1, 1, (1,))
    (rows,) = open_savepoint(done.savepoint).operator("2_group-aggregate").rows("accState")
    assert (rows.key.to_pylist(), rows.key_group) == ([{"row_kind": 0}], 0)


def test_a_column_that_the_store_lost_is_named(store: StateStore, tmp_path: Path) -> None:
    """A later checkpoint can change the columns of a state; the plan's cannot change."""
    plan = make_plan(tmp_path, "rank", BEST, TOP | {"rankRange": {**TOP["rankRange"], "end": 1}})
    (state,) = plan.states
    rows = best_rows().slice(2).drop_columns(["position"])
    bootstrap_flink_state(store, plan, state.operator, state.state, rows)
    stored = store.restore(parallelism=1).keyed(state.operator, state.state).to_arrow(0)
    with store.snapshot(parallelism=1) as checkpoint:
        changed = stored.drop_columns(["key_group", "id"])
        options: StateOptions = {"key": "shop", "hash_scheme": "flink-sql", "dropped": ["id"]}
        checkpoint.write_keyed(state.operator, state.state, changed, **options)
        checkpoint.carry_rest()
    with pytest.raises(SchemaMismatchError, match="does not have the columns id BIGINT"):
        export_savepoint(store, str(tmp_path / "to"))
