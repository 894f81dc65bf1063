"""How the figures of a checkpoint are shown, as JSON and as text: phases, and what was written."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from statestore.cli.units import count, counted, duration, size
from statestore.format.manifest import Manifest
from statestore.format.metrics import CheckpointMetrics, metrics_to_json

__all__ = ["metrics_document", "metrics_text", "share", "spent"]

_WHOLE_SECONDS_MS = 10_000


def metrics_document(manifest: Manifest) -> dict[str, Any]:
    """Return the member ``metrics`` of a checkpoint, nothing of one that has none: as in the
    manifest, and with sums.
    """
    metrics = manifest.metrics
    if metrics is None:
        return {}
    document = metrics_to_json(metrics)
    for state, shown in zip(metrics.states, document["states"], strict=True):
        shown["changed_share"] = state.changed_share
    sums = {"written": asdict(metrics.written), "changed_share": metrics.changed_share}
    return {"metrics": document | sums}


def metrics_text(manifest: Manifest) -> list[tuple[str, str]]:
    """Return what ``show`` says of a checkpoint's figures, nothing when it has none."""
    metrics = manifest.metrics
    if metrics is None:
        return []
    phases = ", ".join(f"{name} {spent(taken)}" for name, taken in metrics.phases.items())
    return [("phases", phases), ("written", _written(metrics))]


def spent(milliseconds: int) -> str:
    """Return how long a phase took: ``1,234 ms``, or from ten seconds on as any duration."""
    if milliseconds < _WHOLE_SECONDS_MS:
        return f"{count(milliseconds)} ms"
    return duration(milliseconds)


def share(changed: float | None) -> str:
    """Return a changed share in percent, two digits of it; ``-`` for none."""
    return "-" if changed is None else f"{changed * 100:.2g}%" if changed < 1 else f"{changed:.0%}"


def _written(metrics: CheckpointMetrics) -> str:
    written, compacted = metrics.written, metrics.compaction
    text = f"{counted(written.rows, 'row')}, {size(written.size_bytes)} in "
    text += counted(written.files, "file")
    if compacted.files:
        text += f", and {size(compacted.size_bytes)} in {counted(compacted.files, 'file')} by "
        text += "compaction"
    if metrics.changed_share is not None:
        text += f"; changed share {share(metrics.changed_share)}"
    return text
