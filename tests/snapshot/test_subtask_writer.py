"""Many processes write one checkpoint: each its own key groups; a coordinator commits."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import (
    Acknowledgement,
    CheckpointWriter,
    KeyedWriter,
    KeyGroupRange,
    StateStore,
    SubtaskWriter,
    key_group_of,
)
from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    SchemaMismatchError,
)
from statestore.parquet.writer import ParquetOptions
from tests.support.stores import opened
from tests.support.writers import stored_files

MAX_PARALLELISM = 16
SCHEMA = pa.schema([("n", pa.int64()), ("user", pa.string()), ("text", pa.string())])
ROWS = [{"n": i, "user": f"user-{i}", "text": "x" * i} for i in range(100)]
PARALLELISM = 3


def declare(checkpoint: CheckpointWriter) -> KeyedWriter:
    writer = checkpoint.declare_keyed("u", "n", SCHEMA, key="user", max_parallelism=MAX_PARALLELISM)
    assert isinstance(writer, KeyedWriter)
    return writer


def group_of(row: dict[str, Any]) -> int:
    return key_group_of(row["user"], max_parallelism=MAX_PARALLELISM)


def rows_of(writer: KeyedWriter, subtask: int) -> list[dict[str, Any]]:
    own = writer.assignment.range_of(subtask)
    return [row for row in ROWS if group_of(row) in own]


def write_one(writer: SubtaskWriter, rows: Any) -> bytes:
    """Write a subtask's part as a worker does, and return the acknowledgement as bytes."""
    return writer.write(rows).to_json()


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def restored(store: StateStore, parallelism: int = 2) -> Counter[str]:
    keyed = store.restore(parallelism=parallelism, verify=True).keyed("u", "n")
    parts = [keyed.to_arrow(i).drop_columns(["key_group"]) for i in range(parallelism)]
    return Counter(repr(sorted(row.items())) for part in parts for row in part.to_pylist())


WANTED = Counter(repr(sorted(row.items())) for row in ROWS)


# --- The protocol ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_write_their_parts_and_one_commits(store: StateStore) -> None:
    """I2, I4: the processes share only the store; the result equals a snapshot by one process."""
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(2, mp_context=spawn) as pool,
        store.snapshot(parallelism=PARALLELISM) as checkpoint,
    ):
        writer = declare(checkpoint)
        answers = [
            pool.submit(write_one, writer.subtask(i), table(rows_of(writer, i)))
            for i in range(PARALLELISM)
        ]
        for answer in answers:
            assert checkpoint.acknowledge(Acknowledgement.from_json(answer.result()))
        assert store.checkpoints() == ()
    assert restored(store) == WANTED
    report = store.maintenance.verify(deep=True)
    assert report.is_intact
    assert not report.strays
    alone = opened(f"{store.url}-alone")
    with alone.snapshot(parallelism=PARALLELISM) as checkpoint:
        one = checkpoint.write_keyed(
            "u", "n", table(ROWS), key="user", max_parallelism=MAX_PARALLELISM
        )
    (many,) = store.checkpoint().manifest.keyed
    assert many.state == one.state
    assert (many.rows, many.digest) == (one.rows, one.digest)


@pytest.mark.parametrize("layout", ["partitioned", "ranged"])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_acknowledgements_can_arrive_in_any_order(
    tmp_path: Path, order: list[int], layout: str
) -> None:
    """The files are sorted by key group in either layout, after bytes and pickles."""
    store = StateStore.open(str(tmp_path), table_format="parquet", layout=layout)
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        writer = pickle.loads(pickle.dumps(declare(checkpoint)))
        for subtask in order:
            part = pickle.loads(pickle.dumps(writer.subtask(subtask)))
            answer = part.write(table(rows_of(writer, subtask)))
            assert answer.rows == len(rows_of(writer, subtask))
            assert pickle.loads(pickle.dumps(answer)) == answer
            assert Acknowledgement.from_json(answer.to_json()) == answer
            assert checkpoint.acknowledge(answer)
    assert restored(store, 5) == WANTED
    assert store.maintenance.verify(deep=True).is_intact


@pytest.mark.parametrize(
    "form",
    [
        table,
        lambda rows: table(rows).to_batches(max_chunksize=3),
        lambda rows: iter(table(rows).to_batches(max_chunksize=3)),
        lambda rows: table(rows).to_reader(),
        lambda rows: table(rows).combine_chunks().to_batches()[0],
        lambda rows: table(rows).select(["text", "user", "n"]),
        lambda rows: rows,
    ],
    ids=["table", "list", "iterator", "reader", "batch", "other order", "dictionaries"],
)
def test_rows_can_be_a_table_batches_or_dictionaries(store: StateStore, form: Any) -> None:
    """The columns can have any order."""
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        writer = declare(checkpoint)
        for subtask in range(PARALLELISM):
            checkpoint.acknowledge(writer.subtask(subtask).write(form(rows_of(writer, subtask))))
    assert restored(store) == WANTED


@pytest.mark.parametrize(
    "nothing", [SCHEMA.empty_table(), [], iter([])], ids=["table", "list", "no"]
)
def test_a_subtask_without_rows_acknowledges_no_files(store: StateStore, nothing: Any) -> None:
    """It does not count as missing."""
    with store.snapshot(parallelism=1) as checkpoint:
        answer = declare(checkpoint).subtask(0).write(nothing)
        assert answer.entry.handles == ()
        assert checkpoint.acknowledge(Acknowledgement.from_json(answer.to_json()))
    assert store.checkpoint().manifest.rows == 0
    assert stored_files(store.url) == set()


def test_written_and_acknowledged_states_are_one_commit(store: StateStore) -> None:
    """They share the operator's max parallelism, and a state name is unique in a checkpoint."""
    with store.snapshot(parallelism=2) as checkpoint:
        writer = declare(checkpoint)
        other = checkpoint.write_keyed("u", "other", [{"user": "a", "n": 1}], key="user")
        assert other.state.max_parallelism == MAX_PARALLELISM
        with pytest.raises(InvalidArgumentError, match="already in this checkpoint"):
            declare(checkpoint)
        with pytest.raises(InvalidArgumentError, match="already in this checkpoint"):
            checkpoint.write_keyed("u", "n", ROWS, key="user")
        columns = pa.schema([("user", "string"), ("timestamp", "int64")])
        form: dict[str, Any] = {"kind": "timers", "entry": "timestamp", "time_domain": "event"}
        timers = checkpoint.declare_keyed("u", "t", columns, key="user", **form)
        for subtask in range(2):
            checkpoint.acknowledge(writer.subtask(subtask).write(rows_of(writer, subtask)))
            checkpoint.acknowledge(timers.subtask(subtask).write([]))
    assert [e.state.name for e in store.checkpoint().manifest.keyed] == ["other", "n", "t"]


@pytest.mark.long_cases(
    "1-1", "1-200", "200-200", "200-1000000000", "1000000000-1", "1000000000-1000000000"
)
@pytest.mark.parametrize("run_bytes", [1, 200, 10**9])
@pytest.mark.parametrize("block_bytes", [1, 200, 10**9])
def test_a_state_of_any_size_is_written_alike(
    tmp_path: Path, block_bytes: int, run_bytes: int
) -> None:
    """I7: whichever number of rows is sorted at a time."""
    parquet = ParquetOptions(block_bytes=block_bytes, run_bytes=run_bytes)
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", parquet=parquet)
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        writer = declare(checkpoint)
        for subtask in range(PARALLELISM):
            rows = table(rows_of(writer, subtask)[::-1])
            checkpoint.acknowledge(writer.subtask(subtask).write(rows))
        checkpoint.write_keyed("u", "alone", table(ROWS), key="user")
    assert restored(store) == WANTED
    assert store.maintenance.verify(deep=True).is_intact
    many, alone = (
        store.checkpoint().manifest.keyed_entry("u", "n"),
        store.checkpoint().manifest.keyed_entry("u", "alone"),
    )
    assert (many.rows, many.digest) == (alone.rows, alone.digest)


# --- Errors in a subtask --------------------------------------------------------------------------


def test_a_row_of_another_subtask_is_refused(store: StateStore) -> None:
    """I2: the error has its key group and its owner; no files are left."""
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        writer = declare(checkpoint)
        assert writer.subtask(1).key_groups == KeyGroupRange(6, 10)
        foreign = rows_of(writer, 2)[0]
        group = group_of(foreign)
        with pytest.raises(
            InvalidArgumentError,
            match=rf"subtask 1 of 3 owns key groups 6..10 .* key group {group}, .* subtask 2;",
        ):
            writer.subtask(1).write(table([*rows_of(writer, 1), foreign]))
        assert stored_files(store.url) == set()
        for subtask in range(PARALLELISM):
            checkpoint.acknowledge(writer.subtask(subtask).write(rows_of(writer, subtask)))
    assert restored(store) == WANTED


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (table([{"user": None}, ROWS[1], {"user": None}]), NullKeyError, "2 rows"),
        (table([ROWS[0], ROWS[0]]), DuplicateKeyError, "'user-0'"),
        (table(ROWS).drop_columns(["text"]), SchemaMismatchError, r"subtask 0 writes \("),
        (table(ROWS).append_column("z", table(ROWS)["n"]), SchemaMismatchError, "z"),
        (table(ROWS).cast(SCHEMA.set(0, pa.field("n", "int32"))), SchemaMismatchError, "integer"),
        ([{"user": "a", "wrong": 1}], SchemaMismatchError, "wrong"),
        (
            [*table(ROWS).to_batches(), *table(ROWS).select(["n"]).to_batches()],
            SchemaMismatchError,
            "have different columns",
        ),
        (7, InvalidArgumentError, "not int"),
    ],
    ids=str,
)  # fmt: skip
def test_rows_that_cannot_be_stored_are_refused(
    store: StateStore, rows: Any, error: type[Exception], message: str
) -> None:
    """The process that has the rows refuses them, before anything is visible."""
    checkpoint = store.snapshot(parallelism=1).__enter__()
    with pytest.raises(error, match=message):
        declare(checkpoint).subtask(0).write(rows)
    assert stored_files(store.url) == set()


@pytest.mark.parametrize("subtask", [-1, 3])
def test_an_invalid_subtask_is_refused(store: StateStore, subtask: int) -> None:
    """Subtasks are counted from 0."""
    with pytest.raises(InvalidArgumentError, match=f"subtask {subtask} does not exist"):
        declare(store.snapshot(parallelism=3).__enter__()).subtask(subtask)
