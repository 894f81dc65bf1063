"""One history of a map state in each form in which checkpoints are stored.

A query of a history has the same answer in every form, which is computed from dictionaries:

* ``plain``: each checkpoint is full.
* ``layered``: a full checkpoint, and layers of changes.
* ``compacted``: changes that are merged with each other and folded into the base in the background.
  Each list of files is a separate document.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from statestore.format.layers import CompactionRule
from statestore.format.manifest import KeyedEntry
from statestore.keys.groups import KeyGroupRange
from statestore.layers.intact_key_groups import group_digests
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.state_spec import Changes
from statestore.store import StateStore
from statestore.testing.faults import CountingStorage

GROUPS = 16
KEY = "somebody@example.org"
SCHEMA = pa.schema([("k", pa.string()), ("m", pa.int64()), ("v", pa.int64())])

Entries = dict[tuple[str, int], int]
Form = Literal["plain", "layered", "compacted"]
FORMS: tuple[Form, ...] = ("plain", "layered", "compacted")
COMPACTED = CompactionRule(merge_layers=2, share=0.2, most_share=9, bytes_per_checkpoint=1)
"""Merges three layers into one, and rewrites the base file with the most changes each time."""

RANGED_IN_EACH_RUN = ("ranged", pytest.param("partitioned", marks=pytest.mark.long))
"""The layouts for tests of code whose two layouts other tests cover in each run."""

# For tests with the fixture ``taken``: only the layered form; or all forms, where the forms with
# changes have both layouts. In each run, each form with changes has one layout.
in_layers = pytest.mark.parametrize(
    "taken", [("layered", "ranged")], ids=["layered"], indirect=True
)
in_both_layouts = pytest.mark.parametrize(
    "taken",
    [
        *(("layered", "partitioned"), ("compacted", "ranged")),
        pytest.param(("plain", "ranged"), marks=pytest.mark.long),
        pytest.param(("layered", "ranged"), marks=pytest.mark.long),
        pytest.param(("compacted", "partitioned"), marks=pytest.mark.long),
    ],
    ids="-".join,
    indirect=True,
)


class Checkpoints:
    """A map state and its expected rows; both change with each checkpoint."""

    def __init__(
        self,
        folder: Path,
        form: Form = "layered",
        layout: str = "ranged",
        *,
        rule: CompactionRule | None = None,
        **parquet: Any,
    ) -> None:
        self.form = form
        self.storage = CountingStorage(str(folder))
        lists = {"list_bytes": 1} if form == "compacted" else {}
        self.store = StateStore.open(
            self.storage,
            table_format="parquet",
            layout=layout,
            parquet=ParquetOptions(row_group_rows=16, **lists, **parquet),
            compaction=COMPACTED if form == "compacted" else rule,
        )
        self.rows: Entries = {}
        self.taken: dict[int, Entries] = {}

    def full(self, rows: Mapping[tuple[str, int], int], parallelism: int = 2) -> int:
        """Take a full checkpoint."""
        self.rows = dict(rows)
        with self.store.snapshot(parallelism=parallelism) as checkpoint:
            checkpoint.write_keyed(
                "u", "s", table(self.rows), kind="map", key="k", entry="m", max_parallelism=GROUPS
            )
        return self._take(checkpoint.id)

    def change(
        self,
        upserts: Mapping[tuple[str, int], int] = {},
        *,
        entries: Iterable[tuple[str, int]] = (),
        cleared: Iterable[str] = (),
    ) -> int:
        """Take the next checkpoint: clear keys, delete entries, and upsert rows.

        It is a full checkpoint if the form is ``plain``.
        """
        entries, cleared = list(entries), list(cleared)
        left = {e: v for e, v in self.rows.items() if e[0] not in cleared and e not in entries}
        self.rows = left | dict(upserts)
        if self.form == "plain":
            return self.full(self.rows)
        keys = pa.table({"k": pa.array(cleared, pa.string())})
        with self.store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes(
                "u",
                "s",
                Changes(table(upserts), table(dict.fromkeys(entries, 0)), cleared=keys),
                key="k",
                max_parallelism=GROUPS,
                kind="map",
                entry="m",
            )
        return self._take(checkpoint.id)

    def _take(self, checkpoint_id: int) -> int:
        self.taken[checkpoint_id] = dict(self.rows)
        return checkpoint_id

    def opened(self) -> dict[str, int]:
        """Return how often each data file was opened since the last call."""
        found = {n: k for n, k in self.storage.opened.items() if n.endswith(".parquet")}
        self.storage.opened.clear()
        return found


def history(
    folder: Path,
    form: Form = "layered",
    layout: str = "ranged",
    *,
    changes: int = 4,
    rule: CompactionRule | None = None,
) -> Checkpoints:
    """Return a copy of a store with a full checkpoint and changes.

    The full checkpoint has 60 users with two entries each; a base has several files.
    """
    made = _made(form, layout, changes, rule)
    shutil.copytree(made.store.url, folder)
    taken = _opened(folder, form, layout, rule)
    taken.rows, taken.taken = dict(made.rows), dict(made.taken)
    return taken


@cache
def _made(form: Form, layout: str, changes: int, rule: CompactionRule | None) -> Checkpoints:
    rng = random.Random(7)
    folder = tempfile.TemporaryDirectory(prefix="statestore-history-")
    taken = _opened(Path(folder.name, "store"), form, layout, rule)
    weakref.finalize(taken, folder.cleanup)
    taken.full(users(60, entries=2))
    for number in range(1, changes + 1):
        change(taken, number, rng)
    return taken


def _opened(folder: Path, form: Form, layout: str, rule: CompactionRule | None) -> Checkpoints:
    return Checkpoints(folder, form, layout, rule=rule, file_bytes=3000)


def change(taken: Checkpoints, number: int, rng: random.Random) -> int:
    """Take the next checkpoint: rows are added and deleted, and one cleared key is added again."""
    names = sorted({user for user, _ in taken.rows})
    cleared, others = rng.sample(names, 3), rng.sample(names, 12)
    upserts = {(u, rng.randint(0, 2)): number * 1000 + i for i, u in enumerate(others)}
    upserts = {entry: v for entry, v in upserts.items() if entry[0] not in cleared[1:]}
    upserts |= {(cleared[0], 1): number, (f"new-{number}", 0): number}
    gone = [e for e in rng.sample(sorted(taken.rows), 4) if e[0] not in {u for u, _ in upserts}]
    gone = [entry for entry in gone if entry[0] not in cleared]
    return taken.change(upserts, entries=gone, cleared=cleared)


def table(rows: Mapping[tuple[str, int], int]) -> pa.Table:
    """Return entries as the state's rows."""
    columns = [[k for k, _ in rows], [m for _, m in rows], list(rows.values())]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def entries_of(rows: Iterable[Mapping[str, Any]]) -> Entries:
    """Return rows as entries; a duplicate entry is an error."""
    found: Entries = {}
    for row in rows:
        assert (row["k"], row["m"]) not in found
        found[row["k"], row["m"]] = row["v"]
    return found


def users(count: int, entries: int = 1, value: int = 0) -> Entries:
    """Return rows of some users."""
    return {(f"u{i:03}", m): i + value for i in range(count) for m in range(entries)}


def rows_of(store: StateStore, checkpoint: int | str = "latest") -> Entries:
    """Return the rows of a checkpoint."""
    restored = store.restore(checkpoint=checkpoint, parallelism=1, verify=True)
    return entries_of(restored.keyed("u", "s").to_arrow(0).to_pylist())


def state_of(store: StateStore, checkpoint: int | str = "latest") -> KeyedEntry:
    """Return a state of a checkpoint, as it is stored."""
    return store.checkpoint(checkpoint).manifest.keyed_entry("u", "s")


def digest_of(store: StateStore, checkpoint: int | str = "latest") -> int:
    """Return the digest of the rows of a checkpoint."""
    return store.restore(checkpoint=checkpoint, parallelism=1).keyed("u", "s").digest


def names_of(store: StateStore, checkpoint: int | str = "latest") -> set[str]:
    """Return the names of the state's files, in the base and the layers."""
    parts = state_of(store, checkpoint).parts
    return {f"{part.table.path}/{handle.path}" for part in parts for handle in part.handles}


def files_of(store: StateStore, checkpoint: int | str = "latest") -> list[str]:
    """Return the names of the state's files, the most recent ones last."""
    return sorted(names_of(store, checkpoint), key=lambda name: Path(name).name)


def newest_file(store: StateStore, checkpoint: int | str = "latest") -> str:
    """Return the name of a checkpoint's most recent file, of the files that count."""
    files = files_of(store, checkpoint)
    return [name for name in files if groups_of(store, name, checkpoint)][-1]


def groups_of(store: StateStore, name: str, checkpoint: int | str = "latest") -> set[int]:
    """Return the key groups in which a file has rows that count in a checkpoint."""
    entry = state_of(store, checkpoint)
    every = (KeyGroupRange(0, entry.state.max_parallelism - 1),)
    parts = [(entry, every), *((layer.entry, layer.live) for layer in entry.layers)]
    (found,) = (
        {group for group, _, _ in group_digests(handle) if any(group in one for one in live)}
        for part, live in parts
        for handle in part.handles
        if f"{part.table.path}/{handle.path}" == name
    )
    return found


def layer_file(store: StateStore, place: int, checkpoint: int | str = "latest") -> str:
    """Return the name of the first file of a layer."""
    layer = state_of(store, checkpoint).layers[place].entry
    return f"{layer.table.path}/{layer.handles[0].path}"


def data_in(folder: str) -> set[str]:
    """Return the names of all data files of a store."""
    root = Path(folder)
    return {file.relative_to(root).as_posix() for file in root.rglob("*.parquet")}


def break_file(store: StateStore, name: str) -> None:
    """Overwrite the middle of a file with other bytes."""
    file = Path(store.url, name)
    raw = bytearray(file.read_bytes())
    for at in range(4, len(raw) // 2):
        raw[at] ^= 0xFF
    file.write_bytes(bytes(raw))
