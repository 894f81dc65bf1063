"""Rows of every type that a state can have, with values that conversions tend to change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa

from tests.support.bits import NAN_32, NAN_64, RAW

__all__ = ["IN_PYTHON", "PLAIN", "every_type", "ints"]


def ints(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Return values of a type, given as bits."""
    return pa.array(values, RAW[kind]).view(kind)


PLAIN = {
    "byte": pa.array([-128, 127, None], pa.int8()),
    "short": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
    "int": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
    "long": pa.array([4873214862074860545, -(2**63), None], pa.int64()),
    "float": ints([NAN_32, -(2**31), None], pa.float32()),
    "double": ints([NAN_64, -(2**63), None], pa.float64()),
    "decimal": pa.array(
        [Decimal("9" * 32 + "." + "9" * 6), Decimal("0.000001"), None], pa.decimal128(38, 6)
    ),
    "string": pa.array(["\0é😀", "", None]),
    "binary": pa.array([b"\0\xff", b"", None]),
    "boolean": pa.array([True, False, None]),
    "date": ints([2932896, -719162, None], pa.date32()),
    # The repeated hour in Berlin and its local mean time; times outside the range of Python.
    "twice": pa.array(
        [
            datetime(2025, 10, 26, 0, 30, tzinfo=UTC),
            datetime(2025, 10, 26, 1, 30, tzinfo=UTC),
            None,
        ],
        pa.timestamp("us", "UTC"),
    ),
    "old": pa.array(
        [datetime(1850, 1, 1, 12, tzinfo=UTC), datetime(9999, 12, 31, 12, tzinfo=UTC), None],
        pa.timestamp("us", "UTC"),
    ),
    "far": ints([2**63 - 1, -(2**63) + 1, None], pa.timestamp("us", "UTC")),
    "local": ints([2**63 - 1, -(2**63) + 1, None], pa.timestamp("us")),
}


IN_PYTHON = PLAIN | {
    "local": pa.array(
        [datetime(2025, 10, 26, 2, 30), datetime(9999, 12, 31, 23, 59, 59, 999999), None],
        pa.timestamp("us"),
    ),
}
del IN_PYTHON["far"]
"""The same without times that a Python datetime cannot represent."""


def every_type(plain: Mapping[str, pa.Array] = PLAIN) -> pa.Table:
    """Return three rows of one key with each type, also inside lists, maps and structs."""
    found = {"user": pa.array(["ann"] * 3), "page": pa.array(["/a", "/b", "/c"])}
    found["n"] = pa.array([1, 1, 1])
    of_text = pa.MapArray.from_arrays
    nothing = pa.array([False, False, True])
    for name, values in plain.items():
        found[name] = values
        found[f"{name}s"] = pa.ListArray.from_arrays(pa.array([0, 0, 3, 3]), values, mask=nothing)
        texts = pa.array(["x", "y", "z"])
        found[f"{name}_map"] = of_text(pa.array([0, 0, None, 3], pa.int32()), texts, values)
        fields = [pa.field("a", values.type), pa.field("b", found[f"{name}s"].type)]
        parts = [values, found[f"{name}s"]]
        found[f"{name}_struct"] = pa.StructArray.from_arrays(parts, fields=fields, mask=nothing)
    return pa.table(found)
