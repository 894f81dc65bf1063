"""``statestore list``: list the checkpoints of a store, including damaged ones, and their holds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from statestore.cli.checkpoints import (
    changed_rows,
    extent,
    is_incremental,
    maker,
    rows_explanation,
    rows_text,
)
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.documents import ReadError
from statestore.cli.drawing import count, duration, size, when
from statestore.cli.output import Output, Page, cell, table_of, table_width
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    StateStoreError,
)
from statestore.format.hold_documents import Pin, Savepoint, publication_of
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Manifest
from statestore.store import StateStore

__all__ = [
    "CheckpointList",
    "ListedCheckpoint",
    "checkpoint_list",
    "list_checkpoints",
    "write_list",
]

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
        "One line for each checkpoint, oldest first: id, time, age, extent and parallelism, and "
        "the numbers of operators, states, rows, bytes and files. The extent is full if all files "
        "were written for this checkpoint, and incremental if it has changes or uses files of "
        "earlier ones. Rows such as 94,005 + 4,669 are the rows in base files, and the changed and "
        "deleted rows that a restore applies to them. Made by is the job, or a command with the "
        "checkpoint that it started from. A narrow terminal has no room for all columns. If "
        "state of its "
        "source is missing, the line has the number of missing operators or parts "
        "('statestore show' names them). The savepoints and pins follow, each with the "
        "checkpoint that it keeps. A checkpoint with a damaged manifest is marked, the "
        "others are still shown, and the exit status is 13."
    ),
    examples=(
        "statestore list --store ./fraud",
        "STATESTORE_URI=./fraud statestore list --output json",
    ),
)
@pass_invocation
def list_checkpoints(invocation: Invocation) -> Output[CheckpointList]:
    """List the checkpoints of a store."""
    store, now_ms = invocation.store(), time.time_ns() // 1_000_000
    problems: list[StateStoreError] = []
    checkpoints = tuple(_listed(store, now_ms, problems))
    problem = _problem(checkpoints, problems)
    savepoints: tuple[Savepoint, ...] = ()
    pins: tuple[Pin, ...] = ()
    try:
        savepoints, pins = store.maintenance.savepoints(), store.maintenance.pins()
    except (CorruptionError, FormatVersionError) as error:
        problem = problem or error
    listed = checkpoint_list(store.url, now_ms, checkpoints, savepoints, pins)
    return Output(listed, write_list, problem)


def _listed(
    store: StateStore, now_ms: int, problems: list[StateStoreError]
) -> Iterator[ListedCheckpoint]:
    """Yield the checkpoints; add the errors of those that cannot be read to ``problems``.

    Manifests are not kept, because they may be large and numerous.
    """
    for checkpoint_id in store.checkpoints():
        try:
            yield ListedCheckpoint.of(store.manifest(checkpoint_id), now_ms)
        except CheckpointNotFoundError:
            continue  # it expired while the list was made
        except (CorruptionError, FormatVersionError) as error:
            problems.append(error)
            yield ListedCheckpoint(checkpoint_id=checkpoint_id, error=ReadError.of(error))


def _problem(
    checkpoints: Sequence[ListedCheckpoint], errors: Sequence[StateStoreError]
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
class ListedCheckpoint:
    """A checkpoint, with ``rows`` in its files, of which ``changed_rows`` are changes.

    ``command`` is the command that made the checkpoint. It is None for a job, and for an import
    with an older release. ``is_incremental`` is false if all files were written for this
    checkpoint, and None if an older release did not record it. ``origin`` is as in docs/FORMAT.md,
    and None for a checkpoint that a job took. A damaged checkpoint has an id and an error; its
    other members are None.
    """

    checkpoint_id: int
    created_at_ms: int | None = None
    age_ms: int | None = None
    parallelism: int | None = None
    operators: int | None = None
    states: int | None = None
    rows: int | None = None
    changed_rows: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    is_incremental: bool | None = None
    command: str | None = None
    origin: Mapping[str, Any] | None = None
    left_out: tuple[LeftOutState, ...] | None = None
    error: ReadError | None = None

    @classmethod
    def of(cls, manifest: Manifest, now_ms: int) -> ListedCheckpoint:
        """Return a checkpoint's entry in the list."""
        return cls(
            checkpoint_id=manifest.checkpoint_id,
            created_at_ms=manifest.created_at_ms,
            age_ms=now_ms - manifest.created_at_ms,
            parallelism=manifest.parallelism,
            operators=len(manifest.uids),
            states=len(manifest.entries),
            rows=manifest.rows,
            changed_rows=changed_rows(manifest),
            size_bytes=manifest.size_bytes,
            files=manifest.files,
            is_incremental=is_incremental(manifest),
            command=(manifest.origin or {}).get("command", manifest.writer.command),
            origin=manifest.origin,
            left_out=manifest.left_out,
        )


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
    checkpoints: tuple[ListedCheckpoint, ...]
    savepoints: tuple[ListedSavepoint, ...] = ()
    pins: tuple[ListedPin, ...] = ()


def checkpoint_list(
    store: str,
    now_ms: int,
    checkpoints: tuple[ListedCheckpoint, ...],
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


def _cells(listed: ListedCheckpoint) -> tuple[str, ...]:
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


def _explain_changes(page: Page, listed: Sequence[ListedCheckpoint]) -> None:
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
