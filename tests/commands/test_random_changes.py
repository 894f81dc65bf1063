"""Random histories of full snapshots, changes, comparisons and compactions, beside a dictionary."""

from __future__ import annotations

import os
import struct
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore import StateStore
from statestore.model.compaction import CompactionRule
from statestore.model.paths import KEY_GROUP
from statestore.model.state import KeyedState
from statestore.table.digest import rows_digest
from statestore.table.runs import in_order

MEMORY = Path("/dev/shm")
MOST_GROUPS = 8
Identity = tuple[int, int, int]
"""The place of key, namespace and entry in their pools."""
State = dict[Identity, int]

NAN, OTHER_NAN = float("nan"), struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000))[0]
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["", "a", "b", "c", "ä", "日", "0"]),
    "long": (pa.int64(), [0, 1, -1, 2**62, 7, 8, 9]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": a, "b": b} for a in (0, 1) for b in ("x", "y", "")],
    ),
    "double": (pa.float64(), [0.0, -0.0, OTHER_NAN, 1.5, float("inf"), -float("inf")]),
}
ENTRIES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.int64(), [0, 1, 5]),
    "map": (pa.float64(), [None, NAN, -0.0, 0.0]),
    "timers": (pa.int64(), [-1, 0, 10]),
}


@dataclass(frozen=True)
class Shape:
    """What a state is like."""

    kind: str
    key: str
    namespaced: bool
    layout: str

    @property
    def names(self) -> list[str]:
        namespace = ["n"] if self.namespaced else []
        return ["k", *namespace, *(["e"] if self.kind in ENTRIES else [])]

    def options(self) -> dict[str, Any]:
        domain = {"time_domain": "event"} if self.kind == "timers" else {}
        entry = {"entry": "e"} if self.kind in ENTRIES else {}
        namespace = {"namespace": "n"} if self.namespaced else {}
        options = {"key": "k", "kind": self.kind, "max_parallelism": MOST_GROUPS}
        return {**options, "layout": self.layout, **domain, **entry, **namespace}

    def table(self, rows: State, names: list[str] | None = None) -> pa.Table:
        """Return rows, or of deletes the columns that they name."""
        key_type, keys = KEYS[self.key]
        entry_type, entries = ENTRIES.get(self.kind, (pa.int64(), [0]))
        columns = {
            "k": pa.array([keys[k] for k, _, _ in rows], key_type),
            "n": pa.array([f"n{n}" for _, n, _ in rows], pa.string()),
            "e": pa.array([entries[e] for _, _, e in rows], entry_type),
            "v": pa.array(rows.values(), pa.int64()),
        }
        wanted = [*self.names, "v"] if names is None else names
        return pa.table({name: columns[name] for name in wanted})

    def width(self, number: int) -> int:
        """Return a number of columns that a delete may name."""
        widths = sorted({1, 1 + self.namespaced, len(self.names)})
        return widths[number % len(widths)]

    def prefix(self, identity: Identity, width: int) -> tuple[int, ...]:
        parts = {"k": identity[0], "n": identity[1], "e": identity[2]}
        return tuple(parts[name] for name in self.names[:width])


shapes = st.builds(
    Shape,
    st.sampled_from(["value", *ENTRIES]),
    st.sampled_from([*KEYS]),
    st.booleans(),
    st.sampled_from(["partitioned", "ranged"]),
)
rules = st.sampled_from(
    [
        None,
        CompactionRule(),
        CompactionRule(merge_layers=2, share=0.3, most_share=1, bytes_per_checkpoint=0),
        CompactionRule(merge_layers=2, share=99, most_share=99),
    ]
)
VERBS = ("full", "changes", "changes", "changes", "against", "compact", "compact all")


def draw_identity(data: st.DataObject, shape: Shape) -> Identity:
    entries = len(ENTRIES[shape.kind][1]) if shape.kind in ENTRIES else 1
    key = data.draw(st.integers(0, len(KEYS[shape.key][1]) - 1))
    namespace = data.draw(st.integers(0, 1)) if shape.namespaced else 0
    return key, namespace, data.draw(st.integers(0, entries - 1))


def draw_rows(data: st.DataObject, shape: Shape, most: int) -> State:
    count = data.draw(st.integers(0, most))
    return {draw_identity(data, shape): data.draw(st.integers(0, 3)) for _ in range(count)}


def change(data: st.DataObject, shape: Shape, writer: Any, state: State) -> State:
    """Give changes to a writer; return what they make of a state."""
    upserts = draw_rows(data, shape, 5)
    width = shape.width(data.draw(st.integers(0, 2)))
    kept = {shape.prefix(one, width) for one in upserts}
    candidates = draw_rows(data, shape, 3) | dict(list(state.items())[:1])
    deletes = {one: 0 for one in candidates if shape.prefix(one, width) not in kept}
    cleared = draw_rows(data, shape, 1)
    gone = {shape.prefix(one, width) for one in deletes}
    cleared_keys = {one[0] for one in cleared}
    writer.changes(
        shape.table(upserts),
        shape.table(deletes, shape.names[:width]),
        cleared=shape.table(cleared, ["k"]) if cleared else None,
    )
    left = {
        one: value
        for one, value in state.items()
        if shape.prefix(one, width) not in gone and one[0] not in cleared_keys
    }
    return left | upserts


def step(data: st.DataObject, store: StateStore, shape: Shape, state: State) -> State:
    verb = data.draw(st.sampled_from(VERBS))
    if verb.startswith("compact"):
        rule = CompactionRule(merge_layers=2, share=0.2)
        store.compact(everything=verb == "compact all", rule=rule)
        return state
    with store.snapshot(parallelism=data.draw(st.integers(1, 4))) as checkpoint:
        if verb == "full":
            state = draw_rows(data, shape, 12)
            checkpoint.keyed("u", "s", shape.table(state), **shape.options())
            return state
        writer = checkpoint.keyed("u", "s", **shape.options())
        if verb == "changes":
            return change(data, shape, writer, state)
        state = dict(list(state.items())[1:]) | draw_rows(data, shape, 4)
        writer.changes_against("latest", shape.table(state))
        return state


def check(store: StateStore, shape: Shape, number: int, state: State, parallelism: int) -> None:
    """The rows are those of the reference, in order within each subtask, with their digest."""
    keyed = store.restore(checkpoint=number, parallelism=parallelism).keyed("u", "s")
    stored: KeyedState = keyed.entry.state
    found: list[pa.Table] = []
    for subtask in range(parallelism):
        rows = keyed.subtask(subtask).read_all()
        if rows.num_rows:
            assert repr(rows.to_pylist()) == repr(in_order(rows, stored).to_pylist())
        found.append(rows.drop_columns([KEY_GROUP]))
    every, wanted = pa.concat_tables(found), shape.table(state)
    assert Counter(map(repr, every.to_pylist())) == Counter(map(repr, wanted.to_pylist()))
    assert keyed.digest == rows_digest(wanted) == rows_digest(every)


@settings(max_examples=25)
@given(data=st.data(), shape=shapes, rule=rules)
def test_any_mix_of_full_incremental_and_compacted_is_the_full_state(
    data: st.DataObject, shape: Shape, rule: CompactionRule | None
) -> None:
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="changes-", dir=memory) as folder:
        store = StateStore.open(folder, table_format="parquet", compaction=rule)
        state = draw_rows(data, shape, 12)
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.keyed("u", "s", shape.table(state), **shape.options())
        known = {1: state}
        for _ in range(data.draw(st.integers(1, 6))):
            state = step(data, store, shape, state)
            newest = store.checkpoints()[-1]
            known[newest] = state
            check(store, shape, newest, state, data.draw(st.integers(1, MOST_GROUPS)))
        for number in store.checkpoints():
            check(store, shape, number, known[number], 1)
        assert store.verify("all").is_sound
