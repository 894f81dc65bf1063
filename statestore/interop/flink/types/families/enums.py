"""Enums: the index of a constant."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import i32, utf
from statestore.interop.flink.metadata.snapshot_format import BASE, inner_class
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.encode import refuse_nulls, write_numbers
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    short_name,
)
from statestore.interop.flink.types.families.key_hash import HashCodes
from statestore.interop.flink.types.value_lengths import Skip, make_fixed_skip

_SNAPSHOT_CLASS = inner_class(BASE, "EnumSerializer")

_WIDTH = 4


@dataclass(frozen=True, slots=True)
class EnumType(FlinkType):
    """An enum; a value is the index of its constant."""

    class_name: str
    constants: tuple[str, ...]

    def _java_name(self) -> str:
        return short_name(self.class_name)

    def _serializer_length(self) -> int | None:
        return _WIDTH

    def _fixed_width(self) -> int | None:
        return _WIDTH

    def _arrow_type(self) -> pa.DataType:
        return pa.string()

    def _skipper(self) -> Skip:
        return make_fixed_skip(_WIDTH)

    def _read(self, cursor: Cursor) -> pa.Array:
        numbers = cursor.numbers(">i4")
        wrong = (numbers < 0) | (numbers >= len(self.constants))
        cursor.refuse(wrong, f"{self.class_name} has no such constant")
        return pa.array(self.constants, pa.string()).take(pa.array(numbers))

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        raise UnsupportedTypeError(
            f"the hashes of the constants of the enum {self.java_name} differ in every Java "
            "process, so no recipe can compute them"
        )

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        places = pc.index_in(array, pa.array(self.constants, pa.string()))
        if places.null_count:
            example = array.filter(places.is_null())[0]
            raise InvalidArgumentError(
                f"{self.java_name} has no constant {str(example)!r}; the constants are "
                f"{', '.join(self.constants)}"
            )
        return write_numbers(places, ">i4")

    def _snapshot(self) -> bytes:
        names = b"".join(map(utf, self.constants))
        head = utf(_SNAPSHOT_CLASS) + i32(3) + utf(self.class_name)
        return head + i32(len(self.constants)) + names

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_SNAPSHOT_CLASS: _parse_enum}


def _parse_enum(snapshot: SnapshotReader) -> FlinkType:
    reader = snapshot.reader
    class_name = reader.utf()
    constants = tuple(reader.utf() for _ in range(reader.count(2, "constants")))
    return EnumType(class_name, constants)
