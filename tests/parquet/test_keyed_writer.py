"""Write sorted rows into one file per key group: the refused input, and the files left after
errors.
"""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    StorageError,
)
from statestore.format.handles import GroupIndex
from statestore.format.state import KeyedState, Layout, StateKind, TimeDomain
from statestore.keys.groups import KeyGroupRange
from statestore.parquet.keyed_writer import KeyedTarget, write_grouped
from statestore.parquet.writer import FileWriter, ParquetOptions
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.digests import rows_digest
from statestore.rows.key_group_runs import RUN_BYTES
from statestore.storage import LocalStorage
from statestore.storage.forwarding import ForwardingFile

NAN = float("nan")


def target(storage: LocalStorage, rows: pa.Table, **roles: Any) -> KeyedTarget:
    options = ParquetOptions(row_group_rows=3, run_bytes=roles.pop("run_bytes", RUN_BYTES))
    known: dict[str, Any] = {
        "uid": "u",
        "name": "n",
        "kind": StateKind.VALUE,
        "schema": schema_of_arrow(rows.drop_columns(["key_group"]).schema),
        "key": ("k",),
        "key_types": ("Long",),
        "max_parallelism": 128,
        "hash_scheme": "java",
    }
    state = KeyedState(**(known | roles))
    return KeyedTarget(storage, "t", 7, state, options)


def rows(key_groups: list[int], **columns: Any) -> pa.Table:
    groups = pa.array(key_groups, pa.int32())
    return pa.table({"key_group": groups, **columns})


def write(storage: LocalStorage, table: pa.Table, batch_rows: int, **roles: Any) -> Any:
    batches = table.to_batches(max_chunksize=batch_rows)
    return write_grouped(batches, target(storage, table, **roles))


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 4, 100])
def test_every_key_group_is_one_file_for_any_batch_boundaries(
    storage: LocalStorage, batch_rows: int
) -> None:
    """I5, I8: the handles are in order, each with its own rows, row groups and bytes."""
    table = rows([3, 3, 3, 3, 9, 100, 100], k=list(range(7)))
    handles = write(storage, table, batch_rows)
    assert [h.key_groups for h in handles] == [KeyGroupRange(g, g) for g in (3, 9, 100)]
    assert [h.rows for h in handles] == [4, 1, 2]
    assert [h.row_groups for h in handles] == [2, 1, 1]
    for handle in handles:
        assert storage.size(f"t/{handle.path}") == handle.size_bytes
        assert handle.path.startswith(f"key_group={handle.key_groups.first}/0000000007-")
    assert len(storage.list("t")) == 3


def test_no_rows_make_no_files(storage: LocalStorage) -> None:
    """The same holds for empty batches."""
    table = rows([], k=pa.array([], pa.int64()))
    empty = pa.RecordBatch.from_pylist([], table.schema)
    assert write_grouped([], target(storage, table)) == ()
    assert write_grouped([empty, empty], target(storage, table)) == ()
    assert storage.list("t") == ()


def test_two_attempts_write_different_files(storage: LocalStorage) -> None:
    """A task that runs again writes its own files."""
    table = rows([1], k=[1])
    first, second = write(storage, table, 9), write(storage, table, 9)
    assert first[0].path != second[0].path
    assert first[0].digest == second[0].digest


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("keys", "at"),
    [
        (pa.array([1, 2, 2, 3]), 2),
        (pa.array([1, 1, 2, 3]), 1),
        (pa.array([1, 2, 3, 3]), 3),
        (pa.array(["", "", "a", "b"]), ""),
        (pa.array([1.0, 2.0, NAN, NAN]), NAN),
        (pa.array([-0.0, 0.0, 0.0, 1.0]), 0.0),
        (pa.array([-0.0, -0.0, 0.0, 1.0], pa.float32()), -0.0),
        (pa.array([False, True, True, True]), True),
        (pa.array([{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "y"}, {"a": 2, "b": ""}]),
         {"a": 1, "b": "y"}),
    ],
    ids=str,
)  # fmt: skip
def test_duplicate_entries_are_refused_across_any_boundary(
    storage: LocalStorage, keys: pa.Array, at: Any, batch_rows: int
) -> None:
    """The message shows the entry, and no file remains."""
    table = rows([5] * 4, k=keys)
    with pytest.raises(DuplicateKeyError) as caught:
        write(storage, table, batch_rows)
    assert f"two rows of state 'n' of operator 'u' have the same identity {{'k': {at!r}}}" in str(
        caught.value
    )
    assert storage.list("t") == ()


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([-0.0, 0.0]),
        pa.array([-0.0, 0.0], pa.float32()),
        pa.array(["a", "a\0"]),
        pa.array(["e\u0301", "é"]),
        pa.array([{"a": 1, "b": 2}, {"a": 2, "b": 1}]),
        pa.array([{"z": -0.0}, {"z": 0.0}]),
        pa.array([float("inf"), NAN]),
    ],
    ids=str,
)
def test_different_keys_are_two_keys(storage: LocalStorage, keys: pa.Array) -> None:
    """They differ like their hashes: 0.0 is not -0.0."""
    assert write(storage, rows([5, 5], k=keys), 9)[0].rows == 2


def test_namespace_and_entry_distinguish_rows_of_one_key(storage: LocalStorage) -> None:
    """A null namespace is also a namespace, and repeating it is a duplicate."""
    table = rows([1] * 3, k=[1, 1, 1], ns=[None, 1, 2])
    assert write(storage, table, 2, namespace=("ns",))[0].rows == 3
    twice = rows([1] * 3, k=[1, 1, 1], ns=pa.array([None, None, 2], pa.int64()))
    with pytest.raises(DuplicateKeyError, match="'ns': None"):
        write(storage, twice, 1, namespace=("ns",))


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
@pytest.mark.parametrize(
    "keys",
    [
        pa.array([None, 1, None, 2, None]),
        pa.array([None, {"a": 1}, {"a": None}, {"a": 2}, {"a": None}], pa.struct([("a", "int64")])),
    ],
    ids=["scalar", "struct"],
)
def test_null_keys_are_counted_and_refused(
    storage: LocalStorage, keys: pa.Array, batch_rows: int
) -> None:
    """All null keys in all batches are counted, and partly written files are deleted."""
    with pytest.raises(NullKeyError, match=r"3 rows of state 'n' .*\(k\)") as caught:
        write(storage, rows([0, 0, 1, 1, 2], k=keys), batch_rows)
    assert caught.value.rows == 3
    assert storage.list("t") == ()


def test_a_null_key_is_an_ordinary_key_in_flink_sql(storage: LocalStorage) -> None:
    """NULL has a hash in this scheme, and repeating it is a duplicate."""
    sql = {"hash_scheme": "flink-sql", "key_types": ("BIGINT",)}
    assert write(storage, rows([5, 5], k=[None, 1]), 9, **sql)[0].rows == 2
    with pytest.raises(DuplicateKeyError, match="'k': None"):
        write(storage, rows([5, 5], k=pa.array([None, None], pa.int64())), 9, **sql)


@pytest.mark.parametrize("kind", [StateKind.LIST, StateKind.TIMERS])
def test_a_position_or_time_is_never_null(storage: LocalStorage, kind: StateKind) -> None:
    """Every list element has a position, and every timer has a time."""
    table = rows([1, 1], k=[1, 1], e=[None, 1])
    domain = TimeDomain.EVENT if kind is StateKind.TIMERS else None
    with pytest.raises(InvalidArgumentError, match=r"rows with null in 'e'"):
        write(storage, table, 9, kind=kind, entry=("e",), time_domain=domain)
    assert storage.list("t") == ()


def test_an_error_in_the_input_leaves_no_file(storage: LocalStorage) -> None:
    """The source of the batches can fail in the middle."""
    table = rows([1, 2], k=[1, 2])

    def batches() -> Any:
        yield from table.to_batches(max_chunksize=1)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_grouped(batches(), target(storage, table))
    assert storage.list("t") == ()


def test_rows_out_of_order_are_refused(storage: LocalStorage) -> None:
    """A key group that appears again would need a second file, in any batch."""
    for batch_rows in (1, 2, 9):
        with pytest.raises(InvalidArgumentError, match="key group 1 follow rows of key group 2"):
            write(storage, rows([1, 2, 1], k=[1, 2, 3]), batch_rows)
        assert storage.list("t") == ()


@pytest.mark.parametrize("batch_rows", [1, 4, 7, 100])
@pytest.mark.parametrize("layout", [Layout.PARTITIONED, Layout.RANGED])
@pytest.mark.parametrize("run_bytes", [1, 100, 10_000])
def test_files_do_not_depend_on_how_rows_arrive(
    storage: LocalStorage, run_bytes: int, layout: Layout, batch_rows: int
) -> None:
    """I7: rows are sorted and digested one key group at a time, or many together."""
    groups = [1, 1, 1, 2, 5, 5, 6, 7, 7, 7, 7, 7, 9]
    keys = [3, 1, 2, 9, 8, 4, 0, 10, 14, 12, 11, 13, -1]
    table = rows(groups, k=keys, v=[str(key) for key in keys])
    found: dict[int, list[int]] = {}
    for handle in write(storage, table, batch_rows, layout=layout, run_bytes=run_bytes):
        own = pq.ParquetFile(storage.native_path(f"t/{handle.path}")).read()
        first, ranged = handle.key_groups.first, layout is Layout.RANGED
        numbers = own["key_group"].to_pylist() if ranged else [first] * len(own)
        assert own["v"].to_pylist() == [str(key) for key in own["k"].to_pylist()]
        for group, key in zip(numbers, own["k"].to_pylist(), strict=True):
            found.setdefault(group, []).append(key)
        stored = own.select(["k", "v"])
        assert handle.digest == rows_digest(stored)
        if ranged:
            each = [stored.filter(pc.equal(own["key_group"], g)) for g in handle.key_groups]
            digests = [rows_digest(part) for part in each]
            assert handle.index == GroupIndex.of([len(part) for part in each], digests)
    assert list(found) == sorted(found)
    assert found == {
        group: sorted(key for at, key in zip(groups, keys, strict=True) if at == group)
        for group in groups
    }


def test_a_file_that_cannot_be_made_durable_is_an_error(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: this includes files that were synced while others were written. No file remains."""

    def fail(_: LocalStorage, names: Any) -> None:
        raise StorageError(f"cannot sync {len(names)} files")

    monkeypatch.setattr(LocalStorage, "sync", fail)
    with pytest.raises(StorageError, match="cannot sync 16 files"):
        write(storage, rows(list(range(40)), k=list(range(40))), 9)
    assert storage.list("t") == ()


class _FullDisk(LocalStorage):
    """A storage whose disk is full before a file's last bytes."""

    def open_write(self, name: str) -> Any:
        self.file = file = ForwardingFile(super().open_write(name))

        def write(data: bytes) -> int:
            if bytes(data).endswith(b"PAR1"):
                raise OSError(errno.ENOSPC, "No space left on device")
            size: int = file._file.write(data)
            return size

        file.write = write  # type: ignore[attr-defined]
        return file


def _fail_twice(writer: FileWriter) -> None:
    """An export closes a file again, so that Arrow does not print a warning."""
    for _ in range(2):
        with pytest.raises(StorageError, match="the disk is full"):
            writer.close()
    writer.abandon()


@pytest.mark.parametrize("end", [_fail_twice, lambda writer: None], ids=["failed", "dropped"])
def test_an_incomplete_file_never_gets_its_name(
    tmp_path: Path, end: Callable[[FileWriter], None]
) -> None:
    """Arrow closes a file after a failed write, and also one that is garbage-collected."""
    storage, table = _FullDisk(str(tmp_path)), pa.table({"k": [*range(1000)]})
    writer = FileWriter(storage, "t/f.parquet", table.schema, ParquetOptions())
    writer.write(table.to_batches()[0])
    end(writer)
    del writer
    gc.collect()
    storage.file.abandon()
    assert storage.list("t") == ()
