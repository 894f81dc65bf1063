"""Find what the header lacks of keys and of values: their class, their hash, and Kryo's version.

Each key is stored in the key group of its hash. So the class of keys that Kryo wrote, or a recipe
for the hash of keys, is right if it gives the stored key group of every key. All keys are read.

The class of the first value is assumed for all values. An import then tries to read each value as
that class. If one does not fit, it keeps all values as bytes. If Kryo wrote only a part of a value,
such as a field of a POJO, its version says where that part ends, and only the part stays bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from statestore.interop.flink.metadata.versions import KRYO_2, KRYO_5, find_kryo_version
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.keyed_states import FlinkState
from statestore.interop.flink.read.savepoint import FlinkOperator
from statestore.interop.flink.types.base import FlinkType, nested_types
from statestore.interop.flink.types.byte_cursor import Cursor, Spans
from statestore.interop.flink.types.internal_types import (
    TtlAwareType,
    TtlType,
    UndecodedType,
    plain_type,
)
from statestore.interop.flink.types.key_recipes import SCALA
from statestore.interop.flink.types.kryo import (
    KryoType,
    find_kryo_part,
    find_simple_types,
    is_kryo_bytes,
    set_kryo,
)
from statestore.rows.lossless_cast import shorten

_PROOF_BITS = 20  # a wrong recipe holds once in a million: three keys in 128 key groups


@dataclass(frozen=True, slots=True)
class ProbedKeys:
    """The class and the recipe that fit all keys of an operator.

    ``kryo`` is their type if Kryo wrote them and all are of one simple class. ``recipe`` gives
    their hashes if their type has no known hash.
    """

    kryo: KryoType | None
    recipe: str | None

    def describe(self, state: FlinkState) -> FlinkState:
        """Return a state of the operator with this class and recipe."""
        if self.kryo is not None:
            state = state.with_key(self.kryo)
        return replace(state, recipe=self.recipe)


def probe_keys(
    operator: FlinkOperator, given: str | None = None, stored: str | None = None
) -> ProbedKeys:
    """Find the class of Kryo's keys, and check the recipe for the hash of keys.

    Args:
        operator: an operator that can be read.
        given: the recipe that the user gave.
        stored: the recipe of the operator's state in the store.

    Returns:
        The class, and the given or the stored recipe. If neither is given, the recipe of case
        classes is tried. It is returned if it holds for all keys, and there are enough keys to
        prove it.

    Raises:
        InvalidArgumentError: for a given or stored recipe that does not hold, with a key; or for a
            given recipe of keys that need none.
        DamagedFileError: if the bytes of a key do not match its type.
    """
    if not operator.states:
        if given is not None:
            raise InvalidArgumentError(
                f"operator {operator.title} has no keyed state, so it has no keys for the recipe "
                f"{given!r}: remove it"
            )
        return ProbedKeys(None, None)
    keys = ProbedKeys(_find_kryo_keys(operator), None)
    return replace(keys, recipe=_find_recipe(operator, keys, given, stored))


def _find_kryo_keys(operator: FlinkOperator) -> KryoType | None:
    """Return the type of Kryo's keys if all are of one simple class.

    A type fits if it gives the bytes and the stored key group of every key. If the keys fit two
    types that read them differently, the result is None. All keys are read until no type fits.
    """
    kryo = operator.states[0].key
    if not is_kryo_bytes(kryo):
        return None
    fitting: tuple[KryoType, ...] | None = None
    for state, key_group, keys in _iterate_keys(operator):
        if fitting is None:
            fitting = find_simple_types(kryo, bytes(keys.reader(0).data[:1]))
        fitting = tuple(
            key
            for key in fitting
            if _has_group(state.with_key(key), keys, key_group, operator.metadata.max_parallelism)
        )
        if not fitting:
            return None
    if not fitting or (len(fitting) > 1 and fitting[0].has_byte_order):
        return None
    return fitting[0]


def _find_recipe(
    operator: FlinkOperator, keys: ProbedKeys, given: str | None, stored: str | None
) -> str | None:
    """Return the recipe of keys without a known hash; the arguments of :func:`probe_keys`."""
    state = keys.describe(operator.states[0])
    if _has_known_hash(state):
        if given is not None:
            raise InvalidArgumentError(
                f"the keys of operator {operator.title} are {state.key.java_name}, whose hash is "
                f"known: remove the recipe {given!r}"
            )
        return None
    wanted = given or (None if stored == SCALA else stored)
    if wanted is not None:
        _check_recipe(operator, wanted)
        return wanted
    try:
        _check_recipe(operator, SCALA)
    except InvalidArgumentError:  # the job's class has a hash of its own
        return None
    return SCALA if stored == SCALA or _has_proof(operator) else None


def _has_proof(operator: FlinkOperator) -> bool:
    """Return whether the operator has enough keys to prove a recipe by their key groups."""
    if operator.metadata.max_parallelism == 1:
        return False
    needed = ceil(_PROOF_BITS / log2(operator.metadata.max_parallelism))
    known: set[bytes] = set()
    for state, _, keys in _iterate_keys(operator):
        starts = keys.position
        plain_type(state.key).read(keys)
        distinct = replace(keys.spans, starts=starts, ends=keys.position).arrow().unique()
        known.update(distinct[:needed].to_pylist())
        if len(known) >= needed:
            return True
    return False


def _check_recipe(operator: FlinkOperator, recipe: str) -> None:
    """Raise InvalidArgumentError unless a recipe gives the stored key group of every key."""
    most = operator.metadata.max_parallelism
    title = f"the recipe {recipe!r} for the keys of operator {operator.title}"
    try:
        _compute_groups(replace(operator.states[0], recipe=recipe), _no_keys(), most)
        for state, key_group, keys in _iterate_keys(operator):
            groups = _compute_groups(replace(state, recipe=recipe), keys, most)
            wrong = np.flatnonzero(groups != key_group)
            if len(wrong):
                row = int(wrong[0])
                raise InvalidArgumentError(
                    f"{title} does not hold: it puts the key {_show_key(state, keys, row)} of "
                    f"state {state.name!r} into key group {groups[row]}, but it is stored in key "
                    f"group {key_group}. Compare the recipe with hashCode() of the job's class"
                )
    except UnsupportedTypeError as error:
        raise InvalidArgumentError(f"{title} cannot be used: {error}") from error


def _iterate_keys(operator: FlinkOperator) -> Iterator[tuple[FlinkState, int, Cursor]]:
    """Yield the keys of all states, with the key group in which they are stored."""
    prefix = prefix_bytes(operator.metadata.max_parallelism)
    for entries in operator.entries():
        keys = entries.keys
        begins = keys.starts + prefix + entries.state.before_key
        yield entries.state, entries.key_group, Cursor(keys, begins, keys.ends)


def _no_keys() -> Cursor:
    spans = Spans.from_values([], "no keys")
    return Cursor(spans, spans.starts, spans.ends)


def _compute_groups(state: FlinkState, keys: Cursor, max_parallelism: int) -> npt.NDArray[np.int32]:
    """Return the key groups of keys; the cursor stays where it is."""
    return state.key_groups(Cursor(keys.spans, keys.position, keys.end))(max_parallelism)


def _has_known_hash(state: FlinkState) -> bool:
    try:
        state.key_groups(_no_keys())
    except UnsupportedTypeError:
        return False
    return True


def _has_group(state: FlinkState, keys: Cursor, key_group: int, max_parallelism: int) -> bool:
    try:
        groups = _compute_groups(state, keys, max_parallelism)
    except (DamagedFileError, UnsupportedTypeError):
        return False
    return bool((groups == key_group).all())


def _show_key(state: FlinkState, keys: Cursor, row: int) -> str:
    selected = Cursor(keys.spans, keys.position[row : row + 1], keys.end[row : row + 1])
    key = plain_type(state.key).read(selected)
    try:
        return shorten(repr(key[0].as_py()))
    except (OverflowError, ValueError):  # Python has no date after the year 9999
        return shorten(" ".join(str(key).split()))


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
