"""The handle that a ``StatefulProcessor`` gets: states and timers of the current key.

A :class:`Handle` has the methods of Spark's ``StatefulProcessorHandle``. Its states hold the rows
of one key in memory. Reads see these rows. Changes are collected separately and are written when
the key is done. The rules follow Spark's ValueStateImpl, ListStateImpl, MapStateImpl,
TimerStateImpl, and their variants with a TTL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import Row, StructType, TimestampType

from statestore.display import counted, duration
from statestore.durations import duration_text
from statestore.errors import InvalidArgumentError
from statestore.format.state import StateKind
from statestore.rows.lossless_cast import (
    UnfitError,
    brief_text,
    exact_converter,
    is_missing,
    unwrap_numpy,
)
from statestore.streaming.python_values import instant_of

NONE, PROCESSING, EVENT = "none", "processingtime", "eventtime"
TimeMode = str
Values = tuple[Any, ...]


@dataclass(frozen=True)
class Variable:
    """A state that a processor declares: its kind, its columns, and its TTL in milliseconds.

    ``entry`` has the columns of a map's keys.
    """

    name: str
    kind: StateKind
    value: StructType
    entry: StructType | None = None
    ttl_ms: int | None = None

    def __str__(self) -> str:
        """Return its description for messages."""
        keys = "" if self.entry is None else f"{self.entry.simpleString()} to "
        life = "" if self.ttl_ms is None else f", TTL {duration_text(self.ttl_ms)}"
        return f"{self.kind} state {self.name!r} of {keys}{self.value.simpleString()}{life}"


@dataclass(frozen=True)
class ProcessorClock:
    """The times of a micro-batch, in milliseconds: when it was planned, and its watermark."""

    mode: TimeMode
    now_ms: int = -1
    watermark_ms: int = -1

    @property
    def due_ms(self) -> int | None:
        """Timers up to this time fire; None without timers."""
        return {PROCESSING: self.now_ms, EVENT: self.watermark_ms}.get(self.mode)


@dataclass(frozen=True)
class Changed:
    """The changes of one key in a state: rows without the key's columns.

    ``upserts`` are rows of entry and value, and ``deletes`` are entries. If ``cleared`` is True,
    all stored rows of the key are deleted first.
    """

    upserts: Sequence[Values] = ()
    deletes: Sequence[Values] = ()
    cleared: bool = False


class ValueState:
    """One row of values per key; Spark's ``ValueState``."""

    def __init__(self, variable: Variable, clock: ProcessorClock) -> None:
        """Start without a key."""
        self._variable, self._clock = variable, clock
        self.begin(())

    def begin(self, rows: Sequence[Values]) -> None:
        """Take the stored rows of a key."""
        self._stored = bool(rows)
        self._value = _alive(rows[0], self._variable, self._clock) if rows else None
        self._is_changed = False

    def changed(self) -> Changed:
        """Return the changes since :meth:`begin`."""
        if not self._is_changed:
            return Changed()
        if self._value is None:
            return Changed(deletes=((),)) if self._stored else Changed()
        return Changed(upserts=(_lasting(self._value, self._variable, self._clock),))

    def exists(self) -> bool:
        """Return whether there is a value."""
        return self._value is not None

    def get(self) -> Values | None:
        """Return the value, or None if the key has no value."""
        return self._value

    def update(self, newValue: Values) -> None:
        """Replace the value; its TTL starts again."""
        self._value, self._is_changed = _checked(newValue, self._variable, "value"), True

    def clear(self) -> None:
        """Remove the value."""
        self._value, self._is_changed = None, True


class ListState:
    """An ordered list of elements per key; Spark's ``ListState``."""

    def __init__(self, variable: Variable, clock: ProcessorClock) -> None:
        """Start without a key."""
        self._variable, self._clock = variable, clock
        self.begin(())

    def begin(self, rows: Sequence[Values]) -> None:
        """Take the stored rows of a key: a position and an element each."""
        self._stored = bool(rows)
        in_order = sorted(rows, key=lambda row: row[0])
        self._next = in_order[-1][0] + 1 if in_order else 0
        alive = (_alive(row[1:], self._variable, self._clock) for row in in_order)
        self._elements = [element for element in alive if element is not None]
        self._added: list[Values] = []
        self._is_cleared = False

    def changed(self) -> Changed:
        """Return the changes since :meth:`begin`."""
        first = 0 if self._is_cleared else self._next
        lasting = (_lasting(element, self._variable, self._clock) for element in self._added)
        rows = tuple((first + offset, *element) for offset, element in enumerate(lasting))
        return Changed(upserts=rows, cleared=self._is_cleared and self._stored)

    def exists(self) -> bool:
        """Return whether the list has an element."""
        return bool(self._elements or self._added)

    def get(self) -> Iterator[Values]:
        """Return the current elements, in order."""
        return iter([*self._elements, *self._added])

    def put(self, newState: Iterable[Values]) -> None:
        """Replace all elements."""
        added = self._checked(newState)
        self.clear()
        self._added = added

    def appendValue(self, newState: Values) -> None:
        """Add an element at the end; earlier elements keep their expiration times."""
        self._added.append(_checked(newState, self._variable, "element"))

    def appendList(self, newState: Iterable[Values]) -> None:
        """Add elements at the end."""
        self._added += self._checked(newState)

    def clear(self) -> None:
        """Remove all elements."""
        self._elements, self._added, self._is_cleared = [], [], True

    def _checked(self, elements: Iterable[Values]) -> list[Values]:
        values = [_checked(element, self._variable, "element") for element in elements]
        if not values:
            raise InvalidArgumentError(
                f"{self._variable} is updated with an empty list; call clear() to remove the "
                "elements"
            )
        return values


class MapState:
    """A map of entries per key; Spark's ``MapState``."""

    def __init__(self, variable: Variable, clock: ProcessorClock) -> None:
        """Start without a key."""
        self._variable, self._clock = variable, clock
        self._width = len(variable.entry or ())
        self.begin(())

    def begin(self, rows: Sequence[Values]) -> None:
        """Take the stored rows of a key: the columns of an entry, and its values."""
        self._stored = {self._comparable(row[: self._width]) for row in rows}
        alive = (
            (row[: self._width], _alive(row[self._width :], self._variable, self._clock))
            for row in rows
        )
        self._entries = {
            self._comparable(key): (key, value) for key, value in alive if value is not None
        }
        self._changed: dict[Any, Values] = {}
        self._is_cleared = False

    def changed(self) -> Changed:
        """Return the changes since :meth:`begin`."""
        upserts: list[Values] = []
        deletes: list[Values] = []
        for entry_id, own in self._changed.items():
            if entry_id in self._entries:
                value = self._entries[entry_id][1]
                upserts.append((*own, *_lasting(value, self._variable, self._clock)))
            elif entry_id in self._stored and not self._is_cleared:
                deletes.append(own)
        return Changed(upserts, deletes, self._is_cleared and bool(self._stored))

    def exists(self) -> bool:
        """Return whether the map has an entry."""
        return bool(self._entries)

    def getValue(self, key: Values) -> Values | None:
        """Return the value of an entry, or None if the map lacks it."""
        entry = self._entries.get(self._key(key)[0])
        return None if entry is None else entry[1]

    def containsKey(self, key: Values) -> bool:
        """Return whether the map has an entry with this key."""
        return self._key(key)[0] in self._entries

    def updateValue(self, key: Values, value: Values) -> None:
        """Replace the entry with this key, or add it."""
        entry_id, own = self._key(key)
        self._entries[entry_id] = own, _checked(value, self._variable, "value")
        self._changed[entry_id] = own

    def iterator(self) -> Iterator[tuple[Values, Values]]:
        """Return the current keys and values."""
        return iter(list(self._entries.values()))

    def keys(self) -> Iterator[Values]:
        """Return the current keys."""
        return iter([key for key, _ in self._entries.values()])

    def values(self) -> Iterator[Values]:
        """Return the current values."""
        return iter([value for _, value in self._entries.values()])

    def removeKey(self, key: Values) -> None:
        """Remove an entry, if it exists."""
        entry_id, own = self._key(key)
        self._entries.pop(entry_id, None)
        self._changed[entry_id] = own

    def clear(self) -> None:
        """Remove all entries."""
        self._entries, self._changed, self._is_cleared = {}, {}, True

    def _key(self, key: Values) -> tuple[Any, Values]:
        assert self._variable.entry is not None
        own = _of_width(key, self._variable.entry, f"{self._variable}: a key of the map")
        return self._comparable(own), own

    def _comparable(self, key: Values) -> Any:
        """Return a key in a hashable form that is equal only for equal keys.

        Datetimes of the same instant are equal. Two datetimes that differ only in ``fold`` are
        different keys, although Python compares them as equal.
        """
        assert self._variable.entry is not None
        return tuple(
            instant_of(value)
            if isinstance(field.dataType, TimestampType) and isinstance(value, datetime)
            else _hashable(value)
            for value, field in zip(key, self._variable.entry, strict=True)
        )


class _Timers:
    """The timers of a key, in milliseconds."""

    def __init__(self) -> None:
        self.begin(())

    def begin(self, rows: Sequence[Values]) -> None:
        self._stored = {row[0] for row in rows}
        self._now = set(self._stored)

    def changed(self) -> Changed:
        added, gone = sorted(self._now - self._stored), sorted(self._stored - self._now)
        return Changed([(time_ms,) for time_ms in added], [(time_ms,) for time_ms in gone])

    def add(self, time_ms: int) -> None:
        self._now.add(time_ms)

    def remove(self, time_ms: int) -> None:
        self._now.discard(time_ms)

    def sorted_times(self) -> list[int]:
        return sorted(self._now)


State = ValueState | ListState | MapState
_STATES: dict[StateKind, Callable[[Variable, ProcessorClock], State]] = {
    StateKind.VALUE: ValueState,
    StateKind.LIST: ListState,
    StateKind.MAP: MapState,
}


class Handle:
    """The handle that a processor is initialized with; Spark's ``StatefulProcessorHandle``.

    It serves one key at a time: :meth:`begin` takes the key's stored rows, and :meth:`changed`
    returns the processor's changes to them.
    """

    def __init__(self, clock: ProcessorClock, known: Mapping[str, Variable]) -> None:
        """Start without states; ``known`` are the states that :func:`declared_by` returned."""
        self._clock, self._known = clock, known
        self._states: dict[str, State] = {}
        self._timers = _Timers()
        self.is_open = True

    def begin(self, rows: Mapping[str, Sequence[Values]], timers: Sequence[Values]) -> None:
        """Take the rows of a key, by state; a state that ``rows`` does not name has no rows."""
        for name, state in self._states.items():
            state.begin(rows.get(name, ()))
        self._timers.begin(timers)

    def changed(self) -> tuple[Mapping[str, Changed], Changed]:
        """Return the changes of states and timers."""
        return (
            {name: state.changed() for name, state in self._states.items()},
            self._timers.changed(),
        )

    def due(self) -> list[int]:
        """Return the timers that fire now, in order of their times."""
        limit = self._clock.due_ms
        return (
            []
            if limit is None
            else [time_ms for time_ms in self._timers.sorted_times() if time_ms <= limit]
        )

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        """Return a state with one row per key."""
        state = self._state(StateKind.VALUE, stateName, schema, None, ttlDurationMs)
        assert isinstance(state, ValueState)
        return state

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        """Return a state with a list of rows per key."""
        state = self._state(StateKind.LIST, stateName, schema, None, ttlDurationMs)
        assert isinstance(state, ListState)
        return state

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """Return a state with a map of rows per key."""
        state = self._state(StateKind.MAP, stateName, valueSchema, userKeySchema, ttlDurationMs)
        assert isinstance(state, MapState)
        return state

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer: ``handleExpiredTimer`` is called for the key at this time."""
        self._refuse_no_time("a timer was registered")
        self._timers.add(_milliseconds(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Remove a timer of the key, if it exists."""
        self._refuse_no_time("a timer was deleted")
        self._timers.remove(_milliseconds(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the key, in order of their times."""
        self._refuse_no_time("timers were listed")
        return iter(self._timers.sorted_times())

    def deleteIfExists(self, stateName: str) -> None:
        """Remove a state of an earlier version of the processor, with the rows of all keys."""
        if not self.is_open:
            raise InvalidArgumentError(
                f"state {stateName!r} was deleted outside of init(); declare and delete "
                "states only in init()"
            )

    def _refuse_no_time(self, feature: str) -> None:
        if self._clock.due_ms is None:
            raise InvalidArgumentError(
                f'{feature} by a processor with time_mode="None": start it with "ProcessingTime" '
                'or "EventTime"'
            )

    def _state(
        self,
        kind: StateKind,
        name: str,
        value: StructType | str,
        entry: StructType | str | None,
        ttl_ms: int | None,
    ) -> State:
        if not self.is_open:
            raise InvalidArgumentError(
                f"state {name!r} was declared outside of init(); declare states only in init()"
            )
        variable = self._find_declared(kind, name, value, entry, ttl_ms)
        self._states[name] = _STATES[kind](variable, self._clock)
        return self._states[name]

    def _find_declared(
        self,
        kind: StateKind,
        name: str,
        value: StructType | str,
        entry: StructType | str | None,
        ttl_ms: int | None,
    ) -> Variable:
        known = self._known.get(name)
        if known is None or known.kind is not kind:
            raise InvalidArgumentError(
                f"{kind} state {name!r} was declared in a task but not when the query was "
                "created; init() must always declare the same states"
            )
        return known


class _Declaring(Handle):
    """A handle that only records the declarations of ``init``."""

    def __init__(self, clock: ProcessorClock, parse: Callable[[str], StructType]) -> None:
        self.variables: dict[str, Variable] = {}
        self.deleted: list[str] = []
        self._parse = parse
        super().__init__(clock, self.variables)

    def deleteIfExists(self, stateName: str) -> None:
        self.deleted.append(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        raise InvalidArgumentError(
            "a timer was registered in init(), which has no key; register timers while "
            "processing rows"
        )

    def _find_declared(
        self,
        kind: StateKind,
        name: str,
        value: StructType | str,
        entry: StructType | str | None,
        ttl_ms: int | None,
    ) -> Variable:
        if name in self.variables:
            raise InvalidArgumentError(
                f"the processor declares two states named {name!r}; rename one"
            )
        if ttl_ms is not None and self._clock.mode != PROCESSING:
            raise InvalidArgumentError(
                f"state {name!r} has a TTL, which requires processing time: use "
                'time_mode="ProcessingTime"'
            )
        if ttl_ms is not None and ttl_ms <= 0:
            raise InvalidArgumentError(
                f"state {name!r} has the TTL {duration(ttl_ms)}, but a TTL must be positive"
            )
        variable = Variable(
            name,
            kind,
            self._struct(name, value),
            None if entry is None else self._struct(name, entry),
            ttl_ms,
        )
        self.variables[name] = variable
        return variable

    def _struct(self, name: str, schema: StructType | str) -> StructType:
        struct = self._parse(schema) if isinstance(schema, str) else schema
        if not struct.fields:
            raise InvalidArgumentError(
                f"the schema of state {name!r} is {schema!r}: it must have columns, for "
                "example 'n long'"
            )
        return struct


def declared_by(
    init: Callable[[Any], object], mode: TimeMode, parse: Callable[[str], StructType]
) -> tuple[tuple[Variable, ...], tuple[str, ...]]:
    """Return the states that a processor's ``init`` declares, and the names that it deletes.

    Raises InvalidArgumentError for two states with one name, and for an invalid TTL.
    """
    handle = _Declaring(ProcessorClock(mode), parse)
    init(handle)
    return tuple(handle.variables.values()), tuple(handle.deleted)


def _alive(row: Values, variable: Variable, clock: ProcessorClock) -> Values | None:
    """Return a stored row without its expiration time, or None if the row has expired."""
    if variable.ttl_ms is None:
        return row
    *values, ends = row
    return tuple(values) if ends > clock.now_ms else None


def _lasting(values: Values, variable: Variable, clock: ProcessorClock) -> Values:
    """Return a row in its stored form, with its expiration time if the state has a TTL."""
    return values if variable.ttl_ms is None else (*values, clock.now_ms + variable.ttl_ms)


def _checked(values: Values, variable: Variable, part: str) -> Values:
    return _of_width(values, variable.value, f"{variable}: its {part}")


def _of_width(values: Any, struct: StructType, subject: str) -> Values:
    """Return values as a tuple of built-in types; InvalidArgumentError if they do not fit."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise InvalidArgumentError(
            f"{subject} is {values!r}: pass a tuple of ({', '.join(struct.names)})"
        )
    if len(values) != len(struct.fields):
        raise InvalidArgumentError(
            f"{subject} is {values!r} with {counted(len(values), 'value')}, which does not fit "
            f"the columns ({', '.join(struct.names)})"
        )
    return tuple(_plain(value) for value in values)


def _milliseconds(time: Any) -> int:
    """Return the time of a timer; InvalidArgumentError if it is not a 64-bit integer."""
    try:
        time_ms: int = _LONG(time)
    except UnfitError as error:
        raise InvalidArgumentError(
            f"the timer's time {brief_text(time)} is not a whole number of milliseconds: "
            f"{error.reason}"
        ) from None
    return time_ms


def _plain(value: Any) -> Any:
    """Return values of numpy and pandas as Python's built-in types."""
    if isinstance(value, _PLAIN):
        return value
    if is_missing(value):
        return None
    if isinstance(value, np.generic):
        return unwrap_numpy(value)
    if getattr(value, "nanosecond", 0):  # Python has none: what writes the value refuses it
        return value
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_plain, value))
    if isinstance(value, Row):
        return value
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    for convert in ("to_pydatetime", "to_pytimedelta", "tolist"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    return value


_LONG = exact_converter(pa.int64())
_PLAIN = (str, int, float, bytes, type(None))


def _hashable(value: Any) -> Any:
    """Return a map key in hashable form; NaN equals NaN, and 0.0 equals -0.0."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, dict):
        return tuple(sorted((_hashable(key), _hashable(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return bytes(value) if isinstance(value, bytearray) else value
