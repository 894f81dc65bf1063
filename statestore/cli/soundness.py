"""How soundness reads as text: what a verification found, and the proof of a rescale."""

from __future__ import annotations

from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.units import count, counted, size
from statestore.commands.export import ExportedState
from statestore.commands.verify import BrokenFile, VerifyReport
from statestore.model.digest import digest_text

__all__ = ["write_proof", "write_report"]

SHALLOW = "manifest, length, rows, row groups and columns of every file; no data (--deep reads it)"
DEEP = "every byte and every row: SHA-256, digest, key groups, order, duplicates, null keys"


def write_report(page: Page, report: VerifyReport) -> None:
    """Write what was checked, what is broken, and the strays."""
    ids = ", ".join(map(str, report.checkpoints)) or "none"
    verdict = "sound" if report.is_sound else f"{counted(len(report.broken), 'broken file')}"
    page.line(f"checkpoint {ids} of {report.store}: {verdict}", "bold")
    page.line(f"  read   {DEEP if report.deep else SHALLOW}")
    amount = f"{counted(report.rows, 'row')}, {size(report.size_bytes)}"
    page.line(f"  holds  {amount} in {counted(report.files, 'file')}")
    if report.broken:
        page.line()
        table = table_of("operator", "state", "key groups", "file", "what is wrong")
        for file in report.broken:
            table.add_row(*(cell(text) for text in _row(file)))
        page.table(table)
    if report.strays:
        page.line()
        page.line(f"{counted(len(report.strays), 'stray file')}, which no manifest names:")
        for name in report.strays:
            page.line(f"  {name}")


def _row(file: BrokenFile) -> tuple[str, ...]:
    groups = "" if file.key_groups is None else str(file.key_groups)
    return (file.uid or "", file.state or "", groups, file.file, "; ".join(file.what))


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
