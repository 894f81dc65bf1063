"""Hypothesis strategies for Flink jobs: their key types, states, TTLs, windows, timers and data.

A :class:`Move` shrinks to one operator with one event, and one state or, if a type is forced, one
state of each kind. ``Drawn.java`` runs a job from its JSON document.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hypothesis import strategies as st

__all__ = [
    "FEATURES",
    "KEY_NAMES",
    "VALUE_NAMES",
    "Cluster",
    "Event",
    "Move",
    "Operator",
    "State",
    "Ttl",
    "moves",
]

Type = str | tuple[Any, ...]
"""The name of a scalar type, or the name of a composite type with its parts."""

Values = st.SearchStrategy[Any]
Kind = Literal["value", "list", "map", "reducing", "aggregating"]
Backend = Literal["hashmap", "rocksdb"]
Format = Literal["CANONICAL", "NATIVE"]

KINDS: tuple[Kind, ...] = ("value", "list", "map", "reducing", "aggregating")
DAY_NANOS = 24 * 60 * 60 * 10**9
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
HOUR_MILLIS = 60 * 60 * 1000
DAY_MILLIS = 24 * HOUR_MILLIS
# No age is close to a duration, so a row does not expire between two dumps.
DURATIONS = (HOUR_MILLIS, 30 * DAY_MILLIS, 36_500 * DAY_MILLIS)
AGES = (0, HOUR_MILLIS // 2, 2 * HOUR_MILLIS, 29 * DAY_MILLIS, 31 * DAY_MILLIS, -DAY_MILLIS)
LIMITS = (0, 1, -1, -(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class Ttl:
    """The TTL of a state.

    Attributes:
        millis: its duration.
        has_drawn_times: rows have the times of last access of the events instead of Flink's clock.
        shows: a dump shows the times of last access and all rows, or the rows that have not
            expired by Flink's clock.
        in_store: the duration is also a hint for the import, so the store hides expired rows.
    """

    millis: int
    has_drawn_times: bool
    shows: Literal["times", "living"]
    in_store: bool


@dataclass(frozen=True)
class State:
    """A keyed state. Only a map has a type of map keys."""

    name: str
    kind: Kind
    type: Type
    map_key: Type | None
    ttl: Ttl | None


@dataclass(frozen=True)
class Event:
    """An input row: its key and window, one value per state or None, and the timers it sets.

    ``times`` are the times of last access for states with drawn times, one per state.
    """

    key: Any
    window: tuple[int, int]
    values: tuple[Any, ...]
    times: tuple[int, ...]
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
    format: Format
    before: Cluster
    after: Cluster
    written: int  # the parallelism of the exported savepoint

    def plan(self) -> list[dict[str, Any]]:
        """Return the JSON document of the operators."""
        return [asdict(operator) for operator in self.operators]

    def features(self) -> Iterator[str]:
        """Yield the names of the features that the job and its move have."""
        before, after = self.before.max_parallelism, self.after.max_parallelism
        change = "equal" if before == after else "raised" if before < after else "lowered"
        yield f"max parallelism {change}"
        yield f"{self.format} {self.before.backend} to {self.after.backend}"
        for operator in self.operators:
            yield f"key {_name_of(operator.key)}"
            namespace = "windows" if operator.windows else "no windows"
            if any(event.event_timers for event in operator.events):
                yield f"event timers, {namespace}"
            if any(event.processing_timers for event in operator.events):
                yield f"processing timers, {namespace}"
            for number, state in enumerate(operator.states):
                if any(event.values[number] is not None for event in operator.events):
                    yield f"{state.kind}, {namespace}"
                    yield f"{state.kind} of {_name_of(state.type)}"
                    yield from _features_of_ttl(state)


def _features_of_ttl(state: State) -> Iterator[str]:
    if state.ttl is None:
        yield f"{state.kind} without TTL"
        return
    yield f"{state.kind} with TTL of {state.ttl.millis // HOUR_MILLIS} h"
    yield f"{state.kind} with {'drawn times' if state.ttl.has_drawn_times else 'the clock'}"
    yield f"{state.kind} with TTL {'in the store' if state.ttl.in_store else 'in Flink alone'}"
    yield f"{state.kind} showing {state.ttl.shows}"


def _name_of(kind: Type) -> str:
    return kind if isinstance(kind, str) else str(kind[0])


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
    "int[]": st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=3),
    "double[]": st.lists(st.floats().map(_real), max_size=3),
    "boolean[]": st.lists(st.booleans(), max_size=3),
    "String[]": st.lists(st.none() | _TEXTS, max_size=3),
    "enum": st.sampled_from(["FIRST", "SECOND", "THIRD"]),
    "pojo": st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1), st.none() | _TEXTS, st.none() | LONGS
    ),
}
"""Types whose values are not keys in Flink, or are in no job."""


def _composite(name: str, parts: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    return st.lists(parts, min_size=1, max_size=3).map(lambda types: (name, *types))


_SCALAR_TYPES: st.SearchStrategy[Type] = st.sampled_from(list(SCALARS))
_KEYS: dict[str, st.SearchStrategy[Type]] = {
    **{name: st.just(name) for name in SCALARS},
    "tuple": _composite("tuple", _SCALAR_TYPES),
    "row": _composite("row", _SCALAR_TYPES),
}


def _composites(parts: st.SearchStrategy[Type]) -> dict[str, st.SearchStrategy[Type]]:
    return {
        "tuple": _composite("tuple", parts),
        "row": _composite("row", parts),
        "list": st.tuples(st.just("list"), parts),
        "map": st.tuples(st.just("map"), _SCALAR_TYPES, parts),
        "either": st.tuples(st.just("either"), parts, parts),
    }


_FLAT: st.SearchStrategy[Type] = st.sampled_from([*SCALARS, *VALUES_ONLY])
_VALUES: dict[str, st.SearchStrategy[Type]] = {
    **{name: st.just(name) for name in (*SCALARS, *VALUES_ONLY)},
    **_composites(_FLAT | st.one_of(*_composites(_FLAT).values())),
}
KEY_NAMES, VALUE_NAMES = tuple(_KEYS), tuple(_VALUES)
"""The names of types that can be a key, and a value."""

FEATURES = frozenset(
    (
        *(f"max parallelism {change}" for change in ("equal", "raised", "lowered")),
        *(
            f"{form} {before} to {after}"
            for form in ("CANONICAL", "NATIVE")
            for before in ("hashmap", "rocksdb")
            for after in ("hashmap", "rocksdb")
        ),
        *(f"key {name}" for name in KEY_NAMES),
        *(
            f"{what}, {namespace}"
            for what in ("event timers", "processing timers", *KINDS)
            for namespace in ("windows", "no windows")
        ),
        *(f"{kind} of {name}" for kind in KINDS[:-1] for name in VALUE_NAMES),
        "aggregating of LONG",
        *(
            f"{kind} {what}"
            for kind in KINDS
            for what in (
                "without TTL",
                *(f"with TTL of {millis // HOUR_MILLIS} h" for millis in DURATIONS),
                *("with drawn times", "with the clock", "showing times", "showing living"),
                *("with TTL in the store", "with TTL in Flink alone"),
            )
        ),
    )
)
"""All that :meth:`Move.features` yields."""


def values_of(kind: Type) -> Values:
    """Return a strategy for the JSON values of a type.

    The fields of a row can be null, and the values of a map.
    """
    if isinstance(kind, str):
        return SCALARS[kind] if kind in SCALARS else VALUES_ONLY[kind]
    name, *parts = kind
    if name == "list":
        return st.lists(values_of(parts[0]), max_size=3)
    if name == "map":
        keys, values = map(values_of, parts)
        return st.lists(st.tuples(keys, st.none() | values), max_size=3)
    if name == "either":
        return st.one_of(
            *(st.tuples(st.just(at), values_of(part)) for at, part in enumerate(parts))
        )
    fields = map(values_of, parts)
    return st.tuples(*((st.none() | one for one in fields) if name == "row" else fields))


@st.composite
def _ttls(draw: st.DrawFn) -> Ttl | None:
    if draw(st.booleans()):
        return None
    in_store = draw(st.booleans())
    return Ttl(
        draw(st.sampled_from(DURATIONS)),
        draw(st.booleans()),
        # The store hides expired rows, so a dump of all rows would differ.
        "living" if in_store else draw(st.sampled_from(["times", "living"])),
        in_store,
    )


@st.composite
def _states(draw: st.DrawFn, windows: bool, forced: str | None) -> tuple[State, ...]:
    """Draw some states; with a forced type of values, one of each kind."""
    kinds = KINDS if forced else draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    states = []
    for number, kind in enumerate(kinds):
        # The accumulator of the sum is a long.
        name = forced or draw(st.sampled_from(VALUE_NAMES))
        type_ = "LONG" if kind == "aggregating" else draw(_VALUES[name])
        map_key = draw(st.sampled_from(KEY_NAMES).flatmap(_KEYS.__getitem__))
        # Flink's window operator has one state of this name.
        title = "window-contents" if windows and number == 0 else f"s{number}"
        states.append(State(title, kind, type_, map_key if kind == "map" else None, draw(_ttls())))
    return tuple(states)


def _element(state: State, has_null_entries: bool) -> Values:
    value = values_of(state.type)
    if state.map_key is None:
        return value
    # Flink's serializer of values with a TTL does not support null.
    can_be_null = has_null_entries and state.ttl is None
    return st.tuples(values_of(state.map_key), st.none() | value if can_be_null else value)


def _access_times() -> st.SearchStrategy[int]:
    """Draw a time of last access, relative to the present or at the limits of a long."""
    ages = st.sampled_from(AGES).map(lambda age: time.time_ns() // 1_000_000 - age)
    return ages | st.sampled_from(LIMITS)


def _events(
    key: Type, states: Sequence[State], timers: bool, has_null_entries: bool
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
        values=st.tuples(*(st.none() | _element(state, has_null_entries) for state in states)),
        times=st.tuples(*(_access_times() for _ in states)),
        event_timers=times,
        processing_timers=processing,
    )
    return st.lists(event, min_size=1, max_size=12).map(tuple)


@st.composite
def _operators(
    draw: st.DrawFn, uid: str, key_name: str, forced: str | None, has_null_entries: bool
) -> Operator:
    key, windows, timers = draw(_KEYS[key_name]), draw(st.booleans()), draw(st.booleans())
    states = draw(_states(windows, forced))
    events = draw(_events(key, states, timers, has_null_entries))
    return Operator(uid, key, windows, timers, states, events)


def _clusters() -> st.SearchStrategy[Cluster]:
    most = st.sampled_from([128, 3, 100, 129, 720, 32768])
    return st.builds(Cluster, st.sampled_from(["hashmap", "rocksdb"]), st.integers(1, 3), most)


@st.composite
def moves(draw: st.DrawFn, forced: str | None = None) -> Move:
    """Draw a job, its savepoint, and other settings for the job that restores it.

    If a type of values is forced, the first operator has a state of each kind with this type. Its
    key has this type too if that is possible.
    """
    form: Format = draw(st.sampled_from(["CANONICAL", "NATIVE"]))
    before = draw(_clusters())
    # Flink's hashmap backend fails at a null in a map when it writes the canonical format.
    has_null_entries = (form, before.backend) != ("CANONICAL", "hashmap")
    names = draw(st.lists(st.sampled_from(KEY_NAMES), min_size=1, max_size=3))
    if forced in KEY_NAMES:
        names[0] = forced
    operators = tuple(
        draw(_operators(f"operator-{number}", name, None if number else forced, has_null_entries))
        for number, name in enumerate(names)
    )
    return Move(operators, form, before, draw(_clusters()), draw(st.integers(1, 3)))
