"""What ``copy``, ``purge`` and ``edit`` return, as JSON and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from statestore.cli.documents import document_of
from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.text import write_text
from statestore.cli.units import count, counted, size
from statestore.cli.values import Result
from statestore.maintenance.copy import CopiedCheckpoint
from statestore.maintenance.edit import EditedState
from statestore.maintenance.purge import PurgedKey, ReplacedCheckpoint
from statestore.maintenance.purge_files import KeySearch

__all__ = ["Copied", "Edited", "Purged", "Searched"]


@dataclass(frozen=True, kw_only=True)
class Copied(Result):
    """What was copied."""

    copied: CopiedCheckpoint


@dataclass(frozen=True, kw_only=True)
class Edited(Result):
    """What was changed."""

    edited: EditedState


@dataclass(frozen=True, kw_only=True)
class Purged(Result):
    """What was replaced."""

    purged: PurgedKey


@dataclass(frozen=True, kw_only=True)
class Searched(Result):
    """What still has a key; ``problem`` says that something has."""

    search: KeySearch


@document_of.register
def _(result: Copied) -> dict[str, Any]:
    document = asdict(result.copied)
    return {"store": document.pop("store"), "id": document.pop("checkpoint_id"), **document}


@document_of.register
def _(result: Edited) -> dict[str, Any]:
    document = asdict(result.edited)
    renamed = {"id": document.pop("checkpoint_id"), "operator": document.pop("uid")}
    return {"store": document.pop("store"), **renamed, **document}


@document_of.register
def _(result: Purged) -> dict[str, Any]:
    done = result.purged
    return {
        "store": done.store,
        "dry_run": done.dry_run,
        "operator": done.uid,
        "replaced": [asdict(one) for one in done.replaced],
        "finished": [asdict(one) for one in done.finished],
        "logs": list(done.logs),
        "pins": list(done.pins),
    }


@document_of.register
def _(result: Searched) -> dict[str, Any]:
    search = result.search
    return {
        "store": search.store,
        "operator": search.uid,
        "gone": not search.found,
        "files": search.files,
        "size_bytes": search.size_bytes,
        "searched_bytes": search.searched_bytes,
        "found": [asdict(one) for one in search.found],
        "unreadable": list(search.unreadable),
    }


@write_text.register
def _(result: Copied, page: Page) -> None:
    done = result.copied
    source = f"checkpoint {done.checkpoint_id} of {done.store}"
    all_of_it = f"{size(done.size_bytes)} in {counted(done.files, 'file')}"
    copied = f"{size(done.copied_bytes)} in {counted(done.copied_files, 'file')}"
    if done.found:
        page.line(f"{source} was copied before: it is checkpoint {done.new_id} of {done.target}")
    elif done.dry_run:
        page.line(f"would copy {source} to {done.target}", "bold")
        page.line(f"  {all_of_it}, of which the target lacks {copied}")
    else:
        page.line(f"copied {source} to {done.target}: checkpoint {done.new_id} there", "bold")
        page.line(f"  {all_of_it}, of which the target lacked {copied}")
    if done.savepoint is not None:
        page.line(f"  savepoint {done.savepoint}")
    if done.tables_without_log:
        tables = counted(done.tables_without_log, "Delta table")
        verb = "would be" if done.dry_run else "is" if done.tables_without_log == 1 else "are"
        page.line(f"  {tables} {verb} plain Parquet there: a Delta log is written with Spark")


@write_text.register
def _(result: Edited, page: Page) -> None:
    done = result.edited
    where = f"state {done.state} of operator {done.uid}, checkpoint {done.checkpoint_id}"
    if done.dry_run:
        page.line(f"would edit {where} of {done.store}", "bold")
    elif done.new_id is None:
        page.line(f"nothing to change in {where} of {done.store}: no such key", "bold")
    else:
        page.line(f"edited {where} of {done.store}: checkpoint {done.new_id}", "bold")
    page.line(f"  rows         {count(done.rows_before)} before, {count(done.rows_after)} after")
    if done.how == "keys":
        page.line(f"  changed      {count(done.deleted)} deleted, {count(done.put)} put")
    verb = "to replace" if done.dry_run else "written   "
    written = f"{size(done.size_bytes)} in {counted(done.files, 'file')}"
    page.line(f"  {verb}   {written}, {counted(len(done.key_groups), 'key group')}")


@write_text.register
def _(result: Purged, page: Page) -> None:
    done = result.purged
    held = [one for one in done.replaced if one.states]
    verb = "would remove" if done.dry_run else "removed"
    if held:
        page.line(
            f"{verb} the key of operator {done.uid} from {counted(len(held), 'checkpoint')} of "
            f"{done.store}",
            "bold",
        )
        _write_replaced(page, done.replaced)
    else:
        page.line(f"no kept checkpoint of {done.store} holds the key of operator {done.uid}")
    for one in done.finished:
        page.line(f"  checkpoint {one.old_id} had its replacement, {one.new_id}, already")
    for table in done.logs:
        page.line(f"  deleted the Delta log of {table}: the next snapshot writes a new one")
    for pin in done.pins:
        page.line(f"  pinned all the same: {pin}")
    if held and not done.dry_run:
        page.line("  the old files stay until 'statestore gc'; then look with --check")


def _write_replaced(page: Page, replaced: tuple[ReplacedCheckpoint, ...]) -> None:
    right = {"checkpoint", "replaced by", "key group", "rows"}
    columns = ("checkpoint", "replaced by", "savepoints", "state", "key group", "rows", "rewritten")
    table = table_of(*columns, right=right)
    for one in replaced:
        new = "" if one.new_id is None else str(one.new_id)
        first = (str(one.old_id), new, ", ".join(one.savepoints))
        states = [
            (s.name, str(s.key_group), count(s.rows), f"{size(s.size_bytes)}") for s in one.states
        ] or [("without it", "", "", "")]
        for number, state in enumerate(states):
            table.add_row(*map(cell, (*(first if number == 0 else ("", "", "")), *state)))
    page.table(table)


@write_text.register
def _(result: Searched, page: Page) -> None:
    search = result.search
    looked = f"{counted(search.files, 'file')}, {size(search.size_bytes)}"
    if search.found:
        page.line(f"the key is still in {counted(len(search.found), 'file')} of {search.store}")
    else:
        page.line(f"the key is gone from {search.store}: looked at {looked}", "bold")
    for one in search.found:
        rows = "" if one.rows is None else f"{counted(one.rows, 'row')}: "
        page.line(f"  {one.file}  {rows}{one.what}")
    for name in search.unreadable:
        page.line(f"  {name}  is no whole Parquet file: only its bytes were searched")
    if not search.searched_bytes:
        page.line("  the key is no text, or a short one: only rows and Delta logs were searched")
