"""Ranges balanced by bytes or rows: restore honours them, the manifest keeps them."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, MalformedManifestError, ParallelismError
from statestore.model.balanced_ranges import RangeAssignment
from statestore.model.document import document_bytes
from statestore.model.manifest_json import manifest_from_json, manifest_to_json

GROUPS = 32
ROWS = [{"k": int(random.Random(i).paretovariate(0.6)) % 500, "n": i, "v": -i} for i in range(900)]


@pytest.fixture(params=["partitioned", "ranged"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> StateStore:
    """A state with a few keys that have most rows."""
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet", compaction=None)
    take(store, 3, layout=request.param)
    return store


def take(store: StateStore, parallelism: int, ranges: Any = None, **more: Any) -> None:
    with store.snapshot(parallelism=parallelism, ranges=ranges) as checkpoint:
        checkpoint.keyed("u", "s", ROWS, key="k", namespace="n", max_parallelism=GROUPS, **more)


def loads(restored: Any) -> list[int]:
    """Return the rows of each subtask; together they are all of them, in whole key groups."""
    keyed = restored.keyed("u", "s")
    found: Counter[int] = Counter()
    sizes = []
    for subtask in range(restored.parallelism):
        own = keyed.assignment.range_of(subtask)
        rows = keyed.subtask(subtask).read_all().to_pylist()
        assert all(row["key_group"] in own for row in rows)
        found.update(row["n"] for row in rows)
        sizes.append(len(rows))
    assert found == Counter(range(len(ROWS)))
    return sizes


@pytest.mark.parametrize("parallelism", [1, 7, GROUPS])
def test_restore_honours_the_ranges(store: StateStore, parallelism: int) -> None:
    even = loads(store.restore(parallelism=parallelism))
    by_rows = store.restore(parallelism=parallelism, balance="rows")
    assert max(loads(by_rows)) <= max(even)
    (skew,) = store.skew(parallelism=parallelism, by="rows")
    assert (list(skew.even), list(skew.balanced)) == (even, loads(by_rows))
    assert by_rows.ranges == {"u": skew.ranges}
    by_bytes = store.restore(parallelism=parallelism, balance="bytes")
    loads(by_bytes)
    (skew,) = store.skew(parallelism=parallelism)
    assert max(skew.balanced) <= max(skew.even)
    assert by_bytes.ranges == {"u": skew.ranges}


def test_the_gain_is_seen(store: StateStore) -> None:
    (skew,) = store.skew(parallelism=4, by="rows")
    assert skew.gain > 1.05
    assert skew.ratio(skew.even) > skew.ratio(skew.balanced) >= 1


def test_plan_and_restore_agree(store: StateStore) -> None:
    plan = store.plan(parallelism=5, balance="rows")
    restored = store.restore(parallelism=5, balance="rows")
    assert [subtask.rows for subtask in plan.operators[0].subtasks] == loads(restored)
    assert store.plan(parallelism=5, balance="rows", uid="u", name="s").operators == plan.operators


def test_the_manifest_keeps_them(store: StateStore) -> None:
    restored = store.restore(parallelism=5, balance="rows")
    take(store, 5, restored.ranges)
    manifest = store.manifest()
    assert manifest.ranges == restored.ranges
    assert manifest_from_json(manifest_to_json(manifest), name="m") == manifest
    for parallelism in (None, 5):  # as taken, whether it is said or not
        again = store.restore(parallelism=parallelism)
        assert again.ranges == restored.ranges
        assert loads(again) == loads(restored)
    for parallelism in (1, 4, 6):
        assert store.restore(parallelism=parallelism).ranges == {}
    assert store.restore(parallelism=5, max_parallelism=GROUPS).ranges == {}
    assert store.restore(parallelism=5, checkpoint=1).ranges == {}


def test_without_ranges_nothing_is_kept(store: StateStore) -> None:
    take(store, 5, store.restore(parallelism=5).ranges)
    assert store.manifest().ranges == {}
    assert "ranges" not in json.loads(manifest_to_json(store.manifest()))


@pytest.mark.parametrize("store", ["ranged"], indirect=True)
@pytest.mark.parametrize("stops", [[], [0, 8], [8, 8], [9, 4], [-1], ["8"], [1.5], 8, None, {}])
def test_damaged_ranges_are_refused(store: StateStore, stops: Any) -> None:
    take(store, 5, store.restore(parallelism=5, balance="rows").ranges)
    document = json.loads(manifest_to_json(store.manifest()))
    document["ranges"]["u"] = stops
    del document["sha256"]
    with pytest.raises(MalformedManifestError) as caught:
        manifest_from_json(document_bytes(document), name="m")
    assert "ranges" in str(caught.value)


@pytest.mark.parametrize(
    "ranges",
    [
        {"u": RangeAssignment((8, GROUPS))},
        {"u": RangeAssignment((1, 2, 3, 4))},
        {"u": RangeAssignment((1, 2, 3, GROUPS + 1))},
    ],
)
def test_wrong_ranges_are_refused_at_the_snapshot(store: StateStore, ranges: Any) -> None:
    with pytest.raises(ParallelismError, match=f"operator 'u' .* max parallelism {GROUPS}"):
        take(store, 4, ranges)
    assert store.checkpoints() == (1,)


def test_what_does_not_go_together(store: StateStore) -> None:
    with pytest.raises(InvalidArgumentError, match="'bytes', 'rows'"):
        store.restore(parallelism=2, balance="files")
    with pytest.raises(InvalidArgumentError, match="no max_parallelism"):
        store.restore(parallelism=2, balance="rows", max_parallelism=64)
    with pytest.raises(ParallelismError, match=str(GROUPS + 1)):
        store.restore(parallelism=GROUPS + 1, balance="rows")


def test_changes_count_as_they_are_read(store: StateStore) -> None:
    hot = ROWS[0]["k"]
    with store.snapshot(parallelism=3) as checkpoint:
        rows = [{"k": hot, "n": 10_000 + i, "v": i} for i in range(3000)]
        checkpoint.keyed("u", "s", key="k", namespace="n").changes(rows)
    restored = store.restore(parallelism=4, balance="rows")
    planned = [subtask.rows for subtask in restored.plan.operators[0].subtasks]
    assert sum(planned) == len(ROWS) + 3000
    keyed = restored.keyed("u", "s")
    assert [keyed.subtask(i).read_all().num_rows for i in range(4)] == planned
