"""Find what the header lacks of values that Kryo serializes: their class, and Kryo's version.

The class of the first value is assumed for all values. An import then tries to read each value as
that class. If one does not fit, it keeps all values as bytes. If Kryo wrote only a part of a value,
such as a field of a POJO, its version says where that part ends, and only the part stays bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from statestore.errors import DamagedFileError, SchemaMismatchError, UnsupportedTypeError
from statestore.interop.flink.metadata.versions import KRYO_2, KRYO_5, find_kryo_version
from statestore.interop.flink.read.keyed_states import FlinkState
from statestore.interop.flink.read.savepoint import FlinkOperator
from statestore.interop.flink.types.base import FlinkType, nested_types
from statestore.interop.flink.types.internal_types import TtlAwareType, TtlType, UndecodedType
from statestore.interop.flink.types.kryo import (
    KryoType,
    find_kryo_part,
    find_simple_types,
    is_kryo_bytes,
    set_kryo,
)

_TIME_BYTES = 8
_PARTS = "parts of Kryo "
_PROBED_BYTES = 8 * 2**20

T = TypeVar("T")


def find_value_types(
    operator: FlinkOperator, state: FlinkState, metadata_version: int
) -> Iterator[FlinkState]:
    """Yield the state with each type that its values may have, the likeliest first.

    Nothing is yielded unless Kryo writes the values, and the first one is of a simple class. If
    Kryo's versions read different numbers from the same bytes, the version of ``_metadata`` must
    tell which Flink wrote them.
    """
    kryo, before = _find_innermost(state)
    if not is_kryo_bytes(kryo):
        return
    entries = next((part for part in operator.entries(state.name) if len(part.values)), None)
    if entries is None:
        return
    first = entries.values.part(0, 1)
    head = bytes(first.data[first.starts[0] + before : first.starts[0] + before + 1])
    version = find_kryo_version(metadata_version)
    for simple in find_simple_types(kryo, head):
        if simple.kryo == version or not simple.has_byte_order:
            yield _replace_values(state, simple)


def find_kryo_parts(
    operator: FlinkOperator, state: FlinkState, metadata_version: int
) -> FlinkState | None:
    """Return the state with the version of Kryo that wrote parts of its keys and values.

    It is None if Kryo wrote no parts, or if its version cannot be determined. If the metadata do
    not say it, all entries are read as both versions would have written them.
    """
    value, _ = _find_innermost(state)
    parts = (state.key, () if is_kryo_bytes(value) else value)
    if find_kryo_part(parts) is None:
        return None
    version = find_kryo_version(metadata_version) or _probe_version(operator, state)
    return None if version is None else _set_version(state, version)


def _set_version(state: FlinkState, version: int) -> FlinkState:
    with_key = state.with_key(set_kryo(state.key, version))
    return replace(with_key, value=set_kryo(with_key.value, version))


def _probe_version(operator: FlinkOperator, state: FlinkState) -> int | None:
    """Return the version of Kryo that can read all entries; None if two read different parts."""
    old, new = (
        _read_digest(operator, _set_version(state, version)) for version in (KRYO_2, KRYO_5)
    )
    if new is None or old == new:
        return None if old is None else KRYO_2
    return KRYO_5 if old is None else None


def _read_digest(operator: FlinkOperator, state: FlinkState) -> bytes | None:
    """Return a digest of the parts of all entries; None if an entry does not fit the types."""
    digest = hashlib.sha256()
    declared = state.with_key(UndecodedType(state.key))
    try:
        for rows in operator.rows(
            state.name, declared=declared, is_checked=False, most_bytes=_PROBED_BYTES
        ):
            parts = (rows.key, rows.namespace, rows.map_key, rows.value)
            columns = [part for part in parts if part is not None]
            names = list(map(str, range(len(columns))))
            digest.update(pa.RecordBatch.from_arrays(columns, names).serialize())
    except (DamagedFileError, UnsupportedTypeError):
        return None
    return digest.digest()


def set_value_class(
    state: FlinkState, text: str, metadata_version: int | None = None
) -> FlinkState:
    """Return a state whose values have the class that an import recorded.

    Args:
        state: the state, as its header describes it.
        text: the class, with the version of Kryo.
        metadata_version: the version of ``_metadata`` if the state is of another savepoint, which
            another version of Kryo may have written.

    Raises:
        SchemaMismatchError: if nothing says which Kryo wrote it, and they read other values.
    """
    if text.startswith(_PARTS):
        return _set_version(state, _parse_parts(text))
    kryo, _ = _find_innermost(state)
    if not is_kryo_bytes(kryo):
        return state
    simple = kryo.with_class(text)
    version = None if metadata_version is None else find_kryo_version(metadata_version)
    if version is not None:
        simple = replace(simple, kryo=version)
    elif metadata_version is not None and simple.has_byte_order:
        raise SchemaMismatchError(
            f"nothing says which version of Kryo wrote the values of state {state.name!r}, because "
            f"its savepoint has metadata of version {metadata_version}: import the savepoint into "
            "a separate store"
        )
    return _replace_values(state, simple)


def find_value_class(state: FlinkState) -> str | None:
    """Return the class of a state's values as an import records it; None if it is unknown."""
    simple, _ = _find_innermost(state)
    if isinstance(simple, KryoType) and simple.simple:
        return simple.text
    return describe_kryo_parts((state.key, state.value))


def describe_kryo_parts(part: object) -> str | None:
    """Return which version of Kryo wrote parts of a type, or of several; None if it is unknown."""
    versions = (kryo.kryo for kryo in nested_types(part) if is_kryo_bytes(kryo))
    version = next((version for version in versions if version is not None), None)
    return None if version is None else f"{_PARTS}{version}"


def set_kryo_parts(part: T, text: str | None) -> T:
    """Return a type, or a part of one, with the version of Kryo that an import recorded."""
    if text is None or not text.startswith(_PARTS):
        return part
    return set_kryo(part, _parse_parts(text))


def _parse_parts(text: str) -> int:
    return int(text.removeprefix(_PARTS))


def _replace_values(state: FlinkState, simple: KryoType) -> FlinkState:
    return state.with_inner(_replace_kryo(state.inner, simple))


def _replace_kryo(value: FlinkType, simple: KryoType) -> FlinkType:
    if isinstance(value, TtlType | TtlAwareType):
        return replace(value, value=_replace_kryo(value.value, simple))
    return simple if is_kryo_bytes(value) else value


def _find_innermost(state: FlinkState) -> tuple[FlinkType, int]:
    """Return the type of a value in a list, a map or with a TTL, and the bytes before it."""
    value, before = state.inner, state.before_inner
    while isinstance(value, TtlType | TtlAwareType):
        before += _TIME_BYTES * isinstance(value, TtlType)
        value = value.value
    return value, before
