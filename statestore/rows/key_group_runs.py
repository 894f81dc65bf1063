"""Sorts and checks rows, in runs of whole key groups, before they are written to files.

Small key groups are sorted, checked and digested together: with thousands of them, a call for each
would cost more than its rows. Rows with a null key have no key group, and are refused with
examples.

If a caller passes back rows of a restore, the store checks their column ``key_group`` when the key
groups are computed, and does not store it again. At another max parallelism than the stored one,
its values are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DuplicateKeyError, InvalidArgumentError, NullKeyError
from statestore.format.layers import are_changes
from statestore.format.names import KEY_GROUP, MARK
from statestore.format.schema import Field, Schema
from statestore.format.slices import KeptGroups
from statestore.format.state import KeyedState, StateKind
from statestore.keys.arrow import key_groups
from statestore.keys.arrow_types import arrow_type_text
from statestore.keys.key_types import fields_may_be_null
from statestore.rows.column_types import arrow_schema
from statestore.rows.delete_markers import upserts_of
from statestore.rows.digests import Places
from statestore.rows.equality import as_bytes, compared_columns, equal_values, leaf_columns
from statestore.rows.lossless_cast import shorten
from statestore.rows.python_values import display_rows
from statestore.rows.row_order import compare_leaves, rank_values

_NULL_EXAMPLES = 3


class NullKeys:
    """Counts the rows of a state that have a null key, and keeps the first ones as examples."""

    def __init__(self, state: KeyedState) -> None:
        """Begin without rows."""
        self._state = state
        self._examples: list[str] = []
        self.rows = 0

    @property
    def examples(self) -> tuple[str, ...]:
        """The first rows with a null key, as text."""
        return tuple(self._examples)

    def add(self, rows: pa.RecordBatch | pa.Table) -> bool:
        """Look at more rows; return whether any row so far has a null key."""
        for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches():
            self.without(batch)
        return self.rows > 0

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Look at more rows; return those that have a key."""
        is_null = find_null_keys(batch, self._state)
        if is_null is None:
            return batch
        places = np.flatnonzero(is_null)
        self.rows += len(places)
        wanted = places[: _NULL_EXAMPLES - len(self._examples)]
        names = [name for name in self._state.schema.names if name != MARK]
        shown = batch.select(names).take(pa.array(wanted))
        self._examples += [shorten(str(row)) for row in display_rows(shown)]
        return batch.filter(pa.array(~is_null))

    def add_errors(self, errors: Iterable[Exception]) -> bool:
        """Add the null keys that other processes found; return whether any row has a null key."""
        for error in errors:
            if isinstance(error, NullKeyError):
                self.rows += error.rows
                self._examples += islice(error.examples, _NULL_EXAMPLES - len(self._examples))
        return self.rows > 0

    def refuse(self) -> None:
        """Raise NullKeyError, with the number of rows and examples, if a row has a null key."""
        if self.rows:
            raise self.error()

    def error(self) -> NullKeyError:
        """Return the error for the rows with a null key."""
        state = self._state
        affected = f"row of {state} has" if self.rows == 1 else f"rows of {state} have"
        wanted = " AND ".join(f"{name} IS NOT NULL" for name in state.key)
        return NullKeyError(
            f"{self.rows} {affected} a null key ({', '.join(state.key)}), which has no key group, "
            f"such as {'; '.join(self._examples)}. Remove these rows, for example from a DataFrame "
            f"with df.where('{wanted}')",
            self.rows,
            self._examples,
        )


def null_keys(batch: pa.RecordBatch, state: KeyedState) -> int:
    """Return the number of rows with a null in a key column, unless null is a valid key."""
    is_null = find_null_keys(batch, state)
    return 0 if is_null is None else int(is_null.sum())


def find_null_keys(batch: pa.RecordBatch, state: KeyedState) -> npt.NDArray[np.bool_] | None:
    """Return which rows have a null key, None if no row has one."""
    if state.hash_scheme == "flink-sql":  # in this scheme NULL is an ordinary key
        return None
    leaves = []
    for name, key_type in zip(state.key, state.key_types, strict=True):
        column = batch.column(name)
        leaves += [column] if fields_may_be_null(key_type) else leaf_columns(column)
    if not any(leaf.null_count for leaf in leaves):
        return None
    any_null = np.zeros(batch.num_rows, bool)
    for leaf in leaves:
        any_null |= np.asarray(leaf.is_null())
    return any_null


_MOST_OTHERS, _MOST_COMPARED = 2, 100  # duplicates in an error, and those they are chosen from

RUN_BYTES = 2**20
"""A run ends with a key group once it has about this many bytes."""

ONE_ARRAY_BYTES = 2**30
"""Larger rows are not combined into one array: Arrow's text offsets end at 2 GiB."""

FEW_COLUMNS = 32
"""Pieces of rows with more columns are larger, see :func:`wide_bytes`."""

FLOAT_ORDER = (False, False)
"""The order of floats in written files: -0.0 is not after 0.0, and NaN is last, not first."""


def wide_bytes(size_bytes: int, state: KeyedState, most_bytes: int) -> int:
    """Return the bytes of a piece of a state's rows; few columns need ``size_bytes``.

    Each piece has a fixed cost for each of its columns. Pieces of many columns are therefore
    larger, up to ``most_bytes``.
    """
    wide = size_bytes * len(state.schema.names) // FEW_COLUMNS
    return max(size_bytes, min(wide, most_bytes))


def key_groups_of(
    rows: pa.RecordBatch | pa.Table, state: KeyedState, max_parallelism: int | None = None
) -> npt.NDArray[np.int32]:
    """Return each row's key group, computed from its key; ``max_parallelism`` is optional."""
    return key_groups(
        [rows.column(name) for name in state.key],
        max_parallelism=max_parallelism or state.max_parallelism,
        hash_scheme=state.hash_scheme,
        key_types=state.key_types,
    )


def check_and_sort(tables: Iterable[pa.Table], state: KeyedState) -> Iterator[pa.Table]:
    """Sort the rows of each piece and yield them in their stored form.

    The pieces are in ascending order; the rows of a key group may be in several of them. Raises
    DuplicateKeyError at the first duplicate entry, and NullKeyError after counting all null keys.
    """
    stored = pa.schema([pa.field(KEY_GROUP, pa.int32()), *arrow_schema(state.schema)])
    nulls = NullKeys(state)
    last: pa.RecordBatch | None = None
    for table in tables:
        if not table.num_rows:
            continue
        if nulls.add(table):
            continue
        rows = combine_chunks(table)
        for batch in rows.to_batches():
            _refuse_null_entries(batch, state)
            _refuse_null_times(batch, state)
        ascends = _strictly_ascends(rows, state)
        if not ascends:
            rows = sort_groups(rows, state)
        for batch in rows.select([KEY_GROUP, *state.identity]).to_batches():
            if not ascends:
                _refuse_duplicates(batch, state)
            if last is not None and last.column(0)[0] == batch.column(0)[0]:
                _refuse_duplicates(pa.concat_batches([last, batch.slice(0, 1)]), state)
            last = batch.slice(batch.num_rows - 1)
        rows = rows.select(stored.names)
        yield rows if rows.schema.equals(stored) else rows.cast(stored)
    nulls.refuse()


def _strictly_ascends(rows: pa.Table, state: KeyedState) -> bool:
    """Return whether rows are strictly ascending; False if a simple comparison cannot tell."""
    if rows.column(0).num_chunks != 1:
        return False
    undecided = np.ones(rows.num_rows - 1, bool)
    for name in (KEY_GROUP, *state.identity):
        for leaf in leaf_columns(rows.column(name).chunk(0)):
            data_type = leaf.type
            if leaf.null_count or pa.types.is_floating(data_type) or pa.types.is_list(data_type):
                return False
            left, right = leaf.slice(0, len(leaf) - 1), leaf.slice(1)
            less = np.asarray(pc.less(left, right))
            if less.all():
                return True
            equal = np.asarray(pc.equal(left, right))
            if (undecided & ~less & ~equal).any():
                return False
            undecided &= equal
            if not undecided.any():
                return True
    return False


def sort_groups(rows: pa.Table, state: KeyedState) -> pa.Table:
    """Return the rows of some key groups in order of key group and identity, nulls first."""
    return take_rows(rows, order_of(rows, state))


def combine_chunks(rows: pa.Table) -> pa.Table:
    """Return the rows in one chunk. Large rows are not copied: one array has at most 2 GiB."""
    return rows.combine_chunks() if rows.nbytes < ONE_ARRAY_BYTES else rows


def take_rows(rows: pa.Table, places: Places) -> pa.Table:
    """Return the rows at some positions; large rows are not copied, see :func:`combine_chunks`."""
    if rows.nbytes < ONE_ARRAY_BYTES:
        return rows.take(pa.array(places))
    ends = np.flatnonzero(np.diff(places, append=-1) != 1) + 1
    begins = np.concatenate(([0], ends[:-1]))
    spans = zip(places[begins].tolist(), (ends - begins).tolist(), strict=True)
    return pa.concat_tables(
        [rows.slice(0, 0), *(rows.slice(start, count) for start, count in spans)]
    )


def sort_leaves(column: pa.Array) -> list[pa.Array]:
    """Return the plain columns that sort the values of an identity column, nulls first.

    They are the fields of structs, lists as bytes, and floats as ranks.
    """
    leaves = leaf_columns(column)
    return [
        as_bytes(leaf) if pa.types.is_nested(leaf.type) else _rank_floats(leaf) for leaf in leaves
    ]


def _rank_floats(leaf: pa.Array) -> pa.Array:
    # 0.0 and -0.0 compare equal but are two keys, and NaN equals no value.
    return rank_values(leaf, FLOAT_ORDER) if pa.types.is_floating(leaf.type) else leaf


@dataclass(frozen=True)
class Bound:
    """The sort key of a row: its key group, and the plain values of its identity columns.

    It may have only the first identity columns. It is then the sort key of the first row with these
    values.
    """

    key_group: int
    values: tuple[pa.Scalar, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, row: pa.Table, names: Sequence[str]) -> Bound:
        """Return the sort key of a table's only row."""
        [batch] = row.select([KEY_GROUP, *names]).combine_chunks().to_batches()
        values = [leaf[0] for name in names for leaf in sort_leaves(batch.column(name))]
        return cls(batch.column(KEY_GROUP)[0].as_py(), tuple(values), tuple(names))

    def rows_before(self, rows: pa.Table, groups: npt.NDArray[np.int32] | None = None) -> int:
        """Return the number of sorted rows that come before the bound.

        ``groups`` are the key groups of the rows, if they were already extracted.
        """
        key_groups = np.asarray(rows.column(KEY_GROUP)) if groups is None else groups
        # A key of another integer type would make NumPy convert the whole array.
        key_group = key_groups.dtype.type(self.key_group)
        begin = int(np.searchsorted(key_groups, key_group, "left"))
        end = int(np.searchsorted(key_groups, key_group, "right"))
        if begin == end:
            return begin
        for batch in rows.slice(begin, end - begin).select(self.names).to_batches():
            before = self._rows_before(batch)
            begin += before
            if before < batch.num_rows:
                break
        return begin

    def _rows_before(self, batch: pa.RecordBatch) -> int:
        values = iter(self.values)
        begin, end = 0, batch.num_rows  # these rows equal the bound in all earlier columns
        for column in batch.columns:
            offset = begin
            for leaf in sort_leaves(column.slice(begin, end - begin)):
                value = next(values, None)
                if value is None:
                    return begin
                less, equal = _counts(leaf.slice(begin - offset, end - begin), value)
                begin += less
                end = begin + equal
                if begin == end:
                    return begin
        return begin

    def has_prefix(self, rows: pa.Table, width: int) -> npt.NDArray[np.bool_]:
        """Return which rows have the bound's key group and its first ``width`` identity columns.

        Structs are compared by their fields: a null struct equals a struct whose fields are null.
        """
        same: npt.NDArray[np.bool_] = np.asarray(rows.column(KEY_GROUP)) == self.key_group
        index = 0
        for name in self.names[:width]:
            chunks = [sort_leaves(chunk) for chunk in rows.column(name).chunks]
            for pieces in zip(*chunks, strict=True):
                same &= np.concatenate([_equal(leaf, self.values[index]) for leaf in pieces])
                index += 1
        return same


def _counts(leaf: pa.Array, value: pa.Scalar) -> tuple[int, int]:
    """Return the numbers of values in a sorted array that are less than, and equal to, a value."""
    if not value.is_valid:
        return 0, leaf.null_count
    return leaf.null_count + pc.less(leaf, value).true_count, pc.equal(leaf, value).true_count


def _equal(leaf: pa.Array, value: pa.Scalar) -> npt.NDArray[np.bool_]:
    if not value.is_valid:
        return np.asarray(leaf.is_null())
    return np.asarray(pc.fill_null(pc.equal(leaf, value), False))


def first_descent(rows: pa.RecordBatch) -> int | None:
    """Return the position of the first row that is greater than the next; None if sorted."""
    undecided = np.ones(max(rows.num_rows - 1, 0), np.bool_)
    for leaf in compared_columns(rows.columns):
        if not undecided.any():
            break
        if leaf.null_count == 0:  # most rows are decided by one comparison
            left, right = leaf.slice(0, len(leaf) - 1), leaf.slice(1)
            undecided &= ~np.asarray(pc.less(left, right))
            if not undecided.any():
                break
        if leaf.null_count or pa.types.is_floating(leaf.type):
            greater, equal = compare_leaves(leaf, FLOAT_ORDER)
        else:
            equal = np.asarray(pc.equal(left, right))
            greater = ~equal  # those that are still undecided are not less
        wrong = undecided & greater
        if wrong.any():
            return int(np.flatnonzero(wrong)[0])
        undecided &= equal
    return None


def order_of(rows: pa.Table, state: KeyedState) -> Places:
    """Return the positions of rows in order of key group and identity."""
    batches = rows.select(state.identity).to_batches()
    pieces = zip(
        *(map(_rank_floats, compared_columns(batch.columns)) for batch in batches), strict=True
    )
    columns = [pa.chunked_array(chunks) for chunks in pieces]
    sort_columns = pa.table(columns, names=[str(index) for index in range(len(columns))])
    keys = [(name, "ascending", "at_start") for name in sort_columns.column_names]
    order = np.asarray(pc.sort_indices(sort_columns, sort_keys=keys))
    groups = np.asarray(rows.column(KEY_GROUP))
    if (groups != groups[0]).any():
        # For small integers, numpy uses a radix sort, which is stable within each key group.
        order = order[np.argsort(groups.astype(np.uint16)[order], kind="stable")]
    return order.astype(np.intp)


def _refuse_null_entries(batch: pa.RecordBatch, state: KeyedState) -> None:
    """Refuse list elements without a position, and timers without a time."""
    if state.kind not in (StateKind.LIST, StateKind.TIMERS):
        return
    if are_changes(state):  # a delete may have only a key
        batch = upserts_of(batch)
    for name in state.entry:
        if batch.column(name).null_count:
            raise InvalidArgumentError(
                f"{state} has rows with null in {name!r}, which distinguishes the entries of "
                f"{state.kind} state; give every row a value"
            )


def _refuse_null_times(batch: pa.RecordBatch, state: KeyedState) -> None:
    if state.ttl is None or not batch.column(state.ttl.column).null_count:
        return
    if are_changes(state):  # a delete has no values
        batch = upserts_of(batch)
    nulls = batch.column(state.ttl.column).null_count
    if nulls:
        raise InvalidArgumentError(
            f"{nulls} rows of {state} have null in the TTL column {state.ttl.column!r}; give every "
            "row a timestamp, or leave the column out if the checkpoint's clock can fill it"
        )


def equal_neighbours(batch: pa.RecordBatch, state: KeyedState) -> npt.NDArray[np.bool_]:
    """Return for each row but the last whether the next one has the same key group and identity."""
    rows = batch.num_rows - 1
    same = np.ones(rows, bool)
    for column in compared_columns(batch.select([KEY_GROUP, *state.identity]).columns):
        same &= equal_values(column.slice(0, rows), column.slice(1))
        if not same.any():
            break
    return same


def _refuse_duplicates(batch: pa.RecordBatch, state: KeyedState) -> None:
    """Refuse duplicate rows; the rows are sorted, so duplicates are adjacent."""
    places = np.flatnonzero(equal_neighbours(batch, state))
    if not len(places):
        return
    entries = batch.select(list(state.identity)).take(pa.array(places[:_MOST_COMPARED]))
    first, *others = dict.fromkeys(map(str, display_rows(entries)))
    also = f", and so have others, such as {'; '.join(others[:_MOST_OTHERS])}" if others else ""
    raise DuplicateKeyError(
        f"two rows of {state} have the same identity {first}{also}; aggregate them into one row, "
        "or name the columns that distinguish them (namespace, map_key or position)"
    )


T = TypeVar("T", pa.RecordBatch, pa.Table)


def with_key_group(names: Iterable[str], among: Iterable[str]) -> tuple[str, ...]:
    """Return some column names, and ``key_group`` if the rows have this column."""
    return (*names, KEY_GROUP) if KEY_GROUP in among else tuple(names)


def without_groups(schema: Schema) -> Schema:
    """Return the caller's columns, without ``key_group``."""
    return schema.select([name for name in schema.names if name != KEY_GROUP])


def with_groups(schema: Schema, among: Iterable[str]) -> Schema:
    """Return the columns of a state, and ``key_group`` if the rows have this column."""
    own = (Field(KEY_GROUP, "integer"),) if KEY_GROUP in among else ()
    return Schema((*schema.fields, *own))


def key_group_column(rows: pa.Table, state: KeyedState) -> pa.ChunkedArray | None:
    """Return the column ``key_group`` as integers, or None if the rows lack it."""
    if KEY_GROUP not in rows.schema.names:
        return None
    groups = rows.column(KEY_GROUP)
    if not (pa.types.is_integer(groups.type) or pa.types.is_null(groups.type)):
        raise InvalidArgumentError(
            f"the column {KEY_GROUP!r} of {state} has type {arrow_type_text(groups.type)}, but it "
            "is reserved for the key group of each row, which is an integer. Remove the column; it "
            "is not stored"
        )
    return groups.cast(pa.int64(), safe=False)


def check_groups(rows: pa.Table, groups: npt.NDArray[np.int32], state: KeyedState) -> None:
    """Refuse rows whose own column has another key group than their key; nulls are accepted.

    Raises InvalidArgumentError with the key of the first such row, and both key groups.
    """
    own_groups = key_group_column(rows, state)
    if own_groups is None:
        return
    other = pc.fill_null(pc.not_equal(own_groups, pa.array(groups, pa.int64())), False)
    index = pc.index(other, True).as_py()
    if index < 0:
        return
    [key] = rows.select(state.key).slice(index, 1).to_pylist()
    raise InvalidArgumentError(
        f"the row of {state} with the key {key} has {KEY_GROUP} "
        f"{own_groups[index].as_py()}, but the "
        f"key belongs to key group {groups[index]} of {state.max_parallelism}. This column is "
        "reserved for the store: it is checked and not stored. Remove it if it comes from "
        "another max parallelism or key, or has another meaning"
    )


def rows_in_kept_groups(rows: T, state: KeyedState, kept: KeptGroups | None) -> T:
    """Return the rows whose new key group is kept, with it as ``key_group``; all without ``kept``.

    For fewer key groups, the new key group is the stored one modulo their number; for more, the key
    is hashed again.
    """
    if kept is None:
        return rows
    if kept.max_parallelism < state.max_parallelism:
        groups = np.asarray(rows.column(KEY_GROUP)) % kept.max_parallelism
    else:
        groups = key_groups_of(rows, state, kept.max_parallelism)
    own = (groups >= kept.own.first) & (groups <= kept.own.last)
    index = rows.schema.get_field_index(KEY_GROUP)
    field = rows.schema.field(index)
    renumbered = rows.set_column(index, field, pa.array(groups, pa.int32()))
    return renumbered if own.all() else renumbered.filter(pa.array(own))
