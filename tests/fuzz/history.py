"""A history: a state's columns, and what is done to it, step by step, as values.

Its ``repr`` is Python that makes it again (:func:`code`). Steps do not depend on each other: any
part of a history is one too, so that a failing one can be made shorter. Rows are dictionaries by
the name of a column, and hold more or fewer columns than the state has by then, which is no matter
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
    """An operator state beside the keyed one."""

    name: str
    mode: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Shape:
    """What the keyed state is like at first."""

    kind: str
    key: tuple[Column, ...]
    namespace: tuple[Column, ...] = ()
    entry: tuple[Column, ...] = ()
    values: tuple[Column, ...] = ()
    max_parallelism: int = 4
    scheme: str = "java"
    ttl_ms: int | None = None
    """How long a row lives after its column ``t``, the first of the values."""
    operators: tuple[Operator, ...] = ()
    table_format: str = "parquet"
    merge_layers: int | None = None
    """From so many layers on they are merged in the background; None is never."""


@dataclass(frozen=True)
class Given:
    """How rows are handed in: by which writer, and what draws their spelling."""

    writer: str = "table"
    spell: int = 0


@dataclass(frozen=True, kw_only=True)
class Step:
    parallelism: int = 1
    look: int = 0
    """Draws which readers look afterwards, and how."""
    given: Given = Given()
    elements: dict[str, tuple[Rows, ...]] = field(default_factory=dict)
    """What each operator state has from now on: a list a subtask, more or fewer are no matter."""


@dataclass(frozen=True, kw_only=True)
class Full(Step):
    rows: Rows
    layout: str = "partitioned"
    alter: tuple[tuple[Any, ...], ...] = ()
    """``("add", name, kind)``, ``("widen", name, kind)``, ``("drop", name)``, ``("rename", old,
    new)``; what does not apply is passed over."""


@dataclass(frozen=True, kw_only=True)
class Changes(Step):
    """``deletes`` go in ``widths``: how many columns of the identity each of them names."""

    upserts: Rows = ()
    deletes: Rows = ()
    width: int = 0
    cleared: Rows = ()
    back: int = 0
    """How many checkpoints before the newest is the base."""


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
    """All rows, or by SQL those that are there without some."""

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
    """Go on in a store that was copied or forked from this one."""

    how: str
    back: int = 0


@dataclass(frozen=True)
class History:
    shape: Shape
    steps: tuple[Step, ...]


def code(history: History) -> str:
    """Return a Python program that runs the history once more."""
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
    """Return the text of a value, without what is as it would be anyway."""
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
