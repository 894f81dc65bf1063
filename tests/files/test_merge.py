"""Base and layers merged: in order, by runs of key groups, also where hashes collide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.files import equality, runs
from statestore.files.digest import rows_digest
from statestore.files.equality import equal_rows, found
from statestore.files.merge import read_state
from statestore.files.writer import ParquetOptions
from statestore.format.slices import reads_of
from statestore.keys.groups import KeyGroupRange
from statestore.storage import LocalStorage

GROUPS = 8
EVERYTHING = KeyGroupRange(0, GROUPS - 1)


def store_of(path: Path, **written: Any) -> tuple[StateStore, dict[str, int]]:
    """Return a store with a base and three layers, and what its state is."""
    parquet = ParquetOptions(**written)
    store = StateStore.open(str(path), table_format="parquet", parquet=parquet, compaction=None)
    state = {f"k{i}": i for i in range(60)}
    with store.snapshot(parallelism=2) as checkpoint:
        rows = [{"k": k, "v": v} for k, v in state.items()]
        checkpoint.keyed("u", "s", rows, key="k", max_parallelism=GROUPS, layout="ranged")
    for number in range(1, 4):
        upserts = {f"k{i}": -i * number for i in range(0, 80, 4 * number)}
        gone = [f"k{i}" for i in range(number, 60, 9) if f"k{i}" not in upserts]
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.changes(
                "u",
                "s",
                [{"k": k, "v": v} for k, v in upserts.items()],
                [{"k": k} for k in gone],
                cleared=[{"k": next(iter(upserts))}],
                key="k",
            )
        state = {k: v for k, v in state.items() if k not in gone} | upserts
    return store, state


def merged(
    store: StateStore,
    key_groups: KeyGroupRange = EVERYTHING,
    run_bytes: int = runs.RUN_BYTES,
) -> list[pa.RecordBatch]:
    (entry,) = store.manifest().keyed
    storage, reads = LocalStorage(store.url), reads_of(entry, key_groups)
    return [*read_state(storage, entry, reads, verify=True, run_bytes=run_bytes)]


def constant_hashes(rows: Any, columns: Any = None) -> Any:
    return np.zeros(rows.num_rows, np.uint64)


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("run_bytes", [1, runs.RUN_BYTES])
def test_the_newest_change_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collide: bool, run_bytes: int
) -> None:
    if collide:
        monkeypatch.setattr(equality, "row_hashes", constant_hashes)
    store, state = store_of(tmp_path / "store", run_bytes=run_bytes)
    rows = pa.Table.from_batches(merged(store, run_bytes=run_bytes))
    assert {row["k"]: row["v"] for row in rows.to_pylist()} == state
    assert rows.num_rows == len(state)
    in_order = runs.in_order(rows, store.manifest().keyed[0].state)
    assert rows.combine_chunks().equals(in_order.combine_chunks())


def test_it_is_done_one_run_of_key_groups_at_a_time(tmp_path: Path) -> None:
    store, _ = store_of(tmp_path / "store", row_group_rows=1)
    groups = [set(batch.column("key_group").to_pylist()) for batch in merged(store, run_bytes=1)]
    assert max(map(len, groups)) == 1


def test_some_key_groups_have_the_rows_that_they_have_of_all(tmp_path: Path) -> None:
    store, state = store_of(tmp_path / "store")
    parts = [merged(store, KeyGroupRange(group, group)) for group in range(GROUPS)]
    for group, batches in enumerate(parts):
        assert {g for batch in batches for g in batch.column(0).to_pylist()} <= {group}
    rows = pa.Table.from_batches([batch for part in parts for batch in part])
    assert rows_digest(rows.drop_columns(["key_group"])) == rows_digest(
        pa.table({"k": [*state], "v": [*state.values()]})
    )


@pytest.mark.parametrize("collide", [False, True])
def test_equal_rows_are_found_as_keys_are_equal(
    monkeypatch: pytest.MonkeyPatch, collide: bool
) -> None:
    """Null is null and NaN is NaN, 0.0 is not -0.0, and order plays no part."""
    if collide:
        monkeypatch.setattr(equality, "row_hashes", constant_hashes)
    nan = float("nan")
    values = [0.0, -0.0, nan, None, 1.5]
    old = pa.table({"a": pa.array(values, pa.float64()), "b": ["x"] * 5})
    new = pa.table({"a": pa.array([*reversed(values), 2.0], pa.float64()), "b": ["x"] * 6})
    at, places = found(old, new)
    assert at.tolist() == [0, 1, 2, 3, 4]
    assert places.tolist() == [4, 3, 2, 1, 0]
    assert equal_rows(old, new.take(pa.array(places))).all()
    assert not equal_rows(old.slice(0, 1), old.slice(1, 1)).any()
    other = new.set_column(1, "b", pa.array(["y"] * 6))
    assert [len(one) for one in found(old, other)] == [0, 0]
    assert [len(one) for one in found(old.slice(0, 0), new)] == [0, 0]
