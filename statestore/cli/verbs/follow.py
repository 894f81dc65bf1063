"""Follow a live store for ``statestore list --follow``, as a live screen, lines or JSON.

The store's checkpoints are listed repeatedly, and only the manifests of new ones are read.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from statestore.cli.checkpoints import (
    UNREADABLE,
    CheckpointSummary,
    FoundCheckpoint,
    find_checkpoint,
    held_text,
    layer_count,
    metrics_text,
    share,
)
from statestore.cli.drawing import count, counted, duration, size, when
from statestore.cli.output import Page, cell, pause, printable, table_of
from statestore.errors import StorageError, StoreNotFoundError
from statestore.format.left_out import left_out_text
from statestore.format.manifest import Manifest
from statestore.store import StateStore

__all__ = [
    "FollowedCheckpoint",
    "LiveScreen",
    "TextLines",
    "follow",
    "followed",
    "screen_of",
]

SHORTEST_S = 0.05  # an interval of 0 would only keep a core or an object store busy
SHOWN = 12
"""How many checkpoints a live screen has."""


@dataclass(frozen=True, kw_only=True)
class FollowedCheckpoint(CheckpointSummary):
    """A checkpoint, one per line. If it is unreadable, its figures are null.

    ``is_new`` is False for the checkpoint that existed at the start. ``error`` is None for a
    readable checkpoint. ``changed_rows`` is the number of its rows that are changes.
    """

    store: str
    is_new: bool


def follow(
    store: StateStore, *, interval_s: float, stop_after: int | None, screen: TextLines | None
) -> Iterator[FollowedCheckpoint]:
    """Yield checkpoints as :func:`followed`, and show each one on a screen, if there is one."""
    checkpoints = followed(
        store, interval_s=interval_s, stop_after=stop_after, say=_say, wait=pause
    )
    with nullcontext() if screen is None else screen.opened():
        for found, is_new in checkpoints:
            if screen is not None:
                screen.show(found)
            yield FollowedCheckpoint.of(found, _now_ms(), store=store.url, is_new=is_new)


def screen_of(page: Page, store: str) -> TextLines:
    """Return the screen for a page: live on a terminal, and otherwise with a line for each."""
    return LiveScreen(page, store) if page.terminal else TextLines()


def _say(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def followed(
    store: StateStore,
    *,
    interval_s: float,
    stop_after: int | None,
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[FoundCheckpoint, bool]]:
    """Yield the newest checkpoint, then each new one once, in order of id, and whether it is new.

    End after ``stop_after`` new ones. ``say`` is called once if the store does not exist yet, has
    no checkpoint, or is temporarily unreachable. ``wait`` waits for the interval. Raises
    StorageError if the store is unreachable the first time, and the errors of ``wait``.
    """
    known_ids: set[int] | None = None
    shown, last_error = 0, ""
    while True:
        ids, why = _ids(store, is_first=known_ids is None)
        if why != last_error and why:
            say(why)
        last_error = why
        if ids is not None:
            there = ids[-1:] if known_ids is None else tuple(sorted(set(ids) - known_ids))
            for checkpoint_id in there:
                found = find_checkpoint(store, checkpoint_id, (*UNREADABLE, StorageError))
                if found is not None:
                    is_new = known_ids is not None
                    yield found, is_new
                    shown += is_new
                    if shown == stop_after:
                        return
            known_ids = set(ids)
        wait(max(interval_s, SHORTEST_S))


def _ids(store: StateStore, *, is_first: bool) -> tuple[tuple[int, ...] | None, str]:
    """Return the existing checkpoints, or None if they are unknown, and the message for ``say``."""
    try:
        ids = store.checkpoints()
    except StoreNotFoundError:
        return (), f"waiting for a store at {store.url}"
    except StorageError as error:
        if is_first:
            raise
        return None, f"retrying after an error: {error}"
    return ids, "" if ids else f"waiting for the first checkpoint of {store.url}"


class TextLines:
    """Writes each checkpoint to stdout as one line of text."""

    def opened(self) -> AbstractContextManager[object]:
        """Return the context manager within which checkpoints are shown."""
        return nullcontext()

    def show(self, found: FoundCheckpoint) -> None:
        """Write a checkpoint."""
        sys.stdout.write(f"{printable(_line(found))}\n")
        sys.stdout.flush()  # the reader of a pipe needs each checkpoint immediately


class LiveScreen(TextLines):
    """Draws the newest checkpoints and their ages on a terminal."""

    def __init__(self, page: Page, store: str) -> None:
        """Draw on a page, which is a terminal."""
        self._page, self._store = page, store
        self._shown: deque[FoundCheckpoint] = deque(maxlen=SHOWN)

    def opened(self) -> AbstractContextManager[object]:
        """Return the context manager within which the screen is redrawn once a second."""
        return Live(
            console=self._page.console,
            get_renderable=self._drawn,
            refresh_per_second=1,
            screen=False,
        )

    def show(self, found: FoundCheckpoint) -> None:
        """Show a checkpoint on the screen."""
        self._shown.append(found)

    def _drawn(self) -> Group:
        if not self._shown:
            return Group(Text(printable(f"{self._store}: no checkpoint yet"), style="bold"))
        newest = self._shown[-1]
        parts: list[Any] = [Text(printable(f"{self._store}: {_headline(newest)}"), style="bold")]
        if newest.manifest is not None:
            parts.append(Text(f"holds    {held_text(newest.manifest)}"))
            parts += [Text(f"{name:<7}  {text}") for name, text in metrics_text(newest.manifest)]
            parts += [Text(printable(f"left out {record}")) for record in newest.manifest.left_out]
        columns = (
            "id",
            "age",
            "took",
            "slowest phase",
            "rows",
            "bytes",
            "files",
            "share",
            "layers",
        )
        table = table_of(*columns, right={*columns})
        for found in reversed(self._shown):
            table.add_row(*map(cell, _row(found)))
        return Group(*parts, Text(), table)


def _headline(found: FoundCheckpoint) -> str:
    if found.manifest is None:
        return f"checkpoint {found.checkpoint_id} cannot be read"
    return f"checkpoint {found.checkpoint_id}, {_age(found.manifest)} ago"


def _row(found: FoundCheckpoint) -> tuple[str, ...]:
    manifest, number = found.manifest, str(found.checkpoint_id)
    if manifest is None:
        return (number, "damaged", *[""] * 7)
    metrics = manifest.metrics
    layers = count(layer_count(manifest))
    if metrics is None:
        return (number, _age(manifest), duration(manifest.took_ms), *["-"] * 5, layers)
    phase, taken = metrics.phases.slowest
    written = metrics.written
    return (
        number,
        _age(manifest),
        duration(manifest.took_ms),
        f"{phase} {duration(taken)}",
        count(written.rows),
        size(written.size_bytes),
        count(written.files),
        share(metrics.changed_share),
        layers,
    )


def _line(found: FoundCheckpoint) -> str:
    manifest = found.manifest
    if manifest is None:
        return f"checkpoint {found.checkpoint_id} cannot be read: {found.error}"
    parts = [
        f"checkpoint {found.checkpoint_id}",
        f"taken {when(manifest.created_at_ms)}",
        f"took {duration(manifest.took_ms)}",
    ]
    if manifest.metrics is not None:
        parts.append(f"changed share {share(manifest.metrics.changed_share)}")
    parts.append(f"holds {held_text(manifest)}")
    if layers := layer_count(manifest):
        parts.append(counted(layers, "layer"))
    if manifest.left_out:
        parts.append(f"left out  {left_out_text(manifest.left_out)}")
    return "; ".join(parts)


def _age(manifest: Manifest) -> str:
    return duration(max(0, _now_ms() - manifest.created_at_ms))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
