"""Check or establish the row order that merges require, in streams of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isnan

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DamagedFileError
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState
from statestore.layers.aligned_streams import Bound, gather_batches
from statestore.rows.equality import leaf_columns
from statestore.rows.key_group_runs import first_descent, order_of, sort_leaves, take_rows

__all__ = ["sorted_tables"]


def sorted_tables(
    batches: Iterable[pa.RecordBatch], state: KeyedState, table_bytes: int
) -> Iterator[pa.Table]:
    """Gather the rows of sorted files into tables of about ``table_bytes``, in one order.

    The order does not depend on where a writer placed NaN and zeros. A table may also have only one
    row. Rows are moved only near NaN and zeros in float columns of the identity. The rows of one
    NaN key are held in memory.

    Raises:
        DamagedFileError: if rows are not sorted by key group and identity: merging them would
            lose or duplicate rows.
    """
    names = [KEY_GROUP, *state.identity]
    last: pa.RecordBatch | None = None
    for table in gather_batches(_sort_floats(batches, state), table_bytes):
        # Compare once per table: each comparison has a fixed cost, and batches may be small.
        for rows in table.select(names).combine_chunks().to_batches():
            if last is not None and last.column(0)[0].as_py() >= rows.column(0)[0].as_py():
                _refuse_descent(pa.concat_batches([last, rows.slice(0, 1)]), state)
            _refuse_descent(rows, state)
            last = rows.slice(rows.num_rows - 1)
        yield table


def _refuse_descent(rows: pa.RecordBatch, state: KeyedState) -> None:
    descends = first_descent(rows)
    if descends is None:
        return
    group = rows.column(KEY_GROUP)[descends + 1]
    raise DamagedFileError(
        f"rows of key group {group} of {state} are not sorted by "
        f"({', '.join(state.identity)}), so they cannot be merged. Run 'statestore verify' to "
        "find the file, and restore an older checkpoint"
    )


def _sort_floats(batches: Iterable[pa.RecordBatch], state: KeyedState) -> Iterator[pa.RecordBatch]:
    held: pa.Table | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if held is None and not _is_ambiguous(batch, state.identity):
            yield batch
            continue
        batch_rows = pa.Table.from_batches([batch])
        rows = batch_rows if held is None else pa.concat_tables([held, batch_rows])
        order = order_of(rows, state)
        rows = take_rows(rows, order)
        least = _least_after(batch_rows.slice(batch_rows.num_rows - 1), state.identity)
        if least is None:  # all later rows come after the batch's last row
            count = int(np.flatnonzero(order == len(order) - 1)[0]) + 1
        else:
            count = least.rows_before(rows)
        yield from rows.slice(0, count).to_batches()
        held = rows.slice(count) if count < rows.num_rows else None
    if held is not None:
        yield from held.to_batches()


def _is_ambiguous(rows: pa.RecordBatch, names: Sequence[str]) -> bool:
    """Return whether a float column has NaN or a zero, whose order each writer chooses."""
    leaves = (leaf for name in names for leaf in leaf_columns(rows.column(name)))
    floats = (leaf for leaf in leaves if pa.types.is_floating(leaf.type))
    return any(
        pc.any(pc.equal(leaf, 0.0)).as_py() or pc.any(pc.is_nan(leaf)).as_py() for leaf in floats
    )


def _least_after(row: pa.Table, names: Sequence[str]) -> Bound | None:
    """Return the least sort key that rows after a file's row can have.

    The order of NaN and zeros depends on the writer. None if all later rows sort after the row.
    """
    bound = Bound.of(row, names)
    [batch] = row.to_batches()
    leaves = (leaf for name in names for leaf in leaf_columns(batch.column(name)))
    for place, leaf in enumerate(leaves):
        value = leaf[0].as_py() if pa.types.is_floating(leaf.type) else None
        if value is None or not (value == 0.0 or isnan(value)):
            continue
        minus_zero = sort_leaves(pa.array([-0.0], leaf.type))[0][0]
        values = bound.values[:place] if isnan(value) else (*bound.values[:place], minus_zero)
        return replace(bound, values=values)
    return None
