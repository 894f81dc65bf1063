"""Write a snapshot of a store as one HTML file: the pages of ``statestore ui``, without network."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import Final

from statestore.errors import InvalidArgumentError
from statestore.restore.row_files import Progress
from statestore.store import StateStore
from statestore.ui.checkpoint import checkpoint, state
from statestore.ui.pages import STYLES, PageView, render, static
from statestore.ui.questions import compare
from statestore.ui.rescale import highest_parallelism, rescale
from statestore.ui.static_charts import svg
from statestore.ui.timeline import timeline
from statestore.ui.trends import trends

__all__ = ["write_report"]

_STATES: Final = 20
_PARALLELISMS: Final = 12


def write_report(
    store: StateStore,
    to: str,
    which: int | str = "latest",
    *,
    against: int | str | None = None,
    progress: Progress = lambda done, total: None,
) -> int:
    """Write the report atomically, and return its size in bytes.

    It shows the newest checkpoints, their trends, the given checkpoint with its largest states, and
    a restore of it at several parallelisms. With ``against``, it also shows the differences from
    that checkpoint, for which the rows of both are read. ``progress`` receives the number of
    finished parts and the total.

    Raises InvalidArgumentError if the file cannot be written, and the errors of the parts.
    """
    manifest = store.manifest(which)
    largest = sorted(manifest.entries, key=lambda entry: -entry.size_bytes)[:_STATES]
    steps = _steps(manifest.parallelism, highest_parallelism(manifest))
    total = 3 + len(largest) + len(steps) + (against is not None)
    parts: list[str] = []

    def add(view: PageView) -> str:
        parts.append(render(view, store.url, layout="part.html", draw=svg))
        progress(len(parts), total)
        return parts[-1]

    facts = {
        "timeline": add(timeline(store)),
        "trends": add(trends(store)),
        "checkpoint": add(checkpoint(store, which)),
        "states": [
            add(state(store, which, entry.state.uid, entry.state.name)) for entry in largest
        ],
        "left_out": len(manifest.entries) - len(largest),
        "restores": [(step, add(rescale(store, which, step))) for step in steps],
        "parallelism": manifest.parallelism,
        "difference": None if against is None else add(compare(store, str(against), str(which))),
        "style": "\n".join(map(static, STYLES)),
        "script": static("report.js"),
        "script_hash": _hash(static("report.js")),
    }
    title = f"Checkpoint {manifest.checkpoint_id}"
    text = render(
        PageView(title, "report.html", facts, "report", manifest.checkpoint_id), store.url
    )
    return _write(Path(to), text)


def _steps(parallelism: int, most: int) -> list[int]:
    """Return some parallelisms around the parallelism of a checkpoint, ascending."""
    near = range(max(1, parallelism - 3), parallelism + 4)
    far = (1, parallelism // 2, parallelism * 2, parallelism * 3, parallelism * 4)
    return sorted({step for step in (*near, *far) if 1 <= step <= most})[:_PARALLELISMS]


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _write(target: Path, text: str) -> int:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise InvalidArgumentError(f"cannot write {target}: {error.strerror}") from error
    return len(text.encode())
