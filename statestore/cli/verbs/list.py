"""``statestore list``: list or follow checkpoints, including damaged ones, with their holds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import click

from statestore.cli.checkpoints import (
    UNREADABLE,
    CheckpointSummary,
    extent,
    find_checkpoint,
    maker,
    rows_explanation,
    rows_text,
)
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, duration, size, when
from statestore.cli.options import SPAN
from statestore.cli.output import Output, Page, cell, page, table_of, table_width
from statestore.cli.verbs.follow import FollowedCheckpoint, follow, screen_of
from statestore.durations import milliseconds_of
from statestore.errors import CorruptionError, StateStoreError
from statestore.format.hold_documents import Pin, Savepoint, publication_of

__all__ = ["CheckpointList", "checkpoint_list", "list_checkpoints", "write_list"]

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
    prints=(
        "A line for each checkpoint, oldest first, then the savepoints and pins. Rows such as "
        "94,005 + 4,669 are those in base files, and those of changes. A damaged checkpoint is "
        "marked, and then the exit status is 13. With --follow: a screen, or without a terminal "
        "a line for each checkpoint."
    ),
    examples=(
        "statestore list --store ./fraud",
        "STATESTORE_URI=./fraud statestore list --output json",
        "statestore list --follow --interval 500ms --store ./fraud",
        "statestore list --follow --count 1 --output json --store ./fraud",
    ),
    modes={"--follow": ("--interval", "--count")},
)
@click.option(
    "--follow",
    "is_followed",
    is_flag=True,
    help="Show the newest checkpoint, and then each new one, until Ctrl-C.",
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
def list_checkpoints(
    invocation: Invocation, is_followed: bool, interval: str, stop_after: int | None
) -> Output[CheckpointList] | Iterator[FollowedCheckpoint]:
    """List the checkpoints of a store, or follow them."""
    store, now_ms = invocation.store(), time.time_ns() // 1_000_000
    if is_followed:
        return follow(
            store,
            interval_s=milliseconds_of(interval) / 1000,
            stop_after=stop_after,
            screen=None if invocation.settings.output == "json" else screen_of(page(), store.url),
        )
    summaries: list[CheckpointSummary] = []
    errors: list[StateStoreError] = []
    for checkpoint_id in store.checkpoints():
        found = find_checkpoint(store, checkpoint_id)
        if found is not None:  # its manifest, which may be large, is not kept
            summaries.append(CheckpointSummary.of(found, now_ms))
            errors += [] if found.error is None else [found.error]
    problem = _problem(summaries, errors)
    savepoints: tuple[Savepoint, ...] = ()
    pins: tuple[Pin, ...] = ()
    try:
        savepoints, pins = store.maintenance.savepoints(), store.maintenance.pins()
    except UNREADABLE as error:
        problem = problem or error
    listed = checkpoint_list(store.url, now_ms, tuple(summaries), savepoints, pins)
    return Output(listed, write_list, problem)


def _problem(
    checkpoints: Sequence[CheckpointSummary], errors: Sequence[StateStoreError]
) -> StateStoreError | None:
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
    lines = [_cells(checkpoint) for checkpoint in listed.checkpoints if not checkpoint.error]
    for name in _FOR_WIDE_ONES:
        places = [_COLUMNS.index(column) for column in shown]
        rows = [[line[place] for place in places] for line in lines]
        if not page.terminal or table_width(shown, rows) <= page.width:
            break
        shown.remove(name)
    table = table_of(*shown, right=set(shown) - _WORDS)
    for checkpoint in listed.checkpoints:
        if checkpoint.error:
            values = {"id": str(checkpoint.checkpoint_id), shown[1]: "damaged"}
        else:
            values = dict(zip(_COLUMNS, _cells(checkpoint), strict=True))
        table.add_row(*(cell(values.get(name, "")) for name in shown))
    page.table(table)
    _explain_changes(page, listed.checkpoints)
    _write_holds(page, listed)


def _cells(listed: CheckpointSummary) -> tuple[str, ...]:
    return (
        str(listed.checkpoint_id),
        when(listed.created_at_ms or 0),
        duration(listed.age_ms or 0),
        extent(listed.is_incremental),
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
            table.add_row(*map(cell, row))
        page.table(table)
    if listed.pins:
        page.line()
        table = table_of("pin", "id", "until", "holder", right={"id"})
        for pin in listed.pins:
            until = "over" if pin.is_over else when(pin.until_ms)
            table.add_row(*map(cell, (pin.token, str(pin.checkpoint_id), until, pin.holder)))
        page.table(table)
