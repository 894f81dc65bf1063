"""Whether keys lie in the key groups that Flink's own hash gives them.

The files have no checksums, so this is what tells a key that was read wrongly, or a savepoint that
was damaged in a key.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DamagedFileError, InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.types import FlinkType, LogicalType, RowDataType, RowType, Scalar
from statestore.interop.flink.types import TupleType as _Tuple
from statestore.keys.arrow import key_groups
from statestore.keys.hashing import key_group_of

__all__ = ["check_key_groups", "hash_scheme"]

_PLAIN = (
    *("Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "Character", "String"),
    *("BigInteger", "LocalDate", "LocalTime"),
)
_MILLIS = ("Date", "SqlDate", "SqlTime")


def hash_scheme(kind: FlinkType) -> str | None:
    """Return the scheme by which keys of a type are hashed, None where only the job knows it.

    A POJO has its own hash, and so have enums and what Kryo writes.
    """
    if isinstance(kind, RowDataType):
        return "flink-sql" if all(map(_sql_name, kind.columns)) else None
    return "java" if _name(kind) is not None else None


def check_key_groups(
    keys: pa.Array, kind: FlinkType, key_group: int, max_parallelism: int, where: str
) -> None:
    """Compute the key group of each key, and compare it with the one that it lies in.

    Nothing is done for keys of types whose hash only the job knows. ``where`` is what messages call
    the state. Raises DamagedFileError for a difference.
    """
    scheme = hash_scheme(kind)
    if scheme is None or not len(keys):
        return
    try:
        found = _groups(keys, kind, scheme, max_parallelism)
    except (InvalidArgumentError, UnsupportedTypeError) as error:
        raise DamagedFileError(
            f"{where} has a key in key group {key_group} that can be none ({error})"
        ) from error
    wrong = np.flatnonzero(found != key_group)
    if len(wrong):
        raise DamagedFileError(
            f"{where} has {len(wrong)} of {len(keys)} keys in key group {key_group} that belong "
            f"elsewhere by Flink's hash, the first in {found[wrong[0]]}"
        )


def _groups(
    keys: pa.Array, kind: FlinkType, scheme: str, max_parallelism: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    if isinstance(kind, RowDataType):
        columns = keys.flatten()[1:]
        if not columns:  # of an aggregate over all rows
            only = key_group_of((), max_parallelism=max_parallelism, hash_scheme=scheme)
            return np.full(len(keys), only, np.int32)
        names = [_sql_name(one) for one in kind.columns]
        return key_groups(
            columns, max_parallelism=max_parallelism, hash_scheme=scheme, key_types=names
        )
    if kind == Scalar("BigDecimal"):  # each with a scale of its own
        each = [
            key_group_of(one, max_parallelism=max_parallelism, key_type="BigDecimal")
            for one in keys.cast(pa.string()).to_pylist()
        ]
        return np.array(each, np.int32)
    name = _name(kind)
    return key_groups(
        [_hashed(keys, kind)],
        max_parallelism=max_parallelism,
        hash_scheme=scheme,
        key_types=[name],
    )


def _name(kind: FlinkType) -> str | None:
    """Return a type as the hash knows it."""
    if isinstance(kind, Scalar):
        if kind.name in _MILLIS:
            return "Long"
        return kind.name if kind.name in _PLAIN else None
    if isinstance(kind, _Tuple | RowType):
        parts = [_name(one) for one in kind.fields]
        known = [one for one in parts if one is not None]
        if len(known) < len(parts):
            return None
        outer = "Row" if isinstance(kind, RowType) else f"Tuple{len(parts)}"
        return f"{outer}<{', '.join(known)}>"
    return None


def _hashed(keys: pa.Array, kind: FlinkType) -> pa.Array:
    """Return keys in the form in which their hash is computed."""
    if isinstance(kind, Scalar) and kind.name in _MILLIS:
        return keys.cast(pa.int64())
    if kind == Scalar("Character"):
        return keys.cast(pa.int32())
    if isinstance(kind, _Tuple | RowType):
        fields = keys.flatten()[-len(kind.fields) :]
        if isinstance(kind, RowType) and kind.has_kind:
            row_kind = keys.field(0)
            if not pc.all(pc.equal(row_kind, 0)).as_py():
                raise InvalidArgumentError("a row that is a key is not of kind INSERT")
        parts = [_hashed(one, part) for one, part in zip(fields, kind.fields, strict=True)]
        return pa.StructArray.from_arrays(parts, [f"f{at}" for at in range(len(parts))])
    return keys


def _sql_name(column: LogicalType) -> str:
    """Return a column's type as the hash knows it, empty for one that it does not."""
    text = column.text.removesuffix(" NOT NULL")
    known = (
        *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "STRING"),
        *("BYTES", "CHAR", "VARCHAR", "BINARY", "VARBINARY", "DECIMAL", "TIME", "TIMESTAMP"),
        "TIMESTAMP_LTZ",
    )
    is_known = text.partition("(")[0] in known
    is_fine = column.root.startswith("TIMESTAMP") and column.precision > 6
    return text if is_known and not is_fine else ""
