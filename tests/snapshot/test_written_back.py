"""Restored rows are written back without key, namespace and kind, which the store knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from statestore import Changes, StateStore
from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.state import StateKind


@dataclass(frozen=True)
class Form:
    """One kind of keyed state: its rows, and how the first checkpoint declares them."""

    columns: dict[str, Any]
    key: str | tuple[str, ...]
    namespace: str | tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> pa.Table:
        return pa.table(self.columns)


FORMS = {
    "value of a composite key": Form(
        {"page": ["a", "b", "a"], "user": [1, 1, 2], "visits": [5, 6, 7]}, key=("user", "page")
    ),
    "value by window": Form(
        {"user": ["ann", "ann"], "window": [0, 60], "sum": [1.5, 2.5]},
        key="user",
        namespace="window",
    ),
    "list": Form(
        {"tag": ["new", "vip"], "user": ["ann", "ann"], "nth": [0, 1]},
        key="user",
        options={"kind": "list", "entry": "nth"},
    ),
    "map by two columns": Form(
        {"user": [7, 7], "shop": ["x", "x"], "item": [1, 2], "count": [3, 4]},
        key="user",
        options={
            "kind": "map",
            "entry": ("shop", "item"),
            "key_types": "Integer",
            "hash_scheme": "pyflink",
        },
    ),
    "timers": Form(
        {"user": ["ann", "bob"], "window": ["w", "w"], "timestamp": [10, 20]},
        key="user",
        namespace="window",
        options={"kind": "timers", "entry": "timestamp", "time_domain": "event"},
    ),
}


def store_of(tmp_path: Path, form: Form) -> StateStore:
    """Return a store whose only checkpoint declares and has the state."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed(
            *("u", "s", form.rows),
            key=form.key,
            namespace=form.namespace,
            max_parallelism=16,
            **form.options,
        )
    return store


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_restored_table_is_written_back_as_the_same_state(tmp_path: Path, form: Form) -> None:
    store = store_of(tmp_path, form)
    first = store.restore()
    rows = first.keyed("u", "s").to_arrow()
    assert rows.num_rows == form.rows.num_rows
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_keyed("u", "s", rows)
    second = store.restore()
    assert second.checkpoint_id > first.checkpoint_id
    assert second.keyed("u", "s").entry.state == first.keyed("u", "s").entry.state
    assert second.keyed("u", "s").to_arrow().equals(rows)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_subtasks_write_their_restored_rows_back(tmp_path: Path, form: Form) -> None:
    store = store_of(tmp_path, form)
    restored = store.restore(parallelism=3).keyed("u", "s")
    with store.snapshot(parallelism=3) as checkpoint:
        writer = checkpoint.declare_keyed("u", "s", restored.to_batches().schema)
        for subtask in range(3):
            rows = restored.to_batches(subtask)
            checkpoint.acknowledge(writer.subtask(subtask).write(rows))
    again = store.restore().keyed("u", "s")
    assert again.entry.state == restored.entry.state
    assert again.to_arrow().equals(restored.to_arrow())


# Each kind of state, as its first checkpoint declares it, without the columns of its key.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "list": (
        {"nth": [0, 1], "tag": ["new", "vip"]},
        {"kind": "list", "entry": "nth"},
    ),
    "map": (
        {"shop": ["x", "y"], "item": [1, 2], "n": [3, 4]},
        {"kind": "map", "entry": ["shop", "item"]},
    ),
    "reducing": ({"sum": [1, 2]}, {"kind": "reducing"}),
    "aggregating": ({"sum": [1.5, 2.5], "n": [1, 2]}, {"kind": "aggregating"}),
    "timers": (
        {"due": [10, 20]},
        {"kind": "timers", "entry": "due", "time_domain": "processing"},
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_alone_uses_the_stored_columns(store: StateStore, name: str) -> None:
    """Nothing is repeated: neither key and namespace nor the entry columns and the domain."""
    columns, declared = KINDS[name]
    rows = pa.table({"user": ["ann", "bob"], "window": [0, 60], **columns})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed(
            "u", "s", rows, key="user", namespace="window", max_parallelism=16, **declared
        )
    first = store.restore().keyed("u", "s")
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_keyed("u", "s", first.to_arrow(), kind=declared["kind"])
    again = store.restore().keyed("u", "s")
    assert again.entry.state == first.entry.state
    assert again.entry.state.namespace == ("window",)
    assert again.to_arrow().equals(first.to_arrow())


def test_another_kind_is_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path, FORMS["list"])
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
        with pytest.raises(SchemaMismatchError, match=r"was stored with kind list .* now has map"):
            checkpoint.write_keyed("u", "s", FORMS["list"].rows, kind="map")


def test_another_position_than_the_stored_one_is_refused(tmp_path: Path) -> None:
    rows = FORMS["list"].rows.append_column("other", pa.array([5, 6]))
    store = store_of(tmp_path, FORMS["list"])
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
        with pytest.raises(SchemaMismatchError, match=r"stored with entry columns \(nth\)"):
            checkpoint.write_keyed("u", "s", rows, kind="list", entry="other")


@pytest.mark.parametrize("kind", ["list", "map", "timers", "reducing"])
def test_a_new_state_of_any_kind_needs_a_key(store: StateStore, kind: str) -> None:
    message = "no state 's' of operator 'u': pass key="
    with (
        pytest.raises(InvalidArgumentError, match=message),
        store.snapshot(parallelism=2) as checkpoint,
    ):
        checkpoint.write_keyed("u", "s", FORMS["list"].rows, kind=kind)
    assert store.checkpoints() == ()


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"kind": "map"}, "map state requires a map_key column; name it with entry="),
        ({"kind": "list"}, "list state requires a position column; name it with entry="),
        ({"kind": "timers", "entry": "nth"}, "timers state requires a time domain"),
    ],
)
def test_a_key_without_the_rest_is_refused(
    tmp_path: Path, options: dict[str, Any], missing: str
) -> None:
    """A caller that describes the state describes all of it."""
    store = store_of(tmp_path, FORMS["list"])
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
        with pytest.raises(InvalidArgumentError, match=f"state 'new'.*{missing}"):
            checkpoint.write_keyed("u", "new", FORMS["list"].rows, key="user", **options)


def test_a_state_that_a_later_checkpoint_dropped_is_still_known(tmp_path: Path) -> None:
    form = FORMS["list"]
    store = store_of(tmp_path, form)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.drop("u", "s")
        checkpoint.write_keyed("u", "other", [{"k": 1, "v": 2}], key="k")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
        assert checkpoint.write_keyed("u", "s", form.rows).state.kind is StateKind.LIST


def test_a_new_state_needs_a_key(tmp_path: Path) -> None:
    store = store_of(tmp_path, FORMS["list"])
    rows = FORMS["list"].rows
    message = "no state 'new' of operator 'u': pass key="
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
        with pytest.raises(InvalidArgumentError, match=message):
            checkpoint.write_keyed("u", "new", rows)
    assert [entry.state.name for entry in store.checkpoint().manifest.keyed] == ["s"]


def test_a_key_without_a_kind_is_still_a_value_state(tmp_path: Path) -> None:
    """The stored kind is used only if the key is omitted, as for changes."""
    store = store_of(tmp_path, FORMS["list"])
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
        with pytest.raises(SchemaMismatchError, match="was stored with kind list"):
            checkpoint.write_keyed("u", "s", FORMS["list"].rows, key="user")


def test_the_name_of_a_time_zone_is_not_kept(tmp_path: Path) -> None:
    """The time is the same instant, in UTC."""
    zoned = pa.array([datetime(2026, 7, 1, 12, tzinfo=UTC)], pa.timestamp("us", "Europe/Paris"))
    store = store_of(tmp_path, Form({"k": ["a"], "t": zoned}, "k"))
    read = store.restore().keyed("u", "s").to_arrow()["t"]
    assert read.type == pa.timestamp("us", "UTC")
    assert read.to_pylist() == zoned.to_pylist()


def typed_store(tmp_path: Path) -> StateStore:
    """Return a store with the types for which pandas has others."""
    rows = pa.table(
        {
            "k": ["a", "b"],
            "n": pa.array([1, None], pa.int32()),
            "d": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "m": pa.array([[("x", 1)], None], pa.map_(pa.string(), pa.int64())),
            "t": pa.array([datetime(2026, 1, 31, tzinfo=UTC)] * 2),
            "b": [True, None],
        }
    )
    return store_of(tmp_path, Form({name: rows.column(name) for name in rows.column_names}, "k"))


def write(store: StateStore, frame: pd.DataFrame, how: str) -> None:
    if how == "edit":
        store.maintenance.edit("u", "s", rows=frame)
        return
    with store.snapshot(parallelism=2) as checkpoint:
        if how == "write_keyed":
            checkpoint.write_keyed("u", "s", frame)
        elif how == "write_changes_against":
            checkpoint.write_changes_against("u", "s", frame)
        else:
            checkpoint.write_changes("u", "s", Changes(upserts=frame))


WAYS = ["write_keyed", "write_changes", "write_changes_against", "edit"]


@pytest.mark.parametrize("how", WAYS)
def test_a_restored_pandas_frame_is_written_back_with_the_stored_types(
    tmp_path: Path, how: str
) -> None:
    """pandas has turned integers next to a null into floats, and other values into objects."""
    store = typed_store(tmp_path)
    first = store.restore().keyed("u", "s").to_arrow()
    frame = first.to_pandas()
    frame.loc[frame["k"] == "a", "n"] = 7
    write(store, frame, how)
    again = store.restore().keyed("u", "s").to_arrow()
    assert again.schema == first.schema
    assert again.drop_columns("n").to_pylist() == first.drop_columns("n").to_pylist()
    numbers = dict(zip(again["k"].to_pylist(), again["n"].to_pylist(), strict=True))
    assert numbers == {"a": 7, "b": None}


@pytest.mark.parametrize("how", WAYS)
def test_all_wrong_columns_of_a_pandas_frame_are_named_at_once(tmp_path: Path, how: str) -> None:
    store = typed_store(tmp_path)
    frame = store.restore().keyed("u", "s").to_arrow().to_pandas()
    frame["n"], frame["d"], frame["b"] = ["x", "y"], [1.1, 2.2], [1, 0]
    with pytest.raises(SchemaMismatchError, match="3 columns of state 's'") as caught:
        write(store, frame, how)
    for name in "ndb":
        assert f"column {name!r} of" in str(caught.value)
    assert store.checkpoints() == (1,)
