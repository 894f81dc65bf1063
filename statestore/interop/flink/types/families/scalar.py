"""Types without parameters, by their short names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.snapshot_format import encode_simple
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.families.base import FlinkType, SnapshotReader, SnapshotReaders
from statestore.interop.flink.types.families.key_hash import (
    GroupFunction,
    HashCodes,
    KeyHash,
    column_groups,
    groups_of_hashes,
    hash_column,
    hash_valid,
)
from statestore.interop.flink.types.families.scala_hash import SCALA_NUMBERS
from statestore.interop.flink.types.families.scalar_arrays import ARRAYS
from statestore.interop.flink.types.families.scalar_big_numbers import BIG_NUMBERS
from statestore.interop.flink.types.families.scalar_form import ScalarForm
from statestore.interop.flink.types.families.scalar_numbers import NUMBERS
from statestore.interop.flink.types.families.scalar_python import PYTHON_SCALARS
from statestore.interop.flink.types.families.scalar_texts import TEXTS
from statestore.interop.flink.types.families.scalar_times import TIMES
from statestore.interop.flink.types.families.scalar_windows import WINDOWS
from statestore.interop.flink.types.value_lengths import Skip

_FORMS = (*NUMBERS, *BIG_NUMBERS, *TEXTS, *TIMES, *WINDOWS, *ARRAYS, *PYTHON_SCALARS)

SCALARS: dict[str, ScalarForm] = {form.name: form for form in _FORMS}
"""The registry of types without parameters."""


@dataclass(frozen=True, slots=True)
class Scalar(FlinkType):
    """A type whose snapshot has no body, by its short name: ``Long``, ``String``, ``long[]``."""

    name: str

    @property
    def form(self) -> ScalarForm:
        """The definition of the type."""
        return SCALARS[self.name]

    def _java_name(self) -> str:
        return self.name

    def _has_identity(self) -> bool:
        return self.name.endswith("[]")

    def _serializer_length(self) -> int | None:
        return self.form.serializer_length

    def _fixed_width(self) -> int | None:
        return self.form.fixed_width

    def _arrow_type(self) -> pa.DataType:
        return self.form.arrow

    def _skipper(self) -> Skip:
        return self.form.skip

    def _read(self, cursor: Cursor) -> pa.Array:
        return self.form.read(cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        return self.form.write(array)

    def _key_hash(self) -> KeyHash | None:
        return self.form.key_hash

    def _key_groups(self, cursor: Cursor) -> GroupFunction:
        if self.form.single_key_hashes is not None:
            return groups_of_hashes(self._hash_codes(self.read(cursor)))
        return column_groups(self.key_hash(), self.read(cursor))

    def _hash_codes(self, column: pa.Array) -> HashCodes:
        single = self.form.single_key_hashes
        if single is None:
            return hash_column(self.key_hash(), column)
        return hash_valid(column, lambda known: np.array(single(known), np.int32))

    def _scala_hash_codes(self, column: pa.Array) -> HashCodes:
        hash_number = SCALA_NUMBERS.get(self.name)
        return self._hash_codes(column) if hash_number is None else hash_valid(column, hash_number)

    def _snapshot(self) -> bytes:
        if self.form.snapshot is None:
            raise UnsupportedTypeError(f"no serializer of Java writes values of {self.name}")
        return encode_simple(self.form.snapshot)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {
            form.snapshot: _make_reader(form.snapshot, Scalar(form.name))
            for form in _FORMS
            if form.snapshot is not None
        }


def _make_reader(class_name: str, scalar: Scalar) -> Callable[[SnapshotReader], FlinkType]:
    def parse(snapshot: SnapshotReader) -> FlinkType:
        snapshot.simple_body(class_name)
        return scalar

    return parse
