"""More text in one key group than an Arrow array can hold, and a row of the maximum size.

Both need a temporary folder on disk, because the other tests write in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from statestore import StateStore
from statestore.rows.sorting import ROW_BYTES
from statestore.snapshot.state_spec import Changes

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

LETTERS = np.frombuffer(bytes(range(32, 96)), np.uint8)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@pytest.fixture
def store() -> Iterator[StateStore]:
    with TemporaryDirectory() as folder:
        url = str(Path(folder, "s"))
        yield StateStore.open(url, table_format="parquet", compaction=None)


def text_of(key: int, size: int) -> str:
    text = LETTERS[np.random.default_rng(key).integers(0, 64, size, np.uint8)]
    return str(text.tobytes(), "ascii")


def values_of(store: StateStore) -> dict[int, int]:
    """Return the length of each restored value by key. Each key occurs once, in order."""
    found: list[tuple[int, int]] = []
    for batch in store.restore(parallelism=1).keyed("u", "s").to_batches(0):
        sizes = pc.binary_length(batch.column("v")).to_pylist()
        found += zip(batch.column("k").to_pylist(), sizes, strict=True)
    assert found == sorted(dict(found).items())
    return dict(found)


def test_a_key_group_with_more_text_than_an_array_holds(store: StateStore) -> None:
    """There are 2.4 GB in the base, and 1.2 GB in a layer of changes."""
    size = 1_000_000

    def stream(keys: range) -> pa.RecordBatchReader:
        rows = (pa.record_batch([[key], [text_of(key, size)]], schema=SCHEMA) for key in keys)
        return pa.RecordBatchReader.from_batches(SCHEMA, rows)

    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", stream(range(2400)), key="k", max_parallelism=1)
    assert values_of(store) == dict.fromkeys(range(2400), size)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "s", Changes(stream(range(1800, 3000)), deletes=[{"k": 7}]))
    wanted = dict.fromkeys([key for key in range(3000) if key != 7], size)
    assert values_of(store) == wanted
    for _ in range(2):
        state = store.restore(parallelism=1).keyed("u", "s")
        for key in (0, 1799, 1800, 2999):
            assert state.get(key) == [{"k": key, "v": text_of(key, size)}]
        assert state.get(7) == []
        every = state.lookup(pa.table({"k": range(3000)}))
        assert every.num_rows == len(wanted)
        del every
        assert store.maintenance.verify("all", deep=True).is_intact
        store.maintenance.compact()
        assert values_of(store) == wanted


def test_the_largest_row_is_merged_and_compacted(store: StateStore) -> None:
    """It is written in a snapshot, another one in changes, and both are merged and compacted."""
    size = ROW_BYTES - 1000

    def rows(keys: range, large: int) -> pa.Table:
        values = [text_of(key, size if key == large else 5) for key in keys]
        return pa.table([pa.array(keys, pa.int64()), pa.array(values, pa.string())], SCHEMA)

    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows(range(10), 3), key="k", max_parallelism=1)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "s", rows(range(5, 15), 8))
    wanted = dict.fromkeys(range(15), 5) | {3: size, 8: size}
    assert values_of(store) == wanted
    store.maintenance.compact()
    assert values_of(store) == wanted
    assert store.maintenance.verify("all", deep=True).is_intact
    [row] = store.restore(parallelism=1).keyed("u", "s").get(8)
    assert row["v"] == text_of(8, size)
