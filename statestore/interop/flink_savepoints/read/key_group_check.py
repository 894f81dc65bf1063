"""Compute the key groups of a savepoint's keys with the product's own hash functions.

The hash function follows from the key's type. Enums and user-defined classes have a ``hashCode``
that a savepoint does not contain, so they are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    NullKeyError,
    UnsupportedTypeError,
)
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor
from statestore.interop.flink_savepoints.types.flink_types import (
    BinaryRowType,
    FlinkType,
    ListType,
    MapType,
    RowDataType,
    RowType,
    Scalar,
    TupleType,
)
from statestore.interop.flink_savepoints.types.part_columns import to_nanos
from statestore.keys.arrow import key_groups
from statestore.keys.groups import key_group_of_hash
from statestore.keys.hashing import key_hash
from statestore.keys.sql import sql_row_hash

__all__ = ["GroupFunction", "check_key_groups", "key_groups_at"]

Groups: TypeAlias = npt.NDArray[np.int32]
GroupFunction: TypeAlias = Callable[[int], Groups]

# java.util.Date hashes its milliseconds like a Long; the java.sql classes extend it.
_AS_MILLIS = ("Date", "SqlDate", "SqlTime")
_PLAIN = (
    "String", "Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "BigInteger",
    "BigDecimal", "LocalDate", "LocalTime",
)  # fmt: skip
_NANOS = ("LocalDateTime", "Instant")
_NANOS_PER_SECOND = 10**9
_SQL_LENGTH_BYTES = 4
_SQL_WORD = 8  # SQL rows consist of whole words, and Flink hashes them by words


def key_groups_at(flink_type: FlinkType, cursor: Cursor) -> GroupFunction:
    """Return a function from max parallelism to the key groups of the keys at a cursor.

    The cursor advances past the keys.

    Raises:
        UnsupportedTypeError: for a type whose hash cannot be computed from a savepoint.
        DamagedFileError: if the bytes do not match the type.
    """
    if isinstance(flink_type, RowDataType | BinaryRowType):
        return _make_groups_of_hashes([sql_row_hash(row) for row in _read_rows(flink_type, cursor)])
    if isinstance(flink_type, Scalar) and flink_type.name in (*_NANOS, "SqlTimestamp"):
        return _make_groups_of_hashes(_scalar_hashes(flink_type.name, flink_type.read(cursor)))
    name, make = _find_conversion(flink_type)
    column = make(flink_type.read(cursor))
    return lambda most: key_groups([column], max_parallelism=most, key_types=[name])


def check_key_groups(
    flink_type: FlinkType, cursor: Cursor, key_group: int, max_parallelism: int, where: str
) -> None:
    """Check that each key at a cursor belongs to the key group in which it is stored.

    The files have no checksums, so this check detects damaged keys. It is skipped for types whose
    hash cannot be computed from a savepoint. ``where`` is the state's name in messages. Raises
    DamagedFileError if a key belongs to another key group.
    """
    try:
        computed = key_groups_at(flink_type, cursor)(max_parallelism)
    except UnsupportedTypeError:
        return
    except InvalidArgumentError as error:
        raise DamagedFileError(
            f"{where} has a key in key group {key_group} that cannot be a key: {error}"
        ) from error
    wrong = np.flatnonzero(computed != key_group)
    if len(wrong):
        raise DamagedFileError(
            f"{where} has {len(wrong)} of {len(computed)} keys in key group {key_group} that "
            "belong elsewhere according to Flink's hash, the first in key group "
            f"{computed[wrong[0]]}; the savepoint is damaged, or the job uses another hash"
        )


def _make_groups_of_hashes(hashes: list[int]) -> GroupFunction:
    return lambda most: np.array(
        [key_group_of_hash(hash_code, most) for hash_code in hashes], np.int32
    )


def _read_rows(flink_type: FlinkType, cursor: Cursor) -> list[bytes]:
    """Return the rows of Flink SQL at a cursor, without their length prefixes."""
    skip = flink_type.skipper()
    sql_rows, positions = [], cursor.position.copy()
    for row in range(len(cursor)):
        reader = cursor.reader(row)
        skip(reader)
        if reader.position % _SQL_WORD != _SQL_LENGTH_BYTES:
            raise reader.error(
                f"a SQL row has {reader.position - _SQL_LENGTH_BYTES} bytes", position=0
            )
        sql_rows.append(bytes(reader.data[_SQL_LENGTH_BYTES : reader.position]))
        positions[row] += reader.position
    cursor.position = positions
    return sql_rows


def _scalar_hashes(name: str, column: pa.Array) -> list[int]:
    """Return the hashes of times, without a limit of the range; NullKeyError for a null."""
    if column.null_count:
        raise NullKeyError(f"{column.null_count} keys are null", rows=column.null_count)
    values = column.to_pylist()
    if name == "SqlTimestamp":
        return [
            key_hash(value["second"] * 1000 + value["nano"] // 1_000_000, key_type="Long")
            for value in values
        ]
    return [
        key_hash(value["second"] * _NANOS_PER_SECOND + value["nano"], key_type=name)
        for value in values
    ]


def _find_conversion(flink_type: FlinkType) -> tuple[str, Callable[[pa.Array], pa.Array]]:
    """Return the hashed type of a key type, and a function that converts its column to it."""
    match flink_type:
        case Scalar("Character"):
            return "Character", lambda column: column.cast(pa.int32())
        case Scalar(name) if name in _AS_MILLIS:
            return "Long", lambda column: column.cast(pa.int64())
        case Scalar(name) if name in _NANOS:
            return name, to_nanos
        case Scalar(name) if name in _PLAIN:
            return name, lambda column: column
        case TupleType(_, fields):
            return _find_struct_conversion(f"Tuple{len(fields)}", fields)
        case RowType(fields):
            return _find_struct_conversion("Row", fields)
        case ListType(element):
            name, make = _find_conversion(element)
            return f"List<{name}>", lambda column: _convert_list(column, make)
        case MapType(Scalar(key), Scalar(value)) if key in _PLAIN and value in _PLAIN:
            return f"Map<{key}, {value}>", lambda column: column
    raise UnsupportedTypeError(
        f"cannot compute key groups for keys of type {flink_type.java_name}: their hash "
        "depends on the job's own class"
    )


def _find_struct_conversion(
    name: str, fields: tuple[FlinkType, ...]
) -> tuple[str, Callable[[pa.Array], pa.Array]]:
    parts = [_find_conversion(field) for field in fields]

    def make(column: pa.Array) -> pa.Array:
        columns = [part[1](column.field(f"f{index}")) for index, part in enumerate(parts)]
        return pa.StructArray.from_arrays(columns, [f"f{index}" for index in range(len(parts))])

    return f"{name}<{', '.join(part[0] for part in parts)}>", make


def _convert_list(column: pa.Array, make: Callable[[pa.Array], pa.Array]) -> pa.Array:
    return pa.ListArray.from_arrays(column.offsets, make(column.values))
