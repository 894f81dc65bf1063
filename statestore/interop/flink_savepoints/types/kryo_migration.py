"""Values that Kryo 2 of Flink 1 wrote, and that are written for Kryo 5 of Flink 2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from statestore.interop.flink_savepoints.metadata.java_binary import Reader
from statestore.interop.flink_savepoints.metadata.snapshot_format import read_optional_map
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor
from statestore.interop.flink_savepoints.types.byte_slices import BYTES
from statestore.interop.flink_savepoints.types.encode import refuse_nulls
from statestore.interop.flink_savepoints.types.families.base import (
    FlinkType,
    SnapshotReaders,
    replace_parts,
)
from statestore.interop.flink_savepoints.types.families.kryo import KryoType
from statestore.interop.flink_savepoints.types.families.kryo_keys import KryoKeyType
from statestore.interop.flink_savepoints.types.families.undecoded import read_slices
from statestore.interop.flink_savepoints.types.kryo_conversion import (
    convert_kryo_value,
    skip_kryo_value,
)
from statestore.interop.flink_savepoints.types.value_lengths import Skip

__all__ = ["KRYO_5", "MigratedKryoType", "migrate_kryo", "write_simple_for_kryo_5"]

KRYO_5 = 5
"""The version of Kryo in Flink 2."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MigratedKryoType(FlinkType):
    """A class that Kryo serializes: read as Flink 1 wrote it, and written for Flink 2.

    The column has the bytes of Flink 1. ``registered`` are the classes that the job registered.
    """

    class_name: str
    registered: tuple[str, ...]

    def _java_name(self) -> str:
        return f"Kryo<{self.class_name}>"

    def _arrow_type(self) -> pa.DataType:
        return pa.binary()

    def _skipper(self) -> Skip:
        return lambda reader: skip_kryo_value(reader, self.registered)

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_slices(cursor, self.skipper())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        name = f"a value of {self.java_name}"
        converted = (
            convert_kryo_value(value, self.registered, name) for value in array.to_pylist()
        )
        return pa.array(converted, BYTES)

    def _snapshot(self) -> bytes:
        raise AssertionError("the snapshots of Flink 1 are also those of Flink 2")

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {}


def migrate_kryo(part: T) -> T:
    """Return a type, or a part of one, with each class that Kryo serializes migrated."""

    def migrate(kryo: object) -> FlinkType | None:
        if not isinstance(kryo, KryoType):
            return None
        return MigratedKryoType(kryo.class_name, _registered_classes(kryo.body))

    return replace_parts(part, migrate)


def write_simple_for_kryo_5(part: T) -> T:
    """Return a type, or a part of one, whose values of simple classes are written by Kryo 5."""

    def migrate(simple: object) -> FlinkType | None:
        return replace(simple, kryo=KRYO_5) if isinstance(simple, KryoKeyType) else None

    return replace_parts(part, migrate)


def _registered_classes(body: bytes) -> tuple[str, ...]:
    """Return the classes with a number of the job, which are the first map of a snapshot."""
    registrations = read_optional_map(Reader(body, "a snapshot of KryoSerializer"))
    return tuple(name for name, _, _ in registrations)
