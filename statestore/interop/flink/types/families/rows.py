"""Rows: bits for the row kind and for each null field, then the other fields."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import Reader, i8
from statestore.interop.flink.metadata.snapshot_format import RUNTIME, inner_class
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import join_parts
from statestore.interop.flink.types.decode import build_struct, number_fields, read_non_null
from statestore.interop.flink.types.encode import (
    find_valid,
    matrix_bytes,
    refuse_nulls,
    refuse_outside,
    write_where,
)
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
    nested_hashes,
)
from statestore.interop.flink.types.families.key_hash import KeyHash, struct_hash
from statestore.interop.flink.types.value_lengths import Skip

_SNAPSHOT_CLASS = inner_class(RUNTIME, "RowSerializer")

_MOST_KIND = 3
_KIND_BITS = 2
"""The number of bits of a ``RowKind``, which precede the null bits of a row's fields."""


@dataclass(frozen=True, slots=True)
class RowType(FlinkType):
    """A ``Row``; ``has_kind`` is true if the ``RowKind`` precedes the null bits of its values."""

    fields: tuple[FlinkType, ...]
    has_kind: bool = True

    @property
    def _first_bit(self) -> int:
        """The index of the null bit of the first field."""
        return _KIND_BITS if self.has_kind else 0

    def _java_name(self) -> str:
        return generic_name("Row", *self.fields)

    def _has_identity(self) -> bool:
        return False  # its equals compares the elements of arrays

    def _column_count(self) -> int:
        return sum(field.column_count for field in self.fields)

    def _arrow_type(self) -> pa.DataType:
        first = [pa.field("row_kind", pa.int8())] if self.has_kind else []
        return pa.struct(first + number_fields(self.fields))

    def _skipper(self) -> Skip:
        skips = tuple(field.skipper() for field in self.fields)
        first = self._first_bit
        width = (len(skips) + first + 7) // 8

        def skip(reader: Reader) -> None:
            mask = int.from_bytes(reader.take(width), "big")
            for number, skip_field in enumerate(skips, first):
                if not mask >> (8 * width - 1 - number) & 1:
                    skip_field(reader)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        """Read ``RowSerializer``: bits, highest first, for the row kind and for each null field."""
        first = self._first_bit
        mask = cursor.take((len(self.fields) + first + 7) // 8)
        bits = np.unpackbits(mask, axis=1).astype(np.bool_)
        columns = [] if not first else [pa.array((bits[:, 0] + 2 * bits[:, 1]).astype(np.int8))]
        columns += [
            read_non_null(bits[:, first + index], field, 0, cursor)
            for index, field in enumerate(self.fields)
        ]
        return build_struct(columns, self.arrow_type())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        columns = array.flatten()
        first = self._first_bit
        bits = np.zeros((len(array), first + len(self.fields)), np.bool_)
        if self.has_kind:
            kinds = columns.pop(0)
            refuse_nulls(kinds)
            row_kind = kinds.to_numpy(zero_copy_only=False)
            refuse_outside(row_kind, 0, _MOST_KIND, "a row_kind")
            bits[:, 0], bits[:, 1] = row_kind & 1 != 0, row_kind & 2 != 0
        parts = []
        for number, (column, field) in enumerate(zip(columns, self.fields, strict=True), first):
            valid = find_valid(column)
            bits[:, number] = ~valid
            parts.append(write_where(column, valid, field))
        return join_parts(matrix_bytes(np.packbits(bits, axis=1)), *parts)

    def _key_hash(self) -> KeyHash | None:
        parts = nested_hashes(self.fields)
        return None if parts is None else struct_hash("Row", parts)

    def _snapshot(self) -> bytes:
        return encode_parts(_SNAPSHOT_CLASS, 4, i8(self.has_kind), *self.fields)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_SNAPSHOT_CLASS: _parse_row}


def _parse_row(snapshot: SnapshotReader) -> FlinkType:
    outer = snapshot.outer_version()
    has_kind = snapshot.reader.bool() if outer >= 4 else outer == 3
    return RowType(snapshot.parts() if has_kind else snapshot.fields(), has_kind)
