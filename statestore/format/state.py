"""The description of a state: operator uid, name, kind, columns, TTL, and behavior on a rescale.

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

The rule of :class:`TimeToLive` is Flink's (``TtlUtils``): a row expires as soon as its time plus
the TTL is not after the clock. Each row has its own time, so a list expires per element and a map
per entry. Only :func:`clock_ms` reads this machine's clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from statestore.durations import Duration, duration_text, milliseconds_of
from statestore.errors import InvalidArgumentError, UnsupportedTypeError, unknown_choice
from statestore.format.names import KEY_GROUP, RESERVED_ELEMENT_COLUMNS, refuse_reserved
from statestore.format.schema import Schema, is_ordered, type_text
from statestore.jobgraph.redistribution import RedistributionMode

TIME_TYPES = ("long", "timestamp")
"""The types of a time column: milliseconds since 1970 in UTC, or a timestamp with time zone."""

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


class TtlUpdate(StrEnum):
    """The operations that renew a row's time: ``StateTtlConfig.UpdateType``."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"

    @classmethod
    def _missing_(cls, value: object) -> TtlUpdate:
        raise unknown_choice("TTL update mode", value, cls)


class TtlVisibility(StrEnum):
    """Whether a restore returns expired rows: ``StateTtlConfig.StateVisibility``."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"

    @classmethod
    def _missing_(cls, value: object) -> TtlVisibility:
        raise unknown_choice("TTL visibility", value, cls)


@dataclass(frozen=True)
class TimeToLive:
    """The TTL of a keyed state's rows: how long they live after the time in their ``column``.

    The ``duration`` is a ``timedelta`` or text such as ``36h``, from 1 ms to 2**63 - 1 ms. The
    column is one of the state's values, a long (milliseconds since 1970, UTC) or a timestamp. With
    ``update="on_create_and_write"`` it is the time of the last write. With
    ``"on_read_and_write"`` it is the time of the last read or write. The store does not see the
    job's reads, so the job must upsert the rows that it read, with their values, in the next
    checkpoint. With the default ``visibility`` expired rows are never restored. With
    ``"return_expired_if_not_cleaned_up"`` they are restored until compaction drops them.
    """

    duration: Duration
    column: str
    update: TtlUpdate | str = TtlUpdate.ON_CREATE_AND_WRITE
    visibility: TtlVisibility | str = TtlVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        """Accept strings for enumeration members; InvalidArgumentError for other invalid values."""
        object.__setattr__(self, "update", TtlUpdate(self.update))
        object.__setattr__(self, "visibility", TtlVisibility(self.visibility))
        duration: object = self.duration
        if not isinstance(duration, timedelta | str) or milliseconds_of(duration) == 0:
            raise InvalidArgumentError(
                f"invalid TTL duration {duration!r}: pass a timedelta, or text such as '36h', of "
                "at least 1 ms"
            )
        object.__setattr__(self, "duration", duration_text(milliseconds_of(duration)))
        column: object = self.column
        if not isinstance(column, str) or not column:
            raise InvalidArgumentError(
                f"invalid TTL column {self.column!r}; name the column with the timestamps of "
                "the rows"
            )

    @property
    def duration_ms(self) -> int:
        """The duration in milliseconds."""
        return milliseconds_of(self.duration)

    @property
    def hides(self) -> bool:
        """True if a restore omits expired rows."""
        return self.visibility is TtlVisibility.NEVER_RETURN_EXPIRED

    def __str__(self) -> str:
        """Return the TTL as text."""
        return f"{self.duration} after {self.column}, {self.update}, {self.visibility}"


def is_expired(timestamp_ms: int, ttl_ms: int, now_ms: int) -> bool:
    """Return whether a row with this time is expired; all values are ms since 1970, in 64 bits.

    As in ``TtlUtils.expired``, an expiry time that does not fit into 64 bits is the largest one
    that does.
    """
    left = min(_LONG_MAX - timestamp_ms, ttl_ms) if timestamp_ms > 0 else ttl_ms
    return timestamp_ms + left <= now_ms


def check_time(now_ms: int) -> int:
    """Return the caller's clock in ms since 1970; InvalidArgumentError beyond 64 bits."""
    if isinstance(now_ms, bool) or not isinstance(now_ms, int):
        raise InvalidArgumentError(f"now_ms must be a number of milliseconds, not {now_ms!r}")
    if not _LONG_MIN <= now_ms <= _LONG_MAX:
        raise InvalidArgumentError(f"now_ms {now_ms} does not fit 64 bits; pass milliseconds")
    return now_ms


def clock_ms(now_ms: int | None) -> int:
    """Return the caller's clock, in ms since 1970, or this machine's clock if it is None."""
    return time.time_ns() // 1_000_000 if now_ms is None else check_time(now_ms)


def check_instant(now_ms: int) -> int:
    """Return the time if a timestamp can hold it; otherwise raise InvalidArgumentError."""
    if abs(now_ms) > _LONG_MAX // 1000:
        raise InvalidArgumentError(
            f"now_ms {now_ms} (milliseconds since 1970) is not a valid timestamp; pass another "
            "now_ms"
        )
    return now_ms


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
                f"{'; name it with entry= (--entry)' if role else ''}"
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
