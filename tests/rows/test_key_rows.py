"""The rows of many keys equal a dictionary's, for any layers and any cache."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    MissingFileError,
    NullKeyError,
)
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import assignment_of, reads_of
from statestore.restore.lookup import RowCache, WantedKeys, bytes_to_read, rows_of_keys
from statestore.rows import equality
from statestore.snapshot.state_spec import Changes
from statestore.storage import LocalStorage
from tests.support.damage import change_unread_byte
from tests.support.forms import RANGED_IN_EACH_RUN

GROUPS = 16
CACHES = [
    pytest.param(None, id="none"),
    pytest.param(20_000, id="tiny"),
    pytest.param(2**24, id="large", marks=pytest.mark.long),
]

Rows = dict[tuple[str, int], int]


def constant_hashes(rows: Any, columns: Any = None) -> Any:
    return np.zeros(rows.num_rows, np.uint64)


def looked_up(
    store: StateStore,
    keys: list[str],
    cache: RowCache | None,
    parallelism: int = 1,
    verify: bool = False,
) -> list[dict[str, Any]]:
    """Return the rows of some keys, looked up by the task of each subtask in turn."""
    (entry,) = store.checkpoint().manifest.keyed
    wanted = WantedKeys.of(pa.table({"k": pa.array(keys, pa.string())}), entry.state)
    storage, found = LocalStorage(store.url), []
    if cache is not None:
        cache.begin(random.randbytes(8).hex())
    for groups in assignment_of(entry, parallelism).ranges():
        reads = reads_of(entry, groups)
        own = wanted.of_reads(reads)
        rows = rows_of_keys(storage, entry, reads, own, cache, verify=verify)
        assert rows.column_names == ["key_group", *entry.state.schema.names]
        found += rows.drop_columns(["key_group"]).to_pylist()
    return found


def change(store: StateStore, chance: random.Random, state: Rows) -> Rows:
    """Commit random changes of a map state; return its new content."""
    keys = [f"k{k}" for k in range(70)]
    cleared = set(chance.sample(keys, 4))
    some = sorted(one for one in state if one[0] not in cleared)
    entries = set(chance.sample(some, min(6, len(some))))
    gone = set(chance.sample(sorted(set(keys) - {k for k, _ in entries}), 4))
    upserts = {
        (k, chance.randrange(4)): chance.randrange(1000)
        for k in chance.sample(sorted(set(keys) - gone - {k for k, _ in entries}), 12)
    }
    whole = chance.random() < 0.5  # delete whole keys or single entries
    goes = [{"k": k} for k in gone] if whole else [{"k": k, "m": m} for k, m in entries]
    with store.snapshot(parallelism=chance.randrange(1, 9)) as checkpoint:
        checkpoint.write_changes(
            "u",
            "s",
            Changes(
                [{"k": k, "m": m, "v": v} for (k, m), v in upserts.items()],
                goes,
                cleared=[{"k": k} for k in cleared],
            ),
            key="k",
            kind="map",
            entry="m",
        )
    left = {
        (k, m): v
        for (k, m), v in state.items()
        if k not in cleared and (k not in gone if whole else (k, m) not in entries)
    }
    return left | upserts


def map_store(path: Path, seed: int, layout: str) -> tuple[StateStore, Rows]:
    """Return a store with a base and some layers of a map state, and the state's content."""
    chance = random.Random(seed)
    store = StateStore.open(str(path), table_format="parquet", compaction=None)
    state = {(f"k{k}", m): k * m for k in range(60) for m in range(chance.randrange(4))}
    rows = [{"k": k, "m": m, "v": v} for (k, m), v in state.items()]
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_keyed(
            "u", "s", rows, kind="map", key="k", entry="m", max_parallelism=GROUPS, layout=layout
        )
    for _ in range(seed % 5):
        state = change(store, chance, state)
    return store, state


@pytest.mark.long_cases("3-none-ranged-False", "3-tiny-ranged-True")
@pytest.mark.slow
@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("layout", RANGED_IN_EACH_RUN)
@pytest.mark.parametrize("limit", CACHES)
@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.long)])
def test_lookups_equal_a_dictionary(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    limit: int | None,
    layout: str,
    collide: bool,
) -> None:
    """The map states have several rows per key, and the base and layers have every kind of delete.
    All checkpoints share one cache, as in a worker.
    """
    if collide:
        monkeypatch.setattr(equality, "row_hashes", constant_hashes)
    chance = random.Random(seed)
    store, state = map_store(tmp_path, seed, layout)
    cache = None if limit is None else RowCache(limit)
    for _ in range(2):
        for count in (0, 1, 60):
            keys = [f"k{k}" for k in chance.choices(range(75), k=count)]
            rows = looked_up(store, keys, cache, parallelism=chance.randrange(1, GROUPS + 1))
            expected = {one: v for one, v in state.items() if one[0] in keys}
            assert {(row["k"], row["m"]): row["v"] for row in rows} == expected
            assert len(rows) == len(expected)
        assert cache is None or limit is None or 0 < cache.size_bytes <= limit
        state = change(store, chance, state)


def value_store(path: Path, keys: int = 200) -> StateStore:
    store = StateStore.open(str(path), table_format="parquet", compaction=None)
    with store.snapshot(parallelism=2) as checkpoint:
        rows = [{"k": f"k{i}", "v": i} for i in range(keys)]
        checkpoint.write_keyed(
            "u", "s", rows, key="k", max_parallelism=GROUPS, layout="partitioned"
        )
    return store


def files_of(store: StateStore) -> list[Path]:
    (entry,) = store.checkpoint().manifest.keyed
    return [Path(store.url, entry.table.path, handle.path) for handle in entry.handles]


def test_cached_rows_are_not_read_again(tmp_path: Path) -> None:
    store, cache = value_store(tmp_path / "store"), RowCache(2**24)
    keys = [f"k{i}" for i in range(200)]
    first = looked_up(store, keys, cache, parallelism=2)
    assert cache.size_bytes > 0
    for file in files_of(store):
        file.unlink()
    assert looked_up(store, keys, cache, parallelism=2) == first
    with pytest.raises(MissingFileError):
        looked_up(store, keys, None, parallelism=2)


def test_only_files_of_the_keys_key_groups_are_read(tmp_path: Path) -> None:
    store = value_store(tmp_path / "store")
    (entry,) = store.checkpoint().manifest.keyed
    group = int(WantedKeys.of(pa.table({"k": ["k7"]}), entry.state).groups[0])
    for handle, file in zip(entry.handles, files_of(store), strict=True):
        if group not in handle.key_groups:
            file.unlink()
    assert looked_up(store, ["k7", "k7"], None, parallelism=3) == [{"k": "k7", "v": 7}]
    assert looked_up(store, ["k7"], RowCache(2**20), parallelism=3) == [{"k": "k7", "v": 7}]


@pytest.mark.parametrize("limit", CACHES)
def test_keys_of_several_columns_and_types(store: StateStore, limit: int | None) -> None:
    """This includes columns with few values, and types that can be found only by hash."""
    rows = [{"tenant": "ab"[i % 2], "number": i % 10, "at": float(i // 10)} for i in range(60)]
    key = ["tenant", "number", "at"]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key=key, max_parallelism=GROUPS)
    (entry,) = store.checkpoint().manifest.keyed
    asked = [
        {"tenant": "a", "number": 4, "at": 0.0},
        {"tenant": "b", "number": 4, "at": 1.0},
        {"tenant": "b", "number": 5, "at": 3.0},
        {"tenant": "b", "number": 7, "at": 9.0},
    ]
    wanted = WantedKeys.of(asked, entry.state)
    cache = None if limit is None else RowCache(limit)
    reads = reads_of(entry, assignment_of(entry, 1).range_of(0))
    found = rows_of_keys(LocalStorage(store.url), entry, reads, wanted, cache)
    found = sorted(found.select(key).to_pylist(), key=lambda row: int(row["number"]))
    assert found == [asked[0], asked[2]]


def test_only_the_requested_pairs_of_two_key_columns_are_kept(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value of each column is requested, but only a few of their pairs."""
    rows = pa.table({"a": np.repeat(range(30), 30), "b": np.tile(range(30), 30)})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key=["a", "b"], max_parallelism=1)
    (entry,) = store.checkpoint().manifest.keyed
    wanted = WantedKeys.of(pa.table({"a": range(30), "b": range(30)}), entry.state)
    held, match = list[int](), WantedKeys.match

    def counted(self: WantedKeys, rows: pa.Table) -> pa.Table:
        held.append(rows.num_rows)
        return match(self, rows)

    monkeypatch.setattr(WantedKeys, "match", counted)
    reads = reads_of(entry, assignment_of(entry, 1).range_of(0))
    found = rows_of_keys(LocalStorage(store.url), entry, reads, wanted)
    assert (found.num_rows, held) == (30, [30])


def test_the_bytes_to_read_are_known_in_advance(tmp_path: Path) -> None:
    """They are the files with key groups of the keys, except cached ones."""
    store, cache = value_store(tmp_path / "store"), RowCache(2**24)
    (entry,) = store.checkpoint().manifest.keyed
    per_subtask = [reads_of(entry, groups) for groups in assignment_of(entry, 3).ranges()]
    one, every = (
        WantedKeys.of([{"k": f"k{i}"} for i in some], entry.state) for some in ([7], range(200))
    )
    sizes = {handle.key_groups.first: handle.size_bytes for handle in entry.handles}
    group = int(one.groups[0])
    for held in (None, cache):
        assert bytes_to_read(per_subtask, one, held, False) == sizes[group]
        assert bytes_to_read(per_subtask, every, held, False) == sum(sizes.values())
    looked_up(store, ["k7"], cache, parallelism=3)
    assert bytes_to_read(per_subtask, one, cache, False) == 0
    assert bytes_to_read(per_subtask, every, cache, False) == sum(sizes.values()) - sizes[group]


def test_a_verified_lookup_uses_no_cached_rows_that_were_not_verified(tmp_path: Path) -> None:
    store, cache = value_store(tmp_path / "store"), RowCache(2**24)
    (entry,) = store.checkpoint().manifest.keyed
    expected = looked_up(store, ["k7"], cache)
    for handle in entry.handles:
        change_unread_byte(tmp_path / "store" / entry.table.path / handle.path)
    assert looked_up(store, ["k7"], cache) == expected == [{"k": "k7", "v": 7}]
    with pytest.raises(DamagedFileError, match="has changed since it was written"):
        looked_up(store, ["k7"], cache, verify=True)


def test_rows_that_do_not_fit_do_not_evict_others(tmp_path: Path) -> None:
    """Not all slices fit into the cache. Some stay through every lookup, so the cache does not
    thrash.
    """
    store = value_store(tmp_path / "store")
    keys = [f"k{i}" for i in range(200)]
    whole = RowCache(2**24)
    looked_up(store, keys, whole)
    half = RowCache(whole.size_bytes // 2)
    looked_up(store, keys, half)
    held = half.size_bytes
    assert 0 < held <= whole.size_bytes // 2
    (entry,) = store.checkpoint().manifest.keyed
    parts = reads_of(entry, assignment_of(entry, 1).range_of(0)).base
    first = [half.find(part, False) is not None for part in parts]
    looked_up(store, keys, half)
    assert half.size_bytes == held
    assert [half.find(part, False) is not None for part in parts] == first


@pytest.mark.slow
def test_unused_rows_are_evicted(tmp_path: Path) -> None:
    old, new = value_store(tmp_path / "old"), value_store(tmp_path / "new", 100)
    keys = [f"k{i}" for i in range(200)]
    cache = RowCache(2**24)
    looked_up(old, keys, cache)
    both = cache.size_bytes
    for _ in range(100):
        looked_up(new, keys, cache)
    assert 0 < cache.size_bytes < both


def test_a_changed_byte_is_found_with_verify(tmp_path: Path) -> None:
    """The damage is found before a row is returned or cached."""
    store = value_store(tmp_path / "store")
    for file in files_of(store):
        raw = bytearray(file.read_bytes())
        raw[-20] ^= 1  # in the footer, which page checksums do not cover
        file.write_bytes(raw)
    for cache in (None, RowCache(2**24)):
        with pytest.raises(DamagedFileError):
            looked_up(store, ["k7"], cache, verify=True)


def state_entry(tmp_path: Path) -> KeyedEntry:
    (entry,) = value_store(tmp_path / "store").checkpoint().manifest.keyed
    return entry


def test_invalid_keys_are_refused(tmp_path: Path) -> None:
    state = state_entry(tmp_path).state
    with pytest.raises(InvalidArgumentError, match="'k' is missing"):
        WantedKeys.of(pa.table({"other": ["a"]}), state)
    with pytest.raises(InvalidArgumentError, match="invalid keys of"):
        WantedKeys.of(pa.table({"k": [{"a": 1}]}), state)
    with pytest.raises(NullKeyError):
        WantedKeys.of(pa.table({"k": ["a", None]}), state)
