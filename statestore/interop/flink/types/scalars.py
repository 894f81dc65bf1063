"""Types without parameters, by their short names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.snapshot_format import simple
from statestore.interop.flink.types.base import FlinkType, Layout
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.key_hash import (
    SCALA_NUMBERS,
    GroupFunction,
    HashCodes,
    KeyHash,
    column_groups,
    groups_of_hashes,
    hash_column,
    hash_valid,
)
from statestore.interop.flink.types.scalar_numbers import (
    BIG_NUMBERS,
    NUMBERS,
    PYTHON_SCALARS,
    WINDOWS,
    ScalarForm,
)
from statestore.interop.flink.types.scalar_texts import ARRAYS, TEXTS
from statestore.interop.flink.types.scalar_times import TIMES

_FORMS = (*NUMBERS, *BIG_NUMBERS, *TEXTS, *TIMES, *WINDOWS, *ARRAYS, *PYTHON_SCALARS)

SCALARS: dict[str, ScalarForm] = {form.name: form for form in _FORMS}
"""The registry of types without parameters."""


@dataclass(frozen=True, slots=True)
class Scalar(FlinkType):
    """A type whose snapshot has no body, by its short name: ``Long``, ``String``, ``long[]``."""

    name: str

    snapshots = tuple(
        simple(form.snapshot, name=form.name) for form in _FORMS if form.snapshot is not None
    )

    @property
    def form(self) -> ScalarForm:
        """The definition of the type."""
        return SCALARS[self.name]

    def _java_name(self) -> str:
        return self.name

    def _has_identity(self) -> bool:
        return self.name.endswith("[]")

    def _serializer_length(self) -> int | None:
        return self.fixed_width if self.form.length is None else self.form.length

    def _make_layout(self) -> Layout:
        return self.form.layout

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
