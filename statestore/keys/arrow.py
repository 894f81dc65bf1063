"""Key hashes and key groups of Arrow columns, whole columns at a time.

Every value gets the same hash as in :mod:`statestore.keys.hashing` (invariant I1): the same
schemes, and the same 32-bit hashes as Flink 2.3. :mod:`statestore.keys.arrow_types` lists the key
type that each Arrow type is hashed as.

In the java scheme, one key column is the bare key, and several columns are a TupleN in the given
order. In the pyflink scheme, the key is the only field of a Row. Several columns are the Java Tuple
that ``key_type=Types.TUPLE([...])`` makes, as that field. In the flink-sql scheme, the key columns
are one row. If a job's key is an Integer where the column is an int64 (or a TIMESTAMP(3) where the
column has precision 6), ``key_types`` names the job's types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError, NullKeyError
from statestore.keys.arrow_java import deep_hashes, java_hashes, tuple_hashes
from statestore.keys.arrow_sql import sql_hashes
from statestore.keys.arrow_types import check_key_type, check_key_types, check_tuple
from statestore.keys.groups import key_group_of_hash
from statestore.keys.hashing import DEFAULT_HASH_SCHEME, check_hash_scheme
from statestore.keys.key_types import java_type
from statestore.keys.murmur3 import Hashes, absorb, finish

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_key_type", "check_key_types", "key_groups", "key_groups_of_hashes", "key_hashes"]

Int32s: TypeAlias = npt.NDArray[np.int32]

_ROWS_AT_A_TIME: Final = 1 << 14
"""The number of rows hashed per step, small enough for the step's arrays to fit the CPU cache."""


def key_groups(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    *,
    max_parallelism: int,
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_types: Sequence[str | None] | None = None,
) -> Int32s:
    """Return the key group, 0 .. ``max_parallelism`` - 1, of every row (invariant I1).

    Raises the errors of :func:`key_hashes`, and ParallelismError when ``max_parallelism`` is not in
    1..32768.
    """
    key_group_of_hash(0, max_parallelism)  # refuses it before all rows are hashed
    hashes = key_hashes(columns, hash_scheme=hash_scheme, key_types=key_types)
    return key_groups_of_hashes(hashes, max_parallelism)


def key_groups_of_hashes(hashes: Int32s, max_parallelism: int) -> Int32s:
    """Return the key group of every key hash, as :func:`key_hashes` returns them.

    Raises ParallelismError when ``max_parallelism`` is not in 1..32768.
    """
    key_group_of_hash(0, max_parallelism)  # checks the bounds
    groups = np.empty(len(hashes), np.int32)
    for start in range(0, len(hashes), _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        groups[part] = _mix(hashes[part].view(np.uint32)) % np.uint32(max_parallelism)
    return groups


def key_hashes(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    *,
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_types: Sequence[str | None] | None = None,
) -> Int32s:
    """Return the signed 32-bit key hash of every row, before it is mixed into a key group.

    ``columns`` are the key columns in the order of the key. ``key_types`` names the hashed type of
    each column, as :func:`check_key_type` returns it. None stands for the column's own type.

    Raises NullKeyError with the number of rows (java, pyflink), UnsupportedTypeError for a column
    type that cannot be a key, InvalidArgumentError for a value that the named type cannot hold.
    """
    check_hash_scheme(hash_scheme)
    table = _table(columns)
    names = _names(table.schema.types, hash_scheme, key_types)
    if hash_scheme != "flink-sql":
        _refuse_nulls(table)
    # A dictionary is hashed once per chunk. If the chunk were cut, each piece would hash it again.
    whole = any(pa.types.is_dictionary(data_type) for data_type in table.schema.types)
    hashes = np.empty(table.num_rows, np.uint32)
    start = 0
    for batch in table.to_batches(max_chunksize=None if whole else _ROWS_AT_A_TIME):
        hashes[start : start + batch.num_rows] = _batch_hashes(batch.columns, names, hash_scheme)
        start += batch.num_rows
    return hashes.view(np.int32)


def _batch_hashes(columns: Sequence[pa.Array], names: Sequence[str], hash_scheme: str) -> Hashes:
    if hash_scheme == "flink-sql":
        return sql_hashes(columns, names)
    kinds = [java_type(name) for name in names]
    if hash_scheme == "pyflink" and len(kinds) == 1:
        return deep_hashes(columns[0], kinds[0]) + np.uint32(31)
    parts = [
        java_hashes(column, java_type) for column, java_type in zip(columns, kinds, strict=True)
    ]
    hashes = parts[0] if len(parts) == 1 else tuple_hashes(parts)
    # Row.of(key), as PyFlink wraps a key: 31 for the row and 31 for the field.
    return hashes + np.uint32(62) if hash_scheme == "pyflink" else hashes


def _table(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    if not columns:
        raise InvalidArgumentError("a key needs at least one column")
    arrays = [_without_null_entries(column) for column in columns]
    try:
        return pa.Table.from_arrays(arrays, [str(index) for index in range(len(arrays))])
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"the key columns cannot be combined: {error}") from error


def _without_null_entries(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Decode a dictionary that contains null: Arrow does not count its rows as null."""
    if not pa.types.is_dictionary(column.type):
        return column
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if any(chunk.dictionary.null_count for chunk in chunks):
        return column.cast(column.type.value_type)
    return column


def _names(
    types: Sequence[pa.DataType], hash_scheme: str, key_types: Sequence[str | None] | None
) -> list[str]:
    wanted = [None] * len(types) if key_types is None else list(key_types)
    if len(wanted) != len(types):
        raise InvalidArgumentError(f"{len(types)} key columns but {len(wanted)} key types")
    names = [check_key_type(t, hash_scheme, name) for t, name in zip(types, wanted, strict=True)]
    if hash_scheme != "flink-sql":
        check_tuple(names)
    return names


def _refuse_nulls(table: pa.Table) -> None:
    nulls = np.zeros(table.num_rows, bool)
    for column in table.columns:
        if column.null_count:
            nulls |= column.is_null().to_numpy()
    if count := int(nulls.sum()):
        raise NullKeyError(f"{count} of {table.num_rows} rows have a null key: remove or fill them")


def _mix(hashes: Hashes) -> Hashes:
    """Return ``mix_hash`` of every element: Murmur3 of one word with seed 0, without the sign."""
    h = finish(absorb(np.zeros(1, np.uint32), hashes) ^ np.uint32(4))
    # abs() leaves -2^31 unchanged, and the mask turns it into 0.
    return np.abs(h.view(np.int32)).view(np.uint32) & np.uint32(0x7FFFFFFF)
