"""Writes operator state to files and reads it: elements with their old subtask and position.

An operator state of a checkpoint is one file, ordered by (subtask, position). Broadcast state is
one copy, as subtask 0. Reading can be limited to elements with given column values, so that a
reader of union state gets only its part. The file is still read as a whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DamagedFileError, InvalidArgumentError
from statestore.format.handles import OperatorStateHandle
from statestore.format.manifest import OperatorEntry
from statestore.format.names import (
    POSITION,
    RESERVED_ELEMENT_COLUMNS,
    SUBTASK,
    operator_file,
    refuse_reserved,
)
from statestore.format.schema import Schema
from statestore.format.state import OperatorState
from statestore.jobgraph.redistribution import RedistributionMode, redistribute_counts
from statestore.keys.arrow_types import arrow_type_text
from statestore.parquet.reader import read_batches
from statestore.parquet.statistics import statistics_columns
from statestore.parquet.writer import FileWriter, ParquetOptions, UncommittedFiles
from statestore.rows.column_types import arrow_schema, schema_of_arrow
from statestore.rows.digests import rows_digest
from statestore.rows.fit_columns import fit_column, fit_table, refuse_invalid_values
from statestore.rows.python_values import ROWS, column_of, rows_to_dicts, table_of_dicts
from statestore.storage import Storage

OPERATOR_STATE_BYTES = 256 * 2**20
"""The maximum size of one operator state in bytes. A restore may give all of it to every subtask,
as Flink does, and a subtask holds it in memory."""


def refuse_large_elements(elements: pa.Table, subject: str) -> None:
    """Raise InvalidArgumentError for more elements than an operator state can have."""
    if elements.nbytes > OPERATOR_STATE_BYTES:
        raise InvalidArgumentError(
            f"the elements of {subject} have {elements.nbytes} bytes, but operator state is "
            f"limited to {OPERATOR_STATE_BYTES} bytes because subtasks hold it in memory. "
            "Write keyed state instead, or divide the elements among several states"
        )


def elements_table(
    per_subtask: Sequence[Iterable[Any]], schema: Schema | None, subject: str = ROWS
) -> pa.Table:
    """Return elements, given per old subtask, as a table with ``subtask`` and ``position``.

    An element is a dictionary or a dataclass. If ``schema`` is None, the types are derived from the
    values. Raises SchemaMismatchError for a column that ``schema`` lacks. Raises
    InvalidArgumentError for an invalid element, or for a value that does not fit, with its
    position.
    """
    lists = [
        [
            _as_dict(element, f"element {position} of subtask {subtask} of {subject}")
            for position, element in enumerate(
                _elements(elements, f"subtask {subtask} of {subject}")
            )
        ]
        for subtask, elements in enumerate(per_subtask)
    ]
    flat = [element for elements in lists for element in elements]
    places = [
        (subtask, position)
        for subtask, elements in enumerate(lists)
        for position in range(len(elements))
    ]
    rows = table_of_dicts(
        flat,
        schema,
        subject=subject,
        place=lambda index: f"element {places[index][1]} of subtask {places[index][0]}",
    )
    if flat and not rows.schema.names:
        raise InvalidArgumentError("the elements have no columns; give them at least one")
    return _with_place(
        rows, [subtask for subtask, _ in places], [position for _, position in places]
    )


def place_elements(rows: pa.Table, copies: int, subject: str = ROWS) -> pa.Table:
    """Return a table of elements with ``subtask`` and ``position``.

    If the rows have these columns, they are used. Otherwise the elements are divided in blocks, as
    in a rescale from one subtask. Within a subtask, elements are in order of their ``position``, or
    of their rows. Raises InvalidArgumentError for a subtask outside of ``copies``, or a value that
    cannot be stored.
    """
    names = rows.schema.names
    if SUBTASK in names:
        subtasks = _numbers(rows, SUBTASK, subject)
        wrong = subtasks[(subtasks < 0) | (subtasks >= copies)]
        if len(wrong):
            raise InvalidArgumentError(
                f"an element of {subject} names subtask {wrong[0]}; at this parallelism the "
                f"subtasks are 0..{copies - 1}"
            )
        given_positions = (
            _numbers(rows, POSITION, subject) if POSITION in names else np.zeros(len(subtasks))
        )
        order = np.lexsort((given_positions, subtasks))
    else:
        dealt = redistribute_counts([{"": (RedistributionMode.SPLIT, rows.num_rows)}], copies)
        subtasks = np.repeat(np.arange(copies), [len(block[""]) for block in dealt])
        order = np.arange(rows.num_rows)
    subtasks = subtasks[order]
    positions = np.arange(len(order)) - np.searchsorted(subtasks, subtasks)
    elements = rows.drop_columns([name for name in (SUBTASK, POSITION) if name in names])
    stored = fit_table(elements, schema_of_arrow(elements.schema), subject)
    return _with_place(stored.take(pa.array(order)), subtasks, positions)


def _numbers(rows: pa.Table, name: str, subject: str) -> npt.NDArray[np.int64]:
    column = fit_column(rows.column(name), pa.int64(), name=name, subject=subject)
    if column.null_count:
        raise InvalidArgumentError(
            f"the column {name!r} of {subject} has a row without a number; give every row one"
        )
    return np.asarray(column, np.int64)


def element_digests(
    per_subtask: Sequence[Sequence[dict[str, Any]]], schema: Schema
) -> tuple[int, int]:
    """Return two digests of stored elements, given per old subtask.

    The first has only their own columns. The second includes ``subtask`` and ``position``, and is
    the one in the manifest.
    """
    if not schema.fields:
        return 0, 0
    rows = elements_table(per_subtask, schema).select(stored_schema(schema).names)
    return rows_digest(rows.select(schema.names)), rows_digest(rows)


def schema_of_elements(table: pa.Table) -> Schema:
    """Return the element columns of a table, without ``subtask`` and ``position``."""
    names = [name for name in table.schema.names if name not in (SUBTASK, POSITION)]
    return schema_of_arrow(table.select(names).schema)


def write_elements(
    table: pa.Table, state: OperatorState, storage: Storage, folder: str, checkpoint_id: int
) -> tuple[OperatorStateHandle, ...]:
    """Write the elements as one durable file; return its handle, or nothing for no elements."""
    if table.num_rows == 0:
        return ()
    schema = stored_schema(state.schema)
    ordered = table.sort_by([(SUBTASK, "ascending"), (POSITION, "ascending")])
    path = operator_file(checkpoint_id, uuid.uuid4().hex[:16])
    writer = FileWriter(storage, f"{folder}/{path}", schema, ParquetOptions())
    try:
        for batch in ordered.select(schema.names).cast(schema).to_batches():  # names of items
            refuse_invalid_values(batch, str(state))
            writer.write(batch)
        facts = writer.close()
        statistics = writer.statistics(statistics_columns(state))
        handle = OperatorStateHandle(path, **facts, statistics=statistics)
        storage.sync([f"{folder}/{path}"])
    except BaseException as error:
        writer.abandon()
        UncommittedFiles(storage, [f"{folder}/{path}"]).delete(error)
        raise
    return (handle,)


def read_elements(
    storage: Storage,
    entry: OperatorEntry,
    where: Mapping[str, Iterable[Any]] | None = None,
    *,
    verify: bool = False,
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield (old subtask, position, element) in stored order.

    ``where`` keeps the elements whose columns have one of the given values, for example
    {"partition": [0, 4]}. With ``verify`` the SHA-256 of the file is checked first. Raises
    DamagedFileError when the elements differ from the manifest in number or position.
    """
    wanted = {name: _values(name, values) for name, values in (where or {}).items()}
    state = entry.state
    if state.schema.fields:  # a state that never had an element has no columns
        for column in wanted:
            state.schema.type_of(column)
    for batch in _batches(storage, entry, verify):
        for row in rows_to_dicts(_select_rows(batch, wanted), str(state)):
            yield row.pop(SUBTASK), row.pop(POSITION), row


def elements_of(storage: Storage, entry: OperatorEntry, *, verify: bool = False) -> pa.Table:
    """Return the columns of all elements in stored order; see :func:`read_elements`."""
    schema = stored_schema(entry.state.schema)
    rows = pa.Table.from_batches(_batches(storage, entry, verify), schema)
    return rows.select(list(entry.state.schema.names))


def _batches(storage: Storage, entry: OperatorEntry, verify: bool) -> Iterator[pa.RecordBatch]:
    schema, first = stored_schema(entry.state.schema), 0
    for handle in entry.handles:
        folder = entry.table.path
        for batch in read_batches(storage, folder, handle, schema, verify=verify):
            if wrong := count_misplaced(batch, entry.counts, first):
                raise DamagedFileError(
                    f"in {storage.url}/{folder}/{handle.path}, {wrong} elements of "
                    f"{entry.state} have another subtask or position than the manifest says; "
                    "restore an older checkpoint, or recover the file from a backup"
                )
            first += batch.num_rows
            yield batch


def count_misplaced(batch: pa.RecordBatch, counts: Sequence[int], first: int) -> int:
    """Return the number of elements at other places than ``counts``, by old subtask, gives them.

    ``first`` is the number of earlier elements (I7, I11).
    """
    rows: int = batch.num_rows
    columns = batch.column(SUBTASK), batch.column(POSITION)
    if any(column.null_count for column in columns):
        return rows
    places = np.arange(first, first + rows)
    starts = np.concatenate(([0], np.cumsum(counts)))
    # After the last element, the subtask's number would be too large.
    subtasks = np.searchsorted(starts, places, side="right") - 1
    subtask, position = map(np.asarray, columns)
    here = (subtask == subtasks) & (position == places - starts[subtasks])
    return rows - int(here.sum())


def _values(name: str, values: Any) -> list[Any]:
    """Return the wanted values as a list, since an iterator could only serve one batch."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgumentError(
            f"where={{{name!r}: {values!r}}}: pass a list of the values to keep"
        )
    return list(values)


def _select_rows(batch: pa.RecordBatch, where: Mapping[str, list[Any]]) -> pa.RecordBatch:
    for name, values in where.items():
        column = batch.column(name)
        try:
            wanted = column_of(values, column.type, name=name, subject=f"where={{{name!r}: …}}")
            batch = batch.filter(pc.is_in(column, value_set=wanted))
        except (pa.ArrowException, InvalidArgumentError) as error:
            raise InvalidArgumentError(
                f"where={{{name!r}: …}}: the column has type {arrow_type_text(column.type)}, which "
                f"cannot be compared with these values: {error}"
            ) from error
    return batch


def stored_schema(schema: Schema) -> pa.Schema:
    """Return an operator state's file schema: ``subtask``, ``position``, and its columns."""
    place = [pa.field(SUBTASK, pa.int32()), pa.field(POSITION, pa.int64())]
    return pa.schema([*place, *arrow_schema(schema)])


def _with_place(rows: pa.Table, subtasks: npt.ArrayLike, positions: npt.ArrayLike) -> pa.Table:
    refuse_reserved(rows.schema.names, "the elements", RESERVED_ELEMENT_COLUMNS)
    for name, type_, values in (
        (POSITION, pa.int64(), positions),
        (SUBTASK, pa.int32(), subtasks),
    ):
        rows = rows.add_column(0, name, pa.array(np.asarray(values, dtype=np.int64)).cast(type_))
    return rows


def _elements(elements: Any, place: str) -> Iterable[Any]:
    if isinstance(elements, Iterable) and not isinstance(elements, Mapping | str | bytes):
        return elements
    raise InvalidArgumentError(
        f"the elements of {place} must be a list, which can be empty, not {elements!r:.80}"
    )


def _as_dict(element: Any, place: str) -> dict[str, Any]:
    """Return an element as a dictionary. Raises InvalidArgumentError, which names its place."""
    if is_dataclass(element) and not isinstance(element, type):
        return asdict(element)
    if isinstance(element, Mapping):
        return dict(element)
    raise InvalidArgumentError(
        f"{place} must be a dictionary or a dataclass, not {type(element).__name__}"
    )
