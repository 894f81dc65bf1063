"""Classes whose values this package cannot read: their serializers are part of the job."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.interop.flink.metadata.java_binary import utf
from statestore.interop.flink.types.families.base import OpaqueType, SnapshotReaders, short_name


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
