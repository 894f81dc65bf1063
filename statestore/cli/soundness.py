"""How soundness reads as text: what a verification found, and the proof of a rescale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.units import count, counted, size
from statestore.format.digest import digest_text
from statestore.format.names import KEY_GROUP
from statestore.maintenance.verify import BrokenFile, VerifyReport
from statestore.restore.export import ExportedState

__all__ = ["write_proof", "write_report"]

SHALLOW = "manifest, length, rows, row groups and columns of every file; no data (--deep reads it)"
DEEP = "every byte and every row: SHA-256, digest, key groups, order, duplicates, null keys"


def write_report(page: Page, report: VerifyReport) -> None:
    """Write what was checked, what is broken, each file once, and the strays."""
    ids = ", ".join(map(str, report.checkpoints)) or "none"
    broken = _by_file(report.broken)
    verdict = "sound" if report.is_sound else f"{counted(len(broken), 'broken file')}"
    page.line(f"checkpoint {ids} of {report.store}: {verdict}", "bold")
    page.line(f"  read   {DEEP if report.deep else SHALLOW}")
    amount = f"{counted(report.rows, 'row')}, {size(report.size_bytes)}"
    page.line(f"  holds  {amount} in {counted(report.files, 'file')}")
    if broken:
        page.line()
        page.table(_broken_table(broken, is_of_several=len(report.checkpoints) > 1))
    if report.strays:
        page.line()
        page.line(f"{counted(len(report.strays), 'stray file')}, which no manifest names:")
        for name in report.strays:
            page.line(f"  {name}")


def _by_file(broken: Iterable[BrokenFile]) -> list[tuple[BrokenFile, ...]]:
    """Return what is broken by file: several checkpoints may name one, which is one damage."""
    files: dict[str, list[BrokenFile]] = {}
    for one in broken:
        files.setdefault(one.file, []).append(one)
    return [tuple(group) for group in files.values()]


def _broken_table(files: Sequence[tuple[BrokenFile, ...]], *, is_of_several: bool) -> Table:
    """Return a line for each file; a column that would say what others do is left out."""
    columns: dict[str, list[str]] = {
        "operator": [file.uid or "" for file, *_ in files],
        "state": [file.state or "" for file, *_ in files],
        "key groups": [_groups(file) for file, *_ in files],
        "checkpoints": [_ids(group) if is_of_several else "" for group in files],
        "file": [file.file for file, *_ in files],
        "what is wrong": [
            "; ".join(dict.fromkeys(text for one in group for text in one.what)) for group in files
        ],
    }
    told = {name: texts for name, texts in columns.items() if any(texts)}
    table = table_of(*told)
    for row in zip(*told.values(), strict=True):
        table.add_row(*map(cell, row))
    return table


def _ids(group: Iterable[BrokenFile]) -> str:
    return ", ".join(str(one.checkpoint_id) for one in group if one.checkpoint_id is not None)


def _groups(file: BrokenFile) -> str:
    """Return the key groups of a file, empty where its path says them."""
    return "" if file.key_groups is None or f"{KEY_GROUP}=" in file.file else str(file.key_groups)


def write_proof(page: Page, state: ExportedState) -> None:
    """Write what each subtask got of a state, and that it is what is stored (I7)."""
    proof = state.proof
    page.line()
    page.line(f"state {state.name} of operator {state.uid}", "bold")
    table = table_of("subtask", "rows", "digest", right={"subtask", "rows"})
    rows = [(str(i), found) for i, found in enumerate(proof.subtasks)]
    rows.append(("each" if proof.copies else "sum", proof.together))
    for name, found in (*rows, ("stored", proof.stored)):
        cells = (name, count(found.rows), digest_text(found.digest))
        table.add_row(*(cell(text) for text in cells))
    page.table(table)
