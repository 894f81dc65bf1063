"""The result of a comparison: rows per state, and the other differences.

The sides are called ``a`` and ``b``. *added* rows are only in ``b``, *removed* rows only in
``a``. *changed* rows are in both under one identity (key, namespace, entry), with different
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from statestore.display import NotebookBar, Tone, bars, count, counted, figure, table, text
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.rows.dataframes import as_pandas, as_polars, table_of


@dataclass(frozen=True)
class Other:
    """A property that differs between the sides; None for a side that lacks it."""

    what: str
    a: str | None
    b: str | None


@dataclass(frozen=True, kw_only=True)
class GroupDifference:
    """A key group that differs, with the number of rows."""

    key_group: int
    added: int
    removed: int
    changed: int


@dataclass(frozen=True, kw_only=True)
class Example:
    """A row or element that differs: ``change`` is ``added``, ``removed`` or ``changed``.

    ``identity`` has the values of its identity columns; it is empty for an element. ``key_group``
    is None if the sides assign it to different key groups.
    """

    change: str
    key_group: int | None
    identity: Mapping[str, Any]
    a: Mapping[str, Any] | None
    b: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class StateDifference:
    """The comparison of one state.

    ``only_in`` is ``a`` or ``b`` if the other side lacks it. In that case only key groups with
    changes are read. ``rows_a`` and ``rows_b`` are None if the state has changes in key groups that
    were not read, and the checkpoint does not record its rows. ``file_rows_a`` and ``file_rows_b``
    are the rows in files, of which ``changed_rows_a`` and ``changed_rows_b`` are changes, as in
    ``list``.

    ``compared_columns`` are the common columns if the sides have different columns, and None
    otherwise. ``key_groups_read`` is the number of key groups read on either side.
    ``key_groups_differing`` is the number that differ; with changes, it can be lower than the
    number read. Both are None if the sides cannot be compared key group by key group.
    ``not_compared`` is the reason why rows were not compared; in that case the counts are 0.
    """

    operator: str
    state: str
    sort: str
    rows_a: int | None
    rows_b: int | None
    file_rows_a: int = 0
    file_rows_b: int = 0
    changed_rows_a: int = 0
    changed_rows_b: int = 0
    only_in: str | None = None
    others: tuple[Other, ...] = ()
    compared_columns: tuple[str, ...] | None = None
    added: int = 0
    removed: int = 0
    changed: int = 0
    key_groups: tuple[GroupDifference, ...] = ()
    key_groups_differing: int | None = None
    key_groups_read: int | None = None
    examples: tuple[Example, ...] = ()
    not_compared: str | None = None

    json_properties: ClassVar[tuple[str, ...]] = ("differs",)

    @property
    def differs(self) -> bool:
        """Whether the state differs in any way, or could not be compared."""
        return bool(
            self.only_in
            or self.others
            or self.not_compared
            or self.added
            or self.removed
            or self.changed
        )


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the size of its data files, and the bytes read from them.

    ``left_out`` lists the compared state of its source that it lacks.
    """

    store: str
    checkpoint_id: int
    size_bytes: int
    read_bytes: int
    left_out: tuple[LeftOutState, ...] = ()


_COLUMNS = {
    "operator": "string",
    "state": "string",
    "sort": "string",
    "rows_a": "int64",
    "rows_b": "int64",
    "only_in": "string",
    "added": "int64",
    "removed": "int64",
    "changed": "int64",
}


@dataclass(frozen=True, kw_only=True)
class CheckpointDifference:
    """All differences between two checkpoints.

    ``others`` are differing properties of the checkpoints, and ``graph`` are differing properties
    of the job graphs. ``states`` has every state of either side.
    """

    a: Side
    b: Side
    others: tuple[Other, ...]
    graph: tuple[Other, ...]
    states: tuple[StateDifference, ...]

    json_properties: ClassVar[tuple[str, ...]] = ("differs",)

    @property
    def differs(self) -> bool:
        """Whether there is any difference."""
        return bool(self.others or self.graph or any(state.differs for state in self.states))

    def to_arrow(self) -> pa.Table:
        """Return one row for each state of either side."""
        return table_of(_COLUMNS, self._rows())

    to_pandas = as_pandas
    to_polars = as_polars

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for state in self.states:
            sides = (state.rows_a, state.rows_b, state.only_in)
            yield (
                state.operator,
                state.state,
                state.sort,
                *sides,
                state.added,
                state.removed,
                state.changed,
            )

    def __repr__(self) -> str:
        return f"CheckpointDifference({self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook view: counts of added, changed and removed rows, and examples."""
        differing = [state for state in self.states if state.differs]
        sentences = [
            f"{property_name}: {_or_dash(side.a)} → {_or_dash(side.b)}"
            for property_name, side in [
                *((other.what, other) for other in (*self.others, *self.graph)),
                *(
                    (f"{state.operator} · {state.state}, {o.what}", o)
                    for state in differing
                    for o in state.others
                ),
            ]
        ]
        examples = (
            (example.change, state.operator, state.state, example.key_group, example.a, example.b)
            for state in differing
            for example in state.examples
        )
        columns = ("change", "operator", "state", "key_group", "a", "b")
        drawn = [_bar(state) for state in differing]
        tables = table([*_COLUMNS], self._rows()), table(columns, examples)
        return figure(self._summary(), *map(text, sentences), bars(drawn), *tables)

    def _summary(self) -> str:
        sides = f"checkpoint {self.a.checkpoint_id} → {self.b.checkpoint_id}"
        differing = sum(state.differs for state in self.states)
        states = counted(len(self.states), "state")
        return (
            f"{sides}: {count(differing)} of {states} differ" if self.differs else f"{sides}: equal"
        )


def _bar(state: StateDifference) -> NotebookBar:
    counts: tuple[tuple[int, str, Tone], ...] = (
        (state.added, "added", "good"),
        (state.changed, "changed", "changed"),
        (state.removed, "removed", "bad"),
    )
    label = ", ".join(f"{count(number)} {change}" for number, change, _ in counts if number)
    parts = tuple((float(number), tone) for number, _, tone in counts)
    return NotebookBar(f"{state.operator} · {state.state}", parts, label or "rows not compared")


def _or_dash(value: str | None) -> str:
    return "none" if value is None else value


def others(facts: Iterable[tuple[str, Any, Any]]) -> tuple[Other, ...]:
    """Return the facts (name, value in a, value in b) whose values differ, as text."""
    return tuple(Other(fact, _text(a), _text(b)) for fact, a, b in facts if _text(a) != _text(b))


def state_others(a: Entry, b: Entry) -> tuple[Other, ...]:
    """Return the differences between two states of one name, apart from their rows.

    The file layout is not compared, because it does not affect the state.
    """
    if isinstance(a, KeyedEntry) and isinstance(b, KeyedEntry):
        return others(_keyed_facts(a, b))
    if isinstance(a, OperatorEntry) and isinstance(b, OperatorEntry):
        facts = (
            ("mode", a.state.mode.value, b.state.mode.value),
            ("columns", a.state.schema, b.state.schema),
            ("elements per subtask", _counts(a), _counts(b)),
        )
        return others(facts)
    return (Other("sort", _sort(a), _sort(b)),)


def _keyed_facts(a: KeyedEntry, b: KeyedEntry) -> Iterable[tuple[str, Any, Any]]:
    old, new = a.state, b.state
    return (
        ("kind", old.kind.value, new.kind.value),
        ("columns", old.schema, new.schema),
        ("key", _list(old.key), _list(new.key)),
        ("key types", _list(old.key_types), _list(new.key_types)),
        ("namespace", _list(old.namespace), _list(new.namespace)),
        ("entry columns", _list(old.entry), _list(new.entry)),
        ("max parallelism", old.max_parallelism, new.max_parallelism),
        ("hash scheme", old.hash_scheme, new.hash_scheme),
        ("time domain", old.time_domain, new.time_domain),
    )


def _counts(entry: OperatorEntry) -> str:
    return _list(map(str, entry.counts))


def _sort(entry: Entry) -> str:
    return "keyed" if isinstance(entry, KeyedEntry) else "operator"


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)
