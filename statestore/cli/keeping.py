"""Savepoints, pins, what was given up and what was collected, as text."""

from __future__ import annotations

from collections.abc import Iterable

from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.units import counted, duration, size, when
from statestore.cli.values import CheckpointList, Pinned, Saved, Unpinned
from statestore.format.documents import Held
from statestore.maintenance.expire import ExpiredCheckpoints
from statestore.maintenance.gc import Amount, CollectedGarbage
from statestore.maintenance.repair import RepairedStore

__all__ = [
    "write_collected",
    "write_expired",
    "write_holds",
    "write_pinned",
    "write_repaired",
    "write_saved",
    "write_unpinned",
]


def write_saved(result: Saved, page: Page) -> None:
    """Write which checkpoint a savepoint keeps, or kept."""
    verb = "is deleted; it kept" if result.deleted else "keeps"
    kept = f"checkpoint {result.checkpoint_id}"
    if result.checkpoint_id is None:
        kept = "nobody knows what: its document was damaged"
    page.line(f"savepoint {result.name} of {result.store} {verb} {kept}")


def write_pinned(result: Pinned, page: Page) -> None:
    """Write the token, and nothing else: a shell keeps it in a variable."""
    page.line(result.pin.token)


def write_unpinned(result: Unpinned, page: Page) -> None:
    """Write what was let go of."""
    page.line(f"pin {result.token} of {result.store} holds no more")


def write_holds(result: CheckpointList, page: Page) -> None:
    """Write the savepoints and pins below the checkpoints, if there are any."""
    visible = {row.checkpoint_id for row in result.rows}
    if result.savepoints:
        page.line()
        table = table_of("savepoint", "id", "made", "age", "", right={"id", "age"})
        for one in result.savepoints:
            note = "" if one.checkpoint_id in visible else "has expired; kept by this alone"
            age = duration(result.now_ms - one.created_at_ms)
            row = (one.name, str(one.checkpoint_id), when(one.created_at_ms), age, note)
            table.add_row(*(cell(text) for text in row))
        page.table(table)
    if result.pins:
        page.line()
        table = table_of("pin", "id", "until", "holder", right={"id"})
        for pin in result.pins:
            until = "over" if pin.until_ms <= result.now_ms else when(pin.until_ms)
            table.add_row(*map(cell, (pin.token, str(pin.checkpoint_id), until, pin.holder)))
        page.table(table)


def write_expired(done: ExpiredCheckpoints, page: Page) -> None:
    """Write what was given up, and what stays."""
    verb = "would expire" if done.dry_run else "expired"
    page.line(f"{verb} {counted(len(done.expired), 'checkpoint')} of {done.store}", "bold")
    page.line(f"  expired     {_numbers(done.expired)}")
    page.line(f"  kept        {_numbers(done.kept)}")
    page.line(f"  unused now  {size(done.size_bytes)} in {counted(done.files, 'file')}")
    _write_held(page, done.held)
    if done.damaged:
        page.line(f"  the manifest cannot be read of {_numbers(done.damaged)}")


def write_repaired(done: RepairedStore, page: Page) -> None:
    """Write what was mended, then what cannot be."""
    verb = "would repair" if done.dry_run else "repaired"
    page.line(f"{verb} {counted(len(done.repaired), 'file')} of {done.store}", "bold")
    for one in done.repaired:
        page.line(f"  {one.file}: {one.what}")
    for one in done.left:
        page.line(f"  cannot be repaired: {one.file}: {one.what}")


def write_collected(done: CollectedGarbage, page: Page) -> None:
    """Write what was removed, and why the rest stays."""
    verb = "would remove" if done.dry_run else "removed"
    page.line(f"{verb} {_amount(done.removed)} of {done.store}", "bold")
    page.line(f"  kept, in use     {_amount(done.live)}")
    why = f" (unused, for less than {duration(done.minimum_age_ms)})" if done.young.files else ""
    page.line(f"  kept, too young  {_amount(done.young)}{why}")
    if done.manifests:
        page.line(f"  {verb} the manifests of {_numbers(done.manifests)}")
    if done.tombstones:
        page.line(f"  {verb} {counted(len(done.tombstones), 'tombstone')} of long ago")
    if done.pins:
        page.line(f"  {verb} {counted(len(done.pins), 'pin')} whose lease is over")
    if done.leftovers:
        page.line(f"  {verb} {counted(done.leftovers, 'unfinished write')} that a crash left")
    _write_held(page, done.held)


def _write_held(page: Page, held: Iterable[Held]) -> None:
    for one in held:
        page.line(f"  checkpoint {one.checkpoint_id} is held by {one.by}")


def _amount(amount: Amount) -> str:
    return f"{size(amount.size_bytes)} in {counted(amount.files, 'file')}"


def _numbers(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers)) or "none"
