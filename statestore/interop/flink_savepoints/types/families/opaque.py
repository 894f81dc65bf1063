"""Classes whose values this package cannot read: their serializers are part of the job."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.interop.flink_savepoints.types.families.base import OpaqueType, short_name

__all__ = ["KryoType", "UnknownType"]


@dataclass(frozen=True, slots=True)
class KryoType(OpaqueType):
    """A class that Kryo serializes. ``body`` is its snapshot; its values stay bytes."""

    class_name: str
    body: bytes

    def _java_name(self) -> str:
        return f"Kryo<{self.class_name}>"


@dataclass(frozen=True, slots=True)
class UnknownType(OpaqueType):
    """An unsupported class whose snapshot has a known end; its values stay bytes."""

    class_name: str
    body: bytes

    def _java_name(self) -> str:
        return short_name(self.class_name)
