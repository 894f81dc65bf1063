"""The requested key groups are read completely, and no others. Damaged files yield their intact
groups.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.errors import DamagedFileError
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.state import Layout
from statestore.layers.intact_key_groups import Rows, group_digests, rows_and_digest
from statestore.layers.key_group_contents import read_groups
from statestore.parquet.writer import ParquetOptions
from statestore.storage import LocalStorage
from statestore.store import StateStore
from statestore.testing.faults import CountingStorage

GROUPS = 16


@pytest.fixture(params=[*Layout])
def entry(request: pytest.FixtureRequest, tmp_path: Path) -> KeyedEntry:
    options = ParquetOptions(row_group_rows=50, file_bytes=6_000)
    store = StateStore.open(
        str(tmp_path), table_format="parquet", layout=request.param, parquet=options
    )
    rows = pa.table({"user": [f"u{i}" for i in range(500)], "n": range(500)})
    with store.snapshot(parallelism=1) as checkpoint:
        found: KeyedEntry = checkpoint.write_keyed(
            "j", "v", rows, key="user", max_parallelism=GROUPS
        )
    return found


def intact(
    storage: LocalStorage, entry: KeyedEntry, handle: KeyedStateHandle
) -> Iterator[tuple[int, Rows]]:
    """Return the unchanged key groups of a file that may be damaged."""
    alone = replace(entry, handles=(handle,))
    return whole(read_groups(storage, alone, range(GROUPS), damaged="skip"))


def whole(groups: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, Rows]]:
    """Yield each key group with all batches of its rows."""
    for group, pieces in groupby(groups, key=itemgetter(0)):
        yield group, [rows for _, rows in pieces]


@pytest.mark.slow
def test_requested_key_groups_are_complete_and_in_order(entry: KeyedEntry, tmp_path: Path) -> None:
    """I8: for any selection, each file is opened at most once, and only if it has a requested
    group.
    """
    sizes = {g: (n, d) for handle in entry.handles for g, n, d in group_digests(handle)}
    assert sum(rows for rows, _ in sizes.values()) == 500
    dice = random.Random(3)
    for _ in range(20):
        wanted = set(dice.sample(range(GROUPS), dice.randint(0, GROUPS)))
        storage = CountingStorage(str(tmp_path))
        found = [
            (g, rows_and_digest(rows)) for g, rows in whole(read_groups(storage, entry, wanted))
        ]
        assert found == [(group, sizes[group]) for group in sorted(wanted & {*sizes})]
        needed = [h for h in entry.handles if wanted & {g for g, _, _ in group_digests(h)}]
        assert {Path(name).name for name in storage.opened} == {Path(h.path).name for h in needed}
        assert set(storage.opened.values()) <= {1}


def test_all_groups_of_an_intact_file_are_intact(entry: KeyedEntry, tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    for handle in entry.handles:
        found = [group for group, _ in intact(storage, entry, handle)]
        assert found == [group for group, _, _ in group_digests(handle)]


@pytest.mark.slow
def test_a_damaged_file_yields_no_wrong_row(entry: KeyedEntry, tmp_path: Path) -> None:
    """Any byte gets another value. A yielded group has its digest, and other readers miss the same
    groups.
    """
    storage, dice = LocalStorage(str(tmp_path)), random.Random(5)
    handle = entry.handles[0]
    file = tmp_path / entry.table.path / handle.path
    raw, sizes = file.read_bytes(), {g: (n, d) for g, n, d in group_digests(handle)}
    counts = set()
    for _ in range(150):
        at = dice.randrange(len(raw))
        file.write_bytes(raw[:at] + bytes([raw[at] ^ dice.randrange(1, 256)]) + raw[at + 1 :])
        found = dict(intact(storage, entry, handle))
        assert all(rows_and_digest(rows) == sizes[group] for group, rows in found.items())
        counts.add(len(found))
    assert {0, len(sizes)} <= counts
    if entry.state.layout is Layout.RANGED:
        assert len(counts) > 2, "some damage costs some key groups only"
    file.write_bytes(raw[:-1])
    with pytest.raises(DamagedFileError):
        list(read_groups(storage, entry, range(GROUPS)))
    file.unlink()
    assert list(intact(storage, entry, handle)) == []
