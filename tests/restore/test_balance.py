"""Ranges balanced by bytes or rows: a restore uses them and the manifest stores them."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import CheckpointWriter, StateStore, key_group_of
from statestore.errors import InvalidArgumentError, MalformedManifestError, ParallelismError
from statestore.format.documents import document_bytes
from statestore.format.manifest_json import manifest_from_json, manifest_to_json
from statestore.keys.groups import RangeAssignment
from statestore.spark.data_source import resolve
from statestore.storage.local_cache import CacheOptions
from tests.support.examples import examples
from tests.support.forms import RANGED_IN_EACH_RUN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = 32
ROWS = [{"k": int(random.Random(i).paretovariate(0.6)) % 500, "n": i, "v": -i} for i in range(900)]


@pytest.fixture(params=RANGED_IN_EACH_RUN)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> StateStore:
    """A store with a state in which a few keys have most of the rows."""
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet", compaction=None)
    take(store, 3, layout=request.param)
    return store


def take(store: StateStore, parallelism: int, ranges: Any = None, **more: Any) -> None:
    with store.snapshot(parallelism=parallelism, ranges=ranges) as checkpoint:
        checkpoint.write_keyed(
            "u",
            "s",
            ROWS,
            key="k",
            namespace="n",
            max_parallelism=GROUPS,
            **more,
        )


def loads(restored: Any) -> list[int]:
    """Return the rows of each subtask, which own complete key groups and together have all rows."""
    keyed = restored.keyed("u", "s")
    found: Counter[int] = Counter()
    sizes = []
    for subtask in range(restored.parallelism):
        own = keyed.assignment.range_of(subtask)
        rows = keyed.to_arrow(subtask).to_pylist()
        assert all(row["key_group"] in own for row in rows)
        found.update(row["n"] for row in rows)
        sizes.append(len(rows))
    assert found == Counter(range(len(ROWS)))
    return sizes


@pytest.mark.parametrize("parallelism", [1, 7, GROUPS])
def test_a_restore_uses_the_balanced_ranges(store: StateStore, parallelism: int) -> None:
    even = loads(store.restore(parallelism=parallelism))
    by_rows = store.restore(parallelism=parallelism, balance="rows")
    assert max(loads(by_rows)) <= max(even)
    (skew,) = store.inspect.balance(store.plan(parallelism=parallelism), by="rows")
    assert (list(skew.even), list(skew.balanced)) == (even, loads(by_rows))
    assert by_rows.ranges == {"u": skew.ranges}
    by_bytes = store.restore(parallelism=parallelism, balance="bytes")
    loads(by_bytes)
    (skew,) = store.inspect.balance(store.plan(parallelism=parallelism))
    assert max(skew.balanced) <= max(skew.even)
    assert by_bytes.ranges == {"u": skew.ranges}


def test_the_largest_subtask_becomes_smaller(store: StateStore) -> None:
    (skew,) = store.inspect.balance(store.plan(parallelism=4), by="rows")
    assert skew.gain > 1.05
    assert skew.ratio(skew.even) > skew.ratio(skew.balanced) >= 1


def test_plan_and_restore_agree(store: StateStore) -> None:
    plan = store.plan(parallelism=5, balance="rows")
    restored = store.restore(parallelism=5, balance="rows")
    assert [subtask.rows for subtask in plan.operators[0].subtasks] == loads(restored)
    assert (
        store.plan(parallelism=5, balance="rows", operator="u", state="s").operators
        == plan.operators
    )


def test_the_manifest_stores_them(store: StateStore) -> None:
    restored = store.restore(parallelism=5, balance="rows")
    take(store, 5, restored.ranges)
    manifest = store.checkpoint().manifest
    assert manifest.ranges == restored.ranges
    assert manifest_from_json(manifest_to_json(manifest), name="m") == manifest
    for parallelism in (None, 5):  # the stored ranges, with and without an explicit parallelism
        again = store.restore(parallelism=parallelism)
        assert again.ranges == restored.ranges
        assert loads(again) == loads(restored)
    for parallelism in (1, 4, 6):
        assert store.restore(parallelism=parallelism).ranges == {}
    assert store.restore(parallelism=5, max_parallelism=GROUPS).ranges == {}
    assert store.restore(parallelism=5, checkpoint=1).ranges == {}


def test_a_retry_carries_a_state_into_its_ranges(store: StateStore) -> None:
    """I4, I6: at the same ranges, after a failed attempt and after a committed one."""
    ranges = store.restore(parallelism=5, balance="rows").ranges
    wanted = loads(store.restore(parallelism=5, balance="rows"))
    digest = store.checkpoint().manifest.keyed_entry("u", "s").digest

    def attempt(*, fails: bool = False) -> CheckpointWriter:
        with store.snapshot(parallelism=5, ranges=ranges, checkpoint_id=2) as checkpoint:
            carried = checkpoint.carry("u", "s")
            assert carried.digest == digest
            if fails:
                raise ZeroDivisionError
        return checkpoint

    with pytest.raises(ZeroDivisionError):
        attempt(fails=True)
    assert store.checkpoints() == (1,)
    assert [attempt().already_committed for _ in range(2)] == [False, True]
    assert store.checkpoints() == (1, 2)
    assert store.checkpoint().manifest.ranges == ranges
    assert loads(store.restore()) == wanted
    assert store.maintenance.verify("all", deep=True).is_intact


def test_even_ranges_are_not_stored(store: StateStore) -> None:
    take(store, 5, store.restore(parallelism=5).ranges)
    assert store.checkpoint().manifest.ranges == {}
    assert "ranges" not in json.loads(manifest_to_json(store.checkpoint().manifest))


@pytest.mark.parametrize("store", ["ranged"], indirect=True)
@pytest.mark.parametrize("stops", [[], [0, 8], [8, 8], [9, 4], [-1], ["8"], [1.5], 8, None, {}])
def test_damaged_ranges_are_refused(store: StateStore, stops: Any) -> None:
    take(store, 5, store.restore(parallelism=5, balance="rows").ranges)
    document = json.loads(manifest_to_json(store.checkpoint().manifest))
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
def test_invalid_ranges_are_refused_by_the_snapshot(store: StateStore, ranges: Any) -> None:
    with pytest.raises(ParallelismError, match=f"operator 'u' .* max parallelism {GROUPS}"):
        take(store, 4, ranges)
    assert store.checkpoints() == (1,)


def test_invalid_combinations_are_refused(store: StateStore) -> None:
    with pytest.raises(InvalidArgumentError, match="'bytes', 'rows'"):
        store.restore(parallelism=2, balance="files")
    with pytest.raises(InvalidArgumentError, match="remove the job graph and max_parallelism"):
        store.restore(parallelism=2, balance="rows", max_parallelism=64)
    with pytest.raises(ParallelismError, match=str(GROUPS + 1)):
        store.restore(parallelism=GROUPS + 1, balance="rows")


def test_changed_rows_count_in_the_balance(store: StateStore) -> None:
    hot = ROWS[0]["k"]
    with store.snapshot(parallelism=3) as checkpoint:
        rows = [{"k": hot, "n": 10_000 + i, "v": i} for i in range(3000)]
        checkpoint.write_changes("u", "s", rows, key="k", namespace="n")
    restored = store.restore(parallelism=4, balance="rows")
    planned = [subtask.rows for subtask in restored.plan.operators[0].subtasks]
    assert sum(planned) == len(ROWS) + 3000
    keyed = restored.keyed("u", "s")
    assert [keyed.to_arrow(i).num_rows for i in range(4)] == planned


@st.composite
def random_ranges(draw: st.DrawFn) -> RangeAssignment:
    inner = draw(st.sets(st.integers(1, GROUPS - 1), max_size=5))
    return RangeAssignment((*sorted(inner), GROUPS))


@pytest.mark.long
@pytest.mark.slow
@examples(100)
@given(random_ranges())
def test_subtasks_write_with_the_ranges_of_the_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, ranges: RangeAssignment
) -> None:
    store = StateStore.open(str(tmp_path_factory.mktemp("s")), table_format="parquet")
    rows = [{"k": number} for number in range(100)]
    groups = [key_group_of(row["k"], max_parallelism=GROUPS, key_type="long") for row in rows]
    owned = [
        [row for row, group in zip(rows, groups, strict=True) if group in own]
        for own in ranges.ranges()
    ]
    schema = pa.schema({"k": pa.int64()})
    with store.snapshot(
        parallelism=len(owned), ranges={"u": ranges}, checkpoint_id=1
    ) as checkpoint:
        writer = checkpoint.declare_keyed("u", "s", schema, key="k", max_parallelism=GROUPS)
        if len(owned) > 1 and owned[1]:
            with pytest.raises(InvalidArgumentError, match="belongs to subtask 1"):
                writer.subtask(0).write(owned[1])
        for subtask, part in enumerate(owned):
            assert writer.subtask(subtask).key_groups == ranges.range_of(subtask)
            checkpoint.acknowledge(writer.subtask(subtask).write(part))
    restored = store.restore(parallelism=len(owned)).keyed("u", "s")
    for subtask, part in enumerate(owned):
        found = restored.to_arrow(subtask)["k"].to_pylist()
        assert sorted(found) == sorted(row["k"] for row in part)
    options = {"store": store.url, "operator": "u", "state": "s"}
    for parallelism in {len(owned), 1, 3}:
        same = store.restore(parallelism=parallelism).keyed("u", "s")
        read = resolve(options | {"parallelism": str(parallelism)})
        assert read.per_subtask == same.plan.of_all()
    assert resolve(options).per_subtask == restored.plan.of_all()
    # Repeat it as a retry that finds the checkpoint committed.
    with store.snapshot(parallelism=len(owned), checkpoint_id=1) as again:
        declared = again.declare_keyed("u", "s", schema, key="k")
        assert declared.assignment == restored.assignment


def test_placement_uses_the_ranges_of_the_plan(tmp_path: Path) -> None:
    """Subtask 0 owns all key groups but the last, so nearly all bytes are local on its host."""
    ranges = RangeAssignment((GROUPS - 1, GROUPS))
    cache = tmp_path / "cache"
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet", cache=CacheOptions(cache))
    take(store, 2, {"u": ranges}, layout="partitioned")
    (host,) = {handle.host for handle in store.checkpoint().manifest.keyed[0].handles}
    sizes = [subtask.size_bytes for subtask in store.plan().operators[0].subtasks]
    for strategy in ("locality", "default"):
        (placed,) = store.inspect.placement(store.plan(), {host: 2}, strategy=strategy)
        assert sorted(subtask.local_bytes for subtask in placed.subtasks) == sorted(sizes)
    with pytest.raises(InvalidArgumentError, match=f"key groups of max parallelism {GROUPS}"):
        store.inspect.placement(store.plan(max_parallelism=2 * GROUPS), {host: 2})


def _n(row: Any) -> int:
    number: int = row.n
    return number


@pytest.mark.long
def test_spark_uses_the_ranges(spark: SparkSession, tmp_path: Path) -> None:
    """The data source reads with the ranges, and restored rows can be written without a shuffle."""
    ranges = RangeAssignment((1, 5, GROUPS))
    store = StateStore.open(str(tmp_path / "s"), spark=spark, table_format="parquet")
    take(store, 3, {"u": ranges})
    reader = spark.read.format("keyed_state").option("store", store.url)
    frame = reader.option("operator", "u").option("state", "s").load()
    found = frame.selectExpr("spark_partition_id() AS p", "key_group", "k", "n", "v").collect()
    assert [{"k": row.k, "n": row.n, "v": row.v} for row in sorted(found, key=_n)] == ROWS
    assert {row.p for row in found} == {0, 1, 2}
    assert all(row.key_group in ranges.range_of(row.p) for row in found)
    rows = store.restore().keyed("u", "s").to_spark().drop("key_group")
    with store.snapshot(parallelism=3, ranges={"u": ranges}) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", namespace="n", co_located=True)
    assert store.inspect.diff(1, 2).states[0].differs is False
