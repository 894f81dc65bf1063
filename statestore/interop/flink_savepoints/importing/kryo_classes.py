"""Find the class of keys that Kryo serializes, which is in the keys instead of the snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink_savepoints.read.canonical import prefix_bytes
from statestore.interop.flink_savepoints.read.savepoint import FlinkOperator
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor
from statestore.interop.flink_savepoints.types.families.kryo_keys import kryo_key_types
from statestore.interop.flink_savepoints.types.flink_types import KryoKeyType, KryoType

__all__ = ["find_kryo_keys"]


def find_kryo_keys(operator: FlinkOperator) -> KryoKeyType | None:
    """Return the type of an operator's keys if Kryo wrote them and all are of one simple class.

    A type fits if it gives the bytes and the stored key group of every key. If the keys fit two
    types that read them differently, the result is None. All keys are read until no type fits.
    """
    header = operator.header
    if header is None or not isinstance(header.key.flink_type, KryoType):
        return None
    most = operator.metadata.max_parallelism
    fitting: tuple[KryoKeyType, ...] | None = None
    for key_group, keys in _iterate_keys(operator):
        if fitting is None:
            fitting = kryo_key_types(header.key.flink_type, bytes(keys.reader(0).data[:1]))
        fitting = tuple(key for key in fitting if _fits(key, keys, key_group, most))
        if not fitting:
            return None
    if not fitting or (len(fitting) > 1 and fitting[0].has_byte_order):
        return None
    return fitting[0]


def _iterate_keys(operator: FlinkOperator) -> Iterator[tuple[int, Cursor]]:
    """Yield the keys of all states, with the key group in which they are stored."""
    prefix = prefix_bytes(operator.metadata.max_parallelism)
    for entries in operator.entries():
        keys = entries.keys
        begins = keys.starts + prefix + entries.state.before_key
        yield entries.key_group, Cursor(keys, begins, keys.ends)


def _fits(key_type: KryoKeyType, keys: Cursor, key_group: int, max_parallelism: int) -> bool:
    cursor = Cursor(keys.spans, keys.position, keys.end)
    try:
        groups = key_type.key_groups(cursor)(max_parallelism)
    except (DamagedFileError, UnsupportedTypeError):
        return False
    return bool((groups == key_group).all())
