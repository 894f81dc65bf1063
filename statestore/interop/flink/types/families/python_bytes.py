"""Bytes that PyFlink's coders wrote, with the type that the user declares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.types.byte_cursor import Cursor, list_offsets
from statestore.interop.flink.types.decode import split_elements
from statestore.interop.flink.types.encode import join_runs, list_lengths, refuse_nulls, write_sized
from statestore.interop.flink.types.families.base import FlinkType, SnapshotReaders, generic_name
from statestore.interop.flink.types.value_lengths import Skip, skip_sized


@dataclass(frozen=True, slots=True)
class PythonType(FlinkType):
    """Bytes that PyFlink wrote, with the type that the user declares: one value, or several."""

    value: FlinkType
    many: bool = False

    def _java_name(self) -> str:
        return generic_name("Python", self.value)

    def _arrow_type(self) -> pa.DataType:
        inner = self.value.arrow_type()
        return pa.list_(inner) if self.many else inner

    def _skipper(self) -> Skip:
        return skip_sized

    def _read(self, cursor: Cursor) -> pa.Array:
        """Read a length, then one value, or all values up to the end."""
        lengths = cursor.counts(1)
        inner = Cursor(cursor.spans, cursor.position, cursor.position + lengths)
        cursor.position = inner.end
        if not self.many:
            values = self.value.read(inner)
            inner.refuse(inner.position != inner.end, "unexpected bytes follow a value")
            return values
        starts, counts = split_elements(self.value, inner, between=0)
        values = self.value.read(Cursor(cursor.spans, starts, np.repeat(inner.end, counts)))
        return pa.ListArray.from_arrays(list_offsets(counts), values)

    def _write(self, array: pa.Array) -> pa.Array:
        if not self.many:
            return write_sized(self.value.write(array))
        refuse_nulls(array)
        return write_sized(join_runs(self.value.write(array.flatten()), list_lengths(array)))

    def _snapshot(self) -> bytes:
        raise UnsupportedTypeError(
            f"a savepoint describes values of PyFlink as bytes, so {self.java_name} has no snapshot"
        )

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {}
