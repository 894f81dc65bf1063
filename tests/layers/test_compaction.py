"""Merge and fold layers: the same rows in other files, while the old files do not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import StateStore
from statestore.errors import CorruptionError
from statestore.format.layers import widened_spans
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import reads_of
from statestore.layers.compaction import Compactor
from statestore.layers.merge import read_state
from statestore.parquet.keyed_writer import CheckpointFiles
from statestore.parquet.writer import ParquetOptions
from statestore.storage import LocalStorage
from tests.layers.test_merge import EVERYTHING, GROUPS, store_of


def compactor_of(store: StateStore) -> Compactor:
    return Compactor(CheckpointFiles(LocalStorage(store.url), 9, ParquetOptions()))


def rows_of(store: StateStore, entry: KeyedEntry) -> dict[str, int]:
    rows = read_state(LocalStorage(store.url), entry, reads_of(entry, EVERYTHING), verify=True)
    return {row["k"]: row["v"] for batch in rows for row in batch.to_pylist()}


def files(store: StateStore) -> dict[str, bytes]:
    found = Path(store.url, "operators").rglob("*.parquet")
    return {str(path.relative_to(store.url)): path.read_bytes() for path in found}


@pytest.fixture
def made(tmp_path: Path) -> tuple[StateStore, KeyedEntry, dict[str, int]]:
    store, state = store_of(tmp_path / "store")
    return store, store.checkpoint().manifest.keyed[0], state


Made = tuple[StateStore, KeyedEntry, dict[str, int]]


def test_merged_layers_equal_the_separate_ones(made: Made) -> None:
    store, entry, state = made
    for count in (2, 3):
        done = compactor_of(store).merge(entry, count)
        assert (len(done.layers), done.handles) == (4 - count, entry.handles)
        assert done.layers[-1].depth == 1
        assert rows_of(store, done) == state
    assert compactor_of(store).merge(entry, 1) is entry


def test_merged_layers_have_the_same_effect_on_another_layer(made: Made) -> None:
    """Deletes of the newer layers apply to everything below them."""
    store, entry, state = made
    compactor = compactor_of(store)
    assert rows_of(store, compactor.fold(compactor.merge(entry, 2), [EVERYTHING])) == state


def test_folded_spans_are_in_the_base_and_old_files_are_kept(made: Made) -> None:
    store, entry, state = made
    before, compactor = files(store), compactor_of(store)
    (span,) = widened_spans(entry)
    assert span == EVERYTHING
    done = compactor.fold(entry, [span])
    assert (done.layers, done.rows, done.table.version) == ((), len(state), None)
    assert rows_of(store, done) == state
    assert {name: files(store)[name] for name in before} == before
    assert set(files(store)) - set(before) == set(compactor.new.names)
    assert compactor.fold(entry, []) is entry
    compactor.new.delete(ValueError())
    assert files(store) == before


def test_spans_are_folded_one_after_another(tmp_path: Path) -> None:
    """In partitioned files each key group is a span; folded spans are removed from the layers."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", compaction=None)
    state = {f"k{i}": i for i in range(40)}
    with store.snapshot(parallelism=1) as checkpoint:
        rows = [{"k": k, "v": v} for k, v in state.items()]
        checkpoint.write_keyed(
            "u", "s", rows, key="k", max_parallelism=GROUPS, layout="partitioned"
        )
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "s", [{"k": k, "v": -v} for k, v in state.items()], key="k")
    entry = store.checkpoint().manifest.keyed[0]
    compactor = compactor_of(store)
    for span in reversed(widened_spans(entry)):
        assert entry.layers
        entry = compactor.fold(entry, [span])
        live = [group for layer in entry.layers for one in layer.live for group in one]
        assert all(group < span.first for group in live)
        assert rows_of(store, entry) == {k: -v for k, v in state.items()}
    assert entry.layers == ()


def test_damage_stops_a_compaction(made: Made) -> None:
    store, entry, _ = made
    layer = entry.layers[1].entry
    path = Path(store.url, layer.table.path, layer.handles[0].path)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))
    before = files(store)
    with pytest.raises(CorruptionError):
        compactor_of(store).fold(entry, [EVERYTHING])
    assert files(store) == before
    with pytest.raises(CorruptionError):
        compactor_of(store).merge(entry, 3)
    assert files(store) == before
