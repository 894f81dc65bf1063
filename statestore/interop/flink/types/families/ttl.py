"""Values with the time of their last access."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import i8, i32, utf
from statestore.interop.flink.metadata.snapshot_format import FLINK
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.encode import write_fields
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    WrapperType,
    encode_parts,
    generic_name,
    total_width,
)
from statestore.interop.flink.types.families.scalar import Scalar
from statestore.interop.flink.types.value_lengths import Skip, make_sequence_skip

_TTL = f"{FLINK}runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot"
_TTL_AWARE = f"{FLINK}runtime.state.ttl.TtlAwareSerializerSnapshot"

_STAMP = Scalar("Long")


@dataclass(frozen=True, slots=True)
class TtlType(FlinkType):
    """A value and the time of its last access, in milliseconds since 1970."""

    value: FlinkType

    def _java_name(self) -> str:
        return generic_name("Ttl", self.value)

    def _fixed_width(self) -> int | None:
        return total_width([_STAMP.fixed_width, self.value.fixed_width])

    def _column_count(self) -> int:
        return self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return pa.struct({"last_access": _STAMP.arrow_type(), "value": self.value.arrow_type()})

    def _skipper(self) -> Skip:
        return make_sequence_skip(_STAMP.skipper(), self.value.skipper())

    def _read(self, cursor: Cursor) -> pa.Array:
        parts = [_STAMP.read(cursor), self.value.read(cursor)]
        return pa.StructArray.from_arrays(parts, ["last_access", "value"])

    def _write(self, array: pa.Array) -> pa.Array:
        return write_fields(array, (_STAMP, self.value))

    def _snapshot(self) -> bytes:
        return encode_parts(_TTL, 2, b"", _STAMP, self.value)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_TTL: _parse_ttl}


@dataclass(frozen=True, slots=True)
class TtlAwareType(WrapperType):
    """The element of a list or the value of a map, which may have a TTL."""

    value: FlinkType
    has_ttl: bool

    @property
    def _wrapped(self) -> FlinkType:
        return self.value

    def _snapshot(self) -> bytes:
        return utf(_TTL_AWARE) + i32(1) + i8(self.has_ttl) + self.value.snapshot()

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_TTL_AWARE: _parse_ttl_aware}


def _parse_ttl(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    begin = snapshot.reader.position
    stamp, value = snapshot.pair()
    if stamp != _STAMP:
        raise snapshot.reader.error("the last-access time is not a Long", position=begin)
    return TtlType(value)


def _parse_ttl_aware(snapshot: SnapshotReader) -> FlinkType:
    has_ttl = snapshot.reader.bool()
    return TtlAwareType(snapshot.nested(), has_ttl)
