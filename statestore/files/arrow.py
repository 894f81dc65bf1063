"""Keyed state from Arrow rows, without Spark: hash, sort and write in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.files.against import Against, Seen
from statestore.files.given import (
    beside,
    check_groups,
    given_groups,
    is_dicts,
    read_stream,
    settled,
    with_groups,
    without_empty_chunks,
    without_groups,
)
from statestore.files.keyed import KeyedTarget, write_runs
from statestore.files.merge import time_column
from statestore.files.runs import key_groups_of, null_key_error, null_keys
from statestore.files.types import schema_of_arrow, uuid_columns, with_uuids
from statestore.files.values import ROWS, fitted_table, table_of_dicts
from statestore.files.writer import ParquetOptions
from statestore.format.digest import RowSet
from statestore.format.handles import KeyedStateHandle
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema, same_columns
from statestore.format.state import KeyedState
from statestore.keys.arrow import check_key_types
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment

__all__ = [
    "as_table",
    "by_key_group",
    "is_schema",
    "key_types",
    "on_driver",
    "refuse_narrowing",
    "rows_known",
    "schema_of",
    "ungrouped",
    "with_time",
    "write_against",
    "write_keyed",
    "write_subtask",
]


def as_table(rows: Any, subject: str = ROWS) -> pa.Table:
    """Return rows as an Arrow table: a table, a list of dictionaries, or any Arrow-speaking frame;
    no rows of a schema.

    pandas, Polars and DuckDB results speak Arrow. A stream is read to its end, once: see
    :mod:`statestore.files.given`. InvalidArgumentError, naming ``subject``, for anything else, for
    values without one type, and for two columns of one name.
    """
    rows = settled(rows)
    if is_dicts(rows):
        return table_of_dicts(rows, None, subject=subject)
    if is_schema(rows):
        rows = rows.empty_table()
    elif not isinstance(rows, pa.Table):
        if not hasattr(rows, "__arrow_c_stream__"):
            raise InvalidArgumentError(
                "rows are a Spark DataFrame, an Arrow table (or pandas, Polars, DuckDB frame) or a "
                f"list of dictionaries, not {type(rows).__name__} ({subject})"
            )
        rows = read_stream(rows, subject)
    names = rows.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"two columns of {subject} are named {twice!r}; rename one")
    return without_empty_chunks(rows)


def is_schema(rows: Any) -> bool:
    """Return whether the value is an Arrow schema: it declares rows that others have."""
    return isinstance(rows, pa.Schema)


def schema_of(rows: pa.Table) -> Schema:
    """Return the stored columns of a table."""
    return without_groups(schema_of_arrow(rows.schema))


def key_types(
    rows: pa.Table, key: tuple[str, ...], hash_scheme: str, wanted: Sequence[str | None]
) -> tuple[str, ...]:
    """Return per key column the type whose hash is taken, None in ``wanted`` for its own.

    Raises UnsupportedTypeError, naming the column, when it cannot be hashed so.
    """
    columns = [rows.schema.field(name) for name in key]
    return check_key_types(columns, hash_scheme, wanted)


def rows_known(rows: pa.Table) -> int | None:
    """Return how many rows there are."""
    return int(rows.num_rows)


def on_driver(rows: pa.Table, names: Sequence[str], most_bytes: int) -> pa.Table:
    """Return some columns: they are in this process already."""
    return rows.select(beside(names, rows.schema.names))


def refuse_narrowing(rows: pa.Table, names: Sequence[str], state: KeyedState) -> None:
    """Do nothing: each value is looked at."""


def ungrouped(rows: pa.Table) -> pa.Table:
    """Return the rows without the store's own column."""
    return rows.select([name for name in rows.schema.names if name != KEY_GROUP])


def with_time(rows: pa.Table, column: str, kind: str, now_ms: int) -> pa.Table:
    """Return the rows with one more column, a ``long`` or ``timestamp``, of one time."""
    return rows.append_column(column, time_column(kind, rows.num_rows, now_ms))


def write_keyed(
    rows: pa.Table, owners: Assignment, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write a keyed state; return its handles in order of key group.

    ``owners`` play no part: one process writes all key groups. Raises NullKeyError,
    DuplicateKeyError, or StorageError, each before anything is visible.
    """
    state = target.state
    return write_runs(_runs(_fitted(rows, state), state, target.options), target)


def write_against(
    rows: pa.Table, owners: Assignment, against: Against, target: KeyedTarget
) -> tuple[tuple[KeyedStateHandle, ...], RowSet]:
    """Write what makes these rows of those that are stored, as changes; ``target`` is theirs.
    Return the handles, and the number and digest of all these rows.

    Raises what :func:`write_keyed` raises, and MissingFileError or DamagedFileError.
    """
    state = against.state
    everything = KeyGroupRange.every(state.max_parallelism)
    runs = _runs(_fitted(rows, state), state, target.options)
    seen = Seen()
    handles = write_runs(against.changes(runs, everything, seen), target)
    return handles, RowSet(seen.rows, seen.digest)


def write_subtask(
    rows: Any, subtask: int, owners: Assignment, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write the rows of one subtask: what :func:`as_table` takes, or record batches.

    Raises what :func:`write_keyed` raises, SchemaMismatchError for other columns than the state's,
    and InvalidArgumentError for a row that another subtask owns.
    """
    state = target.state
    table = _of_schema(rows, state)
    found = schema_of(table)
    if sorted(found.names) != sorted(state.schema.names) or not same_columns(
        found.select(state.schema.names), state.schema
    ):
        raise SchemaMismatchError(
            f"{state} is declared with the columns ({state.schema}), and subtask {subtask} writes "
            f"({found}); give every subtask's rows the declared columns"
        )
    runs = _runs(_fitted(table, state), state, target.options, (owners, subtask))
    return write_runs(runs, target)


def _fitted(rows: pa.Table, state: KeyedState) -> pa.Table:
    """Return the columns that are stored, and the store's own beside them, which is checked."""
    own, stored = given_groups(rows, state), fitted_table(rows, state.schema, str(state))
    return stored if own is None else stored.append_column(KEY_GROUP, own)


def _of_schema(rows: Any, state: KeyedState) -> pa.Table:
    rows = settled(rows)
    if is_dicts(rows):
        schema = with_groups(state.schema, {name for row in rows for name in row})
        return table_of_dicts(with_uuids(rows, uuid_columns(state)), schema, subject=str(state))
    return as_table(rows, str(state))


def _runs(
    table: pa.Table,
    state: KeyedState,
    options: ParquetOptions,
    own: tuple[Assignment, int] | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows in order of key group, some key groups at a time."""
    nulls = sum(null_keys(batch, state) for batch in table.select(state.key).to_batches())
    if nulls:
        raise null_key_error(state, nulls)
    row_bytes = max(table.nbytes / max(table.num_rows, 1), 1)
    step = int(options.block_bytes / row_bytes) + 1
    most = int(options.run_bytes / row_bytes)
    starts = range(0, table.num_rows, step)
    blocks = [_Block.of(table.slice(start, step), state) for start in starts]
    ends = sum((block.ends for block in blocks), np.zeros(state.max_parallelism + 1, np.int64))
    if own is not None:
        _refuse_foreign(np.flatnonzero(np.diff(ends)), *own, state)
    first = 0
    while ends[first] < ends[-1]:
        stop = max(int(np.searchsorted(ends, ends[first] + most, side="right")) - 1, first + 1)
        if ends[first] < ends[stop]:
            rows = pa.concat_tables([block.cut(first, stop) for block in blocks])
            alone = stop == first + 1 or len(blocks) == 1
            yield rows if alone else by_key_group(rows.combine_chunks())
        first = stop


def by_key_group(rows: pa.Table) -> pa.Table:
    """Return rows in order of key group, those of one in their order."""
    groups = np.asarray(rows.column(KEY_GROUP))
    if (groups[:-1] <= groups[1:]).all():
        return rows
    # Few small numbers: numpy sorts them by radix, and leaves the order within each.
    return rows.take(pa.array(np.argsort(groups.astype(np.uint16), kind="stable")))


@dataclass(frozen=True)
class _Block:
    """Some rows in order of key group; those of key group g lie from ``ends[g]`` on."""

    rows: pa.Table
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: pa.Table, state: KeyedState) -> _Block:
        rows = rows.combine_chunks()
        try:
            groups = key_groups_of(rows, state)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{state}: {error}") from error
        counts = np.bincount(groups, minlength=state.max_parallelism)
        check_groups(rows, groups, state)
        rows = rows.select(state.schema.names)
        rows = by_key_group(rows.add_column(0, KEY_GROUP, pa.array(groups)))
        return cls(rows, np.concatenate(([0], np.cumsum(counts))))

    def cut(self, first: int, stop: int) -> pa.Table:
        """Return the rows of the key groups from ``first`` up to but not ``stop``."""
        begin, end = int(self.ends[first]), int(self.ends[stop])
        return self.rows.slice(begin, end - begin)


def _refuse_foreign(
    groups: Iterable[int], assignment: Assignment, subtask: int, state: KeyedState
) -> None:
    own = assignment.range_of(subtask)
    for group in map(int, groups):
        if group not in own:
            raise InvalidArgumentError(
                f"subtask {subtask} of {assignment.parallelism} has key groups {own} of {state}, "
                f"and writes a row of key group {group}, which belongs to subtask "
                f"{assignment.subtask_of(group)}; give each subtask the rows of its own keys"
            )
