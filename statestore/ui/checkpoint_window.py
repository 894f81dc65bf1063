"""The checkpoints that one page shows, and their figures over time for charts.

A checkpoint is full if all of its files were written for it, and otherwise incremental.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from statestore.cli.checkpoints import extent, is_incremental, maker
from statestore.cli.drawing import duration, size
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    StateStoreError,
)
from statestore.format.hold_documents import Savepoint
from statestore.format.manifest import Manifest
from statestore.format.metrics import CheckpointMetrics, PhaseTimes
from statestore.store import StateStore

__all__ = [
    "OTHERS",
    "PHASES",
    "SHOWN",
    "CheckpointLine",
    "Figures",
    "Window",
    "figures_of",
    "read_window",
]

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
    """A row of the table of checkpoints; ``error`` is set if the manifest cannot be read."""

    checkpoint_id: int
    manifest: Manifest | None
    error: StateStoreError | None
    savepoints: tuple[str, ...]
    pins: tuple[str, ...]

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


@dataclass(frozen=True)
class Figures:
    """The figures of checkpoints as rows, which all have ``checkpoint``, ``at`` and ``text``.

    Further columns: ``phase``, ``ms`` and ``shown`` in ``spent``; ``part``, ``value`` and ``shown``
    in ``wrote``; ``value`` and ``shown`` in ``shares``; ``state``, ``value`` and ``shown`` in
    ``sizes``; ``held`` in ``marks``, the checkpoints with a savepoint or a pin.
    """

    spent: Sequence[Mapping[str, Any]]
    wrote: Sequence[Mapping[str, Any]]
    shares: Sequence[Mapping[str, Any]]
    sizes: Sequence[Mapping[str, Any]]
    marks: Sequence[Mapping[str, Any]]


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
    try:
        return CheckpointLine(number, store.manifest(number), None, savepoints, pins)
    except CheckpointNotFoundError:
        return None  # it expired after the list was made
    except (CorruptionError, FormatVersionError) as error:
        return CheckpointLine(number, None, error, savepoints, pins)


def figures_of(table_lines: Sequence[CheckpointLine]) -> Figures:
    """Return the figures of the checkpoints whose manifests could be read."""
    readable = [(line, line.manifest) for line in table_lines if line.manifest is not None]
    spent, wrote, shares, marks = [], [], [], []
    times = _distinct_times([manifest for _, manifest in readable])
    for line, manifest in readable:
        number = line.checkpoint_id
        own = {"checkpoint": str(number), "at": times[number]}
        if line.holders:
            holders = ", ".join(line.holders)
            marks.append(own | {"held": holders, "text": f"checkpoint {number}: {holders}"})
        metrics = manifest.metrics
        if metrics is None:
            continue
        for phase, ms in metrics.spent:
            shown = duration(ms)
            text = f"checkpoint {number}, {phase}: {shown}"
            spent.append(own | {"phase": phase, "ms": ms, "shown": shown, "text": text})
        for part, amount in (("written", metrics.written), ("compacted", metrics.compaction)):
            shown = size(amount.size_bytes)
            text = f"checkpoint {number}: {shown} {part}"
            row = {"part": part, "value": amount.size_bytes, "shown": shown, "text": text}
            wrote.append(own | row)
        if metrics.changed_share is not None:
            shown = f"{metrics.changed_share:.1%}"
            text = f"checkpoint {number}: changed share {shown}"
            shares.append(own | {"value": metrics.changed_share, "shown": shown, "text": text})
    sizes = _sizes([manifest for _, manifest in readable], times)
    return Figures(spent=spent, wrote=wrote, shares=shares, sizes=sizes, marks=marks)


def _distinct_times(manifests: Sequence[Manifest]) -> dict[int, int]:
    """Return the time of each checkpoint in ms; equal times would put two bars in one place."""
    times: dict[int, int] = {}
    for manifest in manifests:
        at = manifest.created_at_ms
        while at in times.values():
            at += 1
        times[manifest.checkpoint_id] = at
    return times


def _sizes(manifests: Sequence[Manifest], times: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return a row per checkpoint and state: the newest one's largest states, and all others."""
    sizes: dict[int, Counter[str]] = {}
    for manifest in manifests:
        own = sizes[manifest.checkpoint_id] = Counter()
        for entry in manifest.entries:
            own[f"{entry.state.uid}.{entry.state.name}"] += entry.size_bytes
    newest = sizes[manifests[-1].checkpoint_id] if manifests else Counter()
    largest = [name for name, _ in newest.most_common(_STATES)]
    rows = []
    for number, own in sizes.items():
        shown = {name: own[name] for name in largest if name in own}
        if rest := own.total() - sum(shown.values()):
            shown[OTHERS] = rest
        rows += [
            {
                "checkpoint": str(number),
                "at": times[number],
                "state": name,
                "value": held,
                "shown": size(held),
                "text": f"checkpoint {number}, {name}: {size(held)}",
            }
            for name, held in shown.items()
        ]
    return rows
