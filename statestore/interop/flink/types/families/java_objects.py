"""Objects that Java serializes: the elements of operator state for which a job declares no type."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink.metadata.java_objects import skip_java_object
from statestore.interop.flink.metadata.snapshot_format import FLINK, encode_simple, inner_class
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES
from statestore.interop.flink.types.encode import refuse_nulls
from statestore.interop.flink.types.families.base import FlinkType, SnapshotReader, SnapshotReaders
from statestore.interop.flink.types.families.undecoded import read_slices
from statestore.interop.flink.types.value_lengths import Skip

_SNAPSHOT = inner_class(f"{FLINK}runtime.state.", "JavaSerializer")


@dataclass(frozen=True, slots=True)
class JavaObjectType(FlinkType):
    """An object of any class that is ``Serializable``, as a stream of Java's serialization.

    The column has the bytes of the stream, also for a text or a number: the snapshot does not tell
    the class, which can differ between elements. The bytes are exported unchanged.
    """

    def _java_name(self) -> str:
        return "Serializable"

    def _arrow_type(self) -> pa.DataType:
        return pa.binary()

    def _skipper(self) -> Skip:
        return skip_java_object

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_slices(cursor, skip_java_object)

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return array.cast(BYTES)

    def _snapshot(self) -> bytes:
        return encode_simple(_SNAPSHOT)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_SNAPSHOT: _parse_java_object}


def _parse_java_object(snapshot: SnapshotReader) -> FlinkType:
    snapshot.simple_body(_SNAPSHOT)
    return JavaObjectType()
