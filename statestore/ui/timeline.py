"""The page with a store's checkpoints: durations, written bytes, and the growth of states.

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
    InvalidArgumentError,
    StateStoreError,
)
from statestore.format.manifest import Manifest
from statestore.format.metrics import CheckpointMetrics, PhaseTimes
from statestore.store import StateStore
from statestore.ui.charts import Axis, bars, lines, phases
from statestore.ui.pages import PageView

__all__ = ["SHOWN", "newest", "timeline"]

SHOWN: Final = 50
"""The number of checkpoints on a page; only their manifests are read."""

_STATES = 7
_PHASES = tuple(
    name for name, _ in CheckpointMetrics(duration_ms=0, phases=PhaseTimes(put_ms=0)).spent
)


@dataclass(frozen=True)
class _Line:
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


def newest(store: StateStore) -> int | None:
    """Return the id of the newest checkpoint, None for an empty store."""
    return max(store.checkpoints(), default=None)


def timeline(
    store: StateStore, before: int | None = None, axis: Axis | str = Axis.CHECKPOINTS
) -> PageView:
    """Return the newest checkpoints, or the newest below an id.

    Raises StorageError if the store cannot be reached, and InvalidArgumentError for another axis.
    """
    try:
        axis = Axis(axis)
    except ValueError:
        raise InvalidArgumentError(
            f"the axis can be {' or '.join(Axis)}, not {axis!r:.80}"
        ) from None
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
    read = [line for line in table_lines if line is not None]
    expired = [savepoint for savepoint in savepoints if savepoint.checkpoint_id not in set(ids)]
    facts = {
        "lines": read[::-1],
        "total": len(ids),
        "older": window[0] if len(older) > len(window) else None,
        "newer": window[-1] + SHOWN + 1 if window and window[-1] != ids[-1] else None,
        "expired": expired,
        "axis": axis,
        "axes": tuple(Axis),
        "before": before,
    } | _pictures([line for line in read if line.manifest is not None], axis)
    return PageView("Checkpoints", "timeline.html", facts, tab="timeline")


def _line(
    store: StateStore, number: int, savepoints: tuple[str, ...], pins: tuple[str, ...]
) -> _Line | None:
    try:
        return _Line(number, store.manifest(number), None, savepoints, pins)
    except CheckpointNotFoundError:
        return None  # it expired after the list was made
    except (CorruptionError, FormatVersionError) as error:
        return _Line(number, None, error, savepoints, pins)


def _pictures(table_lines: Sequence[_Line], axis: Axis) -> dict[str, Any]:
    spent, wrote, shares, marks = [], [], [], []
    times = _distinct_times(table_lines)
    for line in table_lines:
        manifest, number = line.manifest, line.checkpoint_id
        assert manifest is not None
        own = {"checkpoint": str(number), "at": times[number]}
        held = [f"savepoint {savepoint}" for savepoint in line.savepoints] + [
            f"pin {pin}" for pin in line.pins
        ]
        if held:
            holders = ", ".join(held)
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
    return {
        "phases": phases(spent, _PHASES, marks, axis) if spent else None,
        "written": bars("written", wrote, "bytes", axis) if wrote else None,
        "shares": bars("shares", shares, "changed share", axis, is_share=True) if shares else None,
        "sizes": lines("sizes", _sizes(table_lines, times), "bytes", axis) if table_lines else None,
    }


def _distinct_times(table_lines: Sequence[_Line]) -> dict[int, int]:
    """Return the time of each checkpoint in ms; equal times would put two bars in one place."""
    times: dict[int, int] = {}
    for line in table_lines:
        assert line.manifest is not None
        at = line.manifest.created_at_ms
        while at in times.values():
            at += 1
        times[line.checkpoint_id] = at
    return times


def _sizes(table_lines: Sequence[_Line], times: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return, by checkpoint, the sizes of the newest checkpoint's largest states, and the rest."""
    sizes: dict[int, Counter[str]] = {}
    for line in table_lines:
        assert line.manifest is not None
        own = sizes[line.checkpoint_id] = Counter()
        for entry in line.manifest.entries:
            own[f"{entry.state.uid}.{entry.state.name}"] += entry.size_bytes
    largest = [name for name, _ in sizes[table_lines[-1].checkpoint_id].most_common(_STATES)]
    rows = []
    for number, own in sizes.items():
        shown = {name: own[name] for name in largest if name in own}
        if rest := own.total() - sum(shown.values()):
            shown["all others"] = rest
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
