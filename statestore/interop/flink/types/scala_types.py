"""Types of Flink's Scala API: case classes, collections, enumerations, ``Option`` and ``Try``.

``Either`` of Scala has the layout of Java's, and is in :mod:`.java_types`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import i32, utf
from statestore.interop.flink.metadata.snapshot_format import (
    FIELDS,
    SCALA,
    TEXT,
    composite,
    counted_member,
    plain,
)
from statestore.interop.flink.types.base import (
    FlinkType,
    Layout,
    generic_name,
    short_name,
    total_width,
)
from statestore.interop.flink.types.byte_cursor import BYTES, Cursor, Skip, join_parts
from statestore.interop.flink.types.column_bytes import (
    find_valid,
)
from statestore.interop.flink.types.java_types import constants_layout, present
from statestore.interop.flink.types.key_hash import NONE_HASH, HashCodes, hash_product
from statestore.interop.flink.types.layouts import (
    FLAG,
    Choice,
    Counted,
    Flagged,
    Tagged,
    Unique,
    numbered_struct,
)

__all__ = ["CaseClassType", "OptionType", "ScalaEnumType", "TraversableType", "TryType"]

_MAP_OR_SET = re.compile(r"CanBuildFrom\[[\w.]*(Map|Set)\b")


@dataclass(frozen=True, slots=True)
class CaseClassType(FlinkType):
    """A case class or a tuple of Scala."""

    class_name: str
    fields: tuple[FlinkType, ...]

    snapshots = (
        composite(
            f"{SCALA}ScalaCaseClassSerializerSnapshot", 2, {"class_name": TEXT, "fields": FIELDS}
        ),
    )

    def _java_name(self) -> str:
        return generic_name(short_name(self.class_name), *self.fields)

    def _make_layout(self) -> Layout:
        return numbered_struct(self.fields)

    def _serializer_length(self) -> int | None:
        return total_width(field.serializer_length for field in self.fields)

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        parts = zip(self.fields, column.flatten(), strict=True)
        return hash_product([field.scala_hash_codes(values) for field, values in parts])


@dataclass(frozen=True, slots=True)
class TraversableType(FlinkType):
    """A collection of Scala; ``builder`` is the code that makes the job's collection."""

    builder: str
    element: FlinkType

    snapshots = (
        composite(f"{SCALA}TraversableSerializerSnapshot", 2, {"builder": TEXT}, ("element",)),
    )

    def _make_layout(self) -> Layout:
        found = _MAP_OR_SET.search(self.builder)
        has_keys = found is not None and found[1] == "Map"
        unique: Unique = "" if found is None else "element"
        compared = self.element
        if has_keys and isinstance(self.element, CaseClassType):
            unique, compared = "key", self.element.fields[0]
        return Counted(present(self.element), unique="" if compared.has_identity else unique)


@dataclass(frozen=True, slots=True)
class ScalaEnumType(FlinkType):
    """An ``Enumeration`` of Scala; a value is the id of its constant."""

    class_name: str
    constants: tuple[tuple[str, int], ...]

    snapshots = (
        plain(
            f"{SCALA}ScalaEnumSerializerSnapshot",
            3,
            {
                "class_name": TEXT,
                "constants": counted_member(
                    lambda reader: (reader.utf(), reader.i32()),
                    lambda constant: utf(constant[0]) + i32(constant[1]),
                    least=6,
                    what="constants",
                ),
            },
        ),
    )

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.constants)

    @property
    def _ids(self) -> tuple[int, ...]:
        return tuple(number for _, number in self.constants)

    def _java_name(self) -> str:
        return short_name(self.class_name)

    def _make_layout(self) -> Layout:
        return constants_layout(self.class_name, self._names, self._ids)

    def _serializer_length(self) -> int | None:
        return self.fixed_width

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        ids = pa.array(self._ids, pa.int32())
        found = ids.take(pc.index_in(column, pa.array(self._names, pa.string()))).fill_null(0)
        codes: HashCodes = found.to_numpy(zero_copy_only=False)
        return codes


@dataclass(frozen=True, slots=True)
class OptionType(FlinkType):
    """An ``Option``; ``None`` of Scala is a null in the column."""

    value: FlinkType

    snapshots = (composite(f"{SCALA}ScalaOptionSerializerSnapshot", 2, parts=("value",)),)

    def _make_layout(self) -> Layout:
        problem = f"a {self.java_name} holds a null, which its column cannot tell from an empty one"
        return Flagged(self.value, present=1, null_value=problem)

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        some = hash_product([self.value.scala_hash_codes(column)])
        return np.where(find_valid(column), some, np.int32(NONE_HASH))


@dataclass(frozen=True, slots=True)
class TryType(FlinkType):
    """A ``Try``; the error of a failed one has no columns, because Kryo serializes it."""

    value: FlinkType
    error: FlinkType

    snapshots = (composite(f"{SCALA}ScalaTrySerializerSnapshot", 2, parts=("value", "error")),)

    def _java_name(self) -> str:
        return generic_name("Try", self.value)

    def _column_count(self) -> int:
        return self.value.column_count

    def _arrow_type(self) -> pa.DataType:
        return self.value.arrow_type()

    def _skipper(self) -> Skip:
        sides = Choice("error", self.error, (0,)), Choice("value", self.value, (1,))
        return Tagged(FLAG, sides).skipper()

    def _read(self, cursor: Cursor) -> pa.Array:
        if not bool(cursor.flags().all()):
            raise UnsupportedTypeError(
                f"a {self.java_name} has failed, and its error can only be read as bytes"
            )
        return self.value.read(cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        return join_parts(pa.scalar(b"\1", BYTES), self.value.write(array))
