"""Merges of base and layers: in order, one run of key groups at a time, without hashing rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import DamagedFileError
from statestore.format.names import MARK
from statestore.format.schema import Field, Schema
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState, StateKind
from statestore.keys.groups import KeyGroupRange
from statestore.layers.merge import Wanted, _read_ahead, merged_rows, read_state
from statestore.parquet.writer import ParquetOptions
from statestore.rows import equality
from statestore.rows import key_group_runs as runs
from statestore.rows.digests import rows_digest
from statestore.rows.equality import equal_rows, matching_positions
from statestore.snapshot.state_spec import Changes
from statestore.storage import LocalStorage
from tests.support import forms
from tests.support.forms import Checkpoints, entries_of, users

GROUPS = 8
EVERYTHING = KeyGroupRange(0, GROUPS - 1)


@pytest.fixture(autouse=True, params=["tiny layers together", "each layer apart"])
def tiny_layers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge with one stream for all layers of a test, and with one for each of them."""
    if request.param == "each layer apart":
        monkeypatch.setattr("statestore.layers.merge._TINY_LAYER_BYTES", 0)


def store_of(path: Path, **written: Any) -> tuple[StateStore, dict[str, int]]:
    """Return a store with a base and three layers, and the content of its state."""
    parquet = ParquetOptions(**written)
    store = StateStore.open(str(path), table_format="parquet", parquet=parquet, compaction=None)
    state = {f"k{i}": i for i in range(60)}
    with store.snapshot(parallelism=2) as checkpoint:
        rows = [{"k": k, "v": v} for k, v in state.items()]
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=GROUPS, layout="ranged")
    for number in range(1, 4):
        upserts = {f"k{i}": -i * number for i in range(0, 80, 4 * number)}
        gone = [f"k{i}" for i in range(number, 60, 9) if f"k{i}" not in upserts]
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes(
                "u",
                "s",
                Changes(
                    [{"k": k, "v": v} for k, v in upserts.items()],
                    [{"k": k} for k in gone],
                    cleared=[{"k": next(iter(upserts))}],
                ),
                key="k",
            )
        state = {k: v for k, v in state.items() if k not in gone} | upserts
    return store, state


def merged(
    store: StateStore,
    key_groups: KeyGroupRange = EVERYTHING,
    run_bytes: int = runs.RUN_BYTES,
) -> list[pa.RecordBatch]:
    (entry,) = store.checkpoint().manifest.keyed
    storage, reads = LocalStorage(store.url), reads_of(entry, key_groups)
    return [*read_state(storage, entry, reads, verify=True, run_bytes=run_bytes)]


def no_hash(rows: Any, columns: Any = None) -> Any:
    raise AssertionError("a row was hashed")


@pytest.mark.parametrize("run_bytes", [1, runs.RUN_BYTES])
def test_the_newest_change_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int
) -> None:
    store, state = store_of(tmp_path / "store", run_bytes=run_bytes)
    monkeypatch.setattr(equality, "row_hashes", no_hash)
    rows = pa.Table.from_batches(merged(store, run_bytes=run_bytes))
    assert {row["k"]: row["v"] for row in rows.to_pylist()} == state
    assert rows.num_rows == len(state)
    in_order = runs.sort_groups(rows, store.checkpoint().manifest.keyed[0].state)
    assert rows.combine_chunks().equals(in_order.combine_chunks())


def test_the_newest_of_several_layers_counts_for_rows_that_the_base_lacks(tmp_path: Path) -> None:
    """Of changes of one key in several layers, only the newest one is returned."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", compaction=None)
    with store.snapshot(parallelism=2) as checkpoint:
        rows = [{"k": f"k{i}", "v": 0} for i in range(20)]
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=GROUPS, layout="ranged")
    for number, (new, gone) in enumerate(
        [(["a", "b", "c", "k1"], []), (["b", "k2"], ["a", "k1"]), (["a", "k1"], ["c", "k2", "k3"])]
    ):
        changes = Changes([{"k": k, "v": number} for k in new], [{"k": k} for k in gone])
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes("u", "s", changes, key="k")
    rows = pa.Table.from_batches(merged(store)).to_pylist()
    assert sorted((row["k"], row["v"]) for row in rows) == sorted(
        [("a", 2), ("b", 1), ("k1", 2), ("k0", 0), *((f"k{i}", 0) for i in range(4, 20))]
    )


def test_only_the_wanted_columns_are_gathered(tmp_path: Path) -> None:
    store, state = store_of(tmp_path / "store")
    (entry,) = store.checkpoint().manifest.keyed
    wanted = Wanted(["v"], lambda _, handle: range(handle.row_groups))
    read = read_state(LocalStorage(store.url), entry, reads_of(entry, EVERYTHING), wanted=wanted)
    rows = pa.Table.from_batches([*read])
    assert rows.column_names == ["key_group", "v"]
    assert sorted(rows["v"].to_pylist()) == sorted(state.values())


@pytest.mark.slow
def test_a_merge_handles_one_run_of_key_groups_at_a_time(tmp_path: Path) -> None:
    store, _ = store_of(tmp_path / "store", row_group_rows=1)
    groups = [set(batch.column("key_group").to_pylist()) for batch in merged(store, run_bytes=1)]
    assert max(map(len, groups)) == 1


def test_a_subset_of_key_groups_has_the_rows_of_a_full_merge(tmp_path: Path) -> None:
    store, state = store_of(tmp_path / "store")
    parts = [merged(store, KeyGroupRange(group, group)) for group in range(GROUPS)]
    for group, batches in enumerate(parts):
        assert {g for batch in batches for g in batch.column(0).to_pylist()} <= {group}
    rows = pa.Table.from_batches([batch for part in parts for batch in part])
    assert rows_digest(rows.drop_columns(["key_group"])) == rows_digest(
        pa.table({"k": [*state], "v": [*state.values()]})
    )


@pytest.mark.long_cases("tiny layers together-0-partitioned", "each layer apart-0-ranged")
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["partitioned", "ranged"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))]
)
def test_many_layers_are_merged_in_one_pass(tmp_path: Path, layout: str, seed: int) -> None:
    """Rows are added, deleted by key or by entry, and added again, in layers with
    different keys.
    """
    made, random = Checkpoints(tmp_path / "store", layout=layout), Random(seed)
    made.full(users(12, 3))
    for number in range(12):
        keys = random.sample([f"u{at:03}" for at in range(16)], 6)
        cleared, upserts = keys[:2], {(k, random.randrange(4)): number for k in keys[1:4]}
        entries = [(keys[4], random.randrange(4)), (keys[5], random.randrange(4))]
        made.change(upserts, cleared=cleared, entries=entries)
    every = KeyGroupRange(0, forms.GROUPS - 1)
    rows = pa.Table.from_batches(merged(made.store, every)).combine_chunks()
    assert entries_of(rows.to_pylist()) == made.rows
    (entry,) = made.store.checkpoint().manifest.keyed
    assert len(entry.layers) == 12
    assert rows.equals(runs.sort_groups(rows, entry.state))
    made.store.maintenance.compact(everything=True)
    assert not made.store.checkpoint().manifest.keyed[0].layers
    assert pa.Table.from_batches(merged(made.store, every)).combine_chunks().equals(rows)


KEYS = KeyedState(
    uid="u",
    name="s",
    kind=StateKind.MAP,
    schema=Schema((*(Field(name, "long") for name in "km"), Field("v", "long"))),
    key=("k",),
    entry=("m",),
    key_types=("Long",),
    max_parallelism=GROUPS,
    hash_scheme="java",
)


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize("new", [1, 5, 1000])
def test_new_rows_are_inserted_in_order(rows: int, new: int) -> None:
    """New rows come before, after and between existing rows, next to deleted ones, and in one or
    all key groups.
    """
    random = Random(rows * new)
    for groups in (1, GROUPS):
        keys = random.sample([(k, m) for k in range(200) for m in range(20)], rows + new)
        gone = random.sample(keys[:rows], rows // 7)
        comes = keys[rows:] + random.sample(keys[:rows], rows // 5)
        left = dict.fromkeys(keys[:rows], 0)
        base = changed_rows([(key, 0, None) for key in left], groups)
        base = runs.sort_groups(base, KEYS) if rows else base
        marks = [(key, None, 2) for key in gone] + [(key, 1, 0) for key in comes]
        found = merged_rows(base.drop_columns(MARK), [changed_rows(marks, groups)], KEYS)
        left = {key: v for key, v in left.items() if key not in gone} | dict.fromkeys(comes, 1)
        expected = changed_rows([(key, v, None) for key, v in left.items()], groups)
        expected = runs.sort_groups(expected, KEYS).drop_columns(MARK)
        assert found.combine_chunks().equals(expected.combine_chunks())


def changed_rows(
    rows: Sequence[tuple[tuple[int, int], int | None, int | None]], groups: int
) -> pa.Table:
    """Return entries with a value and a marker, in order of key group."""
    named = [{"key_group": k % groups, "k": k, "m": m, MARK: at, "v": v} for (k, m), v, at in rows]
    longs = [(name, pa.int64()) for name in ("k", "m", MARK, "v")]
    schema = pa.schema([("key_group", pa.int32()), *longs])
    in_groups = sorted(named, key=lambda row: row["key_group"] or 0)
    return pa.Table.from_pylist(in_groups, schema)


def run(rows: int) -> pa.Table:
    return pa.table({"n": pa.array(range(rows), pa.int64())})


def test_read_ahead_is_bounded_and_ends_with_its_reader() -> None:
    begun: list[int] = []
    ended: list[bool] = []

    def runs() -> Iterator[pa.Table]:
        try:
            for number in range(100):
                begun.append(number)
                yield run(100)
        finally:
            ended.append(True)

    with _read_ahead(runs()) as ahead:
        assert [next(ahead).num_rows for _ in range(10)] == [100] * 10
    del ahead
    assert len(begun) <= 10 + 2
    assert ended == [True]


def test_runs_are_read_before_they_are_requested() -> None:
    brought = Event()

    def runs() -> Iterator[pa.Table]:
        brought.set()
        yield run(1)

    with _read_ahead(runs()):
        assert brought.wait(timeout=60)


def test_an_error_of_read_ahead_follows_the_runs_before_it() -> None:
    def runs() -> Iterator[pa.Table]:
        yield run(1)
        yield run(2)
        raise DamagedFileError("the third")

    with _read_ahead(runs()) as ahead:
        assert [next(ahead).num_rows for _ in range(2)] == [1, 2]
        with pytest.raises(DamagedFileError, match="the third"):
            next(ahead)


def test_rows_match_as_keys_do() -> None:
    """Null equals null, NaN equals NaN, and 0.0 differs from -0.0, in any order of rows."""
    nan = float("nan")
    values = [0.0, -0.0, nan, None, 1.5]
    old = pa.table({"a": pa.array(values, pa.float64()), "b": ["x"] * 5})
    new = pa.table({"a": pa.array([*reversed(values), 2.0], pa.float64()), "b": ["x"] * 6})
    at, places = matching_positions(old, new)
    assert at.tolist() == [0, 1, 2, 3, 4]
    assert places.tolist() == [4, 3, 2, 1, 0]
    assert equal_rows(old, new.take(pa.array(places))).all()
    assert not equal_rows(old.slice(0, 1), old.slice(1, 1)).any()
    other = new.set_column(1, "b", pa.array(["y"] * 6))
    assert [len(one) for one in matching_positions(old, other)] == [0, 0]
    assert [len(one) for one in matching_positions(old.slice(0, 0), new)] == [0, 0]


NAN = float("nan")
KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["", "a", "a\0", "ä", None]),
    (pa.binary(), [b"", b"a", b"\0", None]),
    (pa.int64(), [0, 1, -1, 2**62, None]),
    (pa.int32(), [0, 1, None]),
    (pa.bool_(), [True, False, None]),
    (pa.float64(), [0.0, -0.0, NAN, 1.5, None]),
    (pa.float32(), [0.0, -0.0, NAN, 1.5, None]),
    (pa.decimal128(38, 2), [Decimal("1.00"), Decimal("-1.50"), None]),
    (pa.timestamp("us", "UTC"), [datetime(1969, 1, 1, tzinfo=UTC), None]),
    (pa.date32(), [date(2026, 1, 1), date(1, 1, 1), None]),
    (
        pa.struct([("x", pa.float64()), ("y", pa.string())]),
        [None, {"x": None, "y": None}, {"x": 0.0, "y": "a"}, {"x": -0.0, "y": "a"}],
    ),
    (pa.list_(pa.float64()), [None, [], [None], [NAN], [0.0], [-0.0], [0.0, 1.0]]),
    (pa.map_(pa.string(), pa.int64()), [None, [], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)]]),
]


def plainly(value: Any, kind: pa.DataType) -> Any:
    """Return a form of a value in a type's column that is equal only for equal values."""
    if isinstance(value, float):
        return "NaN" if value != value else (value, str(value))
    if isinstance(value, dict):
        return [plainly(one, kind) for one in value.values()]
    if isinstance(value, list):
        every = [plainly(one, kind) for one in value]
        return sorted(every) if pa.types.is_map(kind) else every
    return value


def first_equal(old: pa.Table, new: pa.Table) -> list[tuple[int, int]]:
    """Return the matches, by comparing each row with each value."""

    def shown(rows: pa.Table) -> list[list[Any]]:
        return [
            [
                (None if row[name] is None else str(rows.schema.field(name).type),
                 repr(plainly(row[name], rows.schema.field(name).type)))
                for name in old.column_names
            ]
            for row in rows.to_pylist()
        ]  # fmt: skip

    among = shown(new)
    return [(at, among.index(row)) for at, row in enumerate(shown(old)) if row in among]


@pytest.mark.long_cases(
    "tiny layers together-3",
    "tiny layers together-4",
    "each layer apart-2",
    "each layer apart-3",
    "each layer apart-4",
    "tiny layers together-1",
    "tiny layers together-2",
    "each layer apart-0",
)
@pytest.mark.parametrize("seed", range(5))
def test_rows_of_any_columns_are_matched(seed: int) -> None:
    """The rows come in pieces, with columns in another order, and with a column of another type."""
    random, count = Random(seed), 0

    def rows_of(kinds: list[tuple[pa.DataType, list[Any]]]) -> pa.Table:
        rows = random.randrange(12)
        drawn = [pa.array(random.choices(values, k=rows), kind) for kind, values in kinds]
        table = pa.table(drawn, names=[f"c{at}" for at in range(len(kinds))])
        cut = random.randrange(rows + 1)
        return pa.concat_tables([table.slice(0, cut), table.slice(cut)])

    for _ in range(200):
        kinds = random.choices(KINDS, k=random.randint(1, 3))
        others = [kind if random.random() < 0.95 else random.choice(KINDS) for kind in kinds]
        old, new = rows_of(kinds), rows_of(others)
        new = new.select(random.sample(new.column_names, len(kinds)))
        expected = first_equal(old, new)
        assert list(zip(*map(list, matching_positions(old, new)), strict=True)) == expected
        count += len(expected)
    assert count > 100
