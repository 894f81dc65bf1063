"""The expected results of a store, computed with dictionaries and plain Python, without
the store.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fuzz.history import (
    Against,
    Changes,
    Column,
    EditKeys,
    EditRows,
    Full,
    Operator,
    Row,
    Rows,
    Shape,
    Step,
)
from tests.fuzz.kinds import Kind, canonical, fits, fitted, name_of

__all__ = ["Known", "Model", "key_group", "range_of"]

Identity = tuple[Any, ...]


@dataclass(frozen=True)
class Known:
    """The content of one checkpoint."""

    columns: tuple[Column, ...]
    rows: dict[Identity, Row]
    elements: dict[str, list[Rows]]
    parallelism: int
    max_parallelism: int

    @property
    def kinds(self) -> dict[str, Kind]:
        return {column.name: column.kind for column in self.columns}

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


@dataclass
class Model:
    """Checkpoints by id, in which the newest has the greatest id."""

    shape: Shape
    now_ms: int = 1000
    known: dict[int, Known] = field(default_factory=dict)

    @property
    def newest(self) -> Known | None:
        return self.known[max(self.known)] if self.known else None

    @property
    def identity(self) -> tuple[Column, ...]:
        return (*self.shape.key, *self.shape.namespace, *self.shape.entry)

    @property
    def columns(self) -> tuple[Column, ...]:
        newest = self.newest
        return newest.columns if newest else (*self.identity, *self.shape.values)

    @property
    def widths(self) -> list[int]:
        """Return how many columns of the identity a delete may name."""
        ends = [len(self.shape.key), len(self.shape.namespace), len(self.shape.entry)]
        return sorted({sum(ends[:count]) for count in (1, 2, 3)})

    def row(self, given: Row, columns: tuple[Column, ...]) -> Row | None:
        """Return a row with the current columns, or None if its identity is invalid."""
        row = {column.name: fitted(given.get(column.name), column.kind) for column in columns}
        if self.shape.ttl_ms is not None and row["t"] is None:
            row["t"] = 0
        if any(_has_null(row[column.name]) for column in self.shape.key):
            return None
        if self.shape.kind in ("list", "timers") and row[self.shape.entry[0].name] is None:
            return None
        return row

    def rows(self, given: Rows, columns: tuple[Column, ...]) -> dict[Identity, Row]:
        """Return rows by identity. The last of two rows with the same identity wins."""
        found = (self.row(one, columns) for one in given)
        return {self.identity_of(row): row for row in found if row is not None}

    def identity_of(self, row: Row, width: int | None = None) -> Identity:
        return tuple(canonical(row[c.name], c.kind) for c in self.identity[:width])

    def prefixes(self, given: Rows, width: int) -> dict[Identity, Row]:
        """Return the identity prefixes that deletes name."""
        found = [self.row(one, (*self.identity, *self.shape.values)) for one in given]
        return {self.identity_of(row, width): row for row in found if row is not None}

    def visible(self, known: Known) -> dict[Identity, Row]:
        """Return the rows that have not expired."""
        lives = self.shape.ttl_ms
        if lives is None:
            return known.rows
        return {one: row for one, row in known.rows.items() if row["t"] + lives > self.now_ms}

    def altered(self, step: Full) -> tuple[tuple[Column, ...], dict[str, str], list[str]]:
        """Return the columns after a full snapshot, the renames, and the dropped columns."""
        columns = list(self.columns)
        if self.newest is None:
            return tuple(columns), {}, []
        fixed = {column.name for column in self.identity} | {"t"}
        touched: set[str] = set()
        renamed: dict[str, str] = {}
        dropped: list[str] = []
        for verb, name, *rest in step.alter:
            at = next((i for i, column in enumerate(columns) if column.name == name), None)
            if name in fixed or name in touched:
                continue
            touched.add(name)
            if verb == "add" and at is None:
                columns.append(Column(name, rest[0]))
            elif verb == "widen" and at is not None and fits_wider(columns[at].kind, rest[0]):
                columns[at] = Column(name, rest[0])
            elif verb == "drop" and at is not None:
                dropped.append(columns.pop(at).name)
            elif verb == "rename" and at is not None and rest[0] not in self.names_of(columns):
                columns[at] = Column(rest[0], columns[at].kind)
                renamed[name] = rest[0]
                touched.add(rest[0])
        return tuple(columns), renamed, dropped

    @staticmethod
    def names_of(columns: list[Column]) -> set[str]:
        return {column.name for column in columns}

    def base(self, step: Changes | Against) -> int:
        """Return the checkpoint that changes build on: an older one only if its columns equal the
        newest's.
        """
        numbers = sorted(self.known)
        wanted = numbers[max(len(numbers) - 1 - step.back, 0)]
        old, new = self.known[wanted], self.known[numbers[-1]]
        same = (old.columns, old.max_parallelism) == (new.columns, new.max_parallelism)
        return wanted if same else numbers[-1]

    def changed(self, base: Known, step: Changes) -> dict[Identity, Row]:
        """Return the rows that result from changes to a base."""
        upserts, deletes, cleared = self.parts(step)
        width = self.width(step)
        keys = len(self.shape.key)
        left = {
            one: row
            for one, row in base.rows.items()
            if one[:width] not in deletes and one[:keys] not in cleared
        }
        return left | upserts

    def parts(self, step: Changes) -> tuple[dict[Identity, Row], ...]:
        """Return upserts, deletes and cleared keys. An upserted row is not among the deletes."""
        upserts = self.rows(step.upserts, self.columns)
        width = self.width(step)
        come = {upsert[:width] for upsert in upserts}
        deletes = self.prefixes(step.deletes, width)
        kept = {one: row for one, row in deletes.items() if one not in come}
        return upserts, kept, self.prefixes(step.cleared, len(self.shape.key))

    def width(self, step: Changes) -> int:
        return self.widths[step.width % len(self.widths)]

    def edited(self, newest: Known, step: EditKeys) -> dict[Identity, Row]:
        gone = self.prefixes(step.delete, len(self.shape.key))
        keys = len(self.shape.key)
        left = {one: row for one, row in newest.rows.items() if one[:keys] not in gone}
        return left | self.rows(step.put, self.columns)

    def replaced(self, newest: Known, step: EditRows) -> dict[Identity, Row]:
        return newest.rows if step.sql else self.rows(step.rows, self.columns)

    def purged(self, key: Identity) -> list[int]:
        """Remove a key from all checkpoints; return the ids of those that changed."""
        keys = len(self.shape.key)
        numbers = sorted(self.known)
        holding = [n for n in numbers if any(one[:keys] == key for one in self.known[n].rows)]
        for number in holding:
            rows = self.known[number].rows
            left = {one: row for one, row in rows.items() if one[:keys] != key}
            self.known[number] = replace(self.known[number], rows=left)
        return [number for number in numbers if holding and number >= holding[0]]

    def lists(self, operator: Operator, step: Step, parallelism: int) -> list[Rows]:
        """Return the elements of an operator state after a step, as one list per subtask."""
        copies = 1 if operator.mode == "broadcast" else parallelism
        given = step.elements.get(operator.name, ())
        lists = [
            tuple({c.name: fitted(one.get(c.name), c.kind) for c in operator.columns} for one in of)
            for of in given[:copies]
        ]
        return [*lists, *[()] * (copies - len(lists))]


def fits_wider(old: Kind, new: Kind) -> bool:
    """Return whether a type may become another one, as a heuristic for the results of ``wider``."""
    if old == new:
        return True
    order = ["byte", "short", "integer", "long"]
    match name_of(old), name_of(new):
        case ("byte" | "short" | "integer") as name, ("short" | "integer" | "long") as other:
            return order.index(name) < order.index(other)
        case (("byte" | "short" | "integer" | "float"), "double"):
            return True
        case (("byte" | "short" | "integer"), "decimal"):
            return bool(new[1] - new[2] >= 10)
        case "long", "decimal":
            return bool(new[1] - new[2] >= 20)
        case "date", "timestamp_ntz":
            return True
        case "decimal", "decimal":
            return bool(new[2] >= old[2] and new[1] - new[2] >= old[1] - old[2])
        case "array", "array":
            return fits_wider(old[1], new[1])
        case "map", "map":
            return old[1] == new[1] and fits_wider(old[2], new[2])
        case "struct", "struct":
            now = dict(new[1])
            return all(name in now and fits_wider(kind, now[name]) for name, kind in old[1])
    return False


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_null, value.values()))
    return value is None


def range_of(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """Return a subtask's key groups, computed like Flink."""
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    return range(first, ((subtask + 1) * max_parallelism - 1) // parallelism + 1)


def key_group(value: Any, kind: Kind, max_parallelism: int) -> int | None:
    """Return the key group of a single-column key from Java's ``hashCode``, or None for other
    types.
    """
    code = _hash_code(value, kind)
    return None if code is None else _murmur(code) % max_parallelism


def _hash_code(value: Any, kind: Kind) -> int | None:
    match name_of(kind):
        case "byte" | "short" | "integer":
            return int(value)
        case "long":
            return int(value) ^ (int(value) % 2**64 >> 32)
        case "boolean":
            return 1231 if value else 1237
        case "string":
            units = value.encode("utf-16-le")
            code = 0
            for low, high in zip(units[::2], units[1::2], strict=True):
                code = (31 * code + (high << 8 | low)) % 2**32
            return code
        case "double":
            number = float("nan") if value != value else value
            (bits,) = struct.unpack("<Q", struct.pack("<d", number))
            bits = 0x7FF8000000000000 if number != number else bits
            return int(bits ^ bits >> 32)
    assert fits(value, kind)
    return None


def _murmur(code: int) -> int:
    """Return Flink's ``MathUtils.murmurHash`` of an int."""
    code = code * 0xCC9E2D51 % 2**32
    code = (code << 15 | code >> 17) % 2**32 * 0x1B873593 % 2**32
    code = ((code << 13 | code >> 19) % 2**32 * 5 + 0xE6546B64) % 2**32 ^ 4
    code = (code ^ code >> 16) * 0x85EBCA6B % 2**32
    code = (code ^ code >> 13) * 0xC2B2AE35 % 2**32
    code ^= code >> 16
    signed = code - 2**32 if code >= 2**31 else code
    return 0 if signed == -(2**31) else abs(signed)
