"""Small layers of changes are decoded once for the subtasks of a process."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.errors import DamagedFileError
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import reads_of
from statestore.keys.groups import KeyGroupRange
from statestore.layers.layer_cache import LayerCache
from statestore.layers.merge import read_state
from statestore.parquet.reader import read_slices
from tests.support.forms import GROUPS, Checkpoints, users

HALVES = [KeyGroupRange(0, GROUPS // 2 - 1), KeyGroupRange(GROUPS // 2, GROUPS - 1)]


@pytest.fixture(params=["partitioned", "ranged"])
def layered(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoints:
    made = Checkpoints(tmp_path / "store", layout=request.param)
    made.full(users(60, 2), parallelism=2)
    made.change(users(40, 2, value=7))
    made.change(users(50, 2, value=8), cleared=["u050"])
    made.opened()
    return made


def rows(layered: Checkpoints, entry: KeyedEntry, cache: LayerCache | None) -> list[pa.Table]:
    """Return the rows of both halves of the key groups."""
    storage = layered.storage
    return [
        pa.Table.from_batches(read_state(storage, entry, reads_of(entry, half), cache=cache))
        for half in HALVES
    ]


def opened_layers(layered: Checkpoints) -> Counter[str]:
    return Counter({name: n for name, n in layered.opened().items() if "/changes/" in name})


def test_subtasks_share_layers_and_get_the_same_rows(layered: Checkpoints) -> None:
    entry = layered.store.checkpoint().manifest.keyed[0]
    alone = rows(layered, entry, None)
    assert set(opened_layers(layered).values()) == {2}
    assert rows(layered, entry, LayerCache()) == alone
    assert [*opened_layers(layered).values()] == [1, 1]


def test_a_full_cache_makes_each_subtask_read_the_layer(layered: Checkpoints) -> None:
    entry = layered.store.checkpoint().manifest.keyed[0]
    alone = rows(layered, entry, None)
    [first, _] = reads_of(entry, HALVES[0]).layers
    decoded = LayerCache().rows_of(first, partial(read_slices, layered.storage))
    assert decoded is not None
    layered.opened()
    assert rows(layered, entry, LayerCache(decoded.nbytes * 6 // 5)) == alone
    # The second layer is decoded, is too large for the cache, and is then read by each half.
    assert sorted(opened_layers(layered).values()) == [1, 3]


def test_a_damaged_layer_is_refused_by_each_subtask(layered: Checkpoints) -> None:
    entry = layered.store.checkpoint().manifest.keyed[0]
    [name] = [
        entry.layers[0].entry.table.name_of(handle) for handle in entry.layers[0].entry.handles
    ]
    cache = LayerCache()
    path = Path(layered.storage.url) / name
    path.write_bytes(path.read_bytes()[:-1])
    for half in HALVES:
        with pytest.raises(DamagedFileError, match="bytes, but the manifest says"):
            list(read_state(layered.storage, entry, reads_of(entry, half), cache=cache))
