"""The hash of a key, and its key group, by a named hash scheme.

Invariant I1: a key's group depends only on the key, the scheme and max parallelism. The schemes
match the three ways in which Flink 2.3 hashes keys. The same key has a different group in each.

``java``       DataStream jobs: ``hashCode()`` of the Java object. The default. A
               Python int is a Long unless a key type says otherwise ("int": Integer).
``flink-sql``  Table and SQL jobs: Murmur3 of the columns as ``BinaryRowData``. The declared
               SQL type is part of the key: INT -1 and BIGINT -1 are two keys. NULL is an
               ordinary value.
``pyflink``    PyFlink DataStream jobs that pass a key type to ``key_by``: a ``Row`` around the
               Java object. A PyFlink tuple type is a Java Tuple inside that Row. A job without
               a key type hashes ``pickle.dumps(key)``: pass these bytes as the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.errors import InvalidArgumentError, NullKeyError
from statestore.keys.groups import key_group_of_hash
from statestore.keys.java import java_hash, row_hash
from statestore.keys.key_types import (
    DEFAULT_HASH_SCHEME,
    HASH_SCHEMES,
    KeyType,
    Row,
    Typed,
    check_hash_scheme,
)
from statestore.keys.sql import binary_row, default_sql_type, sql_row_hash

if TYPE_CHECKING:
    from collections.abc import Sequence


def key_group_of(
    key: object,
    *,
    max_parallelism: int,
    key_type: KeyType = None,
    hash_scheme: str = DEFAULT_HASH_SCHEME,
) -> int:
    """Return the key group of a key (invariant I1).

    It is the same as ``KeyGroupRangeAssignment.assignToKeyGroup`` in Flink.

    Args:
        key: the key; a tuple for a composite key.
        max_parallelism: the number of key groups, 1..32768.
        key_type: the type that the key is hashed as: one name, or a sequence of names for a
            composite key. By default the Python value decides; see :func:`key_hash`.
        hash_scheme: ``java``, ``flink-sql`` or ``pyflink``; by default ``java``.

    Returns:
        The key group, 0 .. ``max_parallelism`` - 1.

    Raises:
        NullKeyError: for None (java, pyflink).
        UnsupportedTypeError: for a type that has no stable hash.
        InvalidArgumentError: for a value that its type cannot hold, for an unknown scheme, or when
            ``max_parallelism`` is not in 1..32768.
    """
    try:
        own_hash = key_hash(key, key_type=key_type, hash_scheme=hash_scheme)
    except RecursionError as error:
        raise InvalidArgumentError("the key is nested too deeply to be hashed") from error
    return key_group_of_hash(own_hash, max_parallelism)


def key_hash(
    key: object, *, key_type: KeyType = None, hash_scheme: str = DEFAULT_HASH_SCHEME
) -> int:
    """Return the signed 32-bit hash of ``key``, before it is mixed into a key group.

    ``key_type`` is one name, or a sequence of names for a composite key (a tuple). Without it the
    Python type determines the key type: str String, int Long, float Double, bool Boolean, Decimal
    BigDecimal, date LocalDate, time LocalTime, timedelta Duration, UUID, tuple TupleN, list List,
    dict Map. A datetime is an Instant if it has a time zone, and a LocalDateTime otherwise. For
    flink-sql the names are SQL types.

    Raises NullKeyError for None (java, pyflink), UnsupportedTypeError for a type that has no stable
    hash, InvalidArgumentError for a value that its type cannot hold or an unknown scheme.
    """
    if hash_scheme == "flink-sql":
        return sql_row_hash(sql_key_bytes(key, key_type=key_type))
    if hash_scheme not in HASH_SCHEMES:
        check_hash_scheme(hash_scheme)
    if key is None or (isinstance(key, Typed) and key.value is None):
        raise NullKeyError("a null key has no key group: filter it out or give it a value")
    if hash_scheme == "java":
        return java_hash(key, key_type)
    return row_hash(Row((Typed(key_type, key),) if key_type is not None else (key,)))


def sql_key_bytes(key: object, *, key_type: KeyType = None) -> bytes:
    """Return the ``BinaryRowData`` bytes that the flink-sql scheme hashes.

    A tuple is several key columns. The empty tuple is the key of a global aggregate. Raises the
    same errors as :func:`key_hash`.
    """
    several = isinstance(key, tuple | list) and not isinstance(key_type, str)
    columns: Sequence[object] = key if several else (key,)  # type: ignore[assignment]
    if key_type is None:
        names: Sequence[KeyType] = [None] * len(columns)
    else:
        names = (key_type,) if isinstance(key_type, str) else key_type
    if len(columns) != len(names):
        raise InvalidArgumentError(f"the key has {len(columns)} columns but {len(names)} key types")
    pairs = [_unwrap(value, name) for value, name in zip(columns, names, strict=True)]
    return binary_row([value for value, _ in pairs], [name for _, name in pairs])


def _unwrap(value: object, name: KeyType) -> tuple[object, str]:
    if isinstance(value, Typed):
        name, value = value.type, value.value
    if name is None:
        name = default_sql_type(value)
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a key column needs one SQL type name, not {name!r}")
    return value, name
