"""``statestore list``: list or follow checkpoints, including damaged ones, with their holds.

``--follow`` lists the checkpoints of a live store repeatedly, and reads only the manifests of new
ones. It shows them on a live screen, as lines or as JSON.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from statestore.catalog.catalog import Catalog
from statestore.catalog.deletions import Deletion, read_deletions
from statestore.catalog.holds import Pin, Savepoint, publication_of
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, duration, size, size_and_files, when
from statestore.cli.options import SPAN
from statestore.cli.output import Output, Page, page, pause, printable, table_of, table_width
from statestore.cli.summaries import (
    UNREADABLE,
    CheckpointSummary,
    extent,
    held_text,
    maker,
    metrics_text,
    rows_explanation,
    rows_text,
    share,
)
from statestore.durations import milliseconds_of
from statestore.errors import CorruptionError, StateStoreError, StorageError, StoreNotFoundError
from statestore.format.left_out import left_out_text
from statestore.storage import Storage

if TYPE_CHECKING:
    from rich.console import Group

__all__ = [
    "CheckpointList",
    "DeletionLog",
    "FollowedCheckpoint",
    "LiveScreen",
    "TextLines",
    "checkpoint_list",
    "followed",
    "list_checkpoints",
    "write_list",
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
    storage: Storage, *, interval_s: float, stop_after: int | None, screen: TextLines | None
) -> Iterator[FollowedCheckpoint]:
    """Yield checkpoints as :func:`followed`, and show each one on a screen, if there is one."""
    checkpoints = followed(
        storage, interval_s=interval_s, stop_after=stop_after, on_wait=_write_note, wait=pause
    )
    with nullcontext() if screen is None else screen.opened():
        for found in checkpoints:
            if screen is not None:
                screen.show(found)
            yield found


def screen_of(page: Page, store: str) -> TextLines:
    """Return a live screen for a terminal, or one that writes a line for each checkpoint."""
    return LiveScreen(page, store) if page.terminal else TextLines()


def _write_note(text: str) -> None:
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def followed(
    storage: Storage,
    *,
    interval_s: float,
    stop_after: int | None,
    on_wait: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[FollowedCheckpoint]:
    """Yield the newest checkpoint of a store, then each new one once, in order of id.

    End after ``stop_after`` new ones. ``on_wait`` is called once if the store does not exist yet,
    has no checkpoint, or is temporarily unreachable. ``wait`` waits for the interval. Raises
    StorageError if the store is unreachable the first time, and the errors of ``wait``.
    """
    catalog = Catalog(storage, "")
    known_ids: set[int] | None = None
    shown, last_error = 0, ""
    while True:
        ids, why = _ids(storage, is_first=known_ids is None)
        if why != last_error and why:
            on_wait(why)
        last_error = why
        if ids is not None:
            there = ids[-1:] if known_ids is None else tuple(sorted(set(ids) - known_ids))
            for checkpoint_id in there:
                is_new = known_ids is not None
                found = FollowedCheckpoint.read(
                    catalog,
                    checkpoint_id,
                    _now_ms(),
                    (*UNREADABLE, StorageError),
                    store=storage.url,
                    is_new=is_new,
                )
                if found is not None:
                    yield found
                    shown += is_new
                    if shown == stop_after:
                        return
            known_ids = set(ids)
        wait(max(interval_s, SHORTEST_S))


def _ids(storage: Storage, *, is_first: bool) -> tuple[tuple[int, ...] | None, str]:
    """Return the ids of the checkpoints, None if they are unknown, and a message for the user."""
    try:
        ids = Catalog.open(storage, create=False).checkpoint_ids()
    except StoreNotFoundError:
        return (), f"waiting for a store at {storage.url}"
    except StorageError as error:
        if is_first:
            raise
        return None, f"retrying after an error: {error}"
    return ids, "" if ids else f"waiting for the first checkpoint of {storage.url}"


class TextLines:
    """Writes each checkpoint to stdout as one line of text."""

    def opened(self) -> AbstractContextManager[object]:
        """Return the context manager within which checkpoints are shown."""
        return nullcontext()

    def show(self, found: CheckpointSummary) -> None:
        """Write a checkpoint."""
        sys.stdout.write(f"{printable(_line(found))}\n")
        sys.stdout.flush()  # the reader of a pipe needs each checkpoint immediately


class LiveScreen(TextLines):
    """Draws the newest checkpoints and their ages on a terminal."""

    def __init__(self, page: Page, store: str) -> None:
        """Draw on a page, which is a terminal."""
        self._page, self._store = page, store
        self._shown: deque[CheckpointSummary] = deque(maxlen=SHOWN)

    def opened(self) -> AbstractContextManager[object]:
        """Return the context manager within which the screen is redrawn once a second."""
        from rich.live import Live

        return Live(
            console=self._page.console,
            get_renderable=self._drawn,
            refresh_per_second=1,
            screen=False,
        )

    def show(self, found: CheckpointSummary) -> None:
        """Show a checkpoint on the screen."""
        self._shown.append(found)

    def _drawn(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        if not self._shown:
            return Group(Text(printable(f"{self._store}: no checkpoint yet"), style="bold"))
        newest = self._shown[-1]
        parts: list[Any] = [Text(printable(f"{self._store}: {_headline(newest)}"), style="bold")]
        if newest.error is None:
            parts.append(Text(f"holds    {_held(newest)}"))
            parts += [Text(f"{name:<7}  {text}") for name, text in metrics_text(newest.metrics)]
            parts += [Text(printable(f"left out {record}")) for record in newest.left_out or ()]
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
            table.add_row(*_row(found))
        return Group(*parts, Text(), Text("\n".join(table.lines(self._page.width))))


def _headline(found: CheckpointSummary) -> str:
    if found.error is not None:
        return f"checkpoint {found.checkpoint_id} cannot be read"
    return f"checkpoint {found.checkpoint_id}, {_age(found)} ago"


def _row(found: CheckpointSummary) -> tuple[str, ...]:
    metrics, number = found.metrics, str(found.checkpoint_id)
    if found.error is not None:
        return (number, "damaged", *[""] * 7)
    took, layers = duration(found.took_ms or 0), count(found.layers or 0)
    if metrics is None:
        return (number, _age(found), took, *["-"] * 5, layers)
    phase, taken = metrics.phases.slowest
    written = metrics.written
    return (
        number,
        _age(found),
        took,
        f"{phase} {duration(taken)}",
        count(written.rows),
        size(written.size_bytes),
        count(written.files),
        share(metrics.changed_share),
        layers,
    )


def _line(found: CheckpointSummary) -> str:
    if found.failure is not None:
        return f"checkpoint {found.checkpoint_id} cannot be read: {found.failure}"
    parts = [
        f"checkpoint {found.checkpoint_id}",
        f"taken {when(found.created_at_ms or 0)}",
        f"took {duration(found.took_ms or 0)}",
    ]
    if found.metrics is not None:
        parts.append(f"changed share {share(found.metrics.changed_share)}")
    parts.append(f"holds {_held(found)}")
    if found.layers:
        parts.append(counted(found.layers, "layer"))
    if found.left_out:
        parts.append(f"left out  {left_out_text(found.left_out)}")
    return "; ".join(parts)


def _held(found: CheckpointSummary) -> str:
    return held_text(
        found.rows or 0, found.changed_rows or 0, found.size_bytes or 0, found.files or 0
    )


def _age(found: CheckpointSummary) -> str:
    return duration(max(0, _now_ms() - (found.created_at_ms or 0)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_COLUMNS = (
    *(
        "id",
        "taken",
        "age",
        "extent",
        "parallelism",
        "operators",
        "states",
        "rows",
        "bytes",
        "files",
    ),
    "made by",
    "left out",
)
_WORDS = {"taken", "age", "extent", "made by", "left out"}
_FOR_WIDE_ONES = ("operators", "states", "files", "taken")
"""Columns that a narrow terminal may have no room for, from the least important one."""


@click.command(
    "list",
    cls=Verb,
    section="Look",
    prints=(
        "A line for each checkpoint, oldest first, then the savepoints and pins. Rows such as "
        "94,005 + 4,669 are those in base files, and those of changes. A damaged checkpoint is "
        "marked, and then the exit status is 13. With --follow: a screen, or without a terminal "
        "a line for each checkpoint. With --log: what expire, gc and forget deleted, oldest first."
    ),
    examples=(
        "statestore list --store ./fraud",
        "STATESTORE_URI=./fraud statestore list --output json",
        "statestore list --follow 500ms --store ./fraud",
        "statestore list --follow --count 1 --output json --store ./fraud",
        "statestore list --log --store ./fraud",
    ),
    modes={"--follow": ("--count",), "--log": ()},
)
@click.option(
    "--follow",
    "interval",
    type=SPAN,
    is_flag=False,
    flag_value="2s",
    metavar="[SPAN]",
    help="Show the newest checkpoint, and then each new one, until Ctrl-C. SPAN is the polling "
    "interval: 500ms, 1min. [2s]",
)
@click.option(
    "--count",
    "stop_after",
    type=click.IntRange(1),
    metavar="N",
    help="Exit after N new checkpoints.",
)
@click.option("--log", is_flag=True, help="List what was deleted, when, by whom and why, instead.")
@pass_invocation
def list_checkpoints(
    invocation: Invocation, interval: str | None, stop_after: int | None, log: bool
) -> Output[CheckpointList] | Output[DeletionLog] | Iterator[FollowedCheckpoint]:
    """List the checkpoints of a store, or follow them."""
    storage, now_ms = invocation.storage(), _now_ms()
    if interval is not None:
        return follow(
            storage,
            interval_s=milliseconds_of(interval) / 1000,
            stop_after=stop_after,
            screen=None if invocation.settings.output == "json" else screen_of(page(), storage.url),
        )
    catalog = Catalog.open(storage, create=False)
    if log:
        return Output(DeletionLog(storage.url, read_deletions(storage)), write_log)
    found = [CheckpointSummary.read(catalog, each, now_ms) for each in catalog.checkpoint_ids()]
    summaries = [summary for summary in found if summary is not None]
    problem = _problem(summaries)
    savepoints: tuple[Savepoint, ...] = ()
    pins: tuple[Pin, ...] = ()
    try:
        savepoints, pins = catalog.holds.savepoints(), catalog.holds.pins()
    except UNREADABLE as error:
        problem = problem or error
    listed = checkpoint_list(storage.url, now_ms, tuple(summaries), savepoints, pins)
    return Output(listed, write_list, problem)


def _problem(checkpoints: Sequence[CheckpointSummary]) -> StateStoreError | None:
    errors = [listed.failure for listed in checkpoints if listed.failure is not None]
    if not any(isinstance(error, CorruptionError) for error in errors):
        return errors[0] if errors else None
    ids = ", ".join(str(listed.checkpoint_id) for listed in checkpoints if listed.error)
    way_on = (
        "recover one from a backup"
        if len(errors) == len(checkpoints)
        else "restore another checkpoint"
    )
    problem = CorruptionError(
        f"{len(errors)} of {len(checkpoints)} checkpoints cannot be read: {ids}; {way_on}"
    )
    for error in errors:
        problem.add_note(str(error))
    return problem


@dataclass(frozen=True, kw_only=True)
class ListedSavepoint:
    """A savepoint. ``is_expired`` is True if only the savepoint keeps its checkpoint."""

    name: str
    checkpoint_id: int
    created_at_ms: int
    age_ms: int
    is_expired: bool


@dataclass(frozen=True, kw_only=True)
class ListedPin:
    """A pin. Its lease ends at ``until_ms``; ``is_over`` is True if it has ended."""

    token: str
    checkpoint_id: int
    holder: str
    until_ms: int
    is_over: bool


@dataclass(frozen=True, kw_only=True)
class CheckpointList:
    """The visible checkpoints, oldest first, with the savepoints and pins."""

    store: str
    checkpoints: tuple[CheckpointSummary, ...]
    savepoints: tuple[ListedSavepoint, ...] = ()
    pins: tuple[ListedPin, ...] = ()


@dataclass(frozen=True)
class DeletionLog:
    """The recorded deletions of a store, oldest first."""

    store: str
    deletions: tuple[Deletion, ...]


def checkpoint_list(
    store: str,
    now_ms: int,
    checkpoints: tuple[CheckpointSummary, ...],
    savepoints: Iterable[Savepoint] = (),
    pins: Iterable[Pin] = (),
) -> CheckpointList:
    """Return the checkpoints and the holds; the current time decides which leases are over."""
    visible = {listed.checkpoint_id for listed in checkpoints}
    return CheckpointList(
        store=store,
        checkpoints=checkpoints,
        savepoints=tuple(
            ListedSavepoint(
                name=savepoint.name,
                checkpoint_id=savepoint.checkpoint_id,
                created_at_ms=savepoint.created_at_ms,
                age_ms=now_ms - savepoint.created_at_ms,
                is_expired=savepoint.checkpoint_id not in visible,
            )
            for savepoint in savepoints
        ),
        pins=tuple(
            ListedPin(
                token=pin.token,
                checkpoint_id=pin.checkpoint_id,
                holder=pin.holder,
                until_ms=pin.until_ms,
                is_over=pin.until_ms <= now_ms,
            )
            for pin in pins
        ),
    )


def write_list(page: Page, listed: CheckpointList) -> None:
    """Write the checkpoints and their holds as text."""
    if not listed.checkpoints:
        page.line(f"{listed.store} has no checkpoint yet")
        _write_holds(page, listed)
        return
    shown = [*_COLUMNS]
    if not any(checkpoint.left_out for checkpoint in listed.checkpoints):
        shown.remove("left out")
    lines = [None if each.error else _cells(each) for each in listed.checkpoints]
    for name in _FOR_WIDE_ONES if page.terminal else ():
        places = [_COLUMNS.index(column) for column in shown]
        rows = [[line[place] for place in places] for line in lines if line is not None]
        if table_width(shown, rows) <= page.width:
            break
        shown.remove(name)
    table = table_of(*shown, right=set(shown) - _WORDS)
    places = [_COLUMNS.index(column) for column in shown]
    for checkpoint, line in zip(listed.checkpoints, lines, strict=True):
        if line is None:
            table.add_row(str(checkpoint.checkpoint_id), "damaged", *[""] * (len(shown) - 2))
        else:
            table.add_row(*[line[place] for place in places])
    page.table(table)
    _explain_changes(page, listed.checkpoints)
    _write_holds(page, listed)


def _cells(listed: CheckpointSummary) -> tuple[str, ...]:
    return (
        str(listed.checkpoint_id),
        when(listed.created_at_ms or 0),
        duration(listed.age_ms or 0),
        extent(listed.is_incremental, listed.command),
        str(listed.parallelism),
        count(listed.operators or 0),
        count(listed.states or 0),
        rows_text(listed.rows or 0, listed.changed_rows or 0),
        size(listed.size_bytes or 0),
        count(listed.files or 0),
        maker(listed.origin, listed.command),
        f"lacks {count(len(listed.left_out))}" if listed.left_out else "",
    )


def _explain_changes(page: Page, listed: Sequence[CheckpointSummary]) -> None:
    """Explain the row count of the newest checkpoint with changes, if there is one."""
    changed = [checkpoint for checkpoint in listed if checkpoint.changed_rows]
    if changed:
        newest = changed[-1]
        page.line(rows_explanation(newest.rows or 0, newest.changed_rows or 0))


def _write_holds(page: Page, listed: CheckpointList) -> None:
    """Write the savepoints and pins below the checkpoints, if there are any."""
    if listed.savepoints:
        page.line()
        table = table_of("savepoint", "id", "made", "age", "", right={"id", "age"})
        for savepoint in listed.savepoints:
            note = "has expired; only this savepoint keeps it" if savepoint.is_expired else ""
            publication = publication_of(savepoint.name)
            if publication is not None:
                shown = f"is shown by the Iceberg table {publication.table}"
                note = f"{shown}, and {note}" if note else shown
            row = (
                savepoint.name,
                str(savepoint.checkpoint_id),
                when(savepoint.created_at_ms),
                duration(savepoint.age_ms),
                note,
            )
            table.add_row(*row)
        page.table(table)
    if listed.pins:
        page.line()
        table = table_of("pin", "id", "until", "holder", right={"id"})
        for pin in listed.pins:
            until = "over" if pin.is_over else when(pin.until_ms)
            table.add_row(pin.token, str(pin.checkpoint_id), until, pin.holder)
        page.table(table)


def write_log(page: Page, log: DeletionLog) -> None:
    """Write the recorded deletions as text."""
    if not log.deletions:
        page.line(f"no deletion is recorded in {log.store}")
        return
    columns = ("when", "command", "by", "checkpoints", "files", "why")
    table = table_of(*columns)
    for deletion in log.deletions:
        row = (
            when(deletion.deleted_at_ms),
            deletion.command,
            deletion.actor,
            deletion.numbers,
            size_and_files(deletion.size_bytes, deletion.files),
            deletion.why,
        )
        table.add_row(*row)
    page.table(table)
