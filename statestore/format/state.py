"""The description of a state: operator uid, name, kind, columns and its behavior on a rescale.

Keyed state belongs to a key and moves with its key group. Operator state belongs to a subtask and
is redistributed by its mode. Kinds and entries follow Flink's ``StateDescriptor.Type``:

=============  ==================================  =======================================
kind           rows per (key, namespace)           further identity of a row (``entry``)
=============  ==================================  =======================================
value          0 or 1                              –
list           one per element                     the position column; order is kept
map            one per map key                     the map key column(s)
reducing       0 or 1, the reduced value           –
aggregating    0 or 1, the accumulator             –
timers         one per registered time             the timestamp column
=============  ==================================  =======================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from statestore.errors import InvalidArgumentError, UnsupportedTypeError, unknown_choice
from statestore.format.names import (
    KEY_GROUP,
    POSITION,
    RESERVED_ELEMENT_COLUMNS,
    SUBTASK,
    refuse_reserved,
)
from statestore.format.schema import Schema, is_ordered, type_text
from statestore.format.ttl import TIME_TYPES, TimeToLive
from statestore.jobgraph.redistribution import RedistributionMode

__all__ = [
    "AUTO_LAYOUT",
    "LAYOUT_CHOICES",
    "POSITION",
    "SUBTASK",
    "KeyedState",
    "Layout",
    "LayoutChoice",
    "OperatorState",
    "StateKind",
    "TimeDomain",
]


_INTEGERS = ("byte", "short", "integer", "long")


_TIMES = ("long", "timestamp", "timestamp_ntz")


class StateKind(StrEnum):
    """The kinds of keyed state."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    TIMERS = "timers"

    @classmethod
    def _missing_(cls, value: object) -> StateKind:
        raise unknown_choice("kind of keyed state", value, cls)


class TimeDomain(StrEnum):
    """The clock of a timer: the watermark (event time) or the wall clock (processing time)."""

    EVENT = "event"
    PROCESSING = "processing"

    @classmethod
    def _missing_(cls, value: object) -> TimeDomain:
        raise unknown_choice("time domain", value, cls)


class Layout(StrEnum):
    """The distribution of key groups over files; recorded per state and checkpoint."""

    PARTITIONED = "partitioned"
    """One file per key group, in a folder of its own."""

    RANGED = "ranged"
    """Few files, each with contiguous key groups; most row groups end where a key group ends."""

    @classmethod
    def _missing_(cls, value: object) -> Layout:
        raise unknown_choice("layout", value, cls)


AUTO_LAYOUT = "auto"
"""The layout is chosen when the state is written."""

LAYOUT_CHOICES = (*(layout.value for layout in Layout), AUTO_LAYOUT)

LayoutChoice = Annotated[str, Meta(pattern=rf"\A({'|'.join(LAYOUT_CHOICES)})\Z")]


@dataclass(frozen=True, kw_only=True)
class KeyedState:
    """One keyed state: its name, columns by role, number of key groups and hash scheme (I1, I3).

    ``key_types`` has, per key column, the type whose hash determines the key group ("Long",
    "BIGINT", …). It must never change, because that would change the hashes.
    """

    uid: str
    name: str
    kind: StateKind
    schema: Schema
    key: tuple[str, ...]
    namespace: tuple[str, ...] = ()
    entry: tuple[str, ...] = ()
    key_types: tuple[str, ...]
    max_parallelism: int
    hash_scheme: str
    time_domain: TimeDomain | None = None
    layout: Layout = Layout.PARTITIONED
    ttl: TimeToLive | None = None

    def __post_init__(self) -> None:
        """Check that roles name existing columns, once each, and that the kind's rules hold."""
        # Stored changes have the mark, and older releases accepted its name in other states.
        refuse_reserved(self.schema.names, str(self), (KEY_GROUP,))
        roles = (*self.key, *self.namespace, *self.entry)
        for column in roles:
            self.schema.type_of(column)
        twice = sorted({column for column in roles if roles.count(column) > 1})
        if twice:
            raise InvalidArgumentError(
                f"{self}: the column {twice[0]!r} has two roles; give it only one"
            )
        if not self.key:
            raise InvalidArgumentError(f"{self}: name at least one key column, e.g. key='user_id'")
        if len(self.key_types) != len(self.key):
            raise InvalidArgumentError(
                f"{self}: there are {len(self.key)} key columns but {len(self.key_types)} key "
                "types; pass one for each column"
            )
        for column in roles:
            if not is_ordered(self.schema.type_of(column)):
                raise UnsupportedTypeError(
                    f"{self}: the identity column {column!r} has type "
                    f"{type_text(self.schema.type_of(column))}, which cannot be sorted because the "
                    "entries of a map have no order. Convert it to a sorted list of structs with "
                    "key and value; a key of that type has other key groups than the map"
                )
        self._check_entry()
        self._check_ttl()

    def _check_ttl(self) -> None:
        if self.ttl is None:
            return
        column = self.ttl.column
        if column not in self.schema.names:
            raise InvalidArgumentError(
                f"{self}: the rows lack the TTL column {column!r}; they have ({self.schema}). "
                "Add the column"
            )
        column_type = type_text(self.schema.type_of(column))
        if column in self.identity:
            raise InvalidArgumentError(
                f"{self}: the TTL column {column!r} is an identity column, whose value never "
                "changes for a row; use a value column"
            )
        if column_type not in TIME_TYPES:
            raise UnsupportedTypeError(
                f"{self}: the TTL column {column!r} has type {column_type}; it must be a long "
                "(milliseconds since 1970, UTC) or a timestamp"
            )

    def _check_entry(self) -> None:
        wanted = {
            StateKind.LIST: "position",
            StateKind.MAP: "map_key",
            StateKind.TIMERS: "timestamp",
        }
        role = wanted.get(self.kind)
        if (role is not None) != bool(self.entry):
            raise InvalidArgumentError(
                f"{self}: {self.kind} state requires {f'a {role}' if role else 'no entry'} column"
                f"{'; name it with entry=' if role else ''}"
            )
        if (self.kind is StateKind.TIMERS) != (self.time_domain is not None):
            wants = "a time domain" if self.kind is StateKind.TIMERS else "no time domain"
            raise InvalidArgumentError(f"{self}: {self.kind} state requires {wants}")
        allowed = {StateKind.LIST: _INTEGERS, StateKind.TIMERS: _TIMES}.get(self.kind)
        for column in self.entry:
            type_name = type_text(self.schema.type_of(column))
            if allowed and type_name not in allowed:
                raise UnsupportedTypeError(
                    f"{self}: the {role} column {column!r} has type {type_name}; it must be one of "
                    f"{', '.join(allowed)}"
                )

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that together identify a row of the state."""
        return (*self.key, *self.namespace, *self.entry)

    @property
    def values(self) -> tuple[str, ...]:
        """The columns that are not part of the identity."""
        return tuple(name for name in self.schema.names if name not in self.identity)

    def __str__(self) -> str:
        """Return the state's name in messages."""
        return f"state {self.name!r} of operator {self.uid!r}"


@dataclass(frozen=True, kw_only=True)
class OperatorState:
    """One operator state: elements with typed columns, and their redistribution mode."""

    uid: str
    name: str
    mode: RedistributionMode
    schema: Schema

    def __post_init__(self) -> None:
        """Refuse element columns with the names of the two columns that the table adds."""
        refuse_reserved(self.schema.names, str(self), RESERVED_ELEMENT_COLUMNS)

    def __str__(self) -> str:
        """Return the state's name in messages."""
        return f"{self.mode.value} state {self.name!r} of operator {self.uid!r}"
