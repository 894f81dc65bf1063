"""A value of one of two types, after a flag or a tag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.metadata.snapshot_format import FLINK, RUNTIME, SCALA
from statestore.interop.flink.types.byte_cursor import Cursor, Rows
from statestore.interop.flink.types.byte_slices import join_parts
from statestore.interop.flink.types.decode import read_non_null
from statestore.interop.flink.types.encode import choose_bytes, write_where
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
)
from statestore.interop.flink.types.families.key_hash import HashCodes, hash_column
from statestore.interop.flink.types.families.scala_hash import hash_product
from statestore.interop.flink.types.value_lengths import Skip

_SNAPSHOTS = {
    "Either": f"{RUNTIME}JavaEitherSerializerSnapshot",
    "ScalaEither": f"{SCALA}ScalaEitherSerializerSnapshot",
    "TaggedUnion": f"{FLINK}streaming.api.datastream.CoGroupedStreams$UnionSerializerSnapshot",
}


@dataclass(frozen=True, slots=True)
class EitherType(FlinkType):
    """An ``Either`` of two types; ``TaggedUnion`` is the form of a window join of two streams."""

    left: FlinkType
    right: FlinkType
    form: Literal["Either", "ScalaEither", "TaggedUnion"] = "Either"

    @property
    def _is_tagged(self) -> bool:
        """Whether a value begins with the tag 1 or 2 (``UnionSerializer``) instead of a flag."""
        return self.form == "TaggedUnion"

    def _java_name(self) -> str:
        return generic_name(self.form.removeprefix("Scala"), self.left, self.right)

    def _column_count(self) -> int:
        return 1 + self.left.column_count + self.right.column_count

    def _arrow_type(self) -> pa.DataType:
        sides = {"left": self.left.arrow_type(), "right": self.right.arrow_type()}
        return pa.struct({"is_left": pa.bool_(), **sides})

    def _skipper(self) -> Skip:
        skip_left, skip_right, is_tagged = (
            self.left.skipper(),
            self.right.skipper(),
            self._is_tagged,
        )

        def skip(reader: Reader) -> None:
            is_left = reader.u8() == 1 if is_tagged else reader.bool()
            (skip_left if is_left else skip_right)(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        is_left = _read_tags(cursor) if self._is_tagged else cursor.flags()
        sides = [
            read_non_null(~is_left, self.left, 0, cursor),
            read_non_null(is_left, self.right, 0, cursor),
        ]
        return pa.StructArray.from_arrays([pa.array(is_left), *sides], ["is_left", "left", "right"])

    def _write(self, array: pa.Array) -> pa.Array:
        is_left, left, right = array.flatten()
        rows = is_left.to_numpy(zero_copy_only=False)
        tags = choose_bytes(rows, b"\1", b"\2" if self._is_tagged else b"\0")
        sides = write_where(left, rows, self.left), write_where(right, ~rows, self.right)
        return join_parts(tags, *sides)

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        if self.form != "ScalaEither":
            return hash_column(self.key_hash(), column)  # whose error names the type
        is_left, left, right = column.flatten()
        rows = is_left.to_numpy(zero_copy_only=False)
        sides = self.left.scala_hash_codes(left), self.right.scala_hash_codes(right)
        return hash_product([np.where(rows, *sides)])

    def _snapshot(self) -> bytes:
        return encode_parts(_SNAPSHOTS[self.form], 1, b"", self.left, self.right)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {
            _SNAPSHOTS["Either"]: _parse_either,
            _SNAPSHOTS["ScalaEither"]: _parse_scala_either,
            _SNAPSHOTS["TaggedUnion"]: _parse_union,
        }


def _read_tags(cursor: Cursor) -> Rows:
    tags = cursor.take(1)[:, 0]
    cursor.refuse((tags != 1) & (tags != 2), "a value belongs to neither of the two streams")
    is_left: Rows = tags == 1
    return is_left


def _parse_either(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return EitherType(*snapshot.pair())


def _parse_scala_either(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return EitherType(*snapshot.pair(), "ScalaEither")


def _parse_union(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return EitherType(*snapshot.pair(), "TaggedUnion")
