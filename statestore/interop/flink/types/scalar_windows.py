"""Namespaces of windows, and types with a single value."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.snapshot_format import (
    BASE,
    DATAVIEW,
    FLINK,
    RUNTIME,
    inner_class,
)
from statestore.interop.flink.types.arrow_types import WINDOW
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import join_parts
from statestore.interop.flink.types.encode import (
    make_number_writer,
    matrix_bytes,
    refuse_nulls,
    write_numbers,
)
from statestore.interop.flink.types.scalar_form import ScalarForm, Width
from statestore.interop.flink.types.scalar_numbers import make_number_reader
from statestore.interop.flink.types.value_lengths import make_fixed_skip

_WINDOWS = f"{FLINK}streaming.api.windowing.windows."
_SQL_WINDOWS = f"{FLINK}table.runtime.operators.window."


def _read_nothing(cursor: Cursor) -> pa.Array:
    """Skip the one byte of ``VoidSerializer``, ``VoidNamespaceSerializer`` or a global window."""
    cursor.take(1)
    return pa.nulls(len(cursor))


def _read_windows(cursor: Cursor) -> pa.Array:
    start, end = (pa.array(cursor.numbers(">i8")) for _ in range(2))
    return pa.StructArray.from_arrays([start, end], fields=list(WINDOW))


def _write_nothing(array: pa.Array) -> pa.Array:
    return matrix_bytes(np.zeros((len(array), 1), np.uint8))


def _write_tuple0(array: pa.Array) -> pa.Array:
    return matrix_bytes(np.full((len(array), 1), 42, np.uint8))


def _write_windows(array: pa.Array) -> pa.Array:
    refuse_nulls(array)
    return join_parts(*(write_numbers(column, ">i8") for column in array.flatten()))


WINDOWS = (
    ScalarForm(
        "Void",
        inner_class(BASE, "VoidSerializer"),
        pa.null(),
        Width(1),
        _read_nothing,
        _write_nothing,
    ),
    ScalarForm(
        "Null",
        inner_class(DATAVIEW, "NullSerializer"),
        pa.null(),
        Width(1),
        _read_nothing,
        _write_nothing,
    ),
    # Its getLength is 0, but it writes one byte.
    ScalarForm(
        "VoidNamespace",
        inner_class(f"{FLINK}runtime.state.", "VoidNamespaceSerializer"),
        pa.null(),
        Width(1, serializer_length=0),
        _read_nothing,
        _write_nothing,
    ),
    ScalarForm(
        "GlobalWindow",
        f"{_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
        pa.null(),
        Width(1),
        _read_nothing,
        _write_nothing,
    ),
    ScalarForm(
        "SqlGlobalWindow",
        f"{_SQL_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
        pa.null(),
        Width(1),
        _read_nothing,
        _write_nothing,
    ),
    ScalarForm(
        "Tuple0",
        f"{RUNTIME}Tuple0SerializerSnapshot",
        pa.null(),
        make_fixed_skip(1),
        _read_nothing,
        _write_tuple0,
    ),
    ScalarForm(
        "TimeWindow",
        f"{_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
        WINDOW,
        Width(16),
        _read_windows,
        _write_windows,
    ),
    ScalarForm(
        "SqlTimeWindow",
        f"{_SQL_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
        WINDOW,
        Width(16),
        _read_windows,
        _write_windows,
    ),
    ScalarForm(
        "CountWindow",
        f"{_SQL_WINDOWS}CountWindow$Serializer$CountWindowSerializerSnapshot",
        pa.int64(),
        Width(8),
        make_number_reader(">i8"),
        make_number_writer(">i8"),
    ),
)
