"""Sort rows within a memory budget: any budget gives the same rows, files and errors."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from statestore import ParquetOptions, StateStore
from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    StateStoreError,
    StorageError,
)
from statestore.format.state import KeyedState, Layout, StateKind
from statestore.rows import sorting
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.key_group_runs import check_and_sort
from statestore.rows.sorting import (
    gather_key_groups,
    key_group_pieces,
    slices_of,
    sorted_pieces,
)
from statestore.snapshot.state_spec import Changes
from statestore.spark.state_writer import frame_of
from tests.support.examples import examples

IN_MEMORY = 2**28
SCHEMA = pa.schema(
    {
        "key_group": pa.int32(),
        "k": pa.string(),
        "n": pa.float64(),
        "e": pa.list_(pa.int64()),
        "v": pa.binary(),
    }
)
VALUES = st.tuples(
    st.integers(0, 3),
    st.text("ab", max_size=2),
    st.sampled_from([None, -0.0, 0.0, 1.5, float("nan"), float("-inf")]),
    st.none() | st.lists(st.none() | st.integers(0, 2), max_size=2),
    st.binary(max_size=40),
)


def state_of(**options: Any) -> KeyedState:
    known: dict[str, Any] = {
        "uid": "u",
        "name": "n",
        "kind": StateKind.MAP,
        "schema": schema_of_arrow(SCHEMA.remove(0)),
        "key": ("k",),
        "namespace": ("n",),
        "entry": ("e",),
        "key_types": ("String",),
        "max_parallelism": 4,
        "hash_scheme": "java",
        "layout": Layout.RANGED,
    }
    return KeyedState(**(known | options))


def table_of(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def outcome(pieces: Iterator[pa.Table]) -> pa.Table | str:
    """Return the sorted rows as bytes that distinguish all values, or the error."""
    try:
        tables = [*check_and_sort(pieces, state_of())]
    except StateStoreError as error:
        return f"{type(error).__name__}: {error}"
    return repr(pa.concat_tables([SCHEMA.empty_table(), *tables]).to_pylist())


@pytest.fixture(autouse=True)
def few_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge few runs at a time, so that a small budget holds several rows of each run."""
    monkeypatch.setattr(sorting, "_FAN_IN", 4)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate folder for temporary files, which must be empty at the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.long
@pytest.mark.slow
@examples(60)
@given(
    rows=st.lists(VALUES, max_size=30, unique_by=lambda row: repr(row[:4])),
    repeated=st.booleans(),
    memory=st.integers(100, 4000),
    run_bytes=st.integers(1, 1000),
    batch_rows=st.integers(1, 20),
)
def test_any_budget_gives_the_same_rows(
    rows: list[tuple[Any, ...]], repeated: bool, memory: int, run_bytes: int, batch_rows: int
) -> None:
    """Duplicates are refused with the same error, whichever pieces contain them."""
    if repeated and rows:
        rows = [*rows, rows[0]]
    table = table_of(sorted(rows, key=lambda row: row[0]))
    wanted = outcome(key_group_pieces([table], state_of(), IN_MEMORY, IN_MEMORY))
    batches = table.to_batches(batch_rows)
    assert outcome(key_group_pieces(batches, state_of(), run_bytes, memory)) == wanted
    shuffled = table.take(np.random.default_rng(memory).permutation(len(rows)))
    pieces = sorted_pieces(shuffled.to_batches(batch_rows), state_of(), memory)
    assert outcome(pieces) == wanted


@pytest.mark.long
@pytest.mark.slow
def test_runs_are_merged_in_several_passes(temporary: Path) -> None:
    """There are more runs than one merge reads. The folder is deleted afterwards."""
    rows: list[tuple[Any, ...]] = [
        (1, f"{number:05}", 0.0, [], bytes(50)) for number in range(3000)
    ]
    table = table_of(Random(1).sample(rows, len(rows)))
    with sorting.ExternalSort(state_of(), 40_000) as sort:
        for part in slices_of(table, 5000):
            sort.add(part, part.nbytes)
        assert len([*temporary.glob("statestore-*-sort-*/*")]) > 4 * sorting._FAN_IN
        pieces = [*sort.finish()]
    assert pa.concat_tables(pieces).to_pylist() == table_of(rows).to_pylist()
    assert max(piece.nbytes for piece in pieces) < 40_000
    assert [*temporary.iterdir()] == []


@pytest.mark.slow
def test_streams_in_sequence_are_not_merged() -> None:
    """The time of a merge therefore does not grow with the number of runs that are already in
    order.
    """
    rows: list[tuple[Any, ...]] = [
        (1, f"{number:05}", 0.0, [], bytes(50)) for number in range(3200)
    ]
    streams = [slices_of(table_of(rows[start : start + 100]), 500) for start in range(0, 3200, 100)]
    steps = [*sorting.merge_steps(streams, state_of(), 40_000)]
    merged = [table.take(pa.array(places)) for table, places in steps]
    assert pa.concat_tables(merged).to_pylist() == table_of(rows).to_pylist()
    assert sum(table.num_rows for table, _ in steps) < 2 * len(rows)


@pytest.mark.slow
def test_streams_that_follow_each_other_in_each_key_group_share_the_memory() -> None:
    """The stream with the next rows may read ahead, but no more than the others leave."""
    streams, memory = 8, 40_000
    read = merged = most = 0

    def stream(number: int) -> Iterator[pa.Table]:
        """Yield many small tables; in each key group, the streams follow each other."""
        nonlocal read
        names = [f"{number}{index:03}" for index in range(200)]
        for group in range(4):
            rows = table_of([(group, name, 0.0, [], bytes(50)) for name in names])
            for table in slices_of(rows, 500):
                read += table.num_rows
                yield table

    for rows, places in sorting.merge_steps(
        [stream(number) for number in range(streams)], state_of(), memory
    ):
        row_bytes = rows.nbytes // rows.num_rows
        most = max(most, read - merged)
        merged += len(places)
    assert read == merged == 4 * 200 * streams
    assert most * row_bytes < 1.5 * memory


def test_rows_of_many_columns_are_in_few_pieces() -> None:
    """A piece costs time for each column, so ten times as many columns have larger pieces."""
    columns = {f"v{number}": pa.array(range(400)) for number in range(320)}
    keys = {"key_group": pa.array(np.repeat(np.arange(40, dtype=np.int32), 10)), "k": range(400)}
    pieces = []
    for values in ({"v": columns["v0"]}, columns):
        table = pa.table({**keys, **values})
        schema = schema_of_arrow(table.drop_columns(["key_group"]).schema)
        state = state_of(schema=schema, namespace=(), entry=(), kind=StateKind.VALUE)
        run_bytes = table.nbytes // 200
        pieces.append(len([*key_group_pieces(table.to_batches(10), state, run_bytes, IN_MEMORY)]))
    assert pieces == [40, 20]


def test_rows_that_fit_in_memory_never_use_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They work without a temporary folder, while rows that do not fit raise an error."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    table = table_of([(1, str(number), 0.0, [], bytes(100)) for number in range(100)])
    assert sum(map(len, key_group_pieces([table], state_of(), 1, IN_MEMORY))) == 100
    with pytest.raises(StorageError, match="cannot make a temporary folder"):
        [*key_group_pieces([table], state_of(), 1, 100)]


@pytest.mark.parametrize(("run_rows", "most_rows"), [(0, 1), (300, 5_000), (2_000, 700)])
@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("chunks", [1, 3])
def test_key_groups_are_gathered_in_their_order_without_a_copy_of_all_rows(
    run_rows: int, most_rows: int, is_ordered: bool, chunks: int
) -> None:
    groups = np.arange(10_000) ** 2 % 61 + 1  # no row of key group 0
    groups = np.sort(groups) if is_ordered else groups
    texts = pa.array([f"{number:0100}" for number in range(len(groups))])
    whole = pa.table({"key_group": pa.array(groups, pa.int32()), "v": texts})
    step = len(groups) // chunks + 1
    rows = pa.concat_tables(whole.slice(first, step) for first in range(0, len(groups), step))
    ends = np.concatenate(([0], np.cumsum(np.bincount(groups, minlength=128))))
    found, allocated = list[Any](), pa.total_allocated_bytes()
    for piece in gather_key_groups(rows, ends, run_rows, most_rows):
        assert 0 < piece.num_rows <= most_rows
        combined = whole.nbytes if chunks > 1 and not is_ordered else 0
        most_bytes = combined + 2.5 * piece.nbytes + whole.nbytes / 10
        assert pa.total_allocated_bytes() - allocated <= most_bytes
        found += piece.to_pylist()
    assert found == whole.take(pa.array(np.argsort(groups, kind="stable"))).to_pylist()


@pytest.mark.slow
def test_the_folder_is_deleted_after_an_error(temporary: Path) -> None:
    """This also holds if the input fails or the reader stops early."""

    def failing() -> Iterator[pa.Table]:
        yield from slices_of(table_of([(1, str(n), 0.0, [], bytes(100)) for n in range(12)]), 100)
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        [*key_group_pieces(failing(), state_of(), 1, 100)]
    assert [*temporary.iterdir()] == []
    table = table_of([(1, str(number), 0.0, [], bytes(100)) for number in range(12)])
    pieces = key_group_pieces([table], state_of(), 1, 100)
    next(pieces)
    assert [*temporary.iterdir()] != []
    del pieces  # this ends the generator
    assert [*temporary.iterdir()] == []


def test_a_row_that_is_too_large_is_refused_with_its_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arrays and pages are limited to 2 GiB, so no reader could return the row."""
    monkeypatch.setattr(sorting, "ROW_BYTES", 5000)
    rows: list[tuple[Any, ...]] = [
        (1, f"k{number}", 0.0, [], bytes(6000 * (number == 3))) for number in range(9)
    ]
    with pytest.raises(InvalidArgumentError, match=r"row \{'k': 'k3', .* bytes, .*row is 5000"):
        [*key_group_pieces([table_of(rows)], state_of(), 1, 1000)]


ROWS = pa.table(
    {
        "k": [f"k{number % 3}" for number in range(200)],
        "n": list(range(200)),
        "v": ["x" * (number % 50) for number in range(200)],
    }
).take(np.random.default_rng(1).permutation(200))
KEY: dict[str, Any] = {"key": "k", "kind": "map", "entry": "n", "max_parallelism": 4}


def opened(folder: Path, memory_bytes: int, **options: Any) -> StateStore:
    parquet = ParquetOptions(memory_bytes=memory_bytes, run_bytes=min(1000, memory_bytes))
    return StateStore.open(str(folder), table_format="parquet", parquet=parquet, **options)


def stream(rows: pa.Table = ROWS) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(20))


def rows_of(store: StateStore, subtask: int, parallelism: int) -> pa.Table:
    keyed = store.restore(parallelism=parallelism).keyed("u", "s")
    return keyed.to_arrow(subtask)


def files_of(store: StateStore) -> Any:
    [entry] = store.checkpoint().manifest.keyed
    parts = [entry, *(layer.entry for layer in entry.layers)]
    return [[(h.key_groups, h.rows, h.digest, h.sha256) for h in part.handles] for part in parts]


def snapshots(store: StateStore, layout: str) -> Iterator[Any]:
    """Take a checkpoint in each way; yield its files."""
    changed = ROWS.filter(pc.not_equal(ROWS.column("n"), 77))
    new = pa.table({"k": ["k1"] * 50, "n": list(range(600, 650)), "v": ["new"] * 50})
    for rows in (ROWS, stream(), iter(ROWS.to_batches(20))):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "s", rows, layout=layout, **KEY)
        yield files_of(store)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u", "s", Changes(stream(new), deletes=[{"k": "k2"}], cleared=[{"k": "k1"}])
        )
    yield files_of(store)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes_against("u", "s", stream(pa.concat_tables([changed, new])))
    yield files_of(store)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes_against("u", "s", stream(changed.slice(0, 150)))
    yield files_of(store)
    store.maintenance.compact()
    yield files_of(store)
    store.maintenance.rekey("u", max_parallelism=7)
    yield files_of(store)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory_bytes", "layout"),
    [(6000, "partitioned"), (9000, "ranged")],
)
def test_any_budget_gives_the_same_files(
    tmp_path: Path, temporary: Path, memory_bytes: int, layout: str
) -> None:
    """The files are identical for tables, streams, changes, comparisons, compaction and rekey."""
    folders = [tmp_path / "small", tmp_path / "large"]
    small = opened(folders[0], memory_bytes, compaction=None)
    large = opened(folders[1], IN_MEMORY, compaction=None)
    for few, many in zip(snapshots(small, layout), snapshots(large, layout), strict=True):
        assert few == many
    assert sorted(temporary.iterdir()) == sorted(folders)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("memory_bytes", [4000, IN_MEMORY])
def test_an_upsert_and_delete_of_one_row_are_refused_across_pieces(
    tmp_path: Path, memory_bytes: int
) -> None:
    """The delete of a key is the first of its changes, and its rows are in many pieces."""
    store = opened(tmp_path, memory_bytes)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", ROWS, **KEY)
    with (
        pytest.raises(DuplicateKeyError, match="is both upserted and deleted in one checkpoint"),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_changes("u", "s", Changes(stream(), deletes=[{"k": "k1"}]))
    with store.snapshot(parallelism=1) as checkpoint:
        deletes, cleared = [{"k": "k9"}] * 50, [{"k": "k1"}] * 50
        checkpoint.write_changes("u", "s", Changes(stream(), deletes=deletes, cleared=cleared))
    assert sorted(rows_of(store, 0, 1).column("n").to_pylist()) == [*range(200)]


@pytest.mark.parametrize("memory_bytes", [4000, IN_MEMORY])
def test_null_keys_of_a_stream_are_counted(tmp_path: Path, memory_bytes: int) -> None:
    """All of them are counted, as for a table."""
    keys = pa.array([None if number % 5 == 0 else "k" for number in range(200)])
    with (
        pytest.raises(NullKeyError, match="40 rows of state 's'"),
        opened(tmp_path, memory_bytes).snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_keyed("u", "s", stream(ROWS.set_column(0, "k", keys)), **KEY)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("memory_bytes", [4000, IN_MEMORY])
def test_subtasks_write_streams(tmp_path: Path, memory_bytes: int) -> None:
    """A row that belongs to another subtask is refused in a stream, too."""
    store = opened(tmp_path, memory_bytes)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", ROWS, **KEY)
    parts = [rows_of(store, number, 2) for number in range(2)]
    with store.snapshot(parallelism=2) as checkpoint:
        writer = checkpoint.declare_keyed("u", "s", ROWS.schema, **KEY)
        with pytest.raises(InvalidArgumentError, match="belongs to subtask"):
            writer.subtask(0).write(iter(parts[1].to_batches(20)))
        for number, part in enumerate(parts):
            checkpoint.acknowledge(writer.subtask(number).write(stream(part)))
    again = [rows_of(store, number, 2) for number in range(2)]
    assert again == parts


@pytest.mark.slow
def test_a_full_disk_is_a_storage_error(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The operating system refuses the bytes. The last checkpoint stays, and no temporary file
    does.
    """
    store = opened(tmp_path_factory.mktemp("full") / "store", 6000)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", stream(), **KEY)
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with (
            pytest.raises(StorageError, match=rf"cannot write {temporary}/statestore-.*-sort-"),
            store.snapshot(parallelism=1) as checkpoint,
        ):
            checkpoint.write_keyed("u", "s", stream(), **KEY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*temporary.iterdir()] == []
    assert [*store.checkpoints()] == [1]
    assert rows_of(store, 0, 1).num_rows == 200


@pytest.mark.long
@pytest.mark.parametrize("layout", ["ranged", "partitioned"])
def test_spark_tasks_sort_on_disk(tmp_path: Path, spark: SparkSession, layout: str) -> None:
    """A full snapshot, changes and a comparison give the same rows and digests as in memory."""
    changed = ROWS.filter(pc.not_equal(ROWS.column("n"), 77))
    new = pa.table({"k": ["k1"] * 50, "n": list(range(600, 650)), "v": ["new"] * 50})
    outcomes = []
    for memory_bytes in (6000, IN_MEMORY):
        parquet = ParquetOptions(memory_bytes=memory_bytes, run_bytes=1000, driver_bytes=1)
        folder = str(tmp_path / str(memory_bytes))
        store = StateStore.open(folder, table_format="parquet", parquet=parquet, compaction=None)
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "s", frame_of(spark, ROWS), layout=layout, **KEY)
        files = [files_of(store)]
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes("u", "s", Changes(frame_of(spark, new), cleared=[{"k": "k1"}]))
        files.append(files_of(store))
        with store.snapshot(parallelism=2) as checkpoint:
            every = frame_of(spark, pa.concat_tables([changed, new]))
            checkpoint.write_changes_against("u", "s", every)
        files.append(files_of(store))
        restored = pa.concat_tables([rows_of(store, number, 2) for number in range(2)])
        assert restored.num_rows == 249
        outcomes.append((files, restored.to_pylist()))
    assert outcomes[0] == outcomes[1]
