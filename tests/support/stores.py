"""Open a store as most tests do, and read the rows of a state or the bytes of a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.format.names import KEY_GROUP
from statestore.snapshot.writer import CheckpointWriter
from statestore.store import StateStore

__all__ = ["file_bytes", "keys_in", "opened", "rows_in", "uncompacted", "values_in"]


def opened(url: Path | str, **options: Any) -> StateStore:
    """Open a store of plain Parquet files, unless the options say otherwise."""
    return StateStore.open(str(url), **{"table_format": "parquet"} | options)


def uncompacted(url: Path | str, **options: Any) -> StateStore:
    """Open a store of plain Parquet files that keeps each layer of changes."""
    return opened(url, compaction=None, **options)


def rows_in(
    store: StateStore, uid: str = "u", state: str = "s", *, parallelism: int = 1, **restore: Any
) -> list[dict[str, Any]]:
    """Return the rows of a keyed state as dictionaries without their key group, in order of the
    subtasks.
    """
    keyed = store.restore(parallelism=parallelism, **restore).keyed(uid, state)
    tables = pa.concat_tables([keyed.to_arrow(subtask) for subtask in range(parallelism)])
    rows: list[dict[str, Any]] = tables.drop_columns([KEY_GROUP]).to_pylist()
    return rows


def values_in(
    store: StateStore,
    uid: str = "u",
    state: str = "s",
    *,
    key: str = "k",
    value: str = "v",
    **restore: Any,
) -> dict[Any, Any]:
    """Return the value of each key of a keyed state, which must have one row for each key."""
    rows = rows_in(store, uid, state, **restore)
    found = {row[key]: row[value] for row in rows}
    assert len(found) == len(rows)
    return found


def keys_in(store: StateStore, uid: str = "u", state: str = "s", **restore: Any) -> set[Any]:
    """Return the keys of a keyed state."""
    return {row["k"] for row in rows_in(store, uid, state, **restore)}


def file_bytes(folder: Path | str) -> dict[str, bytes]:
    """Return the content of each file below a folder, by its relative path."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def overtake(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]) -> None:
    """Let another writer write right before the next snapshot begins, after the store was read."""
    snapshot = StateStore.snapshot

    def overtaken(self: StateStore, **options: Any) -> CheckpointWriter:
        monkeypatch.setattr(StateStore, "snapshot", snapshot)
        write()
        return snapshot(self, **options)

    monkeypatch.setattr(StateStore, "snapshot", overtaken)
