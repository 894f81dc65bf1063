"""Columns of a state that are one value in Flink, with the types that follow from the columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from statestore.errors import UnsupportedTypeError
from statestore.format.state import KeyedState, OperatorState
from statestore.interop.flink.exporting.export_types import NO_VALUE, ExportPart
from statestore.interop.flink.types.store_types import FlinkColumn, combine_columns


@contextmanager
def column_in_errors(state: KeyedState | OperatorState, column: str) -> Iterator[None]:
    """Add the operator, state and column to an UnsupportedTypeError."""
    try:
        yield
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"{state}: the column {column!r}: {error}") from error


def build_part(
    names: Sequence[str], columns: Sequence[FlinkColumn], *, as_tuple: bool = False
) -> ExportPart:
    """Return columns as one value; several columns become a ``Row``, or a tuple on request.

    Raises UnsupportedTypeError for a tuple with more fields than Flink supports.
    """
    if not columns:
        return ExportPart((), NO_VALUE)
    column = columns[0] if len(columns) == 1 else combine_columns(columns, names, as_tuple=as_tuple)
    return ExportPart(tuple(names), column.flink_type, column)
