"""Stores whose states have changes, and dictionaries with the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore.files.writer import ParquetOptions
from statestore.store import StateStore
from statestore.testing.counting import CountingStorage

GROUPS = 16
SCHEMA = pa.schema([("k", pa.string()), ("m", pa.int64()), ("v", pa.int64())])

Entries = dict[tuple[str, int], int]


class Layered:
    """A map state, and what it has to be, as checkpoints are taken of both."""

    def __init__(self, folder: Path, *, layout: str = "ranged", **options: Any) -> None:
        storage = CountingStorage(str(folder))
        parquet = ParquetOptions(layout=layout, row_group_rows=16)
        self.storage = storage
        self.store = StateStore.over(storage, table_format="parquet", parquet=parquet, **options)
        self.rows: Entries = {}
        self.taken: dict[int, Entries] = {}

    def full(self, rows: Mapping[tuple[str, int], int], parallelism: int = 2) -> int:
        """Take a full checkpoint."""
        self.rows = dict(rows)
        with self.store.snapshot(parallelism=parallelism) as checkpoint:
            checkpoint.map("u", "s", table(self.rows), key="k", map_key="m", max_parallelism=GROUPS)
        return self._take(checkpoint.id)

    def change(
        self,
        upserts: Mapping[tuple[str, int], int] = {},
        *,
        entries: Iterable[tuple[str, int]] = (),
        cleared: Iterable[str] = (),
    ) -> int:
        """Take an incremental one: keys are cleared, entries deleted, and rows come."""
        entries, cleared = list(entries), list(cleared)
        left = {e: v for e, v in self.rows.items() if e[0] not in cleared and e not in entries}
        self.rows = left | dict(upserts)
        keys = pa.table({"k": pa.array(cleared, pa.string())})
        with self.store.snapshot(parallelism=2) as checkpoint:
            checkpoint.changes(
                "u",
                "s",
                table(upserts),
                table(dict.fromkeys(entries, 0)),
                cleared=keys,
                kind="map",
                key="k",
                entry="m",
                max_parallelism=GROUPS,
            )
        return self._take(checkpoint.id)

    def _take(self, checkpoint_id: int) -> int:
        self.taken[checkpoint_id] = dict(self.rows)
        return checkpoint_id

    def opened(self) -> dict[str, int]:
        """Return how often each data file was opened since it was last asked."""
        found = {n: k for n, k in self.storage.opened.items() if n.endswith(".parquet")}
        self.storage.opened.clear()
        return found


def table(rows: Mapping[tuple[str, int], int]) -> pa.Table:
    """Return entries as the state's rows."""
    columns = [[k for k, _ in rows], [m for _, m in rows], list(rows.values())]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def entries_of(rows: Iterable[Mapping[str, Any]]) -> Entries:
    """Return rows as entries; an entry that comes twice is an error."""
    found: Entries = {}
    for row in rows:
        assert (row["k"], row["m"]) not in found
        found[row["k"], row["m"]] = row["v"]
    return found


def users(count: int, entries: int = 1, value: int = 0) -> Entries:
    """Return rows of some users."""
    return {(f"u{i:03}", m): i + value for i in range(count) for m in range(entries)}
