"""A store with one checkpoint of every kind of state, its next checkpoint, and the checks after an
interruption. Rows are Arrow tables and the files are plain Parquet, so no JVM runs.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from statestore.format.names import KEY_GROUP
from statestore.parquet.writer import ParquetOptions
from statestore.rows.digests import rows_digest
from statestore.storage import LocalStorage, Storage
from statestore.store import StateStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.testing.faults import Call

__all__ = [
    "copy_of",
    "data_files",
    "make_store",
    "over",
    "rows_of",
    "settle",
    "steps",
    "take",
    "whole",
    "with_every_call",
]

PARALLELISM = 2

with_every_call = pytest.mark.parametrize(
    "every_call", [pytest.param(False, id="steps"), pytest.param(True, marks=pytest.mark.long)]
)
"""Run a test at each step of a command. ``make nightly`` runs it at each storage call."""


def steps(calls: tuple[Call, ...], every_call: bool = False) -> tuple[Call, ...]:
    """Return all calls, or the first and last of the calls with one operation in one folder."""
    if every_call:
        return calls
    kinds = [(call.operation, call.name.partition("/")[0]) for call in calls]
    ends = {*dict(zip(kinds, calls, strict=True)).values()}
    ends |= {*dict(zip(reversed(kinds), reversed(calls), strict=True)).values()}
    return tuple(call for call in calls if call in ends)


def keyed_rows(number: int) -> dict[str, pa.Table]:
    """Return the keyed states of a checkpoint, which its number determines."""
    users = [f"u{i}" for i in range(4)]
    return {
        "totals": pa.table({"user": ["a", *users], "n": [number * 10 + i for i in range(5)]}),
        "routes": pa.table({"user": users, "to": ["a", "b", "c", "d"], "n": [number] * 4}),
        "recent": pa.table({"user": users, "position": [0, 1, 0, 1], "n": [number] * 4}),
    }


def elements(number: int) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the operator states of a checkpoint: one list per subtask, or one copy for
    broadcast.
    """
    return {
        "offsets": [[{"partition": 0, "offset": number}], [{"partition": 1, "offset": number + 1}]],
        "splits": [[{"split": f"{number}-{i}"} for i in range(3)], []],
        "rules": [[{"rule": number}]],
    }


def take(store: StateStore, number: int) -> None:
    """Take a checkpoint with the content that this number determines."""
    rows, lists = keyed_rows(number), elements(number)
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        checkpoint.write_keyed("users", "totals", rows["totals"], key="user", max_parallelism=2)
        checkpoint.write_keyed(
            "users", "routes", rows["routes"], kind="map", key="user", entry="to"
        )
        checkpoint.write_keyed(
            "users", "recent", rows["recent"], kind="list", entry="position", key="user"
        )
        checkpoint.write_union("source", "offsets", lists["offsets"])
        checkpoint.write_split("source", "splits", lists["splits"])
        checkpoint.write_broadcast("source", "rules", lists["rules"][0])


def over(storage: Storage) -> StateStore:
    """Return a store that writes plain Parquet, with a file per key group. A state with more than
    two files has a file list of its own.
    """
    options = ParquetOptions(list_bytes=600)
    return StateStore.open(storage, table_format="parquet", parquet=options, layout="partitioned")


def make_store(folder: Path) -> Path:
    """Create a store with checkpoint 1."""
    take(over(LocalStorage(str(folder))), 1)
    return folder


def copy_of(folder: Path, to: Path) -> Path:
    """Copy a store, and replace the target if it exists."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to


def data_files(folder: Path) -> dict[str, bytes]:
    """Return every data file, file list and manifest of a store, without claims and similar
    documents.
    """
    kept = [
        path for one in ("operators/**", "files", "checkpoints") for path in folder.glob(f"{one}/*")
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept if path.is_file()}


def whole(store: StateStore, number: int) -> None:
    """Assert that a checkpoint has its digests and the content that its number determines."""
    restored = store.restore(checkpoint=number, parallelism=1, verify=True)
    for name, rows in keyed_rows(number).items():
        keyed = restored.keyed("users", name)
        found = keyed.to_arrow(0).drop_columns([KEY_GROUP])
        assert sum(map(rows_digest, found.to_batches())) % 2**64 == keyed.digest
        assert rows_of(found) == rows_of(rows)
    for name, lists in elements(number).items():
        assert restored.operator_state("source", name).per_old_subtask() == lists


def rows_of(rows: pa.Table) -> Counter[str]:
    """Return rows as a multiset."""
    return Counter(repr(sorted(row.items())) for row in rows.to_pylist())


def settle(folder: Path, visible: Iterable[int]) -> None:
    """Assert that exactly these checkpoints are visible and intact, and that the next one
    succeeds.
    """
    expected = tuple(visible)
    store = over(LocalStorage(str(folder)))
    if expected:
        assert store.checkpoints() == expected
    for number in expected:
        whole(store, number)
    take(store, len(expected) + 1)
    assert store.checkpoints() == (*expected, len(expected) + 1)
    whole(store, len(expected) + 1)
