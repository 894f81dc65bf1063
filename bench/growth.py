"""How the time of an operation grows with the shape of a state: columns, layers, operators, …

Each line has the processor time for the larger of two sizes, and its ratio to that for the smaller
one, per unit of work. A ratio of 1 is linear growth, or no growth at all if the work is the same.
Rows of many columns are also compared with a plain pyarrow write of the same table.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Figure, in_turn, times
from statestore import CheckpointWriter, StateStore
from statestore.snapshot.state_spec import Changes

__all__ = ["figures"]

TARGET = "B34"
MOST_TO_PYARROW, MOST_GROWTH = 3.0, 1.3
WIDE = ((300, 20_000), (5_000, 1_000))
"""Columns and rows of the tables that pyarrow writes, too."""
ROWS = 10_000

Step = Callable[[], object]


@dataclass(frozen=True)
class Shape:
    """An operation that is measured for two sizes; ``grows`` tells if its work is the size.

    ``prepare`` makes a store with a state of a size, and returns the operation.
    """

    what: str
    sizes: tuple[int, int]
    prepare: Callable[[StateStore, int], Step]
    grows: bool = True


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return a line for each shape; ``rows`` is not used."""
    found = []
    for columns, count in WIDE:
        store, table = open_store(folder / f"wide {columns}"), wide_table(columns, count)
        floor, what = (
            f"{way}, {columns:,} columns of {count:,} rows" for way in ("pyarrow", "snapshot")
        )
        runs: dict[str, Step] = {
            floor: partial(pq.write_table, table, folder / "plain.parquet"),
            what: partial(write, store, table),
        }
        seconds = in_turn(runs, repeats, clock=time.process_time)
        found.append(times(TARGET, floor, seconds))
        found.append(times(TARGET, what, seconds, floor=floor, goal=MOST_TO_PYARROW))
    for shape in SHAPES:
        runs = {
            f"{shape.what}, {size:,}": shape.prepare(
                open_store(folder / shape.what / f"{size}"), size
            )
            for size in shape.sizes
        }
        floor, what = runs
        seconds = in_turn(runs, repeats, clock=time.process_time)
        small, large = shape.sizes
        ratio = statistics.median(seconds[what]) / statistics.median(seconds[floor])
        work = large / small if shape.grows else 1.0
        line = times(TARGET, what, seconds, floor=floor, goal=MOST_GROWTH)
        found.append(replace(line, ratio=ratio / work))
    return found


def open_store(folder: Path) -> StateStore:
    """Open a store without background work, whose processor time would be counted."""
    return StateStore.open(str(folder), table_format="parquet", compaction=None)


def wide_table(columns: int, rows: int) -> pa.Table:
    """Return rows with a key and many columns of numbers and texts."""
    numbers = range(rows)
    values = (
        pa.array([number * 7919 % 104_729 for number in numbers]),
        pa.array([number / 7 for number in numbers]),
        pa.array([f"value {number % 1000}" for number in numbers]),
    )
    named = {f"c{number}": values[number % 3] for number in range(columns)}
    return pa.table({"user": [f"user-{number:06}" for number in numbers], **named})


def write(store: StateStore, table: pa.Table, states: int = 1, operators: int = 1) -> None:
    """Take a snapshot of some states of some operators, each with these rows."""
    with store.snapshot(parallelism=4) as checkpoint:
        for operator in range(operators):
            for state in range(states):
                checkpoint.write_keyed(f"operator {operator}", f"state {state}", table, key="user")


def change(store: StateStore, table: pa.Table) -> None:
    """Take a checkpoint with changes."""
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.write_changes("operator 0", "state 0", Changes(upserts=table))


def read(store: StateStore) -> None:
    """Restore the newest checkpoint as one subtask."""
    for _ in store.restore(parallelism=1).keyed("operator 0", "state 0").to_batches(0):
        pass


def _columns(store: StateStore, columns: int) -> Step:
    return partial(write, store, wide_table(columns, 500))


def _change_of_columns(store: StateStore, columns: int) -> Step:
    table = wide_table(columns, 500)
    write(store, table)
    return partial(change, store, table.slice(0, 3))


def _key_of_columns(store: StateStore, columns: int) -> Step:
    write(store, wide_table(columns, 500))
    return lambda: store.restore().keyed("operator 0", "state 0").get("user-000007")


def _kept(store: StateStore, checkpoints: int) -> Step:
    table = wide_table(2, 100)
    for _ in range(checkpoints):
        write(store, table)
    return partial(write, store, table)


def _states(store: StateStore, states: int) -> Step:
    return partial(write, store, wide_table(2, 100), states)


def _operators(store: StateStore, operators: int) -> Step:
    return partial(write, store, wide_table(2, 100), 1, operators)


def _key_groups(store: StateStore, key_groups: int) -> Step:
    table = wide_table(2, 10 * ROWS)

    def step() -> None:
        with store.snapshot(parallelism=4) as checkpoint:
            checkpoint.write_keyed(
                *("operator 0", "state 0", table),
                key="user",
                max_parallelism=key_groups,
                layout="ranged",
            )
        read(store)

    return step


def _layers(store: StateStore, layers: int) -> Step:
    """Restore a state with as many changed rows, in some layers."""
    table = wide_table(2, 10 * ROWS)
    write(store, table)
    for layer in range(layers):
        change(store, table.slice(layer * ROWS // layers, ROWS // layers))
    return partial(read, store)


def _entries(kind: str) -> Callable[[StateStore, int], Step]:
    """Return how to write and restore entries of one key."""

    def prepare(store: StateStore, entries: int) -> Step:
        table = wide_table(2, entries).append_column("at", [range(entries)])
        table = table.set_column(0, "user", [pa.repeat("user", entries)])

        def step() -> None:
            with store.snapshot(parallelism=4) as checkpoint:
                _write_entries(checkpoint, table, kind)
            read(store)

        return step

    return prepare


def _write_entries(checkpoint: CheckpointWriter, table: pa.Table, kind: str) -> None:
    checkpoint.write_keyed("operator 0", "state 0", table, key="user", kind=kind, entry="at")


SHAPES = (
    Shape("snapshot of 500 rows, columns", (1_000, 4_000), _columns),
    Shape("change of 3 rows, columns", (1_000, 4_000), _change_of_columns),
    Shape("get, columns", (1_000, 4_000), _key_of_columns),
    Shape("snapshot, kept checkpoints", (100, 700), _kept, grows=False),
    Shape("snapshot, states", (20, 80), _states),
    Shape("snapshot, operators", (20, 80), _operators),
    Shape("snapshot and restore, key groups", (128, 4_096), _key_groups, grows=False),
    Shape("restore, layers of 10,000 changes", (4, 16), _layers, grows=False),
    Shape("snapshot and restore, list elements of a key", (50_000, 200_000), _entries("list")),
    Shape("snapshot and restore, map entries of a key", (50_000, 200_000), _entries("map")),
)
