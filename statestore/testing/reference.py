"""A model of a store in plain dictionaries, which computes the expected results.

It is the oracle of the property tests: slow, small, and without files, Arrow or NumPy. It uses only
the pure functions of the package. Rows and elements are dictionaries of plain Python values.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from statestore.format.digest import MapEntries, UnscaledDecimal, combine, hash_row
from statestore.format.names import KEY_GROUP
from statestore.format.schema import DataType, Schema, decimal_parts
from statestore.format.state import KeyedState, OperatorState
from statestore.jobgraph.redistribution import redistribute
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.hashing import key_group_of
from statestore.keys.key_types import Typed

Row = Mapping[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WIDE = Context(prec=60)
# Types that cannot be derived from a Python value.
_JAVA_NAMES = {"byte": "byte", "short": "short", "integer": "int", "float": "float"}


@dataclass(frozen=True)
class ReferenceKeyed:
    """A keyed state and its rows, in any order."""

    state: KeyedState
    rows: tuple[Row, ...]

    def key_group(self, row: Row) -> int:
        """Return the key group of a row (I1)."""
        state = self.state
        types = [state.schema.type_of(name) for name in state.key]
        values = [row[name] for name in state.key]
        if state.hash_scheme == "flink-sql":
            key, key_type = tuple(values), state.key_types
        else:
            typed = [_typed(value, key_type) for value, key_type in zip(values, types, strict=True)]
            key, key_type = (typed[0] if len(typed) == 1 else tuple(typed)), None
        return key_group_of(
            key,
            max_parallelism=state.max_parallelism,
            key_type=key_type,
            hash_scheme=state.hash_scheme,
        )

    def subtask(self, subtask: int, parallelism: int) -> list[dict[str, Any]]:
        """Return the rows of one subtask with their ``key_group``, ordered by key group (I2)."""
        assignment = KeyGroupAssignment(
            max_parallelism=self.state.max_parallelism, parallelism=parallelism
        )
        keyed = [{KEY_GROUP: self.key_group(row), **row} for row in self.rows]
        own = [row for row in keyed if assignment.subtask_of(row[KEY_GROUP]) == subtask]
        return sorted(own, key=lambda row: int(row[KEY_GROUP]))

    def get(self, key: Sequence[Any]) -> list[Row]:
        """Return the rows with these values in the key columns."""
        names = self.state.key
        wanted = canonical(list(key))
        return [row for row in self.rows if canonical([row[name] for name in names]) == wanted]

    @property
    def digest(self) -> int:
        """The digest of all rows, as defined in ``format/digest.py`` (I7)."""
        return rows_digest(self.rows, self.state.schema)


@dataclass(frozen=True)
class ReferenceOperator:
    """An operator state and its elements: a list per old subtask, one list for broadcast state."""

    state: OperatorState
    lists: tuple[tuple[Row, ...], ...]


@dataclass(frozen=True)
class ReferenceCheckpoint:
    """The states of one checkpoint by (uid, name), and its parallelism."""

    parallelism: int
    keyed: Mapping[tuple[str, str], ReferenceKeyed] = field(default_factory=dict)
    operator: Mapping[tuple[str, str], ReferenceOperator] = field(default_factory=dict)

    def elements(self, uid: str, name: str, subtask: int, parallelism: int) -> tuple[Row, ...]:
        """Return the elements of one new subtask; an operator's states move together (I11)."""
        old: list[dict[str, tuple[Any, Sequence[Row]]]] = [{} for _ in range(self.parallelism)]
        for (operator, state), known in self.operator.items():
            if operator == uid:
                for reported, elements in zip(old, known.lists, strict=False):
                    reported[state] = (known.state.mode, elements)
        return redistribute(old, parallelism)[subtask][name]


class ReferenceStore:
    """Checkpoints by id; an id is never reused, even after its checkpoint has expired (I6).

    ``savepoints`` are ids by name. ``pins`` are pairs of an id and the end of the lease, by token.
    A checkpoint with a savepoint or pin is kept even after it has expired (I9).
    """

    def __init__(self) -> None:
        """Start without checkpoints."""
        self.visible: dict[int, ReferenceCheckpoint] = {}
        self.expired: dict[int, ReferenceCheckpoint] = {}
        self.savepoints: dict[str, int] = {}
        self.pins: dict[str, tuple[int, int]] = {}
        self.last_id = 0

    def commit(self, checkpoint: ReferenceCheckpoint, checkpoint_id: int | None = None) -> int:
        """Store a checkpoint under the next id, or under ``checkpoint_id``; return its id."""
        wanted = self.last_id + 1 if checkpoint_id is None else checkpoint_id
        self.last_id = max(self.last_id, wanted)
        self.visible[wanted] = checkpoint
        return wanted

    def expire(self, checkpoint_id: int) -> None:
        """Hide a checkpoint permanently; KeyError if it is not visible."""
        self.expired[checkpoint_id] = self.visible.pop(checkpoint_id)

    def surplus(self, retain: int) -> set[int]:
        """Return the visible ids, except the newest ``retain``."""
        return set(sorted(self.visible)[:-retain])

    def held(self, now_ms: int) -> set[int]:
        """Return the ids that are held by a savepoint, or by a pin whose lease has not ended."""
        pinned = {number for number, until_ms in self.pins.values() if until_ms > now_ms}
        return pinned | set(self.savepoints.values())

    def kept(self, now_ms: int) -> dict[int, ReferenceCheckpoint]:
        """Return the checkpoints that must be readable: all visible or held ones."""
        held = self.held(now_ms)
        return self.visible | {n: checkpoint for n, checkpoint in self.expired.items() if n in held}

    @property
    def latest(self) -> ReferenceCheckpoint | None:
        """The newest visible checkpoint."""
        return self.visible[max(self.visible)] if self.visible else None


def canonical(value: Any) -> Any:
    """Return a hashable value that is equal only for equal stored values.

    NaN equals NaN, and 0.0 differs from -0.0. As in Arrow's Python values, an array is a list, a
    struct a dictionary, and a map a list of pairs.
    """
    match value:
        case float():
            return b"nan" if value != value else struct.pack("<d", value)
        case Mapping():
            return tuple(sorted((name, canonical(part)) for name, part in value.items()))
        case list() | tuple():
            return tuple(canonical(part) for part in value)
    return (type(value).__name__, value)


def rows_digest(rows: Sequence[Row], schema: Schema) -> int:
    """Return the digest of rows of Python values, computed as the definition of the digest says."""
    return combine(
        hash_row({f.name: _plain(row[f.name], f.type) for f in schema.fields}) for row in rows
    )


def _typed(value: Any, data_type: DataType) -> Any:
    """Wrap a key value so that it is hashed as its column is."""
    if value is None:
        return None
    if isinstance(data_type, str):
        return Typed(_JAVA_NAMES[data_type], value) if data_type in _JAVA_NAMES else value
    if data_type["type"] == "array":
        return [_typed(element, data_type["elementType"]) for element in value]
    return tuple(_typed(value[f["name"]], f["type"]) for f in data_type["fields"])


def _plain(value: Any, data_type: DataType) -> Any:
    """Convert a value to the form that the definition of the digest uses."""
    if value is None:
        return None
    if isinstance(data_type, str):
        return _plain_scalar(value, data_type)
    if data_type["type"] == "struct":
        return {f["name"]: _plain(value[f["name"]], f["type"]) for f in data_type["fields"]}
    if data_type["type"] == "array":
        return [_plain(element, data_type["elementType"]) for element in value]
    key, item = data_type["keyType"], data_type["valueType"]
    return MapEntries([(_plain(k, key), _plain(v, item)) for k, v in value])


def _plain_scalar(value: Any, data_type: str) -> Any:
    parts = decimal_parts(data_type)
    if parts is not None:
        return UnscaledDecimal(int(Decimal(value).scaleb(parts[1], _WIDE)), parts[1])
    if data_type == "date":
        return value.toordinal() - date(1970, 1, 1).toordinal()
    if data_type in ("timestamp", "timestamp_ntz"):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(microseconds=1)
    return value
