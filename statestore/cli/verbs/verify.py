"""``statestore verify``: check that a checkpoint is unchanged since it was written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import counted, size
from statestore.cli.options import checkpoint_argument
from statestore.cli.output import (
    Output,
    Page,
    TextTable,
    progress_bar,
    table_of,
    write_first,
)
from statestore.cli.summaries import rows_text
from statestore.format.names import KEY_GROUP
from statestore.maintenance.verify import VerifyReport
from statestore.maintenance.verify_file import BrokenFile

__all__ = ["verify_checkpoint"]

SHALLOW = "manifest, length, rows, row groups and columns of every file; no data (--deep reads it)"
DEEP = "every byte and every row: SHA-256, digest, key groups, order, duplicates, null keys"


@click.command(
    "verify",
    cls=Verb,
    section="Check and repair",
    prints=(
        "What was checked, and every broken file with its problem; then the exit status is 13. "
        "Without --deep, no data is read. Stray files, which no manifest references, are no "
        "damage; 'verify all' finds them in the whole store."
    ),
    examples=(
        "statestore verify --store ./fraud",
        "statestore verify 1 --deep --store ./fraud",
        "statestore verify all --deep --output json --store ./fraud",
    ),
)
@checkpoint_argument
@click.option("--deep", is_flag=True, help="Read every byte and every row.")
@pass_invocation
def verify_checkpoint(invocation: Invocation, checkpoint: str, deep: bool) -> Output[VerifyReport]:
    """Check that the files of a checkpoint, or of all, are unchanged."""
    store = invocation.store()
    with progress_bar("verifying") as progress:
        report = store.maintenance.verify(checkpoint, deep, progress)
    return Output(report, write_report, problem=report.problem)


def write_report(page: Page, report: VerifyReport) -> None:
    """Write the broken and stray files as text."""
    ids = ", ".join(map(str, report.checkpoints)) or "none"
    noun = "checkpoint" if len(report.checkpoints) < 2 else "checkpoints"
    broken = _by_file(report.broken)
    intact = "intact" if report.is_complete else "intact, but some state of its source is missing"
    verdict = intact if report.is_intact else f"{counted(len(broken), 'broken file')}"
    page.line(f"{noun} {ids} of {report.store}: {verdict}", "bold")
    page.line(f"  read   {DEEP if report.deep else SHALLOW}")
    rows = counted(report.rows, "row")
    if report.changed_rows:
        rows = f"{rows_text(report.rows, report.changed_rows)} rows"
    page.line(f"  holds  {rows}, {size(report.size_bytes)} in {counted(report.files, 'file')}")
    for number, records in report.left_out.items():
        for record in records:
            page.line(f"  checkpoint {number} lacks {record}")
    for number, tables in report.iceberg_tables.items():
        for table in tables:
            page.line(f"  checkpoint {number} is shown by the Iceberg table {table}")
    if broken:
        page.line()
        page.table(_broken_table(broken, shows_checkpoints=len(report.checkpoints) > 1))
    if report.strays:
        page.line()
        page.line(
            f"{counted(len(report.strays), 'stray file')} that no manifest references; 'statestore "
            "gc' deletes old ones:"
        )
        write_first(page, report.strays, indent="  ")


def _by_file(broken: Iterable[BrokenFile]) -> list[tuple[BrokenFile, ...]]:
    """Group the findings by file, because several checkpoints may name the same broken file."""
    files: dict[str, list[BrokenFile]] = {}
    for finding in broken:
        files.setdefault(finding.file, []).append(finding)
    return [tuple(group) for group in files.values()]


def _broken_table(files: Sequence[tuple[BrokenFile, ...]], *, shows_checkpoints: bool) -> TextTable:
    """Return a row for each file; redundant columns are omitted."""
    columns: dict[str, list[str]] = {
        "operator": [file.operator or "" for file, *_ in files],
        "state": [file.state or "" for file, *_ in files],
        "key groups": [_groups(file) for file, *_ in files],
        "checkpoints": [_ids(group) if shows_checkpoints else "" for group in files],
        "file": [file.file for file, *_ in files],
        "what is wrong": [
            "; ".join(dict.fromkeys(text for finding in group for text in finding.what))
            for group in files
        ],
    }
    used = {name: texts for name, texts in columns.items() if any(texts)}
    table = table_of(*used)
    for row in zip(*used.values(), strict=True):
        table.add_row(*row)
    return table


def _ids(group: Iterable[BrokenFile]) -> str:
    return ", ".join(
        str(finding.checkpoint_id) for finding in group if finding.checkpoint_id is not None
    )


def _groups(file: BrokenFile) -> str:
    """Return the key groups of a file; empty if its path contains them."""
    return "" if file.key_groups is None or f"{KEY_GROUP}=" in file.file else str(file.key_groups)
