"""Ranges of key groups by number and by bytes, for a state in which a few users have most rows.

The figure is the bytes of the largest subtask, which determines the duration of a restore. Users
have a Zipf distribution: user k occurs about 1 / k as often as the first. Each row is a window of
its user.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.arrow_stores import MAX_PARALLELISM, NAME, UID, WRITTEN_AT
from bench.measure import Figure
from bench.state import state_table
from statestore import StateStore

__all__ = ["figures", "zipf_table"]

TARGET = "B19"
PARALLELISMS = (4, 8, 16)


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the largest subtask's bytes with balanced ranges, as a ratio to even ranges.

    The figures are counts, so ``repeats`` has no effect.
    """
    table = zipf_table(rows)
    store = StateStore.open(str(folder), table_format="parquet")
    with store.snapshot(parallelism=WRITTEN_AT) as checkpoint:
        checkpoint.write_keyed(
            UID, NAME, table, key="user", namespace="window", max_parallelism=MAX_PARALLELISM
        )
    heaviest = Counter(table.column("user").to_pylist()).most_common(1)[0][1]
    found = [_figure("rows of the hottest user", float(heaviest), "rows")]
    for parallelism in PARALLELISMS:
        (skew,) = store.inspect.balance(store.plan(parallelism=parallelism))
        even, balanced = float(max(skew.even)), float(max(skew.balanced))
        restored = store.restore(parallelism=parallelism, balance="bytes")
        assert restored.ranges == {UID: skew.ranges}
        what = f"largest of {parallelism} subtasks, even ranges"
        found.append(_figure(what, even, "bytes"))
        own = f"largest of {parallelism} subtasks, balanced by bytes"
        found.append(
            Figure(TARGET, own, balanced, "bytes", balanced, balanced, what, balanced / even, 1.0)
        )
    return found


def zipf_table(rows: int) -> pa.Table:
    """Return the measured state with Zipf-distributed users, and the row's number as window."""
    numbers = np.arange(rows, dtype=np.int64)
    octaves = max(rows.bit_length() - 1, 1)
    low = np.int64(1) << numbers % octaves
    ranks = low + np.random.default_rng(19).integers(0, low)
    table = state_table(rows)
    users = pa.array([f"user-{rank:09d}" for rank in ranks.tolist()])
    return table.set_column(0, "user", users).append_column("window", pa.array(numbers))


def _figure(what: str, value: float, unit: str) -> Figure:
    return Figure(TARGET, what, value, unit, value, value)
