"""``statestore watch``: follow a live store in the terminal, as a live screen, lines or JSON.

The store's checkpoints are listed repeatedly, and only the manifests of new ones are read.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from statestore.cli.arguments import SPAN
from statestore.cli.checkpoints import (
    changed_rows,
    held_text,
    metrics_text,
    share,
)
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.documents import ReadError
from statestore.cli.drawing import count, counted, duration, size, when
from statestore.cli.output import Page, cell, document_text, page, pause, printable, table_of
from statestore.durations import milliseconds_of
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    StateStoreError,
    StorageError,
    StoreNotFoundError,
)
from statestore.format.left_out import LeftOutState, left_out_text
from statestore.format.manifest import Manifest
from statestore.format.metrics import CheckpointMetrics
from statestore.store import StateStore

__all__ = [
    "JsonLines",
    "LiveScreen",
    "TextLines",
    "Watched",
    "WatchedCheckpoint",
    "followed",
    "watch_checkpoints",
]

SHORTEST_S = 0.05  # an interval of 0 would only keep a core or an object store busy
SHOWN = 12
"""How many checkpoints a live screen has."""


@click.command(
    "watch",
    cls=Verb,
    prints=(
        "The newest checkpoint, then each new checkpoint: its age, its duration by phase, "
        "the rows, bytes and files written for it, the changed share, the layers of changes, "
        "its content, and missing state of its source. The changed share is the rows written "
        "divided by the rows of the base files; it is 100% for a state written in full. On a "
        "terminal a screen is refreshed. Otherwise each checkpoint has a short line without "
        "phases, and with --output json an object on one line. If the store does not exist "
        "yet, the command waits for it. Only the list of checkpoints and the manifest of "
        "each new one are read. The command ends with Ctrl-C (status 0), after --count, or "
        "when stdout is closed, for example by head -1."
    ),
    examples=(
        "statestore watch --store ./fraud",
        "statestore watch --interval 500ms --store ./fraud",
        "statestore watch --count 1 --output json --store ./fraud",
    ),
)
@click.option(
    "--interval",
    type=SPAN,
    default="2s",
    metavar="SPAN",
    help="The polling interval: 500ms, 1min. [2s]",
)
@click.option(
    "--count",
    "stop_after",
    type=click.IntRange(1),
    metavar="N",
    help="Exit after N new checkpoints.",
)
@pass_invocation
def watch_checkpoints(invocation: Invocation, interval: str, stop_after: int | None) -> int:
    """Follow a store: show each new checkpoint."""
    paper = page()
    screen: JsonLines = JsonLines()
    try:
        store = invocation.store()
        if invocation.settings.output != "json":
            screen = LiveScreen(paper, store.url) if paper.terminal else TextLines()
        with screen.opened():
            checkpoints = followed(
                store,
                interval_s=milliseconds_of(interval) / 1000,
                stop_after=stop_after,
                say=_say,
                wait=pause,
            )
            for watched in checkpoints:
                screen.show(watched)
    except KeyboardInterrupt:
        return 0
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


@dataclass(frozen=True, kw_only=True)
class WatchedCheckpoint:
    """A checkpoint, one per line. If it is unreadable, only the first four members are known.

    ``is_new`` is False for the checkpoint that existed at the start. ``error`` is None for a
    readable checkpoint. ``changed_rows`` is the number of its rows that are changes.
    """

    store: str
    checkpoint_id: int
    is_new: bool
    error: ReadError | None = None
    created_at_ms: int | None = None
    age_ms: int | None = None
    took_ms: int | None = None
    parallelism: int | None = None
    rows: int | None = None
    changed_rows: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    layers: int | None = None
    left_out: tuple[LeftOutState, ...] | None = None
    metrics: CheckpointMetrics | None = None


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A checkpoint that was found: its manifest, or the reason why it cannot be read.

    ``is_new`` is False for the newest checkpoint that existed at the start.
    """

    store: str
    checkpoint_id: int
    is_new: bool
    manifest: Manifest | None
    error: StateStoreError | None = None


def followed(
    store: StateStore,
    *,
    interval_s: float,
    stop_after: int | None,
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Watched]:
    """Yield the newest checkpoint, then each new one once, in order of id.

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
                watched = _look(store, checkpoint_id, is_new=known_ids is not None)
                if watched is not None:
                    yield watched
                    shown += watched.is_new
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


def _look(store: StateStore, checkpoint_id: int, *, is_new: bool) -> Watched | None:
    """Return a checkpoint; None if it has expired since it was listed."""
    manifest, wrong = None, None
    try:
        manifest = store.manifest(checkpoint_id)
    except CheckpointNotFoundError:
        return None
    except (CorruptionError, FormatVersionError, StorageError) as error:
        wrong = error
    return Watched(
        store=store.url, checkpoint_id=checkpoint_id, is_new=is_new, manifest=manifest, error=wrong
    )


class JsonLines:
    """Writes each checkpoint to stdout as one line of JSON."""

    def opened(self) -> AbstractContextManager[object]:
        """Return the context manager within which checkpoints are shown."""
        return nullcontext()

    def show(self, watched: Watched) -> None:
        """Write a checkpoint."""
        _write(document_text(_watched_checkpoint(watched), indent=None, ascii_only=True))


class TextLines(JsonLines):
    """Writes each checkpoint to stdout as one line of text."""

    def show(self, watched: Watched) -> None:
        """Write a checkpoint."""
        _write(printable(_line(watched)))


class LiveScreen(JsonLines):
    """Draws the newest checkpoints and their ages on a terminal."""

    def __init__(self, page: Page, store: str) -> None:
        """Draw on a page, which is a terminal."""
        self._page, self._store = page, store
        self._shown: deque[Watched] = deque(maxlen=SHOWN)

    def opened(self) -> AbstractContextManager[object]:
        """Return the context manager within which the screen is redrawn once a second."""
        return Live(
            console=self._page.console,
            get_renderable=self._drawn,
            refresh_per_second=1,
            screen=False,
        )

    def show(self, watched: Watched) -> None:
        """Show a checkpoint on the screen."""
        self._shown.append(watched)

    def _drawn(self) -> Group:
        if not self._shown:
            return Group(Text(printable(f"{self._store}: no checkpoint yet"), style="bold"))
        newest = self._shown[-1]
        parts: list[Any] = [Text(printable(f"{newest.store}: {_headline(newest)}"), style="bold")]
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
        for watched in reversed(self._shown):
            table.add_row(*map(cell, _row(watched)))
        return Group(*parts, Text(), table)


def _headline(watched: Watched) -> str:
    if watched.manifest is None:
        return f"checkpoint {watched.checkpoint_id} cannot be read"
    return f"checkpoint {watched.checkpoint_id}, {_age(watched.manifest)} ago"


def _row(watched: Watched) -> tuple[str, ...]:
    manifest, number = watched.manifest, str(watched.checkpoint_id)
    if manifest is None:
        return (number, "damaged", *[""] * 7)
    metrics = manifest.metrics
    layers = count(_layers(manifest))
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


def _line(watched: Watched) -> str:
    manifest = watched.manifest
    if manifest is None:
        return f"checkpoint {watched.checkpoint_id} cannot be read: {watched.error}"
    parts = [
        f"checkpoint {watched.checkpoint_id}",
        f"taken {when(manifest.created_at_ms)}",
        f"took {duration(manifest.took_ms)}",
    ]
    if manifest.metrics is not None:
        parts.append(f"changed share {share(manifest.metrics.changed_share)}")
    parts.append(f"holds {held_text(manifest)}")
    if layers := _layers(manifest):
        parts.append(counted(layers, "layer"))
    if manifest.left_out:
        parts.append(f"left out  {left_out_text(manifest.left_out)}")
    return "; ".join(parts)


def _watched_checkpoint(watched: Watched) -> WatchedCheckpoint:
    manifest = watched.manifest
    shown = WatchedCheckpoint(
        store=watched.store,
        checkpoint_id=watched.checkpoint_id,
        is_new=watched.is_new,
        error=None if watched.error is None else ReadError.of(watched.error),
    )
    if manifest is None:
        return shown
    return replace(
        shown,
        created_at_ms=manifest.created_at_ms,
        age_ms=_age_ms(manifest),
        took_ms=manifest.took_ms,
        parallelism=manifest.parallelism,
        rows=manifest.rows,
        changed_rows=changed_rows(manifest),
        size_bytes=manifest.size_bytes,
        files=manifest.files,
        layers=_layers(manifest),
        left_out=manifest.left_out,
        metrics=manifest.metrics,
    )


def _layers(manifest: Manifest) -> int:
    return sum(len(entry.layers) for entry in manifest.keyed)


def _age(manifest: Manifest) -> str:
    return duration(max(0, _age_ms(manifest)))


def _age_ms(manifest: Manifest) -> int:
    return time.time_ns() // 1_000_000 - manifest.created_at_ms


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()  # the reader of a pipe needs each checkpoint immediately
