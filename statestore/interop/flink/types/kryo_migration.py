"""Values that Kryo 2 of Flink 1 wrote, and that are written for Kryo 5 of Flink 2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES
from statestore.interop.flink.types.encode import refuse_nulls
from statestore.interop.flink.types.families.base import FlinkType, SnapshotReaders, replace_parts
from statestore.interop.flink.types.families.kryo import KryoType
from statestore.interop.flink.types.families.kryo_keys import KryoKeyType
from statestore.interop.flink.types.families.undecoded import read_slices
from statestore.interop.flink.types.kryo_conversion import convert_kryo_value, read_kryo_object
from statestore.interop.flink.types.kryo_objects import KRYO_5, KryoClasses
from statestore.interop.flink.types.value_lengths import Skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MigratedKryoType(FlinkType):
    """A class that Kryo serializes: its column has bytes of Flink 1, and is written for Flink 2."""

    class_name: str
    classes: KryoClasses

    def _java_name(self) -> str:
        return f"Kryo<{self.class_name}>"

    def _arrow_type(self) -> pa.DataType:
        return pa.binary()

    def _skipper(self) -> Skip:
        def skip(reader: Reader) -> None:
            read_kryo_object(reader, self.classes)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_slices(cursor, self.skipper())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        name = f"a value of {self.java_name}"
        converted = (convert_kryo_value(value, self.classes, name) for value in array.to_pylist())
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
        return MigratedKryoType(kryo.class_name, kryo.classes)

    return replace_parts(part, migrate)


def write_for_kryo_5(part: T) -> T:
    """Return a type, or a part of one, whose values Kryo 5 writes instead of Kryo 2."""

    def migrate(nested: Any) -> FlinkType | None:
        is_known = isinstance(nested, KryoKeyType | KryoType) and nested.kryo is not None
        return replace(nested, kryo=KRYO_5) if is_known else None

    return replace_parts(part, migrate)
