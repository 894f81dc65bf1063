"""Find the class of values that Kryo serializes, which is in the values instead of the header.

The first value says of which class all may be. An import then tries to read each value as that
class, and otherwise keeps them as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from statestore.errors import SchemaMismatchError
from statestore.interop.flink_savepoints.metadata.handles import find_flink_major
from statestore.interop.flink_savepoints.read.keyed_states import KeyedStateInfo
from statestore.interop.flink_savepoints.read.savepoint import FlinkOperator
from statestore.interop.flink_savepoints.types.families.kryo_keys import kryo_key_types
from statestore.interop.flink_savepoints.types.flink_types import (
    FlinkType,
    KryoKeyType,
    KryoType,
    ListType,
    MapType,
    TtlAwareType,
    TtlType,
)

__all__ = ["find_value_class", "find_value_types", "set_value_class"]

_FLAG_BYTES, _TIME_BYTES = 1, 8
_KRYO_OF_FLINK = {1: 2, 2: 5}


def find_value_types(
    operator: FlinkOperator, state: KeyedStateInfo, metadata_version: int
) -> Iterator[KeyedStateInfo]:
    """Yield the state with each type that its values may have, the likeliest first.

    Nothing is yielded unless Kryo writes the values, and the first one is of a simple class. Where
    the versions of Kryo read different numbers from the same bytes, the version of ``_metadata``
    has to say which Flink wrote them.
    """
    kryo, before = _find_innermost(state)
    if not isinstance(kryo, KryoType):
        return
    entries = next((part for part in operator.entries(state.name) if len(part.values)), None)
    if entries is None:
        return
    first = entries.values.part(0, 1)
    head = bytes(first.data[first.starts[0] + before : first.starts[0] + before + 1])
    version = _find_kryo_version(metadata_version)
    for simple in kryo_key_types(kryo, head):
        if simple.kryo == version or not simple.has_byte_order:
            yield _replace_values(state, simple)


def _find_kryo_version(metadata_version: int) -> int | None:
    """Return which version of Kryo wrote a savepoint; None if its metadata do not say it."""
    flink = find_flink_major(metadata_version)
    return None if flink is None else _KRYO_OF_FLINK[flink]


def set_value_class(
    state: KeyedStateInfo, text: str, metadata_version: int | None = None
) -> KeyedStateInfo:
    """Return a state whose values have the class that an import recorded.

    Args:
        state: the state, as its header describes it.
        text: the class, with the version of Kryo.
        metadata_version: the version of ``_metadata`` if the state is of another savepoint, which
            another version of Kryo may have written.

    Raises:
        SchemaMismatchError: if nothing says which Kryo wrote it, and they read other values.
    """
    kryo, _ = _find_innermost(state)
    if not isinstance(kryo, KryoType):
        return state
    simple = KryoKeyType.parse(kryo, text)
    version = None if metadata_version is None else _find_kryo_version(metadata_version)
    if version is not None:
        simple = replace(simple, kryo=version)
    elif metadata_version is not None and simple.has_byte_order:
        raise SchemaMismatchError(
            f"nothing says which version of Kryo wrote the values of state {state.name!r}, because "
            f"its savepoint has metadata of version {metadata_version}: import the savepoint into "
            "a separate store"
        )
    return _replace_values(state, simple)


def find_value_class(state: KeyedStateInfo) -> str | None:
    """Return the simple class of a state's values as an import records it, None without one."""
    simple, _ = _find_innermost(state)
    return simple.text if isinstance(simple, KryoKeyType) else None


def _replace_values(state: KeyedStateInfo, simple: KryoKeyType) -> KeyedStateInfo:
    return replace(state, value=_replace_kryo(state.kind, state.value, simple))


def _replace_kryo(kind: str, value: FlinkType, simple: KryoKeyType) -> FlinkType:
    if kind == "list" and isinstance(value, ListType):
        return replace(value, element=_replace_kryo("", value.element, simple))
    if kind == "map" and isinstance(value, MapType):
        return replace(value, value=_replace_kryo("", value.value, simple))
    if isinstance(value, TtlType | TtlAwareType):
        return replace(value, value=_replace_kryo("", value.value, simple))
    return simple if isinstance(value, KryoType) else value


def _find_innermost(state: KeyedStateInfo) -> tuple[FlinkType, int]:
    """Return the type of a value in a list, a map or with a TTL, and the bytes before it."""
    value, before = state.value, 0
    if state.kind == "list" and isinstance(value, ListType):
        value = value.element
    elif state.kind == "map" and isinstance(value, MapType):
        value, before = value.value, _FLAG_BYTES
    while isinstance(value, TtlType | TtlAwareType):
        before += _TIME_BYTES * isinstance(value, TtlType)
        value = value.value
    return value, before
