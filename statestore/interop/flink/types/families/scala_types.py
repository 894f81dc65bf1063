"""Types of Flink's Scala API: case classes, collections, enumerations, ``Option`` and ``Try``.

``Either`` of Scala has the layout of Java's, and is in :mod:`.eithers`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i32, utf
from statestore.interop.flink.metadata.snapshot_format import SCALA
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES, join_parts
from statestore.interop.flink.types.decode import read_non_null
from statestore.interop.flink.types.encode import (
    choose_bytes,
    find_valid,
    refuse_nulls,
    refuse_repeated,
    write_numbers,
    write_where,
)
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
    short_name,
)
from statestore.interop.flink.types.families.key_hash import HashCodes
from statestore.interop.flink.types.families.lists import PresentElementsType
from statestore.interop.flink.types.families.scala_hash import NONE_HASH, hash_product
from statestore.interop.flink.types.families.tuples import FieldsType
from statestore.interop.flink.types.value_lengths import Skip, make_fixed_skip, make_flagged_skip

_CASE_CLASS = f"{SCALA}ScalaCaseClassSerializerSnapshot"
_TRAVERSABLE = f"{SCALA}TraversableSerializerSnapshot"
_ENUM = f"{SCALA}ScalaEnumSerializerSnapshot"
_OPTION = f"{SCALA}ScalaOptionSerializerSnapshot"
_TRY = f"{SCALA}ScalaTrySerializerSnapshot"
_ENUM_VERSION = 3
_ENUM_WIDTH = 4
_MAP_OR_SET = re.compile(r"CanBuildFrom\[[\w.]*(Map|Set)\b")


@dataclass(frozen=True, slots=True)
class CaseClassType(FieldsType):
    """A case class or a tuple of Scala."""

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        parts = zip(self.fields, column.flatten(), strict=True)
        return hash_product([field.scala_hash_codes(values) for field, values in parts])

    def _snapshot(self) -> bytes:
        return encode_parts(_CASE_CLASS, 2, utf(self.class_name), *self.fields)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_CASE_CLASS: _parse_case_class}


@dataclass(frozen=True, slots=True)
class TraversableType(PresentElementsType):
    """A collection of Scala; ``builder`` is the code that makes the job's collection."""

    builder: str
    element: FlinkType

    def _java_name(self) -> str:
        return generic_name("Traversable", self.element)

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        found, values, what = (
            _MAP_OR_SET.search(self.builder),
            array.flatten(),
            "a set has the element",
        )
        element = self.element
        if found is not None and found[1] == "Map" and isinstance(element, CaseClassType):
            element, values, what = element.fields[0], values.field(0), "a map has the key"
        if found is not None and not element.has_identity:
            refuse_repeated(array, values, what)
        return PresentElementsType._write(self, array)

    def _snapshot(self) -> bytes:
        return encode_parts(_TRAVERSABLE, 2, utf(self.builder), self.element)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_TRAVERSABLE: _parse_traversable}


@dataclass(frozen=True, slots=True)
class ScalaEnumType(FlinkType):
    """An ``Enumeration`` of Scala; a value is the id of its constant."""

    class_name: str
    constants: tuple[tuple[str, int], ...]

    @property
    def _names(self) -> pa.Array:
        return pa.array([name for name, _ in self.constants], pa.string())

    @property
    def _ids(self) -> pa.Array:
        return pa.array([number for _, number in self.constants], pa.int32())

    def _java_name(self) -> str:
        return short_name(self.class_name)

    def _serializer_length(self) -> int | None:
        return _ENUM_WIDTH

    def _fixed_width(self) -> int | None:
        return _ENUM_WIDTH

    def _arrow_type(self) -> pa.DataType:
        return pa.string()

    def _skipper(self) -> Skip:
        return make_fixed_skip(_ENUM_WIDTH)

    def _read(self, cursor: Cursor) -> pa.Array:
        ids = pa.array(cursor.numbers(">i4").astype(np.int32), pa.int32())
        index = pc.index_in(ids, self._ids)
        unknown = index.is_null().to_numpy(zero_copy_only=False)
        cursor.refuse(unknown, f"{self.class_name} has no constant with such an id")
        return self._names.take(index)

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        ids = self._ids.take(pc.index_in(column, self._names)).fill_null(0)
        codes: HashCodes = ids.to_numpy(zero_copy_only=False)
        return codes

    def _write(self, array: pa.Array) -> pa.Array:
        return write_numbers(self._ids.take(pc.index_in(array, self._names)), ">i4")

    def _snapshot(self) -> bytes:
        constants = b"".join(utf(name) + i32(number) for name, number in self.constants)
        head = utf(_ENUM) + i32(_ENUM_VERSION) + utf(self.class_name)
        return head + i32(len(self.constants)) + constants

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_ENUM: _parse_enum}


@dataclass(frozen=True, slots=True)
class OptionType(FlinkType):
    """An ``Option``; ``None`` of Scala is a null in the column."""

    value: FlinkType

    def _java_name(self) -> str:
        return generic_name("Option", self.value)

    def _column_count(self) -> int:
        return self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return self.value.arrow_type()

    def _skipper(self) -> Skip:
        return make_flagged_skip(self.value.skipper(), skips_if=True)

    def _read(self, cursor: Cursor) -> pa.Array:
        is_set = cursor.flags()
        values = read_non_null(~is_set, self.value, 0, cursor)
        if values.null_count > int((~is_set).sum()):
            raise UnsupportedTypeError(
                f"a {self.java_name} holds a null, which its column cannot tell from an empty one"
            )
        return values

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        some = hash_product([self.value.scala_hash_codes(column)])
        return np.where(find_valid(column), some, np.int32(NONE_HASH))

    def _write(self, array: pa.Array) -> pa.Array:
        is_set = find_valid(array)
        flags = choose_bytes(is_set, b"\1", b"\0")
        return join_parts(flags, write_where(array, is_set, self.value))

    def _snapshot(self) -> bytes:
        return encode_parts(_OPTION, 2, b"", self.value)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_OPTION: _parse_option}


@dataclass(frozen=True, slots=True)
class TryType(FlinkType):
    """A ``Try``; the error of a failed one has no columns, because Kryo serializes it."""

    value: FlinkType
    error: FlinkType

    def _java_name(self) -> str:
        return generic_name("Try", self.value)

    def _column_count(self) -> int:
        return self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return self.value.arrow_type()

    def _skipper(self) -> Skip:
        skip_value = self.value.skipper()

        def skip(reader: Reader) -> None:
            if reader.bool():
                skip_value(reader)
            else:
                self.error.skipper()(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        if not bool(cursor.flags().all()):
            raise UnsupportedTypeError(
                f"a {self.java_name} has failed, and its error can only be read as bytes"
            )
        return self.value.read(cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        return join_parts(pa.scalar(b"\1", BYTES), self.value.write(array))

    def _snapshot(self) -> bytes:
        return encode_parts(_TRY, 2, b"", self.value, self.error)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_TRY: _parse_try}


def _parse_case_class(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return CaseClassType(snapshot.reader.utf(), snapshot.fields())


def _parse_traversable(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return TraversableType(snapshot.reader.utf(), snapshot.part())


def _parse_enum(snapshot: SnapshotReader) -> FlinkType:
    reader = snapshot.reader
    class_name = reader.utf()
    constants = [(reader.utf(), reader.i32()) for _ in range(reader.count(6, "constants"))]
    return ScalaEnumType(class_name, tuple(constants))


def _parse_option(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return OptionType(snapshot.part())


def _parse_try(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return TryType(*snapshot.pair())
