"""Run a history: each step on a store and on the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore import Changes as WrittenChanges
from statestore import KeyGroupAssignment, OperatorKey, StateStore
from statestore.format.layers import CompactionRule
from statestore.parquet.writer import ParquetOptions
from tests.fuzz.givers import arrow_kind, arrow_table, give, plain_table
from tests.fuzz.history import (
    Against,
    Changes,
    Column,
    Compact,
    EditKeys,
    EditRows,
    Full,
    Move,
    Purge,
    Rekey,
    Row,
    Rows,
    Shape,
    Step,
)
from tests.fuzz.model import Identity, Known, Model

__all__ = ["NAME", "UID", "World"]

UID, NAME = "op", "s"
TICK_MS = 10
PARQUET_ROWS = 5
"""Row groups as small as the states."""
SMALL = 300
"""A memory budget in which few rows fit."""
FEW = CompactionRule(merge_layers=2, share=0.2)


@dataclass
class World:
    """A store in a folder, and its expected content."""

    shape: Shape
    folder: Path
    spark: Any = None
    model: Model = field(init=False)
    groups: dict[tuple[int, Identity], int] = field(default_factory=dict)
    """The observed key group of each key, for each max parallelism."""
    max_parallelism: int = 0
    stores: int = 0

    def __post_init__(self) -> None:
        self.model = Model(self.shape)
        self.max_parallelism = self.shape.max_parallelism
        self.store = self.opened(self.folder / "store0")

    def opened(self, folder: Path) -> StateStore:
        layers = self.shape.merge_layers
        rule = (
            None if layers is None else CompactionRule(merge_layers=layers, bytes_per_checkpoint=0)
        )
        return StateStore.open(
            str(folder),
            spark=self.spark,
            table_format=self.shape.table_format,
            compaction=rule,
            parquet=self.parquet(),
        )

    def parquet(self) -> ParquetOptions:
        """Return the options of the written files. Rows of an odd number of key groups are sorted
        on disk.
        """
        if self.shape.max_parallelism % 2:
            return ParquetOptions(row_group_rows=PARQUET_ROWS, memory_bytes=SMALL, run_bytes=SMALL)
        return ParquetOptions(row_group_rows=PARQUET_ROWS)

    def take(self, step: Step) -> None:
        """Run a step. A step that does not apply does nothing."""
        self.model.now_ms += TICK_MS
        if isinstance(step, Full) or self.model.newest is not None:
            _VERBS[type(step)](self, step)

    def options(self) -> dict[str, Any]:
        """Return the options that name the state's columns."""
        shape = self.shape
        options: dict[str, Any] = {
            "kind": shape.kind,
            "key": [column.name for column in shape.key],
            "namespace": [column.name for column in shape.namespace],
            "entry": [column.name for column in shape.entry],
            "max_parallelism": self.max_parallelism,
            "hash_scheme": shape.scheme,
        }
        if shape.kind == "timers":
            options["time_domain"] = "event"
        if shape.ttl_ms is not None:
            options["ttl"] = self._ttl()
        return options

    def _ttl(self) -> Any:
        from statestore import TimeToLive

        assert self.shape.ttl_ms is not None
        return TimeToLive(f"{self.shape.ttl_ms}ms", "t")

    def parallelism(self, step: Step) -> int:
        return min(step.parallelism, self.max_parallelism)

    def given(self, rows: Any, columns: tuple[Column, ...], step: Step) -> Any:
        keys = {column.name for column in self.shape.key}
        if step.given.writer == "spark":
            return self.frame(list(rows), columns)
        return give(list(rows), columns, keys, step.given.writer, step.given.spell)

    def frame(self, rows: list[Row], columns: tuple[Column, ...]) -> Any:
        """Return rows as a Spark DataFrame."""
        from tests.fuzz.spark import frame

        return frame(self.spark, rows, columns)

    def commit(
        self, step: Step, rows: dict[Identity, Row], columns: tuple[Column, ...], write: Any
    ) -> None:
        """Take a checkpoint in which ``write`` writes the keyed state."""
        parallelism = self.parallelism(step)
        elements: dict[str, list[Rows]] = {}
        with self.store.snapshot(parallelism=parallelism, now_ms=self.model.now_ms) as checkpoint:
            write(checkpoint)
            for operator in self.shape.operators:
                lists = self.model.lists(operator, step, parallelism)
                elements[operator.name] = lists
                self._write_elements(checkpoint, operator, lists)
        known = Known(columns, rows, elements, parallelism, self.max_parallelism)
        self.model.known[checkpoint.id] = known

    def _write_elements(self, checkpoint: Any, operator: Any, lists: list[Rows]) -> None:
        """Write elements, as a table if a column assigns them to subtasks, because a table has
        exact types.
        """
        kinds = [arrow_kind(column.kind) for column in operator.columns]
        every = [element for of in lists for element in of]
        table = arrow_table(every, operator.columns, kinds)
        if operator.mode == "broadcast":
            checkpoint.write_broadcast(UID, operator.name, table)
            return
        subtasks = [subtask for subtask, of in enumerate(lists) for _ in of]
        positions = [position for of in lists for position in range(len(of))]
        table = table.append_column("subtask", pa.array(subtasks, pa.int32()))
        table = table.append_column("position", pa.array(positions, pa.int64()))
        getattr(checkpoint, f"write_{operator.mode}")(UID, operator.name, table)

    def _full(self, step: Full) -> None:
        columns, renamed, dropped = self.model.altered(step)
        rows = self.model.rows(step.rows, columns)
        options = self.options() | {"layout": step.layout, "renamed": renamed, "dropped": dropped}

        def write(checkpoint: Any) -> None:
            if step.given.writer == "subtasks":
                self._by_subtasks(checkpoint, step, list(rows.values()), columns, options)
            else:
                given = self.given(rows.values(), columns, step)
                checkpoint.write_keyed(UID, NAME, given, **options)

        self.commit(step, rows, columns, write)

    def _by_subtasks(
        self,
        checkpoint: Any,
        step: Step,
        rows: list[Row],
        columns: tuple[Column, ...],
        options: dict[str, Any],
    ) -> None:
        """Let each subtask write the rows of its own key groups."""
        from statestore.keys.arrow import key_groups

        table = plain_table(rows, columns)
        writer = checkpoint.declare_keyed(UID, NAME, table.schema, **options)
        groups = key_groups(
            [table.column(column.name) for column in self.shape.key],
            max_parallelism=self.max_parallelism,
            hash_scheme=self.shape.scheme,
        ).tolist()
        own = KeyGroupAssignment(
            max_parallelism=self.max_parallelism, parallelism=self.parallelism(step)
        )
        parts: list[list[Row]] = [[] for _ in range(self.parallelism(step))]
        for row, group in zip(rows, groups, strict=True):
            parts[own.subtask_of(group)].append(row)
        for subtask, mine in enumerate(parts):
            part = give(mine, columns, [c.name for c in self.shape.key], "table", step.given.spell)
            checkpoint.acknowledge(writer.subtask(subtask).write(part))

    def _changes(self, step: Changes) -> None:
        model, number = self.model, self.model.base(step)
        upserts, deletes, cleared = model.parts(step)
        names = model.identity[: model.width(step)]

        def write(checkpoint: Any) -> None:
            checkpoint.write_changes(
                UID,
                NAME,
                WrittenChanges(
                    self.given(upserts.values(), model.columns, step),
                    self.given(deletes.values(), names, step) if deletes else None,
                    cleared=self.given(cleared.values(), self.shape.key, step) if cleared else None,
                ),
                base=number,
                **self.options(),
            )

        self.commit(step, model.changed(model.known[number], step), model.columns, write)

    def _against(self, step: Against) -> None:
        number = self.model.base(step)
        rows = self.model.rows(step.rows, self.model.columns)
        given = self.given(rows.values(), self.model.columns, step)

        def write(checkpoint: Any) -> None:
            checkpoint.write_changes_against(UID, NAME, given, base=number, **self.options())

        self.commit(step, rows, self.model.columns, write)

    def _derived(self, **changed: Any) -> None:
        """Record the checkpoint that a command made from the newest one, if any."""
        new = set(self.store.checkpoints()) - self.model.known.keys()
        assert len(new) <= 1, f"new checkpoints {new}"
        newest = self.model.newest
        assert newest is not None
        after = replace(newest, **changed)
        if new:
            self.model.known[new.pop()] = after
            return
        # Compaction may have dropped expired rows that the model keeps.
        visible = self.model.visible
        assert visible(after).keys() == visible(newest).keys(), "nothing was made"

    def _compact(self, step: Compact) -> None:
        rule = None if step.everything else FEW
        self.store.maintenance.compact(
            everything=step.everything, rule=rule, now_ms=self.model.now_ms
        )
        self._derived()

    def _edit_keys(self, step: EditKeys) -> None:
        newest = self.newest()
        delete = self.model.prefixes(step.delete, len(self.shape.key)).values()
        put = self.model.rows(step.put, self.model.columns)
        if delete or put:
            keys = [self.key_of(row) for row in delete]
            self.store.maintenance.edit(UID, NAME, delete=keys, put=list(put.values()))
            self._derived(rows=self.model.edited(newest, step))

    def _edit_rows(self, step: EditRows) -> None:
        rows = self.model.replaced(self.newest(), step)
        if step.sql:
            self.store.maintenance.edit(UID, NAME, sql="SELECT * FROM state")
        else:
            given = self.given(rows.values(), self.model.columns, step)
            self.store.maintenance.edit(UID, NAME, rows=given)
        self._derived(rows=rows)

    def newest(self) -> Known:
        assert self.model.newest is not None
        return self.model.newest

    def key_of(self, row: Row) -> Any:
        """Return a key in the form that ``get`` accepts."""
        values = [row[column.name] for column in self.shape.key]
        return values[0] if len(values) == 1 else tuple(values)

    def key_identity(self, row: Row) -> Identity:
        return self.model.identity_of(row, len(self.shape.key))

    def _purge(self, step: Purge) -> None:
        keys = self.model.prefixes((step.key,), len(self.shape.key))
        if self.shape.ttl_ms is not None or not keys:
            return
        (key, row), *_ = keys.items()
        self.store.maintenance.forget(OperatorKey(UID, self.key_of(row), NAME), search=False)
        new = sorted(set(self.store.checkpoints()) - self.model.known.keys())
        # A delete of the key contains it as well, so more checkpoints than those with its rows can
        # be replaced.
        old = sorted(self.model.known)[-len(new) :] if new else []
        assert set(old) >= set(self.model.purged(key)), f"purge made {new} of {old}"
        for before, after in zip(old, new, strict=True):
            self.model.known[after] = self.model.known.pop(before)

    def _rekey(self, step: Rekey) -> None:
        most = max(step.max_parallelism, self.newest().parallelism)
        if most != self.max_parallelism:
            self.store.maintenance.rekey(UID, max_parallelism=most)
            self._derived(max_parallelism=most)
            self.max_parallelism = most

    def _move(self, step: Move) -> None:
        numbers = sorted(self.model.known)
        number = numbers[max(len(numbers) - 1 - step.back, 0)]
        self.stores += 1
        folder = self.folder / f"store{self.stores}"
        if step.how == "copy":
            self.store.maintenance.copy(number, str(folder))
        else:
            self.store.maintenance.copy(number, str(folder), linked=True)
        self.store = self.opened(folder)
        self.model.known = {1: self.model.known[number]}
        self.max_parallelism = self.model.known[1].max_parallelism


_VERBS: dict[type[Step], Callable[[World, Any], None]] = {
    Full: World._full,
    Changes: World._changes,
    Against: World._against,
    Compact: World._compact,
    EditKeys: World._edit_keys,
    EditRows: World._edit_rows,
    Purge: World._purge,
    Rekey: World._rekey,
    Move: World._move,
}
