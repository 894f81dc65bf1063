"""The pages for one checkpoint: job graph, states, and a state's rows, files and key groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from statestore.catalog.catalog import Checkpoint
from statestore.cli.drawing import count, counted, size
from statestore.errors import InvalidArgumentError
from statestore.format.digest import digest_text
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.schema import type_text
from statestore.jobgraph.chaining import chainable_edges
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.stored_operators import label_of
from statestore.keys.groups import KeyGroupRange
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.rows.python_values import display_values
from statestore.store import StateStore
from statestore.ui.charts import BINS, BYTES, NUMBER, Picture, draw_skyline
from statestore.ui.pages import PageView

__all__ = [
    "checkpoint",
    "draw_graph",
    "draw_key_groups",
    "first_rows",
    "hot_keys",
    "state",
    "state_facts",
]

_FILES: Final = 200
_ROWS: Final = 20
_MOST_ROWS: Final = 1000
_BOX: Final = (210, 84)
_GAP: Final = (70, 24)
_ACROSS: Final = 3


def checkpoint(shown: Checkpoint) -> PageView:
    """Return the contents of a checkpoint; CorruptionError if a list of files cannot be read."""
    manifest, number = shown.manifest, shown.checkpoint_id
    facts = {
        "manifest": manifest,
        "states": [state_facts(entry) for entry in manifest.entries],
        "graph": draw_graph(manifest),
    }
    return PageView(f"Checkpoint {number}", "checkpoint.html", facts, "checkpoint", number)


def state(shown: Checkpoint, uid: str, name: str) -> PageView:
    """Return a state's columns, layout, layers, files, and charts of its key groups.

    Raises StateNotFoundError if it does not exist.
    """
    manifest = shown.manifest
    entry = manifest.find(uid, name)
    entries: tuple[Entry, ...] = entry.parts
    parts = [
        ("base" if index == 0 else f"layer {index}", part, part.handles[:_FILES])
        for index, part in enumerate(entries)
    ]
    facts = {
        "manifest": manifest,
        "state": state_facts(entry),
        "left_out": [record for record in manifest.left_out if record.lacks(uid, name)],
        "parts": parts,
        "pictures": [*draw_key_groups(entry, has_values=True)],
    }
    number = shown.checkpoint_id
    return PageView(f"{uid}.{name}", "state.html", facts, "checkpoint", number)


def first_rows(
    store: StateStore, shown: Checkpoint, uid: str, name: str, rows: int | None = None
) -> PageView:
    """Return the first rows of a state, in the order of its key groups or old subtasks.

    Keyed state is read only as far as needed, and rows with an expired TTL are omitted.

    Raises InvalidArgumentError if ``rows`` is not between 1 and 1000, and StateNotFoundError if the
    state does not exist.
    """
    wanted = _ROWS if rows is None else rows
    if not 0 < wanted <= _MOST_ROWS:
        raise InvalidArgumentError(f"rows must be between 1 and {_MOST_ROWS:,}, not {wanted}")
    entry = shown.manifest.find(uid, name)
    restored = store.restore(checkpoint=shown)
    if isinstance(entry, KeyedEntry):
        keyed = restored.keyed(uid, name)
        reader = keyed.key_groups(KeyGroupRange(0, entry.state.max_parallelism - 1))
    else:
        reader = restored.operator_state(uid, name).to_batches()
    found = [*islice(_rows_of(reader), wanted + 1)]
    facts = {
        "names": reader.schema.names,
        "rows": found[:wanted],
        "is_cut": len(found) > wanted,
        "wanted": wanted,
        "most": _MOST_ROWS,
        "uid": uid,
        "name": name,
    }
    title = f"First rows of {uid}.{name}"
    return PageView(title, "rows.html", facts, "checkpoint", shown.checkpoint_id)


def _rows_of(batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        for part in range(0, batch.num_rows, _MOST_ROWS):
            columns = batch.slice(part, _MOST_ROWS).columns
            yield from zip(*map(display_values, columns), strict=True)


def hot_keys(store: StateStore, shown: Checkpoint, uid: str, name: str) -> PageView:
    """Return a keyed state's skewed key groups, and the keys with the most rows."""
    report = store.inspect.skew(uid, name, checkpoint=shown)
    facts = {"operator": next(iter(report.operators), None), "factor": report.factor}
    title = f"Hot keys of {uid}.{name}"
    return PageView(title, "hot.html", facts, "checkpoint", shown.checkpoint_id)


def state_facts(entry: Entry) -> dict[str, Any]:
    """Return the values that a page shows of a state."""
    own = entry.state
    known: dict[str, Any] = {
        "entry": entry,
        "uid": own.uid,
        "name": own.name,
        "columns": [(field.name, type_text(field.type)) for field in own.schema.fields],
        "digest": digest_text(entry.digest),
        "key": (),
        "layers": (),
        "max_parallelism": None,
    }
    if not isinstance(entry, KeyedEntry):
        return known | {"kind": f"{entry.state.mode.value} operator state"}
    return known | {
        "kind": entry.state.kind.value,
        "key": entry.state.key,
        "layers": entry.layers,
        "max_parallelism": entry.state.max_parallelism,
    }


def draw_key_groups(entry: Entry, *, has_values: bool) -> Iterator[Picture]:
    """Yield the rows and the bytes of a keyed state by key group.

    With ``has_values``, the charts show values under the pointer.
    """
    if not isinstance(entry, KeyedEntry):
        return
    for weight, unit, text in (
        (Weight.ROWS, NUMBER, lambda rows: counted(rows, "row")),
        (Weight.BYTES, BYTES, size),
    ):
        weights = weights_of([entry], weight)
        most = max(weights)
        name = f"{weight.value.capitalize()} by key group"
        steps = " Each step shows the largest of several key groups." if len(weights) > BINS else ""
        caption = (
            f"{name}. The largest is key group {count(weights.index(most))} with {text(most)}. "
            f"The dashed line is the mean.{steps}"
        )
        html = draw_skyline(weights, unit, name, has_values=has_values)
        yield Picture(f"key-groups-{weight.value}", caption, html)


@dataclass(frozen=True)
class Box:
    """An operator in the drawing: its uid, its corner, its title, and its lines of text."""

    uid: str
    x: int
    y: int
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Arrow:
    """An edge of the drawing, as an SVG path; chained operators run in one task."""

    path: str
    label: str
    x: int
    y: int
    is_chained: bool


@dataclass(frozen=True)
class Drawing:
    """Operators from left to right; ``is_graph`` is true if the job's edges are known."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    is_graph: bool


def draw_graph(manifest: Manifest) -> Drawing:
    """Return the operators of a checkpoint, and the edges between them if they are known."""
    graph = manifest.graph
    if graph is None:
        places = {uid: divmod(index, _ACROSS)[::-1] for index, uid in enumerate(manifest.uids)}
        labels = {uid: uid for uid in manifest.uids}
    else:
        places = _rank_operators(graph)
        labels = {node.name: label_of(node) for node in graph.nodes}
    boxes = {name: _box(manifest, name, labels[name], place) for name, place in places.items()}
    arrows = () if graph is None else _arrows(graph, boxes)
    return Drawing(
        width=max((box.x for box in boxes.values()), default=0) + _BOX[0] + 1,
        height=max((box.y for box in boxes.values()), default=0) + _BOX[1] + 1,
        boxes=tuple(boxes.values()),
        arrows=arrows,
        is_graph=graph is not None,
    )


def _rank_operators(graph: JobGraph) -> dict[str, tuple[int, int]]:
    """Return the column and line of each operator; its column is after all of its inputs."""
    columns: dict[str, int] = {}
    used: dict[int, int] = {}
    places = {}
    for name in graph.topological_order():
        inputs = [columns[edge.source] + 1 for edge in graph.in_edges(name)]
        column = columns[name] = max(inputs, default=0)
        places[name] = (column, used.get(column, 0))
        used[column] = used.get(column, 0) + 1
    return places


def _box(manifest: Manifest, name: str, label: str, place: tuple[int, int]) -> Box:
    entries = [entry for entry in manifest.entries if entry.state.uid == label]
    keyed = [entry.state.max_parallelism for entry in entries if isinstance(entry, KeyedEntry)]
    parallelism = f"parallelism {count(manifest.operators.parallelism_of(label))}"
    most = f" of {count(keyed[0])}" if keyed else ""
    held = size(sum(entry.size_bytes for entry in entries))
    states = f"{counted(len(entries), 'state')}, {held}" if entries else "no state"
    x, y = (1 + place[i] * (_BOX[i] + _GAP[i]) for i in range(2))
    title = "" if name == label else f"uid {label}"
    return Box(label, x, y, name, tuple(filter(None, (title, parallelism + most, states))))


def _arrows(graph: JobGraph, boxes: dict[str, Box]) -> tuple[Arrow, ...]:
    chained = set(chainable_edges(graph))
    arrows = []
    for edge in graph.edges:
        a, b = boxes[edge.source], boxes[edge.target]
        x, y = a.x + _BOX[0], a.y + _BOX[1] // 2
        u, v = b.x, b.y + _BOX[1] // 2
        bend = (u - x) // 2
        path = f"M{x},{y} C{x + bend},{y} {u - bend},{v} {u},{v}"
        label = graph.partitioner(edge).value.lower()
        arrows.append(Arrow(path, label, (x + u) // 2, (y + v) // 2 - 6, edge in chained))
    return tuple(arrows)
