"""Changes of a keyed state as checked rows: upserts, and delete markers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from statestore.errors import DuplicateKeyError, InvalidArgumentError
from statestore.format.layers import delete_widths
from statestore.format.names import KEY_GROUP, MARK
from statestore.format.state import KeyedState
from statestore.rows.column_types import arrow_schema
from statestore.rows.delete_markers import (
    Deletion,
    are_upserts,
    deletes_of,
    mark_of,
    named_columns,
    store_cleared,
    upserts_of,
    widths_of,
)
from statestore.rows.equality import first_of_equals, matching_positions
from statestore.rows.fit_columns import fit_column
from statestore.rows.key_group_runs import Bound, key_group_column, sort_groups, take_rows
from statestore.rows.python_values import display_rows


def width_of(names: Sequence[str], state: KeyedState, subject: str = "a delete") -> int:
    """Return the number of identity columns that a delete with these columns names.

    Value columns are ignored. Raises InvalidArgumentError unless the columns are the key, the key
    with its namespace, or the whole identity, and for a column that the state lacks: a misspelled
    entry column would delete all entries of the key.
    """
    known = {KEY_GROUP, *state.schema.names}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidArgumentError(
            f"{subject} of {state} has the column {unknown[0]!r}, which the state lacks; its "
            f"columns are ({state.schema})"
        )
    for width in reversed(delete_widths(state)):
        wanted = state.identity[:width]
        if all(name in names for name in wanted):
            rest = [name for name in state.identity[width:] if name in names]
            if rest:
                break
            return width
    raise InvalidArgumentError(
        f"{subject} of {state} has the columns ({', '.join(map(str, names))}); it must have "
        f"the key columns ({', '.join(state.key)}), or all identity columns "
        f"({', '.join(state.identity)})"
    )


def change_table(
    inputs: Iterable[tuple[pa.Table, Deletion | None]], state: KeyedState, changes: KeyedState
) -> pa.Table:
    """Return rows as changes: rows with a deletion become deletes, and all other rows upserts.

    Raises InvalidArgumentError when a column cannot be stored.
    """
    marked = [_with_mark(rows, deletion, state, changes) for rows, deletion in inputs]
    return pa.concat_tables(marked, promote_options="default")


def change_stream(
    inputs: Sequence[tuple[pa.Schema, Iterable[pa.Table], Deletion | None]],
    state: KeyedState,
    changes: KeyedState,
) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """Return rows as tables of changes, with their columns; see :func:`change_table`."""
    nothing = [(schema.empty_table(), deletion) for schema, _, deletion in inputs]
    schema = change_table(nothing, state, changes).schema

    def tables() -> Iterator[pa.Table]:
        for _, rows, deletion in inputs:
            for table in rows:
                marked = _with_mark(table, deletion, state, changes)
                for name in schema.names[len(marked.schema) :]:
                    marked = marked.append_column(name, pa.nulls(marked.num_rows, pa.int64()))
                yield marked

    return schema, tables()


def _with_mark(
    rows: pa.Table, deletion: Deletion | None, state: KeyedState, changes: KeyedState
) -> pa.Table:
    names = frozenset(named_columns(deletion, state))
    schema = arrow_schema(changes.schema)
    columns = []
    for field in schema:
        if field.name == MARK:
            columns.append(pa.array(np.full(rows.num_rows, mark_of(deletion), np.int64)))
        elif field.name in names:
            column, subject = rows.column(field.name), f"changes of {state}"
            columns.append(fit_column(column, field.type, name=field.name, subject=subject))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    table, own = pa.table(columns, schema=schema), key_group_column(rows, state)
    return table if own is None else table.append_column(KEY_GROUP, own)


def merge_deletes(pieces: Iterable[pa.Table], changes: KeyedState) -> Iterator[pa.Table]:
    """Yield changes in their stored form, each delete once.

    A key that is cleared may have upserts. The pieces are in ascending order
    (:mod:`statestore.rows.sorting`), and changes of one entry are in one piece.

    Raises DuplicateKeyError for rows that are upserted and deleted in one checkpoint.
    """
    deleted: pa.Table | None = None
    for piece in pieces:
        if are_upserts(piece).all() and not (deleted is not None and deleted.num_rows):
            yield piece
            continue
        come, every = upserts_of(piece), deletes_of(piece)
        own = deletes_of(piece, cleared=False)
        deleted = own if deleted is None else pa.concat_tables([deleted, own])
        _refuse_both(come, deleted, changes)
        # The next rows come after the last row of this piece.
        last = Bound.of(piece.slice(piece.num_rows - 1), changes.identity)
        deleted = open_deletes(deleted, last, changes)
        if not every.num_rows:
            yield piece
            continue
        rows = pa.concat_tables([come, _drop_repeated(store_cleared(every), changes)])
        order = np.argsort(np.asarray(rows.column(KEY_GROUP)), kind="stable")
        yield take_rows(rows, order)


def open_deletes(changes: pa.Table, bound: Bound, state: KeyedState) -> pa.Table:
    """Return the deletes that may also apply to rows from a bound on.

    A delete sorts before all rows that it names. Only deletes that name the bound's row can
    therefore name a later one. A delete of all identity columns has no later rows.
    """
    widths = widths_of(changes, state)
    stays_open = np.zeros(changes.num_rows, np.bool_)
    for width in np.unique(widths[widths < len(state.identity)]).tolist():
        stays_open |= (widths == width) & bound.has_prefix(changes, width)
    return changes.filter(pa.array(stays_open)) if stays_open.any() else changes.slice(0, 0)


def _refuse_both(comes: pa.Table, goes: pa.Table, changes: KeyedState) -> None:
    widths = widths_of(goes, changes)
    for width in np.unique(widths).tolist():
        names = list(changes.identity[:width])
        deleted = goes.filter(pa.array(widths == width)).select(names)
        both, _ = matching_positions(comes.select(names), deleted)
        if len(both):
            entry = display_rows(comes.select(changes.identity[:-1]).slice(int(both[0]), 1))[0]
            raise DuplicateKeyError(
                f"the entry {entry} of {changes} is both upserted and deleted in one "
                "checkpoint; keep it in only one of upserts and deletes. To replace all "
                "entries of a key, pass the key in Changes(cleared=…)"
            )


def _drop_repeated(gone: pa.Table, changes: KeyedState) -> pa.Table:
    rows = sort_groups(gone, changes)
    return rows.filter(pa.array(first_of_equals(rows.select([KEY_GROUP, *changes.identity]))))
