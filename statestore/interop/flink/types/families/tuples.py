"""Tuples: their fields, one after another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import utf
from statestore.interop.flink.metadata.snapshot_format import FLINK, RUNTIME
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.decode import build_struct, number_fields
from statestore.interop.flink.types.encode import write_fields
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
    nested_hashes,
    short_name,
    total_width,
)
from statestore.interop.flink.types.families.key_hash import HashCodes, KeyHash, struct_hash
from statestore.interop.flink.types.families.scalar import Scalar
from statestore.interop.flink.types.value_lengths import Skip, make_sequence_skip

_SNAPSHOT = f"{RUNTIME}TupleSerializerSnapshot"
_JOIN = f"{FLINK}streaming.api.operators.co.IntervalJoinOperator$BufferEntry"
_JOIN_SNAPSHOT = f"{_JOIN}SerializerSnapshot"


@dataclass(frozen=True, slots=True)
class FieldsType(FlinkType):
    """A class whose values are its fields, one after another, none of which has a null flag."""

    class_name: str
    fields: tuple[FlinkType, ...]

    def _java_name(self) -> str:
        return generic_name(short_name(self.class_name), *self.fields)

    def _serializer_length(self) -> int | None:
        return total_width([field.serializer_length for field in self.fields])

    def _fixed_width(self) -> int | None:
        return total_width([field.fixed_width for field in self.fields])

    def _column_count(self) -> int:
        return sum(field.column_count for field in self.fields)

    def _arrow_type(self) -> pa.DataType:
        return pa.struct(number_fields(self.fields))

    def _skipper(self) -> Skip:
        return make_sequence_skip(*(field.skipper() for field in self.fields))

    def _read(self, cursor: Cursor) -> pa.Array:
        return build_struct([field.read(cursor) for field in self.fields], self.arrow_type())

    def _write(self, array: pa.Array) -> pa.Array:
        return write_fields(array, self.fields)


@dataclass(frozen=True, slots=True)
class TupleType(FieldsType):
    """A ``Tuple1`` to ``Tuple25``, or a Scala-free subclass of one."""

    def _key_hash(self) -> KeyHash | None:
        parts = nested_hashes(self.fields)
        return None if parts is None else struct_hash(f"Tuple{len(self.fields)}", parts)

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        parts = zip(self.fields, column.flatten(), strict=True)
        first, *others = (field.hash_codes(values) for field, values in parts)
        for codes in others:
            first = first * np.int32(31) + codes
        return first

    def _snapshot(self) -> bytes:
        if self.class_name == _JOIN:
            return encode_parts(_JOIN_SNAPSHOT, 1, b"", self.fields[1])
        return encode_parts(_SNAPSHOT, 2, utf(self.class_name), *self.fields)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_SNAPSHOT: _parse_tuple, _JOIN_SNAPSHOT: _parse_join_entry}


def _parse_tuple(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return TupleType(snapshot.reader.utf(), snapshot.fields())


def _parse_join_entry(snapshot: SnapshotReader) -> FlinkType:
    """Read ``IntervalJoinOperator.BufferEntry``: a flag that it was joined, and the element."""
    snapshot.outer_version()
    return TupleType(_JOIN, (Scalar("Boolean"), snapshot.part()))
