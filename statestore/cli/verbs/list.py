"""``statestore list``: list the checkpoints of a store, including damaged ones, and their holds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import click
from msgspec import field

from statestore.cli.checkpoints import (
    changed_rows,
    error_document,
    rows_text,
)
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.documents import Document, ErrorDocument, LeftOutDocument, PinDocument
from statestore.cli.drawing import count, duration, size, when
from statestore.cli.output import DRAWING_WIDTH, Page, Result, cell, table_of
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    StateStoreError,
)
from statestore.format.hold_documents import Pin, Savepoint
from statestore.format.manifest import Manifest
from statestore.store import StateStore

__all__ = ["CheckpointList", "CheckpointRow", "list_checkpoints"]

_COLUMNS = (
    *("id", "taken", "age", "parallelism", "operators", "states", "rows", "bytes", "files"),
    "made by",
    "left out",
)
_FOR_WIDE_ONES = ("operators", "states", "files")
"""Columns that a narrow terminal has no room for."""


@click.command(
    "list",
    cls=Verb,
    prints=(
        "One line for each checkpoint, oldest first: id, time, age and parallelism, and the "
        "numbers of operators, states, rows, bytes and files. If a command made the "
        "checkpoint, the line names the command and the original checkpoint. If state of its "
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
def list_checkpoints(invocation: Invocation) -> CheckpointList:
    """List the checkpoints of a store."""
    store, now_ms = invocation.store(), time.time_ns() // 1_000_000
    listed = (_row(store, checkpoint_id, now_ms) for checkpoint_id in store.checkpoints())
    rows = tuple(row for row in listed if row is not None)
    problem = _problem(rows)
    savepoints: tuple[Savepoint, ...] = ()
    pins: tuple[Pin, ...] = ()
    try:
        savepoints, pins = store.maintenance.savepoints(), store.maintenance.pins()
    except (CorruptionError, FormatVersionError) as error:
        problem = problem or error
    return CheckpointList(
        store=store.url,
        now_ms=now_ms,
        rows=rows,
        savepoints=savepoints,
        pins=pins,
        problem=problem,
    )


def _row(store: StateStore, checkpoint_id: int, now_ms: int) -> CheckpointRow | None:
    try:
        return CheckpointRow.of(store.manifest(checkpoint_id), now_ms)
    except CheckpointNotFoundError:
        return None  # it expired while the list was made
    except (CorruptionError, FormatVersionError) as error:
        return CheckpointRow.damaged(checkpoint_id, error)


def _problem(rows: tuple[CheckpointRow, ...]) -> StateStoreError | None:
    errors = [row.error for row in rows if row.error is not None]
    if not any(isinstance(error, CorruptionError) for error in errors):
        return errors[0] if errors else None
    ids = ", ".join(str(row.checkpoint_id) for row in rows if row.error is not None)
    way_on = (
        "recover one from a backup" if len(errors) == len(rows) else "restore another checkpoint"
    )
    problem = CorruptionError(
        f"{len(errors)} of {len(rows)} checkpoints cannot be read: {ids}; {way_on}"
    )
    for error in errors:
        problem.add_note(str(error))
    return problem


class ListedCheckpoint(Document, kw_only=True):
    """A checkpoint. ``rows`` are those in files, ``changed_rows`` of them changes, if any.

    ``origin`` is as in docs/FORMAT.md, and null for a checkpoint that a job took. A damaged
    checkpoint has an id and an error; its other members are null.
    """

    id: int
    created_at_ms: int | None
    age_ms: int | None
    parallelism: int | None
    operators: int | None
    states: int | None
    rows: int | None
    size_bytes: int | None
    files: int | None
    origin: dict[str, Any] | None
    left_out: list[LeftOutDocument] | None
    changed_rows: int = 0
    error: ErrorDocument | None


class ListedSavepoint(Document):
    """A savepoint. ``expired`` is true if only the savepoint keeps its checkpoint."""

    name: str
    checkpoint_id: int = field(name="id")
    created_at_ms: int
    age_ms: int
    expired: bool


class ListedPin(PinDocument):
    """A pin. Its lease ends at ``until_ms``; ``over`` is true if it has ended."""

    over: bool


class ListDocument(Document):
    """The visible checkpoints, oldest first, with the savepoints and pins."""

    store: str
    checkpoints: list[ListedCheckpoint]
    savepoints: list[ListedSavepoint]
    pins: list[ListedPin]


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint of a list, as JSON and as text cells, or the reason why it cannot be read.

    The manifest is not kept, because manifests may be large and numerous.
    """

    checkpoint_id: int
    document: ListedCheckpoint
    cells: tuple[str, ...]
    is_derived: bool = False
    is_partial: bool = False
    error: StateStoreError | None = None

    @classmethod
    def of(cls, manifest: Manifest, now_ms: int) -> CheckpointRow:
        """Return the row of a checkpoint."""
        number, origin = manifest.checkpoint_id, manifest.origin
        document = ListedCheckpoint(
            id=number,
            created_at_ms=manifest.created_at_ms,
            age_ms=now_ms - manifest.created_at_ms,
            parallelism=manifest.parallelism,
            operators=len(manifest.uids),
            states=len(manifest.entries),
            rows=manifest.rows,
            size_bytes=manifest.size_bytes,
            files=manifest.files,
            origin=None if origin is None else dict(origin),
            left_out=LeftOutDocument.each(manifest.left_out),
            changed_rows=changed_rows(manifest),
            error=None,
        )
        cells = (
            str(number),
            when(manifest.created_at_ms),
            duration(now_ms - manifest.created_at_ms),
            str(manifest.parallelism),
            count(len(manifest.uids)),
            count(len(manifest.entries)),
            rows_text(manifest),
            size(manifest.size_bytes),
            count(manifest.files),
            f"{origin['command']} of {origin['checkpoint']}" if origin else "",
            f"lacks {count(len(manifest.left_out))}" if manifest.left_out else "",
        )
        return cls(
            number,
            document,
            cells,
            is_derived=bool(origin),
            is_partial=bool(manifest.left_out),
        )

    @classmethod
    def damaged(cls, checkpoint_id: int, error: StateStoreError) -> CheckpointRow:
        """Return the row of a checkpoint whose manifest cannot be read."""
        document = ListedCheckpoint(
            id=checkpoint_id,
            created_at_ms=None,
            age_ms=None,
            parallelism=None,
            operators=None,
            states=None,
            rows=None,
            size_bytes=None,
            files=None,
            origin=None,
            left_out=None,
            error=error_document(error),
        )
        return cls(checkpoint_id, document, (str(checkpoint_id), "damaged"), error=error)


@dataclass(frozen=True, kw_only=True)
class CheckpointList(Result):
    """The visible checkpoints, oldest first, and the held ones."""

    store: str
    now_ms: int
    rows: tuple[CheckpointRow, ...]
    savepoints: tuple[Savepoint, ...] = ()
    pins: tuple[Pin, ...] = ()

    def document(self) -> ListDocument:
        """Return it for ``--output json``."""
        visible = {row.checkpoint_id for row in self.rows}
        return ListDocument(
            store=self.store,
            checkpoints=[row.document for row in self.rows],
            savepoints=[
                ListedSavepoint(
                    name=savepoint.name,
                    checkpoint_id=savepoint.checkpoint_id,
                    created_at_ms=savepoint.created_at_ms,
                    age_ms=self.now_ms - savepoint.created_at_ms,
                    expired=savepoint.checkpoint_id not in visible,
                )
                for savepoint in self.savepoints
            ],
            pins=[
                ListedPin(
                    token=pin.token,
                    checkpoint_id=pin.checkpoint_id,
                    holder=pin.holder,
                    until_ms=pin.until_ms,
                    over=pin.until_ms <= self.now_ms,
                )
                for pin in self.pins
            ],
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        if not self.rows:
            page.line(f"{self.store} has no checkpoint yet")
            _write_holds(self, page)
            return
        left_out = set(_FOR_WIDE_ONES) if page.width < DRAWING_WIDTH else set()
        if not any(row.is_derived for row in self.rows):
            left_out.add("made by")
        if not any(row.is_partial for row in self.rows):
            left_out.add("left out")
        shown = [name for name in _COLUMNS if name not in left_out]
        table = table_of(*shown, right=set(shown) - {"taken", "age", "made by", "left out"})
        for row in self.rows:
            values = dict(zip(_COLUMNS, row.cells, strict=False))
            table.add_row(*(cell(values.get(name, "")) for name in shown))
        page.table(table)
        _write_holds(self, page)


def _write_holds(result: CheckpointList, page: Page) -> None:
    """Write the savepoints and pins below the checkpoints, if there are any."""
    visible = {row.checkpoint_id for row in result.rows}
    if result.savepoints:
        page.line()
        table = table_of("savepoint", "id", "made", "age", "", right={"id", "age"})
        for savepoint in result.savepoints:
            note = (
                ""
                if savepoint.checkpoint_id in visible
                else "has expired; only this savepoint keeps it"
            )
            age = duration(result.now_ms - savepoint.created_at_ms)
            row = (
                savepoint.name,
                str(savepoint.checkpoint_id),
                when(savepoint.created_at_ms),
                age,
                note,
            )
            table.add_row(*(cell(text) for text in row))
        page.table(table)
    if result.pins:
        page.line()
        table = table_of("pin", "id", "until", "holder", right={"id"})
        for pin in result.pins:
            until = "over" if pin.until_ms <= result.now_ms else when(pin.until_ms)
            table.add_row(*map(cell, (pin.token, str(pin.checkpoint_id), until, pin.holder)))
        page.table(table)
