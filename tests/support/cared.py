"""A history of checkpoints with changes, to be cared for and damaged, and what each has to hold."""

from __future__ import annotations

import random
import shutil
import tempfile
import weakref
from functools import cache
from pathlib import Path

from statestore.files.writer import ParquetOptions
from statestore.format.layers import CompactionRule
from statestore.format.manifest import KeyedEntry
from statestore.store import StateStore
from tests.support.layered import Entries, Layered, entries_of, users

KEY = "somebody@example.org"


def history(
    folder: Path,
    layers: int = 4,
    *,
    layout: str = "ranged",
    compaction: CompactionRule | None = None,
) -> Layered:
    """Return a copy of a store with a full checkpoint of 60 users with two entries, and changes
    over it; a base has several files.
    """
    made = _made(layers, layout, compaction)
    shutil.copytree(made.store.url, folder)
    taken = _opened(folder, layout, compaction)
    taken.rows, taken.taken = dict(made.rows), dict(made.taken)
    return taken


@cache
def _made(layers: int, layout: str, compaction: CompactionRule | None) -> Layered:
    rng = random.Random(7)
    folder = tempfile.TemporaryDirectory(prefix="statestore-history-")
    taken = _opened(Path(folder.name, "store"), layout, compaction)
    weakref.finalize(taken, folder.cleanup)
    taken.full(users(60, entries=2))
    for number in range(1, layers + 1):
        change(taken, number, rng)
    return taken


def _opened(folder: Path, layout: str, compaction: CompactionRule | None) -> Layered:
    taken = Layered(folder)
    parquet = ParquetOptions(layout=layout, row_group_rows=16, file_bytes=3000)
    taken.store = StateStore.over(
        taken.storage, table_format="parquet", parquet=parquet, compaction=compaction
    )
    return taken


def change(taken: Layered, number: int, rng: random.Random) -> int:
    """Take an incremental checkpoint: some rows come, some go, and keys are cleared of which one
    comes anew.
    """
    names = sorted({user for user, _ in taken.rows})
    cleared, others = rng.sample(names, 3), rng.sample(names, 12)
    upserts = {(u, rng.randint(0, 2)): number * 1000 + i for i, u in enumerate(others)}
    upserts = {entry: v for entry, v in upserts.items() if entry[0] not in cleared[1:]}
    upserts |= {(cleared[0], 1): number, (f"new-{number}", 0): number}
    gone = [e for e in rng.sample(sorted(taken.rows), 4) if e[0] not in {u for u, _ in upserts}]
    gone = [entry for entry in gone if entry[0] not in cleared]
    return taken.change(upserts, entries=gone, cleared=cleared)


def rows_of(store: StateStore, checkpoint: int | str = "latest") -> Entries:
    """Return the rows of a checkpoint."""
    restored = store.restore(checkpoint=checkpoint, parallelism=1, verify=True)
    return entries_of(restored.keyed("u", "s").to_arrow(0).read_all().to_pylist())


def state_of(store: StateStore, checkpoint: int | str = "latest") -> KeyedEntry:
    """Return the state of a checkpoint as it is stored."""
    return store.manifest(checkpoint).keyed_entry("u", "s")


def digest_of(store: StateStore, checkpoint: int | str = "latest") -> int:
    """Return the digest of the rows of a checkpoint."""
    return store.restore(checkpoint=checkpoint, parallelism=1).keyed("u", "s").digest


def names_of(store: StateStore, checkpoint: int | str = "latest") -> set[str]:
    """Return the names of the state's files, of base and layers."""
    parts = state_of(store, checkpoint).parts
    return {f"{part.table.path}/{handle.path}" for part in parts for handle in part.handles}


def layer_file(store: StateStore, place: int, checkpoint: int | str = "latest") -> str:
    """Return the name of the first file of a layer."""
    layer = state_of(store, checkpoint).layers[place].entry
    return f"{layer.table.path}/{layer.handles[0].path}"


def data_in(folder: str) -> set[str]:
    """Return the names of all data files of a store."""
    root = Path(folder)
    return {file.relative_to(root).as_posix() for file in root.rglob("*.parquet")}


def break_file(store: StateStore, name: str) -> None:
    """Make the middle of a file other bytes."""
    file = Path(store.url, name)
    raw = bytearray(file.read_bytes())
    for at in range(4, len(raw) // 2):
        raw[at] ^= 0xFF
    file.write_bytes(bytes(raw))
