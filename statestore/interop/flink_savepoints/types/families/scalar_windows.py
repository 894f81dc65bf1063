"""Namespaces of windows, and types with a single value."""

from __future__ import annotations

import pyarrow as pa

from statestore.interop.flink_savepoints.types.arrow_types import WINDOW
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor
from statestore.interop.flink_savepoints.types.families.scalar_form import ScalarForm, Width
from statestore.interop.flink_savepoints.types.families.scalar_numbers import make_number_reader
from statestore.interop.flink_savepoints.types.value_lengths import make_fixed_skip

__all__ = ["WINDOWS"]


def _read_nothing(cursor: Cursor) -> pa.Array:
    """Skip the one byte of ``VoidSerializer``, ``VoidNamespaceSerializer`` or a global window."""
    cursor.take(1)
    return pa.nulls(len(cursor))


def _read_windows(cursor: Cursor) -> pa.Array:
    start, end = (pa.array(cursor.numbers(">i8")) for _ in range(2))
    return pa.StructArray.from_arrays([start, end], fields=list(WINDOW))


WINDOWS = (
    ScalarForm("Void", pa.null(), Width(1), _read_nothing),
    ScalarForm("Null", pa.null(), Width(1), _read_nothing),
    # Its getLength is 0, but it writes one byte.
    ScalarForm("VoidNamespace", pa.null(), Width(1, serializer_length=0), _read_nothing),
    ScalarForm("GlobalWindow", pa.null(), Width(1), _read_nothing),
    ScalarForm("SqlGlobalWindow", pa.null(), Width(1), _read_nothing),
    ScalarForm("Tuple0", pa.null(), make_fixed_skip(1), _read_nothing),
    ScalarForm("TimeWindow", WINDOW, Width(16), _read_windows),
    ScalarForm("SqlTimeWindow", WINDOW, Width(16), _read_windows),
    ScalarForm("CountWindow", pa.int64(), Width(8), make_number_reader(">i8")),
)
