"""Timers: their time, their key and their namespace."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink.metadata.snapshot_format import FLINK
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import join_parts
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
    total_width,
)
from statestore.interop.flink.types.families.scalar import Scalar
from statestore.interop.flink.types.value_lengths import Skip, make_sequence_skip

_SNAPSHOT_CLASS = f"{FLINK}streaming.api.operators.TimerSerializerSnapshot"

_TIME = Scalar("SortedLong")
"""The time has its sign bit flipped, so that bytes sort by time (``TimerSerializer``)."""


@dataclass(frozen=True, slots=True)
class TimerType(FlinkType):
    """A timer of a key and a namespace."""

    key: FlinkType
    namespace: FlinkType

    @property
    def _parts(self) -> tuple[FlinkType, ...]:
        return _TIME, self.key, self.namespace

    def _java_name(self) -> str:
        return generic_name("Timer", self.key, self.namespace)

    def _fixed_width(self) -> int | None:
        return total_width([part.fixed_width for part in self._parts])

    def _arrow_type(self) -> pa.DataType:
        names = ("time", "key", "namespace")
        return pa.struct(
            [
                pa.field(name, part.arrow_type())
                for name, part in zip(names, self._parts, strict=True)
            ]
        )

    def _skipper(self) -> Skip:
        return make_sequence_skip(*(part.skipper() for part in self._parts))

    def _read(self, cursor: Cursor) -> pa.Array:
        parts = [part.read(cursor) for part in self._parts]
        return pa.StructArray.from_arrays(parts, ["time", "key", "namespace"])

    def _write(self, array: pa.Array) -> pa.Array:
        columns = zip(array.flatten(), self._parts, strict=True)
        return join_parts(*(part.write(column) for column, part in columns))

    def _snapshot(self) -> bytes:
        return encode_parts(_SNAPSHOT_CLASS, 2, b"", self.key, self.namespace)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_SNAPSHOT_CLASS: _parse_timer}


def _parse_timer(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return TimerType(*snapshot.pair())
