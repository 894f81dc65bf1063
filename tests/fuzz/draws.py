"""A random history from a seed: the initial state and some steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.fuzz.givers import WRITERS
from tests.fuzz.history import (
    Against,
    Changes,
    Column,
    Compact,
    EditKeys,
    EditRows,
    Full,
    Given,
    History,
    Move,
    Operator,
    Purge,
    Rekey,
    Row,
    Rows,
    Shape,
    Step,
)
from tests.fuzz.kinds import wider
from tests.fuzz.values import (
    draw_key_kind,
    draw_kind,
    draw_ordered_kind,
    draw_pool,
    draw_value,
)

__all__ = ["draw_history"]

KINDS = ("value", "value", "map", "map", "list", "timers", "reducing", "aggregating")
VERBS = ("full", "changes", "changes", "changes", "against", "compact", "edit", "edit rows")
RARE = ("purge", "rekey", "move")
INTEGERS = ("byte", "short", "integer", "long")


def draw_history(
    seed: int,
    *,
    writers: Sequence[str] = tuple(WRITERS),
    table_formats: Sequence[str] = ("parquet",),
) -> History:
    """Return the history of a seed."""
    draw = Random(seed)
    drawing = _Drawing(draw, _shape(draw, table_formats), tuple(writers))
    steps: list[Step] = [drawing.full(first=True)]
    steps += [drawing.step() for _ in range(draw.randint(1, 7))]
    return History(drawing.shape, tuple(steps))


def _shape(draw: Random, table_formats: Sequence[str]) -> Shape:
    kind, scheme = draw.choice(KINDS), draw.choice(("java", "java", "flink-sql", "pyflink"))
    lives = draw.choice((10, 50, 200)) if draw.random() < 0.15 else None
    values = [Column(f"v{i}", draw_kind(draw)) for i in range(draw.randint(0, 3))]
    if lives is not None:
        values.insert(0, Column("t", "long"))
    return Shape(
        kind=kind,
        key=tuple(Column(f"k{i}", draw_key_kind(draw, scheme)) for i in range(_few(draw))),
        namespace=tuple(Column(f"n{i}", draw_ordered_kind(draw)) for i in range(_none(draw))),
        entry=_entry(draw, kind),
        values=tuple(values),
        max_parallelism=draw.choice((1, 2, 3, 4, 7, 8, 16)),
        scheme=scheme,
        ttl_ms=lives,
        operators=tuple(_operator(draw, i) for i in range(_none(draw))),
        table_format=draw.choice(list(table_formats)),
        merge_layers=draw.choice((None, None, 2, 3)),
    )


def _few(draw: Random) -> int:
    return draw.choice((1, 1, 1, 2, 3))


def _none(draw: Random) -> int:
    return draw.choice((0, 0, 0, 1, 2))


def _entry(draw: Random, kind: str) -> tuple[Column, ...]:
    match kind:
        case "list":
            return (Column("e0", draw.choice(INTEGERS)),)
        case "timers":
            return (Column("e0", draw.choice(("long", "timestamp", "timestamp_ntz"))),)
        case "map":
            count = draw.choice((1, 1, 2))
            return tuple(Column(f"e{i}", draw_ordered_kind(draw)) for i in range(count))
    return ()


def _operator(draw: Random, number: int) -> Operator:
    columns = tuple(Column(f"o{i}", draw_kind(draw, 2)) for i in range(draw.randint(1, 3)))
    return Operator(f"op{number}", draw.choice(("split", "union", "broadcast")), columns)


@dataclass
class _Drawing:
    """The history so far, so that later steps can refer to earlier ones."""

    draw: Random
    shape: Shape
    writers: tuple[str, ...]
    pools: dict[str, Sequence[Any]] = field(default_factory=dict)
    values: list[Column] = field(default_factory=list)
    names: int = 0

    def __post_init__(self) -> None:
        shape, draw = self.shape, self.draw
        for column in shape.key:
            self.pools[column.name] = draw_pool(draw, column.kind, nulls=0)
        for column in (*shape.namespace, *shape.entry):
            nulls = 0 if shape.kind in ("list", "timers") and column in shape.entry else 0.15
            self.pools[column.name] = draw_pool(draw, column.kind, nulls=nulls)
        self.values, self.names = list(shape.values), len(shape.values)

    def step(self) -> Step:
        draw = self.draw
        verb = draw.choice(VERBS if draw.random() < 0.85 else RARE)
        match verb:
            case "full":
                return self.full()
            case "changes":
                return self.changes()
            case "against":
                return Against(rows=self.rows(8), back=self.back(), **self.common())
            case "compact":
                return Compact(everything=draw.random() < 0.5, look=self.look())
            case "edit":
                delete, put = self.rows(2), self.rows(3)
                return EditKeys(delete=delete, put=put, look=self.look())
            case "edit rows":
                sql = draw.random() < 0.4
                return EditRows(rows=self.rows(6), sql=sql, look=self.look(), given=self.given())
            case "purge":
                return Purge(key=self.row(), look=self.look())
            case "rekey":
                return Rekey(max_parallelism=draw.choice((4, 5, 8, 12)), look=self.look())
        return Move(how=draw.choice(("copy", "fork")), back=self.back(), look=self.look())

    def full(self, first: bool = False) -> Full:
        alter = () if first else self.alter()
        layout = self.draw.choice(("partitioned", "ranged", "auto"))
        return Full(rows=self.rows(12), layout=layout, alter=alter, **self.common())

    def changes(self) -> Changes:
        draw = self.draw
        return Changes(
            upserts=self.rows(6),
            deletes=self.rows(3),
            width=draw.randrange(3),
            cleared=self.rows(1) if draw.random() < 0.3 else (),
            back=self.back(),
            **self.common(),
        )

    def alter(self) -> tuple[tuple[Any, ...], ...]:
        draw, done = self.draw, []
        for at, column in enumerate(list(self.values)):
            if column.name == "t" or draw.random() > 0.2:
                continue
            match draw.choice(("widen", "widen", "drop", "rename")):
                case "widen":
                    self.values[at] = Column(column.name, wider(column.kind, draw.randrange(9)))
                    done.append(("widen", column.name, self.values[at].kind))
                case "drop":
                    self.values.remove(column)
                    return (*done, ("drop", column.name))
                case "rename":
                    self.names += 1
                    self.values[at] = Column(f"v{self.names}", column.kind)
                    done.append(("rename", column.name, f"v{self.names}"))
        if not done and draw.random() < 0.4:
            self.names += 1
            self.values.append(Column(f"v{self.names}", draw_kind(draw)))
            done.append(("add", f"v{self.names}", self.values[-1].kind))
        return tuple(done)

    def common(self) -> dict[str, Any]:
        parallelism = self.draw.randint(1, 5)
        elements = {
            operator.name: self.lists(operator, parallelism) for operator in self.shape.operators
        }
        return {
            "parallelism": parallelism,
            "look": self.look(),
            "given": self.given(),
            "elements": elements,
        }

    def lists(self, operator: Operator, parallelism: int) -> tuple[Rows, ...]:
        def element() -> Row:
            return {c.name: draw_value(self.draw, c.kind) for c in operator.columns}

        counts = [self.draw.randrange(4) for _ in range(parallelism)]
        return tuple(tuple(element() for _ in range(count)) for count in counts)

    def given(self) -> Given:
        return Given(self.draw.choice(self.writers), self.draw.randrange(2**16))

    def look(self) -> int:
        return self.draw.randrange(2**16)

    def back(self) -> int:
        return self.draw.choice((0, 0, 0, 1, 2))

    def rows(self, most: int) -> Rows:
        return tuple(self.row() for _ in range(self.draw.randint(0, most)))

    def row(self) -> Row:
        row = {name: self.draw.choice(pool) for name, pool in self.pools.items()}
        for column in self.values:
            value = draw_value(self.draw, column.kind)
            row[column.name] = self.draw.randint(900, 1200) if column.name == "t" else value
        return row
