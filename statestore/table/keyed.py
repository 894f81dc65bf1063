"""Keyed state into files: rows by key group in, one file per key group, or per range of them, out.

The rows of a writer arrive in order of key group. It holds those of one key group, sorts them by
the state's identity columns, and has one file open, whatever the size of the state. Null keys and
duplicate entries stop it; what it wrote until then is deleted, and nothing of it was ever visible.
"""

from __future__ import annotations

import itertools
import socket
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DuplicateKeyError, InvalidArgumentError, NullKeyError
from statestore.model.handles import GroupIndex, KeyedStateHandle
from statestore.model.keygroups import KeyGroupRange
from statestore.model.paths import KEY_GROUP, partition_file, ranged_file
from statestore.model.state import KeyedState, Layout, StateKind
from statestore.storage import CachedStorage, Storage
from statestore.table.digest import rows_digest
from statestore.table.types import arrow_schema
from statestore.table.writing import FileWriter, ParquetOptions

__all__ = [
    "KeyedTarget",
    "file_schema",
    "leaf_columns",
    "null_key_error",
    "null_keys",
    "write_grouped",
]


_ONE_ARRAY_BYTES = 2**30


@dataclass(frozen=True)
class KeyedTarget:
    """Where a keyed state of one checkpoint is written, and how; can be pickled to a worker.

    ``placed`` says that the rows of a DataFrame lie where they belong already.
    """

    storage: Storage
    folder: str
    checkpoint_id: int
    state: KeyedState
    options: ParquetOptions = field(default_factory=ParquetOptions)
    placed: bool = False


def write_grouped(
    batches: Iterable[pa.RecordBatch], target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write rows that are in order of ``key_group``; return a handle per file.

    Raises NullKeyError with the number of rows, DuplicateKeyError with the entry, or StorageError.
    """
    writer = _GroupWriter(target)
    try:
        for rows in _checked(_key_groups(batches), target.state):
            writer.write(rows[KEY_GROUP][0].as_py(), rows.drop_columns([KEY_GROUP]))
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


class _GroupWriter:
    """The file under way, what is known of its key groups, and the handles of those that are done.

    Partitioned, a file has one key group, which its folder names. Ranged, it goes on until it is
    large, and every row says its key group itself.
    """

    def __init__(self, target: KeyedTarget) -> None:
        self._target = target
        self._ranged = target.state.layout is Layout.RANGED
        self._schema = arrow_schema(target.state.schema)
        # New for every attempt: a retried task never meets the files of the one before it.
        self._token = uuid.uuid4().hex[:16]
        self._file: FileWriter | None = None
        self._groups: dict[int, tuple[int, int]] = {}
        self._handles: list[KeyedStateHandle] = []
        # Where copies lie is of use to who places subtasks; without copies it says nothing.
        self._host = socket.gethostname() if isinstance(target.storage, CachedStorage) else ""

    def write(self, key_group: int, rows: pa.Table) -> None:
        """Write all rows of a key group, which are in their order."""
        file = self._begin(key_group)
        group_digest = 0
        most = self._target.options.row_group_rows
        for batch in rows.select(self._schema.names).cast(self._schema).to_batches(most):
            digest = rows_digest(batch)
            group_digest = (group_digest + digest) % 2**64
            file.write(_placed(key_group, batch) if self._ranged else batch, digest)
        self._groups[key_group] = (rows.num_rows, group_digest)

    def finish(self) -> tuple[KeyedStateHandle, ...]:
        self._close()
        self._target.storage.sync(self._names())
        return tuple(self._handles)

    def abandon(self) -> None:
        if self._file is not None:
            self._file.abandon()
            self._target.storage.delete(self._file.name)
        for name in self._names():
            self._target.storage.delete(name)

    def _begin(self, key_group: int) -> FileWriter:
        """Open the file of a new key group, or go on with that of the one before it."""
        options = self._target.options
        if self._file is not None and self._ranged:
            self._file.end_group()
            if self._file.written_bytes < options.file_bytes:
                return self._file
        self._close()
        target = self._target
        name = (
            ranged_file(target.checkpoint_id, key_group, f"{self._token}-{len(self._handles)}")
            if self._ranged
            else partition_file(target.checkpoint_id, key_group, self._token)
        )
        schema = file_schema(target.state) if self._ranged else self._schema
        self._path = name
        self._file = FileWriter(target.storage, f"{target.folder}/{name}", schema, options)
        return self._file

    def _close(self) -> None:
        if self._file is None:
            return
        groups, self._groups = self._groups, {}
        key_groups = KeyGroupRange(min(groups), max(groups))
        index = None
        if self._ranged:
            found = [groups.get(group, (0, 0)) for group in key_groups]
            index = GroupIndex.of((rows for rows, _ in found), (digest for _, digest in found))
        facts = self._file.close()
        handle = KeyedStateHandle(self._path, key_groups, **facts, host=self._host, index=index)
        self._handles.append(handle)
        self._file = None

    def _names(self) -> list[str]:
        return [f"{self._target.folder}/{handle.path}" for handle in self._handles]


def file_schema(state: KeyedState) -> pa.Schema:
    """Return the columns of the state's files: ranged, the key group before the stored ones."""
    stored = arrow_schema(state.schema)
    if state.layout is Layout.PARTITIONED:
        return stored
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *stored])


def _placed(key_group: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    groups = pa.repeat(pa.scalar(key_group, pa.int32()), rows.num_rows)
    schema = pa.schema([pa.field(KEY_GROUP, pa.int32()), *rows.schema])
    return pa.RecordBatch.from_arrays([groups, *rows.columns], schema=schema)


def _key_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of each key group together."""
    pieces: list[pa.RecordBatch] = []
    for batch in batches:
        groups = np.asarray(batch.column(KEY_GROUP))
        borders = np.flatnonzero(np.diff(groups)) + 1
        for first, last in itertools.pairwise([0, *borders.tolist(), len(groups)]):
            if first == last:
                continue
            if pieces and pieces[-1].column(KEY_GROUP)[0].as_py() != groups[first]:
                yield pa.Table.from_batches(pieces)
                pieces = []
            pieces.append(batch.slice(first, last - first))
    if pieces:
        yield pa.Table.from_batches(pieces)


def _checked(tables: Iterable[pa.Table], state: KeyedState) -> Iterator[pa.Table]:
    """Bring the rows of each key group into order and pass them on; stop at a duplicate entry, and
    at null keys after counting all of them.
    """
    nulls = 0
    for table in tables:
        nulls += sum(null_keys(batch, state) for batch in table.to_batches())
        if nulls:
            continue
        rows = _in_order(table, state)
        for batch in rows.to_batches():
            _refuse_null_entries(batch, state)
        last: pa.RecordBatch | None = None
        for batch in rows.to_batches():
            _refuse_duplicates(batch if last is None else pa.concat_batches([last, batch]), state)
            last = batch.slice(batch.num_rows - 1)
        yield rows
    if nulls:
        raise null_key_error(state, nulls)


def _in_order(table: pa.Table, state: KeyedState) -> pa.Table:
    """Return the rows of one key group in order of identity, nulls first."""
    # One array may hold 2 GB of text; a key group of that size stays in its pieces.
    rows = table.combine_chunks() if table.nbytes < _ONE_ARRAY_BYTES else table
    columns = []
    for name in state.identity:
        for leaf in _leaves(rows.column(name)):
            columns.append(leaf)
            if pa.types.is_floating(leaf.type):
                # 0.0 and -0.0 compare equal, yet are two keys: put each beside its like.
                columns.append(leaf.cast(pa.string()))
    by = pa.table(columns, names=[str(index) for index in range(len(columns))])
    keys = [(name, "ascending", "at_start") for name in by.column_names]
    return rows.take(pc.sort_indices(by, sort_keys=keys))


def _leaves(column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """Return the columns that a struct consists of, nested ones opened, nulls passed down."""
    pieces = [leaf_columns(chunk) for chunk in column.chunks]
    return [pa.chunked_array(leaves) for leaves in zip(*pieces, strict=True)]


def null_key_error(state: KeyedState, rows: int) -> NullKeyError:
    """Return the error for rows without a key; it carries their number as ``rows``."""
    columns = ", ".join(state.key)
    return NullKeyError(
        f"{rows} row{'s' if rows > 1 else ''} of {state} have a null key ({columns}); a null key "
        f"has no key group. Leave them out, e.g. df.where('{state.key[0]} IS NOT NULL')",
        rows,
    )


def null_keys(batch: pa.RecordBatch, state: KeyedState) -> int:
    """Return how many rows have no key: a null in a key column, where that is not a key itself."""
    if state.hash_scheme == "flink-sql":  # there NULL is an ordinary key
        return 0
    leaves = [leaf for name in state.key for leaf in leaf_columns(batch.column(name))]
    if not any(leaf.null_count for leaf in leaves):
        return 0
    any_null = np.zeros(batch.num_rows, bool)
    for leaf in leaves:
        any_null |= np.asarray(leaf.is_null())
    return int(any_null.sum())


def _refuse_null_entries(batch: pa.RecordBatch, state: KeyedState) -> None:
    """A list has no element without a position, and no timer is without a time."""
    if state.kind not in (StateKind.LIST, StateKind.TIMERS):
        return
    for name in state.entry:
        if batch.column(name).null_count:
            raise InvalidArgumentError(
                f"{state} has rows whose {name!r} is null; it says which {state.kind} entry a row "
                "is, so give every row a value"
            )


def _refuse_duplicates(batch: pa.RecordBatch, state: KeyedState) -> None:
    """Compare each row with the next: sorted rows have their duplicates side by side."""
    rows = batch.num_rows - 1
    same = np.ones(rows, bool)
    for name in state.identity:
        for leaf in leaf_columns(batch.column(name)):
            same &= _equal(leaf.slice(0, rows), leaf.slice(1))
            if not same.any():
                return
    at = int(np.flatnonzero(same)[0])
    entry = {name: batch.column(name)[at].as_py() for name in state.identity}
    raise DuplicateKeyError(
        f"two rows of {state} claim the same entry {entry}; aggregate them to one, or name the "
        "columns that tell them apart (namespace, map_key or position)"
    )


def leaf_columns(column: pa.Array) -> list[pa.Array]:
    """Return the columns that a struct consists of, nested ones opened, nulls passed down."""
    if pa.types.is_struct(column.type):
        return [leaf for child in column.flatten() for leaf in leaf_columns(child)]
    return [column]


def _equal(left: pa.Array, right: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return where two columns hold the same key: null equals null, NaN equals NaN, 0.0 is not
    -0.0.
    """
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        same_sign = pc.equal(pc.divide(1.0, left), pc.divide(1.0, right))
        both_nan = pc.and_(pc.is_nan(left), pc.is_nan(right))
        equal = pc.or_(pc.and_(equal, same_sign), both_nan)
    both_null = pc.and_(left.is_null(), right.is_null())
    return np.asarray(pc.or_(pc.fill_null(equal, False), both_null))
