"""Keyed states, as the header of a savepoint describes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from statestore.errors import (
    DamagedFileError,
    IncompatibleStateError,
    InvalidArgumentError,
    UnsupportedTypeError,
)
from statestore.interop.flink.read.canonical import KeyedHeader, StateInfo
from statestore.interop.flink.read.refusals import Refused
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.families.key_hash import GroupFunction, groups_of_hashes
from statestore.interop.flink.types.families.undecoded import plain_type
from statestore.interop.flink.types.flink_types import (
    FlinkType,
    ListType,
    MapType,
    RowDataType,
    TimerType,
    TtlType,
)
from statestore.interop.flink.types.key_recipes import recipe_hash_codes

StateForm = Literal["value", "list", "map", "reducing", "aggregating", "timers"]

_FORMS: dict[str, StateForm] = {
    "VALUE": "value",
    "LIST": "list",
    "MAP": "map",
    "REDUCING": "reducing",
    "AGGREGATING": "aggregating",
    "FOLDING": "aggregating",
    "UNKNOWN": "value",
}
_OPTION = "KEYED_STATE_TYPE"
_VALUE, _NAMESPACE = "VALUE_SERIALIZER", "NAMESPACE_SERIALIZER"


@dataclass(frozen=True, slots=True)
class KeyedStateInfo:
    """A keyed state: its name, its kind, and its types.

    ``value`` is the type in the header: for a list state the list, for a map state the map, for
    timers the timer. ``recipe`` gives the hashes of keys whose type has no known hash, as in
    :mod:`statestore.interop.flink.types.key_recipes`.
    """

    name: str
    kind: StateForm
    key: FlinkType
    namespace: FlinkType
    value: FlinkType
    recipe: str | None = None

    def key_groups(self, cursor: Cursor) -> GroupFunction:
        """Return a function from max parallelism to the key groups of the keys at a cursor.

        The cursor advances past the keys.

        Raises:
            UnsupportedTypeError: for a type whose hash cannot be computed from its values.
            InvalidArgumentError: for a recipe that does not fit the keys.
            DamagedFileError: if the bytes do not match the type.
        """
        key = plain_type(self.key)
        if self.recipe is None:
            return key.key_groups(cursor)
        return groups_of_hashes(recipe_hash_codes(self.recipe, key, key.read(cursor)))

    @property
    def before_key(self) -> int:
        """The number of bytes between the key group and the key: the time of a timer, or none."""
        return 8 if self.kind == "timers" else 0

    def with_key(self, key: FlinkType) -> KeyedStateInfo:
        """Return the state with another type of keys."""
        if isinstance(self.value, TimerType):
            return replace(self, key=key, value=TimerType(key, self.value.namespace))
        return replace(self, key=key)

    @property
    def has_ttl(self) -> bool:
        """Whether its values, elements or entries have a timestamp of the last access."""
        inner = self.value
        if self.kind == "list" and isinstance(inner, ListType):
            inner = inner.element
        if self.kind == "map" and isinstance(inner, MapType):
            inner = inner.value
        return isinstance(inner, TtlType)


def keyed_states(
    header: KeyedHeader, name: str, drop: Collection[Refused]
) -> tuple[KeyedStateInfo | None, ...]:
    """Return the states of a header, with None for a dropped state.

    ``name`` is the file's name in messages. Raises IncompatibleStateError for an unsupported
    state, and UnsupportedTypeError for an unknown kind of state.
    """
    return tuple(
        None
        if info.kind == "asynchronous" and Refused.ASYNC in drop
        else keyed_state(info, header.key.flink_type, name)
        for info in header.states
    )


def keyed_state(info: StateInfo, key: FlinkType, name: str) -> KeyedStateInfo:
    """Return a state of a header whose keys have the type ``key``.

    Raises the errors of :func:`keyed_states`.
    """
    if info.kind == "asynchronous":
        raise IncompatibleStateError(
            f"{name} has the state {info.name!r} of the asynchronous API (V2): take a savepoint of "
            f"the job with the synchronous state API, or drop the state (--drop {Refused.ASYNC})"
        )
    value = info.serializers.get(_VALUE)
    if isinstance(key, RowDataType):
        key = replace(key, is_key=True)
    if info.kind == "timers" and value is not None and isinstance(value.flink_type, TimerType):
        timer = TimerType(key, value.flink_type.namespace)
        return KeyedStateInfo(info.name, "timers", key, timer.namespace, timer)
    namespace = info.serializers.get(_NAMESPACE)
    form = _FORMS.get(info.options.get(_OPTION, "UNKNOWN"))
    shape = {"list": ListType, "map": MapType}.get(form or "")
    if (
        info.kind != "keyed"
        or value is None
        or namespace is None
        or form is None
        or (shape is not None and not isinstance(value.flink_type, shape))
    ):
        raise UnsupportedTypeError(
            f"{name} has the state {info.name!r} of the unsupported kind "
            f"{info.options.get(_OPTION, info.kind)}"
        )
    return KeyedStateInfo(info.name, form, key, namespace.flink_type, value.flink_type)


def check_key_groups(
    state: KeyedStateInfo, cursor: Cursor, key_group: int, max_parallelism: int, where: str
) -> None:
    """Check that each key at a cursor belongs to the key group in which it is stored.

    The files have no checksums, so this check detects damaged keys. It is skipped for types whose
    hash cannot be computed from a savepoint. ``where`` is the state's name in messages. Raises
    DamagedFileError if a key belongs to another key group.
    """
    try:
        computed = state.key_groups(cursor)(max_parallelism)
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
