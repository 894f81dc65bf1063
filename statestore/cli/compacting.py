"""What ``compact`` returns, as JSON and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from statestore.cli.documents import document_of
from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.text import write_text
from statestore.cli.units import count, counted, size
from statestore.cli.values import Result
from statestore.maintenance.compact import CompactedState, CompactReport

__all__ = ["Compacted"]


@dataclass(frozen=True, kw_only=True)
class Compacted(Result):
    """What was folded and merged, and the checkpoint that has it."""

    report: CompactReport


@document_of.register
def _(result: Compacted) -> dict[str, Any]:
    report = result.report
    return {
        "store": report.store,
        "id": report.checkpoint_id,
        "new_id": report.new_checkpoint_id,
        "dry_run": report.dry_run,
        "everything": report.everything,
        "compact": report.is_compact,
        "states": [_state(state) for state in report.states],
    }


def _state(state: CompactedState) -> dict[str, Any]:
    document = asdict(state)
    return {"operator": document.pop("uid"), **document}


@write_text.register
def _(result: Compacted, page: Page) -> None:
    report = result.report
    where = f"checkpoint {report.checkpoint_id} of {report.store}"
    if not report.states:
        page.line(f"{where}: no state has layers of changes, and nothing was written", "bold")
        return
    if report.is_compact:
        why = "nothing to compact there" if report.everything else "nothing to compact by the rule"
        page.line(f"{where}: {why}, and nothing was written", "bold")
    elif report.dry_run:
        page.line(f"would compact {where}", "bold")
    else:
        page.line(f"compacted {where}: checkpoint {report.new_checkpoint_id}", "bold")
    columns = ("operator", "state", "layers", "files", "size", "spans folded", "rows read")
    table = table_of(*columns, right={*columns[2:]})
    for state in report.states:
        table.add_row(*(cell(text) for text in _row(state)))
    page.table(table)


def _row(state: CompactedState) -> tuple[str, ...]:
    layers, files = count(state.layers_before), count(state.files_before)
    bytes_ = size(state.size_bytes_before)
    if state.files_after is not None and state.size_bytes_after is not None:
        files = f"{files} -> {count(state.files_after)}"
        bytes_ = f"{bytes_} -> {size(state.size_bytes_after)}"
    layers = f"{layers} -> {count(state.layers_after)}"
    spans = counted(len(state.spans), "span")
    return (state.uid, state.state, layers, files, bytes_, spans, count(state.rows_read))
