"""Distribute rows over other key groups: each row is spilled once, into the range of its
key group.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import StateStore, key_group_of
from statestore.errors import CorruptionError, NullKeyError
from statestore.format.digest import combine
from statestore.format.manifest import KeyedEntry
from statestore.format.state import KeyedState
from statestore.maintenance.rekey_spill import ranges_for, spill_rows, write_range
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.parquet.writer import ParquetOptions
from statestore.storage import LocalStorage

pytestmark = pytest.mark.slow

ROWS = [{"k": f"k{i}", "v": i} for i in range(400)]


@pytest.fixture
def entry(tmp_path: Path) -> KeyedEntry:
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet", compaction=None)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", ROWS, key="k", max_parallelism=8)
    return store.checkpoint().manifest.keyed[0]


def wanted(entry: KeyedEntry, most: int) -> KeyedState:
    return replace(entry.state, max_parallelism=most)


@pytest.mark.parametrize(("most", "ranges"), [(8, 1), (50, 5), (50, 50), (3, 3)])
def test_each_row_is_in_the_range_of_its_key_group(
    entry: KeyedEntry, tmp_path: Path, most: int, ranges: int
) -> None:
    most_bytes = -(-4 * entry.size_bytes // ranges)
    state, heard = wanted(entry, most), [0]
    folder = tmp_path / "work"
    folder.mkdir()
    storage = LocalStorage(str(tmp_path / "s"))
    found = spill_rows(storage, entry, state, folder, lambda n: heard.append(n), most_bytes)
    assert found.ranges == ranges
    assert (found.rows, found.digest) == (entry.rows, entry.digest)
    assert sum(heard) == len(ROWS)
    seen = []
    for path in sorted(folder.glob("*.arrow")):
        number = int(path.stem)
        for row in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist():
            group = key_group_of(row["k"], max_parallelism=most)
            assert row["key_group"] == group
            assert group * ranges // most == number
            seen.append({"k": row["k"], "v": row["v"]})
    assert sorted(seen, key=lambda row: int(row["v"])) == ROWS
    target = KeyedTarget(storage, entry.table.path, 2, state, ParquetOptions())
    handles = [one for n in range(ranges) for one in write_range(folder, n, target)]
    groups = [group for handle in handles for group in handle.key_groups]
    assert groups == sorted(groups)
    assert combine(handle.digest for handle in handles) == entry.digest


def test_the_number_of_ranges_depends_on_memory(entry: KeyedEntry) -> None:
    assert ranges_for(entry, wanted(entry, 8), 4) == 8  # never more than the number of key groups
    assert ranges_for(entry, wanted(entry, 32768), 4) == 256  # one open file for each range
    assert ranges_for(entry, wanted(entry, 32768), 2**40) == 1


def test_an_empty_range_has_no_files(entry: KeyedEntry, tmp_path: Path) -> None:
    state = wanted(entry, 8)
    target = KeyedTarget(LocalStorage(str(tmp_path / "s")), entry.table.path, 2, state)
    assert write_range(tmp_path, 3, target) == ()


def test_all_rows_without_a_key_are_counted(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet", compaction=None)
    rows = [{"k": i, "o": None if i % 3 == 0 else i} for i in range(30)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=4)
    entry = store.checkpoint().manifest.keyed[0]
    state = replace(entry.state, key=("o",), schema=entry.state.schema.select(("o", "k")))
    with pytest.raises(NullKeyError, match="10 rows of state 's' of operator 'u' have a null key"):
        spill_rows(LocalStorage(store.url), entry, state, tmp_path, lambda n: None, 2**20)


def test_a_damaged_file_is_found_before_a_row_is_used(entry: KeyedEntry, tmp_path: Path) -> None:
    path = tmp_path / "s" / entry.table.path / entry.handles[0].path
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"parquet-cpp-arrow", b"parquet-cpp-arroz"))
    folder = tmp_path / "work"
    folder.mkdir()
    with pytest.raises(CorruptionError, match=path.name):
        spill_rows(
            LocalStorage(str(tmp_path / "s")),
            entry,
            wanted(entry, 5),
            folder,
            lambda n: None,
            2**20,
        )
