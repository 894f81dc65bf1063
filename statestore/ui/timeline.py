"""The page with a store's checkpoints: durations, written bytes, and the growth of states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from statestore.cli.drawing import duration, size
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    StateStoreError,
)
from statestore.format.manifest import Manifest
from statestore.format.metrics import CheckpointMetrics, PhaseTimes
from statestore.store import StateStore
from statestore.ui.charts import bars, lines, phases
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


def newest(store: StateStore) -> int | None:
    """Return the id of the newest checkpoint, None for an empty store."""
    return max(store.checkpoints(), default=None)


def timeline(store: StateStore, before: int | None = None) -> PageView:
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
    read = [line for line in table_lines if line is not None]
    expired = [savepoint for savepoint in savepoints if savepoint.checkpoint_id not in set(ids)]
    facts = {
        "lines": read[::-1],
        "total": len(ids),
        "older": window[0] if len(older) > len(window) else None,
        "newer": window[-1] + SHOWN + 1 if window and window[-1] != ids[-1] else None,
        "expired": expired,
    } | _pictures([line for line in read if line.manifest is not None])
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


def _pictures(table_lines: Sequence[_Line]) -> dict[str, Any]:
    spent, wrote, shares, marks = [], [], [], []
    for line in table_lines:
        manifest, number = line.manifest, line.checkpoint_id
        assert manifest is not None
        held = [f"savepoint {savepoint}" for savepoint in line.savepoints] + [
            f"pin {pin}" for pin in line.pins
        ]
        if held:
            marks.append({"checkpoint": number, "text": f"checkpoint {number}: {', '.join(held)}"})
        metrics = manifest.metrics
        if metrics is None:
            continue
        spent += [
            {
                "checkpoint": number,
                "phase": phase,
                "ms": ms,
                "text": f"checkpoint {number}, {phase}: {duration(ms)}",
            }
            for phase, ms in metrics.spent
        ]
        written, compacted = metrics.written.size_bytes, metrics.compaction.size_bytes
        text = f"checkpoint {number}: {size(written)} written, {size(compacted)} compacted"
        wrote.append({"checkpoint": number, "value": written + compacted, "text": text})
        if metrics.changed_share is not None:
            share = metrics.changed_share
            text = f"checkpoint {number}: changed share {share:.1%}"
            shares.append({"checkpoint": number, "value": share, "text": text})
    return {
        "phases": phases(spent, _PHASES, marks) if spent else None,
        "written": bars(wrote, "written + compacted") if wrote else None,
        "shares": bars(shares, "changed share", is_share=True) if shares else None,
        "sizes": lines(_sizes(table_lines)) if table_lines else None,
    }


def _sizes(table_lines: Sequence[_Line]) -> list[dict[str, Any]]:
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
                "checkpoint": number,
                "state": name,
                "bytes": held,
                "text": f"checkpoint {number}, {name}: {size(held)}",
            }
            for name, held in shown.items()
        ]
    return rows
