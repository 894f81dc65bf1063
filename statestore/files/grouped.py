"""Rows that come in order of key group, one key group after the other: an engine like Arrow's.

Savepoints of Flink have rows in this order. They are read without having all of them in memory, and
several ranges of key groups at the same time. The key group that each table comes with is compared
with the one that follows from its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.files.against import Against, Seen
from statestore.files.keyed import KeyedTarget, write_pieces
from statestore.files.merge import time_column
from statestore.files.runs import key_groups_of
from statestore.files.sorting import key_group_pieces
from statestore.files.types import schema_of_arrow
from statestore.files.values import fitted_table
from statestore.files.written import WrittenFiles
from statestore.format.digest import RowSet, combine
from statestore.format.handles import KeyedStateHandle
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema
from statestore.format.state import KeyedState
from statestore.keys.arrow import check_key_types
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.keys.ranges import Assignment

__all__ = [
    "GroupedRows",
    "key_types",
    "on_driver",
    "refuse_narrowing",
    "rows_known",
    "schema_of",
    "ungrouped",
    "with_time",
    "write_against",
    "write_keyed",
]

Groups = Iterator[tuple[int, pa.Table]]
Tables = Iterator[pa.Table]


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """Rows by key group, ascending. ``groups`` yields the rows of a range of key groups; those of a
    large key group may come in several tables.

    ``schema`` has their columns, without the key group. At most so many ``threads`` ask for a range
    each, and write it: each has its share of the memory for sorting. ``estimated_rows`` is about
    how many rows there are, None if unknown.
    """

    schema: pa.Schema
    groups: Callable[[KeyGroupRange], Groups]
    threads: int = 1
    estimated_rows: int | None = None


def schema_of(rows: GroupedRows) -> Schema:
    """Return the stored columns of the rows."""
    return schema_of_arrow(rows.schema)


def key_types(
    rows: GroupedRows, key: tuple[str, ...], hash_scheme: str, wanted: Sequence[str | None]
) -> tuple[str, ...]:
    """Return per key column the type whose hash is taken, None in ``wanted`` for its own."""
    return check_key_types([rows.schema.field(name) for name in key], hash_scheme, wanted)


def rows_known(rows: GroupedRows) -> int | None:
    """Return the estimated number of rows: they were not read yet."""
    return rows.estimated_rows


def on_driver(rows: GroupedRows, names: Sequence[str], most_bytes: int) -> pa.Table:
    """Refuse to have all rows in memory."""
    raise UnsupportedTypeError("rows by key group are a whole state, and no changes of one")


def refuse_narrowing(rows: GroupedRows, names: Sequence[str], state: KeyedState) -> None:
    """Do nothing: each value is looked at."""


def ungrouped(rows: GroupedRows) -> GroupedRows:
    """Return the rows as they are: the key group is none of their columns."""
    return rows


def with_time(rows: GroupedRows, column: str, kind: str, now_ms: int) -> GroupedRows:
    """Return the rows with one more column, a ``long`` or ``timestamp``, of one time."""

    def groups(key_groups: KeyGroupRange) -> Groups:
        for group, table in rows.groups(key_groups):
            yield group, table.append_column(column, time_column(kind, table.num_rows, now_ms))

    schema = rows.schema.append(pa.field(column, time_column(kind, 0, 0).type))
    return replace(rows, schema=schema, groups=groups)


def write_keyed(
    rows: GroupedRows, owners: Assignment, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write a keyed state; return its handles in order of key group.

    Raises NullKeyError, DuplicateKeyError, StorageError, DamagedFileError for a key that belongs to
    another key group than it comes with, and what reading the rows raises.
    """
    options = target.options
    memory_bytes = max(options.memory_bytes // _threads(rows, target.state), 1)

    def pieces(tables: Tables, key_groups: KeyGroupRange) -> Tables:
        return key_group_pieces(tables, target.state, options.run_bytes, memory_bytes)

    return _written(rows, target.state, target, pieces)


def write_against(
    rows: GroupedRows, owners: Assignment, against: Against, target: KeyedTarget
) -> tuple[tuple[KeyedStateHandle, ...], RowSet]:
    """Write what makes these rows of those that are stored, as changes; ``target`` is theirs.
    Return the handles, and the number and digest of all these rows.
    """
    seen: list[Seen] = []
    memory_bytes = max(against.memory_bytes // _threads(rows, against.state), 1)
    against = replace(against, memory_bytes=memory_bytes)

    def changes(tables: Tables, key_groups: KeyGroupRange) -> Tables:
        own = Seen()
        seen.append(own)
        return against.changes(against.pieces(tables), key_groups, own)

    handles = _written(rows, against.state, target, changes)
    digest = combine(one.digest for one in seen)
    return handles, RowSet(sum(one.rows for one in seen), digest)


def _written(
    rows: GroupedRows,
    state: KeyedState,
    target: KeyedTarget,
    made: Callable[[Tables, KeyGroupRange], Tables],
) -> tuple[KeyedStateHandle, ...]:
    """Write what is ``made`` of the rows, ranges of key groups at the same time; return the handles
    in order of key group.

    Of several errors that of the first range is raised, as with one thread: those behind one that
    failed are left, and those before it go on. Nothing stays of what was written until then.
    """
    threads = _threads(rows, state)
    share = KeyGroupAssignment(max_parallelism=state.max_parallelism, parallelism=threads)
    failed: list[int] = []

    def write(number: int) -> tuple[KeyedStateHandle, ...]:
        key_groups = share.range_of(number)
        groups = _until(rows.groups(key_groups), lambda: any(one < number for one in failed))
        try:
            tables = _placed(groups, key_groups, state, target.options.run_bytes)
            return write_pieces(made(tables, key_groups), target)
        except BaseException:
            failed.append(number)
            raise

    if threads == 1:
        return write(0)
    with ThreadPoolExecutor(threads, thread_name_prefix="statestore-write") as pool:
        under_way: list[Future[tuple[KeyedStateHandle, ...]]] = []
        try:
            under_way += (pool.submit(write, number) for number in range(threads))
            return tuple(handle for one in under_way for handle in one.result())
        except BaseException as error:
            failed.append(-1)  # all are left
            written = WrittenFiles(target.storage)
            for one in under_way:
                if one.exception() is None:
                    written.add(target.folder, one.result())
            written.delete(error)
            raise


def _threads(rows: GroupedRows, state: KeyedState) -> int:
    return min(rows.threads, state.max_parallelism)


class _LeftError(Exception):
    """Ends a range behind one that failed; nobody sees it."""


def _until(groups: Groups, is_left: Callable[[], bool]) -> Groups:
    """Yield key groups until they are of no more use; raise _LeftError then."""
    for one in groups:
        if is_left():
            raise _LeftError
        yield one


def _placed(
    groups: Groups, key_groups: KeyGroupRange, state: KeyedState, table_bytes: int
) -> Tables:
    """Yield the rows with their key group as a column, small tables together."""
    tables: list[pa.Table] = []
    size = 0
    last = key_groups.first
    for group, table in groups:
        if not last <= group <= key_groups.last:
            raise DamagedFileError(
                f"{state}: rows of key group {group} come after those of key group {last}, of "
                f"{state.max_parallelism}"
            )
        last = group
        if not table.num_rows:
            continue
        numbers = pa.array(np.full(table.num_rows, group, np.int32))
        fitted = fitted_table(table, state.schema, str(state))
        tables.append(fitted.add_column(0, KEY_GROUP, numbers))
        size += table.nbytes
        if size >= table_bytes:
            yield _checked(tables, state)
            tables, size = [], 0
    if tables:
        yield _checked(tables, state)


def _checked(tables: list[pa.Table], state: KeyedState) -> pa.Table:
    rows = pa.concat_tables(tables)
    given = np.asarray(rows.column(KEY_GROUP))
    found = key_groups_of(rows, state)
    wrong = np.flatnonzero(found != given)
    if len(wrong):
        at = int(wrong[0])
        raise DamagedFileError(
            f"{state} has {len(wrong)} rows in key groups that their keys do not belong to, the "
            f"first in {given[at]} and not in {found[at]} of {state.max_parallelism}"
        )
    return rows
