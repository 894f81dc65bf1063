"""A history: a state's columns and the steps that change it, as values.

Its ``repr`` is Python that creates it again (:func:`code`). Steps are independent, so any part of a
history is also a history, and a failing one can be shortened. Rows are dictionaries by column name.
They can have more or fewer columns than the state has at that step
(:meth:`tests.fuzz.model.Model.row`).
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any

from tests.fuzz.kinds import Kind

__all__ = [
    "Against",
    "Changes",
    "Column",
    "Compact",
    "EditKeys",
    "EditRows",
    "Full",
    "Given",
    "History",
    "Move",
    "Operator",
    "Purge",
    "Rekey",
    "Rows",
    "Shape",
    "Step",
    "code",
]

Row = dict[str, Any]
Rows = tuple[Row, ...]


@dataclass(frozen=True)
class Column:
    name: str
    kind: Kind


@dataclass(frozen=True)
class Operator:
    """An operator state in addition to the keyed one."""

    name: str
    mode: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Shape:
    """The initial keyed state."""

    kind: str
    key: tuple[Column, ...]
    namespace: tuple[Column, ...] = ()
    entry: tuple[Column, ...] = ()
    values: tuple[Column, ...] = ()
    max_parallelism: int = 4
    scheme: str = "java"
    ttl_ms: int | None = None
    """The TTL of a row, relative to its column ``t``, which is the first value column."""
    operators: tuple[Operator, ...] = ()
    table_format: str = "parquet"
    merge_layers: int | None = None
    """The number of layers at which background compaction merges them, or None to never merge."""


@dataclass(frozen=True)
class Given:
    """How rows are passed: the writer, and the seed of the chosen types."""

    writer: str = "table"
    spell: int = 0


@dataclass(frozen=True, kw_only=True)
class Step:
    parallelism: int = 1
    look: int = 0
    """The seed that selects the readers after the step and their options."""
    given: Given = Given()
    elements: dict[str, tuple[Rows, ...]] = field(default_factory=dict)
    """The new elements of each operator state. Surplus lists are ignored and missing ones are
    empty.
    """


@dataclass(frozen=True, kw_only=True)
class Full(Step):
    rows: Rows
    layout: str = "partitioned"
    alter: tuple[tuple[Any, ...], ...] = ()
    """``("add", name, kind)``, ``("widen", name, kind)``, ``("drop", name)``, ``("rename", old,
    new)``. An alteration that does not apply is skipped.
    """


@dataclass(frozen=True, kw_only=True)
class Changes(Step):
    """The changes of one checkpoint. ``width`` is the number of identity columns that each delete
    names.
    """

    upserts: Rows = ()
    deletes: Rows = ()
    width: int = 0
    cleared: Rows = ()
    back: int = 0
    """The number of checkpoints between the base and the newest one."""


@dataclass(frozen=True, kw_only=True)
class Against(Step):
    rows: Rows
    back: int = 0


@dataclass(frozen=True, kw_only=True)
class Compact(Step):
    everything: bool = False


@dataclass(frozen=True, kw_only=True)
class EditKeys(Step):
    delete: Rows = ()
    put: Rows = ()


@dataclass(frozen=True, kw_only=True)
class EditRows(Step):
    """Replace all rows by the given ones, or by SQL that removes some of the existing ones."""

    rows: Rows = ()
    sql: bool = False


@dataclass(frozen=True, kw_only=True)
class Purge(Step):
    key: Row


@dataclass(frozen=True, kw_only=True)
class Rekey(Step):
    max_parallelism: int


@dataclass(frozen=True, kw_only=True)
class Move(Step):
    """Continue in a store that was copied or forked from this one."""

    how: str
    back: int = 0


@dataclass(frozen=True)
class History:
    shape: Shape
    steps: tuple[Step, ...]


def code(history: History) -> str:
    """Return a Python program that runs the history again."""
    steps = "".join(f"        {_text(step)},\n" for step in history.steps)
    return (
        "import datetime\n"
        "from decimal import Decimal\n\n"
        "from tests.fuzz.history import *\n"
        "from tests.fuzz.run import run_again\n\n"
        'nan, inf = float("nan"), float("inf")\n'
        "history = History(\n"
        f"    {_text(history.shape)},\n    (\n{steps}    ),\n)\n"
        "run_again(history)\n"
    )


def _text(value: Any) -> str:
    """Return the text of a value, without arguments that equal the defaults."""
    if isinstance(value, tuple):
        parts = [_text(part) for part in value]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if not is_dataclass(value):
        return repr(value)
    said = [
        f"{one.name}={_text(getattr(value, one.name))}"
        for one in fields(value)
        if getattr(value, one.name) != _otherwise(one)
    ]
    return f"{type(value).__name__}({', '.join(said)})"


def _otherwise(one: Any) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()
