"""The pages for one checkpoint, and the window of checkpoints that a page shows.

The pages of a checkpoint are its job graph, its states, and a state's rows, files and key groups.
:class:`Window` has consecutive checkpoints of a store, with their figures over time for charts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from statestore.catalog.catalog import Checkpoint
from statestore.catalog.holds import Savepoint
from statestore.cli.drawing import count, counted, size
from statestore.cli.summaries import UNREADABLE, extent, maker
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, StateStoreError
from statestore.format.digest import digest_text
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.metrics import CheckpointMetrics, PhaseTimes, is_incremental
from statestore.format.schema import type_text
from statestore.format.state import KeyedState, OperatorState, StateKind, clock_ms
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.operators import chainable_edges, label_of
from statestore.keys.groups import KeyGroupRange
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.rows.python_values import display_values
from statestore.store import StateStore
from statestore.ui.charts import (
    BINS,
    BYTES,
    DURATION,
    HIGH,
    LOW,
    SHARE,
    Axis,
    Column,
    Picture,
    draw_bars,
    draw_lines,
    draw_skyline,
)
from statestore.ui.pages import PageView, fit

SHOWN: Final = 50
"""The number of checkpoints on a page; only their manifests are read."""

PHASES: Final = tuple(
    name for name, _ in CheckpointMetrics(duration_ms=0, phases=PhaseTimes(put_ms=0)).spent
)
"""The phases of a checkpoint whose durations add up to its own."""

OTHERS: Final = "all others"
"""The states of a chart that have no line of their own."""

_STATES: Final = 7


@dataclass(frozen=True)
class CheckpointLine:
    """A row of the table of checkpoints, with the savepoints and pins that keep it.

    It has the manifest of the checkpoint, or the reason why that cannot be read.
    """

    checkpoint_id: int
    manifest: Manifest | None
    error: StateStoreError | None = None
    savepoints: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()

    @property
    def extent(self) -> str:
        """``full`` if all files were written for it, else the text of :func:`extent`."""
        manifest = self.manifest
        if manifest is None:
            return ""
        layers = sum(len(entry.layers) for entry in manifest.keyed)
        command = (manifest.origin or {}).get("command")
        return extent(is_incremental(layers, manifest.files, manifest.metrics), command)

    @property
    def maker(self) -> str:
        """The command that made the checkpoint from another one, or the job's writer."""
        manifest = self.manifest
        if manifest is None:
            return ""
        writer = manifest.writer
        made = maker(manifest.origin, writer.command)
        return made if manifest.origin or writer.command else writer.name

    @property
    def holders(self) -> tuple[str, ...]:
        """The savepoints and pins that keep the checkpoint, as text."""
        return (
            *(f"savepoint {savepoint}" for savepoint in self.savepoints),
            *(f"pin {pin}" for pin in self.pins),
        )


@dataclass(frozen=True)
class Window:
    """Consecutive checkpoints of a store, oldest first, and the ids of all its checkpoints.

    ``held`` are the names of all savepoints and pins, each with its checkpoint, and ``expired`` the
    savepoints whose checkpoint has expired. The window of older checkpoints ends before the id
    ``older``, and the window of newer ones before ``newer``. An id is None if such checkpoints do
    not exist.
    """

    ids: Sequence[int]
    lines: tuple[CheckpointLine, ...]
    held: tuple[tuple[str, int], ...]
    expired: tuple[Savepoint, ...]
    older: int | None
    newer: int | None


def read_window(store: StateStore, before: int | None = None) -> Window:
    """Return the newest checkpoints, or the newest below an id.

    Raises StorageError if the store cannot be reached.
    """
    ids = store.checkpoints()
    older = [number for number in ids if before is None or number < before]
    window = older[-SHOWN:]
    savepoints, pins = store.maintenance.savepoints(), store.maintenance.pins()
    table_lines = [
        _line(
            store,
            number,
            tuple(savepoint.name for savepoint in savepoints if savepoint.checkpoint_id == number),
            tuple(pin.holder for pin in pins if pin.checkpoint_id == number),
        )
        for number in window
    ]
    kept = set(ids)
    return Window(
        ids=ids,
        lines=tuple(line for line in table_lines if line is not None),
        held=(
            *((savepoint.name, savepoint.checkpoint_id) for savepoint in savepoints),
            *((f"pin {pin.holder}", pin.checkpoint_id) for pin in pins),
        ),
        expired=tuple(one for one in savepoints if one.checkpoint_id not in kept),
        older=window[0] if len(older) > len(window) else None,
        newer=window[-1] + SHOWN + 1 if window and window[-1] != ids[-1] else None,
    )


def _line(
    store: StateStore, number: int, savepoints: tuple[str, ...], pins: tuple[str, ...]
) -> CheckpointLine | None:
    try:
        manifest, error = store.checkpoint(number).manifest, None
    except CheckpointNotFoundError:
        return None
    except UNREADABLE as reason:
        manifest, error = None, reason
    return CheckpointLine(number, manifest, error, savepoints, pins)


def status_of(store: StateStore, window: Window) -> dict[str, Any] | None:
    """Return the newest checkpoint that can be read, and what is wrong or held, for the first row.

    It is None for older checkpoints, and if no checkpoint can be read. A failed attempt leaves
    nothing in the store but the claim of its writer.

    Raises StorageError if the store cannot be reached.
    """
    readable = [line.manifest for line in window.lines if line.manifest is not None]
    if window.newer is not None or not readable:
        return None
    try:
        claim = store.parts.fence.newest_claim()
    except UNREADABLE:
        claim = None  # 'statestore verify' reports it
    newest = readable[-1]
    return {
        "newest": newest,
        "changed": sum(entry.changed_rows for entry in newest.keyed),
        "damaged": [line for line in window.lines if line.manifest is None],
        "waiting": claim if claim and claim.generation > newest.writer.generation else None,
        "held": window.held,
        "read": len(readable),
        "age_ms": clock_ms(None) - newest.created_at_ms,
    }


def draw_window(window: Window, axis: Axis = Axis.CHECKPOINTS) -> Iterator[Picture]:
    """Yield the charts of the checkpoints whose manifests can be read."""
    read = [(line, line.manifest) for line in window.lines if line.manifest is not None]
    columns = [Column(str(manifest.checkpoint_id), manifest.created_at_ms) for _, manifest in read]
    metrics = [manifest.metrics for _, manifest in read]
    if any(metrics):
        marks = [", ".join(line.holders) for line, _ in read]
        marked = [replace(column, mark=mark) for column, mark in zip(columns, marks, strict=True)]
        yield _draw_phases(marked, metrics, axis)
        yield _draw_written(columns, metrics, axis)
    shares = [None if one is None else one.changed_share for one in metrics]
    if any(share is not None for share in shares):
        series = "changed share"
        filled = _filled(columns, [{} if one is None else {series: one} for one in shares])
        yield Picture(
            "shares",
            "Changed share: rows written for each row of the bases.",
            draw_bars(filled, (series,), SHARE, "Changed share", LOW, axis),
        )
    if read:
        names, sizes = _sizes([manifest for _, manifest in read])
        yield Picture(
            "sizes",
            "Size of each state.",
            draw_lines(_filled(columns, sizes), names, BYTES, "Sizes of states", axis),
        )


Metrics = Sequence[CheckpointMetrics | None]


def _draw_phases(columns: Sequence[Column], metrics: Metrics, axis: Axis) -> Picture:
    spent = [{} if one is None else dict(one.spent) for one in metrics]
    caption = (
        "Duration by phase. A bar is as high as the checkpoint took. Compaction in the "
        "background is not part of it. A diamond marks a savepoint or a pin."
    )
    name = "Duration of checkpoints by phase"
    html = draw_bars(_filled(columns, spent), PHASES, DURATION, name, HIGH, axis)
    return Picture("phases", caption, html)


def _draw_written(columns: Sequence[Column], metrics: Metrics, axis: Axis) -> Picture:
    wrote = [
        {}
        if one is None
        else {"written": one.written.size_bytes, "compacted": one.compaction.size_bytes}
        for one in metrics
    ]
    caption = (
        "Bytes written to files for each checkpoint: for its states (written), and by "
        "compaction (compacted)."
    )
    parts = ("written", "compacted")
    html = draw_bars(_filled(columns, wrote), parts, BYTES, "Bytes written", LOW, axis)
    return Picture("written", caption, html)


def _filled(columns: Sequence[Column], values: Sequence[Mapping[str, float]]) -> list[Column]:
    return [replace(column, values=own) for column, own in zip(columns, values, strict=True)]


def _sizes(manifests: Sequence[Manifest]) -> tuple[list[str], list[dict[str, float]]]:
    """Return the newest checkpoint's largest states and all others, and their bytes by checkpoint.

    The states are in descending order of their size in the newest checkpoint.
    """
    sizes: list[Counter[str]] = []
    for manifest in manifests:
        own: Counter[str] = Counter()
        for entry in manifest.entries:
            own[f"{entry.state.uid}.{entry.state.name}"] += entry.size_bytes
        sizes.append(own)
    largest = [name for name, _ in sizes[-1].most_common(_STATES)]
    shown: list[dict[str, float]] = []
    for own in sizes:
        known: dict[str, float] = {name: own[name] for name in largest if name in own}
        rest = own.total() - sum(known.values())
        shown.append(known | ({OTHERS: rest} if rest else {}))
    has_others = any(OTHERS in known for known in shown)
    return [*largest, *([OTHERS] if has_others else [])], shown


_FILES: Final = 200
_ROWS: Final = 20
_MOST_ROWS: Final = 1000
_BOX: Final = (210, 92)
_GAP: Final = (70, 24)
_ACROSS: Final = 3


def checkpoint(store: StateStore, shown: Checkpoint) -> PageView:
    """Return the contents of a checkpoint; CorruptionError if a list of files cannot be read."""
    manifest, number = shown.manifest, shown.checkpoint_id
    ids = store.checkpoints()
    facts = {
        "manifest": manifest,
        "previous": max((one for one in ids if one < number), default=None),
        "next": min((one for one in ids if one > number), default=None),
        "states": [state_facts(entry) for entry in manifest.entries],
        "graph": draw_graph(manifest),
    }
    return PageView(f"Checkpoint {number}", "checkpoint.html", facts, "checkpoint", number)


def state(store: StateStore, shown: Checkpoint, uid: str, name: str) -> PageView:
    """Return a state's columns, layout, layers, files, and charts of its key groups.

    Raises StateNotFoundError if it does not exist.
    """
    manifest = shown.manifest
    entry = manifest.find(uid, name)
    entries: tuple[Entry, ...] = entry.parts
    most = max(_FILES // len(entries), 1)
    parts = [
        ("base" if index == 0 else f"layer {index}", part, part.handles[:most])
        for index, part in enumerate(entries)
    ]
    facts = {
        "manifest": manifest,
        "state": state_facts(entry),
        "left_out": [record for record in manifest.left_out if record.lacks(uid, name)],
        "parts": parts,
        "pictures": [*draw_key_groups(entry, has_values=True)],
        **addressed(store, shown),
    }
    number = shown.checkpoint_id
    return PageView(f"{uid}.{name}", "state.html", facts, "checkpoint", number)


def addressed(store: StateStore, shown: Checkpoint) -> dict[str, Any]:
    """Return how other programs name a store and a checkpoint: an absolute path, and its name."""
    url = store.url if "://" in store.url else str(Path(store.url).resolve())
    return {"url": url, "which": shown.name or shown.checkpoint_id}


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
    shown_rows = fit(found[:wanted])
    facts = {
        "names": reader.schema.names,
        "times": time_columns(entry.state),
        "rows": shown_rows,
        "is_cut": len(found) > len(shown_rows),
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
        "times": time_columns(own),
        "key": (),
        "layers": (),
        "max_parallelism": None,
        "ttl": None,
    }
    if not isinstance(entry, KeyedEntry):
        return known | {"kind": f"{entry.state.mode.value} operator state"}
    return known | {
        "kind": entry.state.kind.value,
        "key": entry.state.key,
        "layers": entry.layers,
        "max_parallelism": entry.state.max_parallelism,
        "ttl": entry.state.ttl,
    }


def time_columns(state: KeyedState | OperatorState) -> set[str]:
    """Return the columns of type long that have milliseconds since 1970: of a TTL, and of timers.

    docs/FORMAT.md defines them.
    """
    if not isinstance(state, KeyedState):
        return set()
    names = {*state.entry} if state.kind is StateKind.TIMERS else set()
    if state.ttl is not None:
        names.add(state.ttl.column)
    return {name for name in names if state.schema.type_of(name) == "long"}


def draw_key_groups(entry: Entry, *, has_values: bool) -> Iterator[Picture]:
    """Yield the bytes of a keyed state by key group.

    With ``has_values``, the chart shows bytes and rows under the pointer.
    """
    if not isinstance(entry, KeyedEntry):
        return
    weights, rows = weights_of([entry]), weights_of([entry], Weight.ROWS)
    most = max(weights)
    largest = weights.index(most)

    def text_of(part: range) -> str:
        held = size(max(weights[part.start : part.stop]))
        total = counted(sum(rows[part.start : part.stop]), "row")
        if len(part) == 1:
            return f"key group {count(part.start)}: {held}, {total}"
        return f"key groups {count(part[0])}–{count(part[-1])}: at most {held} each, {total}"

    times = most * len(weights) / max(sum(weights), 1)
    steps = " Each step shows the largest of several key groups." if len(weights) > BINS else ""
    caption = (
        f"Bytes by key group. The largest is key group {count(largest)} with {size(most)} and "
        f"{counted(rows[largest], 'row')}, {times:.2f} times the mean (dashed).{steps}"
    )
    html = draw_skyline(weights, BYTES, "Bytes by key group", text_of if has_values else None)
    yield Picture("key-groups", caption, html)


@dataclass(frozen=True)
class Box:
    """An operator in the drawing: its uid, its corner, its title, and its lines of text."""

    uid: str
    x: int
    y: int
    title: str
    lines: tuple[str, ...]
    has_states: bool


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
    lines = tuple(filter(None, (title, parallelism + most, states)))
    return Box(label, x, y, name, lines, has_states=bool(entries))


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
