"""A state joined at two checkpoints, and the history of one key, against dictionaries."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    InvalidArgumentError,
    MissingFileError,
    StateNotFoundError,
)
from statestore.format.state import TimeToLive
from statestore.testing.faults import CountingStorage
from tests.support.forms import Checkpoints, users

Row = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path / "s"), table_format="parquet", compaction=None)


def put(store: StateStore, rows: Any, **options: Any) -> None:
    given: Row = {"key": "k", "max_parallelism": 8} | options
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, **given)


def change_of(one: object, other: object) -> str:
    if one is None or other is None:
        return "added" if one is None else "removed"
    return "same" if one == other else "changed"


@pytest.mark.long_cases("partitioned")
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["partitioned", "ranged"])
def test_random_histories_with_layers(tmp_path: Path, layout: str) -> None:
    dice = random.Random(layout)
    layered = Checkpoints(tmp_path, layout=layout)
    layered.full(users(25, 3))
    for step in range(5):
        if step == 3:
            layered.full(layered.rows | users(4, 5, 50))
            continue
        new = {
            (f"u{dice.randrange(30):03}", dice.randrange(4)): dice.randrange(9) for _ in range(9)
        }
        gone = dice.sample(sorted(set(layered.rows) - set(new)), 4)
        cleared = {f"u{dice.randrange(30):03}"} - {k for k, _ in (*new, *gone)}
        layered.change(new, entries=gone, cleared=cleared)
    store = layered.store
    pairs = [(a, b) for a in layered.taken for b in layered.taken]
    for a, b in dice.sample(pairs, 8):
        old, new = layered.taken[a], layered.taken[b]
        found = store.inspect.as_of(a, b, "u", "s").read_all()
        assert found.column_names == ["key_group", "change", "k", "m", "v_a", "v_b"]
        groups = found.column("key_group").to_pylist()
        assert groups == sorted(groups)
        rows = {(r["k"], r["m"]): (r["change"], r["v_a"], r["v_b"]) for r in found.to_pylist()}
        assert len(rows) == found.num_rows
        assert rows == {
            key: (change_of(old.get(key), new.get(key)), old.get(key), new.get(key))
            for key in old.keys() | new.keys()
        }
    for user in dice.sample([f"u{i:03}" for i in range(30)], 6):
        before: list[Any] = []
        for one in store.inspect.history(user, "u", "s"):
            entries = layered.taken[one.checkpoint_id]
            wanted = [
                {"k": k, "m": m, "v": v} for (k, m), v in sorted(entries.items()) if k == user
            ]
            assert list(one.rows or ()) == wanted
            assert one.is_changed is (wanted != before)
            before = wanted
        assert one.checkpoint_id == max(layered.taken)


def test_lists_timers_and_namespaces(store: StateStore) -> None:
    for shift in (0, 1):
        rows = [{"k": f"k{i}", "n": n, "v": i + shift * (n == 1)} for i in range(6) for n in (0, 1)]
        with store.snapshot(parallelism=2) as checkpoint:
            options: Row = {"key": "k", "max_parallelism": 8}
            checkpoint.write_keyed("u", "list", rows, kind="list", entry="n", **options)
            checkpoint.write_keyed("u", "ns", rows, namespace="n", **options)
            times = [{"k": f"k{i}", "n": i + shift} for i in range(6)]
            checkpoint.write_keyed(
                "u", "t", times, kind="timers", entry="n", time_domain="event", **options
            )
    for name in ("list", "ns"):
        found = store.inspect.as_of(1, 2, "u", name).read_all().to_pylist()
        assert {(r["k"], r["n"]): r["change"] for r in found} == {
            (f"k{i}", n): "changed" if n else "same" for i in range(6) for n in (0, 1)
        }
    found = store.inspect.as_of(1, 2, "u", "t").read_all()
    assert found.column_names == ["key_group", "change", "k", "n"]
    counts = found.column("change").to_pylist()
    assert (counts.count("removed"), counts.count("added"), len(counts)) == (6, 6, 12)


def test_columns_of_two_schemas_are_side_by_side(store: StateStore) -> None:
    """Common columns are compared, and a widened type is not a difference."""
    put(store, pa.table({"k": ["a", "b"], "v": pa.array([1, 2], pa.int32()), "old": ["x", "y"]}))
    put(store, pa.table({"k": ["a", "b"], "v": [1, 3], "new": [None, 1.5]}), dropped="old")
    found = store.inspect.as_of(1, 2, "u", "s").read_all()
    names = ["key_group", "change", "k", "v_a", "old_a", "v_b", "new_b"]
    assert found.column_names == names
    assert found.schema.field("v_a").type == pa.int32()
    assert found.schema.field("v_b").type == pa.int64()
    rows = {
        row["k"]: tuple(row[name] for name in names[1:2] + names[3:]) for row in found.to_pylist()
    }
    assert rows == {"a": ("same", 1, "x", 1, None), "b": ("changed", 2, "y", 3, 1.5)}


def test_rows_expired_by_now_are_hidden_without_now_ms(
    store: StateStore,
) -> None:
    for value in (1, 2):
        with store.snapshot(parallelism=1, now_ms=0) as checkpoint:
            rows = pa.table({"k": ["a"], "v": [value], "at": [0]})
            checkpoint.write_keyed("u", "s", rows, key="k", ttl=TimeToLive("100ms", "at"))
    assert store.restore().keyed("u", "s").get("a") == []
    assert store.inspect.as_of(1, 2, "u", "s").read_all().num_rows == 0
    assert [one.rows for one in store.inspect.history("a", "u", "s")] == [(), ()]
    assert store.inspect.as_of(1, 2, "u", "s", now_ms=0).read_all()["change"].to_pylist() == [
        "changed"
    ]


def test_expired_rows_are_absent_on_both_sides(store: StateStore) -> None:
    put(store, [{"k": "a", "at": 0}, {"k": "b", "at": 100}], ttl=TimeToLive("100ms", "at"))
    put(store, [{"k": "a", "at": 150}, {"k": "b", "at": 100}])
    found = store.inspect.as_of(1, 2, "u", "s", now_ms=120).read_all().to_pylist()
    assert {row["k"]: row["change"] for row in found} == {"a": "added", "b": "same"}
    assert [one.rows for one in store.inspect.history("a", "u", "s", now_ms=120)] == [
        (),
        ({"k": "a", "at": 150},),
    ]


def test_nan_and_null_equal_themselves(store: StateStore) -> None:
    rows = [{"k": 1.5, "v": float("nan")}, {"k": float("nan"), "v": None}, {"k": -0.0, "v": 1.0}]
    put(store, rows)
    put(store, rows)
    changes = store.inspect.as_of(1, 2, "u", "s").read_all().column("change").to_pylist()
    assert changes == ["same"] * 3
    assert [one.is_changed for one in store.inspect.history(1.5, "u", "s")] == [True, False]


def test_a_checkpoint_joined_with_itself_and_backwards(store: StateStore) -> None:
    put(store, [{"k": i} for i in range(9)])
    put(store, [{"k": i} for i in range(5, 12)])
    assert set(store.inspect.as_of(1, 1, "u", "s").read_all()["change"].to_pylist()) == {"same"}
    there, back = (
        sorted(store.inspect.as_of(a, b, "u", "s").read_all()["change"].to_pylist())
        for a, b in ((1, 2), ("latest", 1))
    )
    assert there == sorted(["added"] * 3 + ["removed"] * 5 + ["same"] * 4)
    assert back == sorted(["removed"] * 3 + ["added"] * 5 + ["same"] * 4)


def test_states_that_cannot_be_joined_are_refused(store: StateStore) -> None:
    put(store, [{"k": 1, "o": 1, "change": 1}])
    store.maintenance.rekey("u", max_parallelism=16)
    store.maintenance.rekey("u", hash_scheme="flink-sql", max_parallelism=8)
    store.maintenance.rekey("u", "s", key="o", hash_scheme="java")
    store.maintenance.rekey("u", "s", key="change")
    for other in (2, 3, 4):
        with pytest.raises(InvalidArgumentError, match="state 's' of operator 'u' has"):
            store.inspect.as_of(1, other, "u", "s")
    with pytest.raises(InvalidArgumentError, match="two columns 'change'"):
        store.inspect.as_of(5, 5, "u", "s")
    with pytest.raises(CheckpointNotFoundError):
        store.inspect.as_of(1, 9, "u", "s")
    with pytest.raises(StateNotFoundError, match="no state 'x'"):
        store.inspect.as_of(1, 2, "u", "x")


def test_a_history_crosses_a_rekey_with_the_current_key(store: StateStore) -> None:
    put(store, [{"k": "a", "o": 1}])
    store.maintenance.rekey("u", max_parallelism=16)
    assert [one.rows for one in store.inspect.history("a", "u", "s")] == [({"k": "a", "o": 1},)] * 2
    store.maintenance.rekey("u", "s", key="o")
    history = store.inspect.history(1, "u", "s")
    assert [one.rows for one in history] == [None, None, ({"o": 1, "k": "a"},)]
    assert [one.is_changed for one in history] == [False, False, True]
    with pytest.raises(InvalidArgumentError):
        store.inspect.history("a", "u", "s")
    with pytest.raises(StateNotFoundError, match="no kept checkpoint has a keyed state 'x'"):
        store.inspect.history(1, "u", "x")


def test_a_history_reads_no_file_twice(tmp_path: Path) -> None:
    storage = CountingStorage(str(tmp_path))
    store = StateStore.open(storage, table_format="parquet", compaction=None)
    put(store, [{"k": i, "v": i} for i in range(50)])
    for _ in range(3):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes("u", "s", [], key="k")
    storage.opened.clear()
    history = store.inspect.history(7, "u", "s")
    assert [one.is_changed for one in history] == [True, False, False, False]
    opened = {name: n for name, n in storage.opened.items() if name.endswith(".parquet")}
    assert list(opened.values()) == [1]


def test_damaged_and_missing_files_are_named(store: StateStore) -> None:
    put(store, [{"k": i} for i in range(50)])
    entry = store.checkpoint().manifest.keyed[0]
    path = Path(store.url, entry.table.path, entry.handles[0].path)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DamagedFileError, match=path.name):
        store.inspect.as_of(1, 1, "u", "s").read_all()
    path.unlink()
    with pytest.raises(MissingFileError, match=path.name):
        store.inspect.as_of(1, 1, "u", "s").read_all()
