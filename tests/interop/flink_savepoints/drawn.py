"""Hypothesis strategies for Flink jobs: their key types, states, TTLs, windows, timers and data.

A :class:`Move` shrinks to one operator with one state and one event. ``Drawn.java`` runs a job from
its JSON document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hypothesis import strategies as st

__all__ = ["Cluster", "Event", "Move", "Operator", "State", "moves"]

Type = str | tuple[Any, ...]
"""The name of a scalar type, or the name of a composite type with its parts."""

Values = st.SearchStrategy[Any]
Kind = Literal["value", "list", "map", "reducing", "aggregating"]
Backend = Literal["hashmap", "rocksdb"]

KINDS: tuple[Kind, ...] = ("value", "list", "map", "reducing", "aggregating")
DAY_NANOS = 24 * 60 * 60 * 10**9
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class State:
    """A keyed state. Only a map has a type of map keys."""

    name: str
    kind: Kind
    type: Type
    map_key: Type | None
    ttl: bool


@dataclass(frozen=True)
class Event:
    """An input row: its key and window, one value per state or None, and the timers it sets."""

    key: Any
    window: tuple[int, int]
    values: tuple[Any, ...]
    event_timers: tuple[int, ...]
    processing_timers: tuple[int, ...]


@dataclass(frozen=True)
class Operator:
    """A keyed operator with its events. With ``windows``, windows are its namespaces."""

    uid: str
    key: Type
    windows: bool
    timers: bool
    states: tuple[State, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Cluster:
    """The settings of a job."""

    backend: Backend
    parallelism: int
    max_parallelism: int


@dataclass(frozen=True)
class Move:
    """A job with a savepoint, and the settings of the job that restores it."""

    operators: tuple[Operator, ...]
    format: Literal["CANONICAL", "NATIVE"]
    before: Cluster
    after: Cluster
    written: int  # the parallelism of the exported savepoint

    def plan(self) -> list[dict[str, Any]]:
        """Return the JSON document of the operators."""
        return [asdict(operator) for operator in self.operators]


def _real(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return str(value) if math.isfinite(value) else f"{'-' if value < 0 else ''}Infinity"


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
_DAYS = st.integers(-3_000_000, 3_000_000)
# Maximum parallelism cannot change for keys more than 292 years from 1970.
_NEAR_DAYS = st.integers(-100_000, 100_000)
_NANOS = st.integers(0, 10**9 - 1)
_MILLIS = st.integers(-(9 * 10**12), 9 * 10**12)
SCALARS: dict[str, Values] = {
    "LONG": LONGS,
    "STRING": _TEXTS,
    "INT": st.integers(-(1 << 31), (1 << 31) - 1),
    "SHORT": st.integers(-(1 << 15), (1 << 15) - 1),
    "BYTE": st.integers(-128, 127),
    "CHAR": st.integers(0, 0xFFFF),
    "BOOLEAN": st.booleans(),
    "DOUBLE": st.floats().map(_real),
    "FLOAT": st.floats(width=32).map(_real),
    "BIG_INT": st.integers(-(1 << 90), 1 << 90).map(str),
    "BIG_DEC": st.builds("{}E{}".format, st.integers(-(1 << 70), 1 << 70), st.integers(-20, 5)),
    "LOCAL_DATE": _DAYS,
    "LOCAL_TIME": st.integers(0, DAY_NANOS - 1),
    "LOCAL_DATE_TIME": st.tuples(_NEAR_DAYS, st.integers(0, DAY_NANOS - 1)),
    "INSTANT": st.tuples(st.integers(-(9 * 10**9), 9 * 10**9), _NANOS),
    "SQL_TIMESTAMP": st.tuples(_MILLIS, _NANOS).map(
        # Java keeps the milliseconds of a Timestamp in its nanoseconds.
        lambda one: (one[0] // 1000 * 1000, one[1])
    ),
}
VALUES_ONLY: dict[str, Values] = {
    "SQL_DATE": _MILLIS,
    "SQL_TIME": _MILLIS,
    "date": _MILLIS,
    "bytes": _TEXTS,
}
"""Types whose values are not keys in Flink, or are in no job."""


def _composites(parts: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    return st.lists(parts, min_size=1, max_size=3).flatmap(
        lambda some: st.sampled_from([("tuple", *some), ("row", *some)])
    )


_SCALAR_TYPES: st.SearchStrategy[Type] = st.sampled_from(list(SCALARS))
KEY_TYPES = _SCALAR_TYPES | _composites(_SCALAR_TYPES)
_FLAT = st.sampled_from([*SCALARS, *VALUES_ONLY]) | _composites(_SCALAR_TYPES)
VALUE_TYPES: st.SearchStrategy[Type] = (
    _FLAT
    | _FLAT.map(lambda item: ("list", item))
    | st.tuples(_SCALAR_TYPES, _FLAT).map(lambda pair: ("map", *pair))
)


def values_of(kind: Type) -> Values:
    """Return a strategy for the JSON values of a type. Only the fields of a row can be null."""
    if isinstance(kind, str):
        return SCALARS[kind] if kind in SCALARS else VALUES_ONLY[kind]
    name, *parts = kind
    if name == "list":
        return st.lists(values_of(parts[0]), max_size=3)
    if name == "map":
        return st.lists(st.tuples(*map(values_of, parts)), max_size=3)
    fields = map(values_of, parts)
    return st.tuples(*((st.none() | one for one in fields) if name == "row" else fields))


@st.composite
def _states(draw: st.DrawFn, windows: bool) -> tuple[State, ...]:
    states = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(KINDS))
        # The accumulator of the sum is a long.
        type_ = "LONG" if kind == "aggregating" else draw(VALUE_TYPES)
        map_key = draw(KEY_TYPES) if kind == "map" else None
        # Flink's window operator has one state of this name.
        name = "window-contents" if windows and number == 0 else f"s{number}"
        states.append(State(name, kind, type_, map_key, draw(st.booleans())))
    return tuple(states)


def _element(state: State) -> Values:
    value = values_of(state.type)
    return value if state.map_key is None else st.tuples(values_of(state.map_key), value)


def _events(
    key: Type, states: Sequence[State], timers: bool
) -> st.SearchStrategy[tuple[Event, ...]]:
    times = st.lists(LONGS, max_size=2 if timers else 0).map(tuple)
    # A timer in the past would fire before the savepoint.
    future = st.integers(1 << 42, (1 << 63) - 1)
    processing = st.lists(future, max_size=2 if timers else 0).map(tuple)
    windows = st.tuples(st.integers(-(1 << 50), 1 << 50), st.integers(1, 1 << 40)).map(
        lambda one: (one[0], sum(one))
    )
    event = st.builds(
        Event,
        key=values_of(key),
        window=windows,
        values=st.tuples(*(st.none() | _element(state) for state in states)),
        event_timers=times,
        processing_timers=processing,
    )
    return st.lists(event, min_size=1, max_size=12).map(tuple)


@st.composite
def _operators(draw: st.DrawFn, uid: str) -> Operator:
    key, windows, timers = draw(KEY_TYPES), draw(st.booleans()), draw(st.booleans())
    states = draw(_states(windows))
    return Operator(uid, key, windows, timers, states, draw(_events(key, states, timers)))


def _clusters() -> st.SearchStrategy[Cluster]:
    most = st.sampled_from([128, 3, 100, 129, 720, 32768])
    return st.builds(Cluster, st.sampled_from(["hashmap", "rocksdb"]), st.integers(1, 3), most)


@st.composite
def moves(draw: st.DrawFn) -> Move:
    """Draw a job, its savepoint, and other settings for the job that restores it."""
    count = draw(st.integers(1, 2))
    operators = tuple(draw(_operators(f"operator-{number}")) for number in range(count))
    return Move(
        operators,
        draw(st.sampled_from(["CANONICAL", "NATIVE"])),
        draw(_clusters()),
        draw(_clusters()),
        draw(st.integers(1, 3)),
    )
