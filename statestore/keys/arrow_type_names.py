"""The names of column types in messages.

There is one name for each type that can be stored: the manifest's, which ``show`` prints too. Any
other type has Arrow's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

__all__ = ["SIMPLE_TYPES", "arrow_type_text"]

SIMPLE_TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""The Arrow type of each stored type without parts, except decimals."""

_NAMES = {data_type: name for name, data_type in SIMPLE_TYPES.items()}
_SAME = {
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
}


def arrow_type_text(data_type: pa.DataType) -> str:
    """Return a type in the manifest's notation, or in Arrow's if it cannot be stored."""
    types = pa.types
    if types.is_struct(data_type):
        fields = (f"{field.name}: {arrow_type_text(field.type)}" for field in data_type)
        return f"struct<{', '.join(fields)}>"
    if types.is_map(data_type):
        parts = (data_type.key_type, data_type.item_type)
        return f"map<{', '.join(map(arrow_type_text, parts))}>"
    if types.is_list(data_type) or types.is_large_list(data_type):
        return f"array<{arrow_type_text(data_type.value_type)}>"
    if types.is_dictionary(data_type):
        return arrow_type_text(data_type.value_type)
    if types.is_decimal128(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if types.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    if types.is_fixed_size_binary(data_type) or isinstance(data_type, pa.UuidType):
        return "binary"
    return _NAMES.get(data_type) or _SAME.get(str(data_type)) or str(data_type)
