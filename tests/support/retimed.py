"""Give the checkpoints of a store other times, as if they had been taken over weeks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from statestore import StateStore
from statestore.format.manifest_json import manifest_to_json
from statestore.format.names import manifest_path

__all__ = ["DAY_MS", "HOUR_MS", "START_MS", "retime"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_790_000_000_000


def retime(folder: Path, hours: Sequence[float] | None = None, step: float = 6) -> None:
    """Rewrite the manifests of a store in a folder with other times, the rest unchanged.

    ``hours`` has the time of each checkpoint after the start; by default they are ``step`` apart.
    """
    store = StateStore.open(str(folder))
    for index, checkpoint_id in enumerate(store.checkpoints()):
        after = index * step if hours is None else hours[index]
        at_ms = START_MS + round(after * HOUR_MS)
        manifest = replace(store.checkpoint(checkpoint_id).manifest, created_at_ms=at_ms)
        (folder / manifest_path(checkpoint_id)).write_bytes(manifest_to_json(manifest))
