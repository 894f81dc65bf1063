"""What tells two checkpoints apart, as values: per state the rows, and what else differs.

One side is called ``a``, the other ``b``; *added* is what only ``b`` has, *removed* what only ``a``
has, and *changed* what both have under one identity (key, namespace, entry) with other values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry

__all__ = [
    "CheckpointDifference",
    "Example",
    "GroupDifference",
    "Other",
    "Side",
    "StateDifference",
    "others",
    "state_others",
]


@dataclass(frozen=True)
class Other:
    """Something that both sides have and that is not the same; None where one lacks it."""

    what: str
    a: str | None
    b: str | None


@dataclass(frozen=True, kw_only=True)
class GroupDifference:
    """A key group with other rows, and how many they are."""

    key_group: int
    added: int
    removed: int
    changed: int


@dataclass(frozen=True, kw_only=True)
class Example:
    """A row, or an element, that differs: ``change`` is ``added``, ``removed`` or ``changed``.

    ``identity`` has the columns that it is known by; of an element none. ``key_group`` is None
    where the sides do not agree on it.
    """

    change: str
    key_group: int | None
    identity: Mapping[str, Any]
    a: Mapping[str, Any] | None
    b: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class StateDifference:
    """A state on both sides: ``only_in`` is ``a`` or ``b`` when one lacks it; then no row is read,
    but of key groups with changes.

    ``rows_a`` and ``rows_b`` are None for a state with changes, unless one side lacks it: how many
    rows they leave is known only where all of them are read.

    ``compared_columns`` are those that were compared when the sides have other ones, else None.
    ``key_groups_read`` were read of either side; ``key_groups_differing`` are not the same, with
    changes maybe fewer than had to be read; both None where the sides cannot be compared key group
    by key group. ``not_compared`` says why rows were not compared at all; then there are no counts.
    """

    uid: str
    name: str
    sort: str
    rows_a: int | None
    rows_b: int | None
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

    @property
    def differs(self) -> bool:
        """Whether anything of it is not the same, or could not be compared."""
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
    """A side of a comparison; of the ``size_bytes`` of its data files ``bytes_read`` were read."""

    store: str
    checkpoint_id: int
    size_bytes: int
    bytes_read: int


@dataclass(frozen=True, kw_only=True)
class CheckpointDifference:
    """All that tells two checkpoints apart: ``others`` of the checkpoints, ``graph`` of their job
    graphs, and every state of either side.
    """

    a: Side
    b: Side
    others: tuple[Other, ...]
    graph: tuple[Other, ...]
    states: tuple[StateDifference, ...]

    @property
    def differs(self) -> bool:
        """Whether anything is not the same."""
        return bool(self.others or self.graph or any(state.differs for state in self.states))


def others(facts: Iterable[tuple[str, Any, Any]]) -> tuple[Other, ...]:
    """Return those facts (what, of a, of b) that are not the same, as text."""
    return tuple(Other(what, _text(a), _text(b)) for what, a, b in facts if _text(a) != _text(b))


def state_others(a: Entry, b: Entry) -> tuple[Other, ...]:
    """Return what tells two states of one name apart, rows aside.

    The layout of files is not among it: it changes nothing about a state.
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
