"""Classes whose values this package cannot read: their serializers are part of the job."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.interop.flink_savepoints.metadata.java_binary import i32, utf
from statestore.interop.flink_savepoints.metadata.snapshot_format import RUNTIME, read_optional_map
from statestore.interop.flink_savepoints.types.families.base import (
    FlinkType,
    OpaqueType,
    SnapshotReader,
    SnapshotReaders,
    short_name,
)

__all__ = ["KryoType", "UnknownType"]

_KRYO = f"{RUNTIME}kryo.KryoSerializerSnapshot"


@dataclass(frozen=True, slots=True)
class KryoType(OpaqueType):
    """A class that Kryo serializes. ``body`` is its snapshot; its values stay bytes."""

    class_name: str
    body: bytes

    def _java_name(self) -> str:
        return f"Kryo<{self.class_name}>"

    def _snapshot(self) -> bytes:
        return utf(_KRYO) + i32(2) + utf(self.class_name) + self.body

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_KRYO: _parse_kryo}


@dataclass(frozen=True, slots=True)
class UnknownType(OpaqueType):
    """An unsupported class whose snapshot has a known end; its values stay bytes."""

    class_name: str
    body: bytes

    def _java_name(self) -> str:
        return short_name(self.class_name)

    def _snapshot(self) -> bytes:
        return utf(self.class_name) + self.body

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {}  # any class whose snapshot has only nested snapshots becomes this type


def _parse_kryo(snapshot: SnapshotReader) -> FlinkType:
    """Skip three maps, whose entries have lengths (``KryoSerializerSnapshotData``)."""
    class_name = snapshot.reader.utf()
    begin = snapshot.reader.position
    for _ in range(3):
        read_optional_map(snapshot.reader)
    return KryoType(class_name, snapshot.bytes_since(begin))
