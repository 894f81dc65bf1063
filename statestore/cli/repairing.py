"""What ``salvage`` returns, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from statestore.cli.documents import document_of
from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.text import write_text
from statestore.cli.units import count, counted
from statestore.cli.values import Result
from statestore.keys.groups import KeyGroupRange
from statestore.maintenance.salvage import LostPart, SalvagedState, SalvageReport
from statestore.restore.export import json_value

__all__ = ["Salvaged", "compact"]

_KEYS_IN_TEXT = 10


@dataclass(frozen=True, kw_only=True)
class Salvaged(Result):
    """What was lost, and the checkpoint that has the rest."""

    report: SalvageReport


def compact(values: Mapping[str, Any]) -> str:
    """Return columns and their values on one line, as JSON."""
    return json.dumps(json_value(dict(values)), ensure_ascii=False)


@document_of.register
def _(result: Salvaged) -> dict[str, Any]:
    report = result.report
    return {
        "store": report.store,
        "id": report.checkpoint_id,
        "new_id": report.new_checkpoint_id,
        "dry_run": report.dry_run,
        "sound": report.is_sound,
        "files": report.files,
        "damaged": [
            {
                "file": one.file,
                "kind": one.kind,
                "what": list(one.what),
                "operator": one.uid,
                "state": one.state,
            }
            for one in report.damaged
        ],
        "states": [_state(state) for state in report.states],
    }


def _state(state: SalvagedState) -> dict[str, Any]:
    return {
        "operator": state.uid,
        "state": state.name,
        "sort": state.sort,
        "damaged_files": state.damaged_files,
        "rows_before": state.rows_before,
        "rows_after": state.rows_after,
        "lost_rows": state.lost_rows,
        "lost_key_groups": state.lost_key_groups,
        "lost": [asdict(part) for part in state.lost],
        "lost_keys": state.lost_keys,
        "keys": [json_value(dict(key)) for key in state.keys],
        "why_not_filled": list(state.why_not_filled),
    }


@write_text.register
def _(result: Salvaged, page: Page) -> None:
    report = result.report
    where = f"checkpoint {report.checkpoint_id} of {report.store}"
    if report.is_sound:
        files = counted(report.files, "file")
        page.line(f"{where}: nothing is damaged in {files}, and nothing was written", "bold")
        return
    done = (
        "a dry run, nothing was written"
        if report.new_checkpoint_id is None
        else f"what can be read is checkpoint {report.new_checkpoint_id}"
    )
    damaged = counted(len(report.damaged), "file")
    page.line(f"{where}: {damaged} of {count(report.files)} damaged; {done}", "bold")
    table = table_of("operator", "state", "damaged file", "what is wrong")
    for one in report.damaged:
        row = (one.uid or "", one.state or "", one.file, "; ".join(one.what))
        table.add_row(*(cell(text) for text in row))
    page.table(table)
    for state in report.states:
        _write_state(state, page)


def _write_state(state: SalvagedState, page: Page) -> None:
    page.line()
    page.line(f"state {state.name} of operator {state.uid}: {_fate(state)}", "bold")
    if state.lost:
        columns = ["key groups", "rows lost", "known in", "keys there", "filled from"]
        table = table_of(*columns, right={*columns[1:]})
        for part in state.lost:
            table.add_row(*(cell(text) for text in _part(part)))
        page.table(table)
    if state.keys:
        shown = ", ".join(compact(key) for key in state.keys[:_KEYS_IN_TEXT])
        more = " …" if state.lost_keys > len(state.keys[:_KEYS_IN_TEXT]) else ""
        page.line(f"  of {counted(state.lost_keys, 'key')} there: {shown}{more}")
    for reason in state.why_not_filled:
        page.line(f"  not filled: {reason}")


def _fate(state: SalvagedState) -> str:
    rows = "rows" if state.sort == "keyed" else "elements"
    if not state.lost:
        return f"all {count(state.rows_after)} {rows} could be read, and were written anew"
    lost = f"{count(state.lost_rows)} of {count(state.rows_before)} {rows} lost"
    if not state.rows_after:
        return f"{lost}; the state is there, without {rows}"
    return f"{lost}, it has {count(state.rows_after)} now"


def _part(part: LostPart) -> tuple[str, ...]:
    groups = "all"
    if part.first is not None:
        groups = str(KeyGroupRange(part.first, part.last or part.first))
    numbers = part.known_in, part.keys, part.filled_from
    return (groups, count(part.rows), *("" if one is None else count(one) for one in numbers))
