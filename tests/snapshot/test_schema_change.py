"""Schema evolution: a job changes its value columns, and each checkpoint keeps its own (I3)."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.state import Layout
from statestore.store import StateStore

LAYOUTS = [layout.value for layout in Layout]


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def take(store: StateStore, columns: dict[str, Any], **options: Any) -> Any:
    rows = pa.table({"k": ["a", "b"]} | columns)
    with store.snapshot(parallelism=2) as checkpoint:
        return checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=4, **options)


def read(store: StateStore, checkpoint: int | str = "latest") -> pa.Table:
    state = store.restore(checkpoint=checkpoint, parallelism=1, verify=True).keyed("u", "n")
    return state.to_arrow(0).drop_columns(["key_group"]).sort_by("k")


def files(store: StateStore) -> list[str]:
    return sorted(str(path) for path in Path(store.url, "operators").rglob("*.parquet"))


CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"v": [1, 2]}, {"v": [1, 2], "w": ["x", None]}),
    ({"v": [1, 2], "w": ["x", "y"]}, {"v": [3, 4]}),
    ({"v": pa.array([1, 2], pa.int8())}, {"v": pa.array([300, 2], pa.int16())}),
    ({"v": pa.array([1, 2], pa.int16())}, {"v": pa.array([1, 2**20], pa.int32())}),
    ({"v": pa.array([1, 2], pa.int32())}, {"v": pa.array([1, 2**40], pa.int64())}),
    ({"v": pa.array([1, 2], pa.int32())}, {"v": [0.5, 2.0]}),
    ({"v": pa.array([1, 2], pa.float32())}, {"v": [0.1, 2.0]}),
    (
        {"v": pa.array([Decimal("1.5"), None], pa.decimal128(4, 1))},
        {"v": pa.array([Decimal("1.25"), Decimal(12345)], pa.decimal128(9, 2))},
    ),
    (
        {"v": pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())]))},
        {"v": pa.array([{"a": 2**40, "b": "x"}, None])},
    ),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_columns_are_added_removed_and_widened(
    store: StateStore, layout: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Each checkpoint is read with its own columns, also after further changes."""
    wanted = [pa.table({"k": ["a", "b"]} | columns) for columns in (before, after, after)]
    for columns in (before, after, after):
        take(store, columns, layout=layout)
    for number, rows in enumerate(wanted, 1):
        assert read(store, number).to_pylist() == rows.to_pylist()
        assert read(store, number).column_names == rows.column_names
    assert store.restore(checkpoint=1).keyed("u", "n").get("a") == wanted[0].to_pylist()[:1]
    assert store.restore().keyed("u", "n").get("a") == wanted[2].to_pylist()[:1]
    assert store.maintenance.verify("all", deep=True).is_intact


@pytest.mark.parametrize(("after", "before"), CHANGES[2:])
def test_a_narrower_type_is_refused_before_any_write(
    store: StateStore, before: dict[str, Any], after: dict[str, Any]
) -> None:
    take(store, before)
    written = files(store)
    with pytest.raises(SchemaMismatchError, match="which cannot be widened to") as caught:
        take(store, after)
    assert str(store.checkpoint().manifest.keyed[0].state.schema) in str(caught.value)
    assert (files(store), store.checkpoints()) == (written, (1,))


def test_a_rename_is_declared(store: StateStore) -> None:
    """It stays valid: the next checkpoint of the same job declares it again."""
    take(store, {"old": [1, 2], "x": [1, 2]})
    with pytest.raises(SchemaMismatchError, match=r"renamed=\{'old': 'new'\} if it is the same"):
        take(store, {"new": [1, 2], "x": [1, 2]})
    for _ in range(2):
        take(store, {"new": [1, 2], "x": [1, 2]}, renamed={"old": "new"})
    assert store.checkpoint().manifest.keyed[0].state.schema.names == ("k", "new", "x")
    assert read(store, 1).column_names == ["k", "old", "x"]
    assert store.checkpoints() == (1, 2, 3)


def test_a_removed_and_an_added_column_are_declared(store: StateStore) -> None:
    take(store, {"old": [1, 2]})
    with pytest.raises(SchemaMismatchError, match=r"dropped=\['old'\] if it is not"):
        take(store, {"new": [1, 2]})
    for _ in range(2):
        take(store, {"new": [1, 2]}, dropped="old")
    with pytest.raises(
        InvalidArgumentError, match="dropped names 'old', but the rows still have it"
    ):
        take(store, {"new": [1, 2], "old": [1, 2]}, dropped=["old"])
    assert store.checkpoints() == (1, 2, 3)


def test_a_first_checkpoint_has_nothing_to_rename(store: StateStore) -> None:
    take(store, {"new": [1, 2]}, renamed={"old": "new"}, dropped=["older"])
    assert store.checkpoint().manifest.keyed[0].state.values == ("new",)


def test_subtasks_write_the_changed_columns(store: StateStore) -> None:
    """A declared schema can evolve as rows can."""
    take(store, {"v": pa.array([1, 2], pa.int32())})
    schema = pa.schema([("w", pa.string()), ("k", pa.string()), ("v", pa.int64())])
    with store.snapshot(parallelism=1) as checkpoint:
        writer = checkpoint.declare_keyed("u", "n", schema, key="k")
        rows = [{"k": "a", "v": 2**40, "w": "x"}, {"k": "b", "v": None, "w": None}]
        checkpoint.acknowledge(writer.subtask(0).write(rows))
    assert read(store).to_pylist() == [
        {"k": "a", "v": 2**40, "w": "x"},
        {"k": "b", "v": None, "w": None},
    ]


def test_entry_columns_cannot_change(store: StateStore) -> None:
    """A map's key, a list's position and a window's bounds are fixed; values can change."""
    base = {"m": pa.array([1, 2], pa.int32()), "v": pa.array([1, 2], pa.int32())}
    wide = pa.array([1, 2], pa.int64())
    states: dict[str, dict[str, Any]] = {
        "map": {"kind": "map", "entry": "m"},
        "list": {"kind": "list", "entry": "m"},
        "windows": {"namespace": "m"},
    }
    for name, options in states.items():
        rows = pa.table({"k": ["a", "b"]} | base)
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", name, rows, key="k", max_parallelism=4, **options)
            checkpoint.carry_rest()
        with store.snapshot(parallelism=1) as checkpoint:
            with pytest.raises(SchemaMismatchError, match="the type of 'm' cannot change"):
                checkpoint.write_keyed("u", name, rows.set_column(1, "m", wide), key="k", **options)
            checkpoint.write_keyed("u", name, rows.set_column(2, "v", wide), key="k", **options)
            checkpoint.carry_rest()
