"""The join of a state at two checkpoints holds only one run of key groups in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import StateStore, key_group_of
from statestore.maintenance import diff_rows as module
from statestore.maintenance.diff_rows import CHANGE, OUTCOMES, join_checkpoints
from statestore.storage import LocalStorage

MOST = 16


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    store = StateStore.open(str(tmp_path), table_format="parquet", compaction=None)
    for first in (0, 100):
        rows = [{"k": i, "v": i % 7 if first else i % 6} for i in range(first, 400 + first)]
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed(
                "u", "s", rows, key="k", max_parallelism=MOST, layout="partitioned"
            )
    return store


@pytest.mark.slow
def test_rows_are_joined_run_by_run(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    real = module._join_piece

    def counted(old: object, new: object, sides: object) -> object:
        rows = real(old, new, sides)  # type: ignore[arg-type]
        together.append(rows.num_rows)
        return rows

    monkeypatch.setattr(module, "_join_piece", counted)
    a, b = (store.checkpoint(n).manifest.keyed[0] for n in (1, 2))
    reader = join_checkpoints(LocalStorage(store.url), a, b, run_bytes=1)
    assert together == []  # no file is read before its batch is requested
    rows = reader.read_all()
    assert max(together) == 2  # one row of each checkpoint
    assert sum(together) == rows.num_rows == 500
    for row in rows.to_pylist():
        assert row["key_group"] == key_group_of(row["k"], max_parallelism=MOST)
    assert set(rows.column(CHANGE).to_pylist()) == set(OUTCOMES)


def test_sides_without_a_common_key_group_are_joined(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet", compaction=None)
    low = [i for i in range(60) if key_group_of(i, max_parallelism=MOST) < 8]
    high = [i for i in range(60) if i not in low]
    for keys in (low, high):
        with store.snapshot(parallelism=1) as checkpoint:
            rows = [{"k": k, "v": k} for k in keys]
            checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=MOST)
    found = store.inspect.as_of(1, 2, "u", "s").read_all().to_pylist()
    assert {row["k"] for row in found if row[CHANGE] == "removed"} == set(low)
    assert {row["k"] for row in found if row[CHANGE] == "added"} == set(high)
