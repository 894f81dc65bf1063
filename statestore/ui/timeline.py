"""The page with a store's checkpoints: durations, written bytes, and the growth of states."""

from __future__ import annotations

from statestore.errors import InvalidArgumentError
from statestore.store import StateStore
from statestore.ui.charts import Axis
from statestore.ui.checkpoint_window import draw_window, read_window
from statestore.ui.pages import PageView

__all__ = ["newest", "timeline"]


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
    window = read_window(store, before)
    facts = {
        "lines": window.lines[::-1],
        "total": len(window.ids),
        "older": window.older,
        "newer": window.newer,
        "expired": window.expired,
        "axis": axis,
        "axes": tuple(Axis),
        "before": before,
        "pictures": [*draw_window(window, axis)],
    }
    return PageView("Checkpoints", "timeline.html", facts, tab="timeline")
