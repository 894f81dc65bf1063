"""Read all keys of an operator to find their class and their hash, which the header lacks.

Each key is stored in the key group of its hash. So the class of keys that Kryo wrote, or a recipe
for the hash of keys, is right if it gives the stored key group of every key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from statestore.errors import DamagedFileError, InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.keyed_states import FlinkState
from statestore.interop.flink.read.savepoint import FlinkOperator
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import Spans
from statestore.interop.flink.types.internal_types import plain_type
from statestore.interop.flink.types.key_recipes import SCALA
from statestore.interop.flink.types.kryo import KryoType, find_simple_types, is_kryo_bytes
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
    """Return whether a wrong recipe would hardly hold for as many keys as the operator has."""
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
