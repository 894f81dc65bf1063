"""Elements of a stream that an operator keeps: records, with or without a time, and watermarks.

``StreamElementSerializer`` writes a byte for the sort of element, the time and the record's value.
Operators that call other services keep their pending records in this form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.metadata.snapshot_format import FLINK, inner_class
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import join_parts
from statestore.interop.flink.types.decode import build_struct, read_non_null
from statestore.interop.flink.types.encode import (
    find_valid,
    matrix_bytes,
    refuse_nulls,
    write_where,
)
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
)
from statestore.interop.flink.types.families.scalar import Scalar
from statestore.interop.flink.types.value_lengths import Skip

_SNAPSHOT = inner_class(f"{FLINK}streaming.runtime.streamrecord.", "StreamElementSerializer")
_TIMED, _UNTIMED, _WATERMARK = range(3)
_LONG = Scalar("Long")


@dataclass(frozen=True, slots=True)
class StreamElementType(FlinkType):
    """A record of a stream, or a watermark, which has a time but no value."""

    value: FlinkType

    def _java_name(self) -> str:
        return generic_name("StreamElement", self.value)

    def _column_count(self) -> int:
        return 1 + self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return pa.struct({"timestamp": pa.int64(), "value": self.value.arrow_type()})

    def _skipper(self) -> Skip:
        skip_value = self.value.skipper()

        def skip(reader: Reader) -> None:
            tag = reader.u8()
            _refuse_other(tag)
            if tag != _UNTIMED:
                reader.take(8)
            if tag != _WATERMARK:
                skip_value(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        tags = cursor.take(1)[:, 0]
        _refuse_other(int(tags.max(initial=0)))
        times = read_non_null(tags == _UNTIMED, _LONG, 0, cursor)
        values = read_non_null(tags == _WATERMARK, self.value, 0, cursor)
        return build_struct([times, values], self.arrow_type())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        times, values = array.flatten()
        has_time, has_value = find_valid(times), find_valid(values)
        # A watermark without a time is refused as a null number.
        timed = has_time | ~has_value
        tags = np.where(has_value, np.where(has_time, _TIMED, _UNTIMED), _WATERMARK)
        return join_parts(
            matrix_bytes(tags.astype(np.uint8)[:, np.newaxis]),
            write_where(times, timed, _LONG),
            write_where(values, has_value, self.value),
        )

    def _snapshot(self) -> bytes:
        return encode_parts(_SNAPSHOT, 2, b"", self.value)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_SNAPSHOT: _parse_stream_element}


def _refuse_other(tag: int) -> None:
    if tag > _WATERMARK:
        raise UnsupportedTypeError(
            f"a stream element of kind {tag} is neither a record nor a watermark: leave "
            "the state out"
        )


def _parse_stream_element(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return StreamElementType(snapshot.part())
