"""The checkpoints that one page shows, and their figures over time for charts.

A checkpoint is full if all of its files were written for it, and otherwise incremental.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from statestore.cli.checkpoints import (
    FoundCheckpoint,
    extent,
    find_checkpoint,
    is_incremental,
    maker,
)
from statestore.format.hold_documents import Savepoint
from statestore.format.manifest import Manifest
from statestore.format.metrics import CheckpointMetrics, PhaseTimes
from statestore.store import StateStore
from statestore.ui.charts import (
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
)

__all__ = ["SHOWN", "CheckpointLine", "Window", "draw_window", "read_window"]

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
class CheckpointLine(FoundCheckpoint):
    """A row of the table of checkpoints, with the savepoints and pins that keep it."""

    savepoints: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()

    @property
    def extent(self) -> str:
        """Whether all files were written for this checkpoint; empty if that is unknown."""
        return "" if self.manifest is None else extent(is_incremental(self.manifest))

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

    ``expired`` are the savepoints whose checkpoint has expired. The window of older checkpoints
    ends before the id ``older``, and the window of newer ones before ``newer``. An id is None if
    such checkpoints do not exist.
    """

    ids: Sequence[int]
    lines: tuple[CheckpointLine, ...]
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
        expired=tuple(one for one in savepoints if one.checkpoint_id not in kept),
        older=window[0] if len(older) > len(window) else None,
        newer=window[-1] + SHOWN + 1 if window and window[-1] != ids[-1] else None,
    )


def _line(
    store: StateStore, number: int, savepoints: tuple[str, ...], pins: tuple[str, ...]
) -> CheckpointLine | None:
    found = find_checkpoint(store, number)
    if found is None:
        return None
    return CheckpointLine(found.checkpoint_id, found.manifest, found.error, savepoints, pins)


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
