"""What ``fork`` and ``rekey`` return, as JSON and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from statestore.cli.documents import document_of
from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.text import write_text
from statestore.cli.units import count, counted, size
from statestore.cli.values import Result
from statestore.format.digest import digest_text
from statestore.maintenance.copy import CopiedCheckpoint
from statestore.maintenance.rekey import RekeyedState, RekeyReport

__all__ = ["Forked", "Rekeyed"]


@dataclass(frozen=True, kw_only=True)
class Forked(Result):
    """The new store, and what of it is shared."""

    forked: CopiedCheckpoint


@dataclass(frozen=True, kw_only=True)
class Rekeyed(Result):
    """The states over other key groups."""

    report: RekeyReport


@document_of.register
def _(result: Forked) -> dict[str, Any]:
    done = result.forked
    return {
        "store": done.store,
        "id": done.checkpoint_id,
        "target": done.target,
        "dry_run": done.dry_run,
        "new_id": done.new_id,
        "savepoint": done.savepoint,
        "files": done.files,
        "size_bytes": done.size_bytes,
        "copied_files": done.copied_files,
        "copied_bytes": done.copied_bytes,
    }


@document_of.register
def _(result: Rekeyed) -> dict[str, Any]:
    report = result.report
    return {
        "store": report.store,
        "id": report.checkpoint_id,
        "new_id": report.new_checkpoint_id,
        "dry_run": report.dry_run,
        "operator": report.uid,
        "read_bytes": report.read_bytes,
        "states": [_state(state) for state in report.states],
    }


def _state(state: RekeyedState) -> dict[str, Any]:
    document = asdict(state)
    digest = None if state.digest is None else digest_text(state.digest)
    return (
        document
        | {"key_before": list(state.key_before), "key": list(state.key)}
        | {"digest": digest}
    )


@write_text.register
def _(result: Forked, page: Page) -> None:
    done = result.forked
    source = f"checkpoint {done.checkpoint_id} of {done.store}"
    if done.dry_run:
        page.line(f"would fork {source} to {done.target}", "bold")
    else:
        page.line(f"forked {source} to {done.target}: checkpoint {done.new_id} there", "bold")
    shared = counted(done.files - done.copied_files, "file")
    page.line(f"  shared  {size(done.size_bytes - done.copied_bytes)} in {shared}")
    page.line(f"  copied  {size(done.copied_bytes)} in {counted(done.copied_files, 'file')}")
    if done.savepoint is not None:
        page.line(f"  savepoint {done.savepoint}")


@write_text.register
def _(result: Rekeyed, page: Page) -> None:
    report = result.report
    where = f"operator {report.uid}, checkpoint {report.checkpoint_id} of {report.store}"
    if report.dry_run:
        page.line(f"would rekey {where}", "bold")
    else:
        page.line(f"rekeyed {where}: checkpoint {report.new_checkpoint_id}", "bold")
    page.line(f"  {'to read' if report.dry_run else 'read'}  {size(report.read_bytes)}")
    columns = ("state", "key", "max parallelism", "hash scheme", "rows", "files", "size", "digest")
    table = table_of(*columns, right={"rows", "files", "size"})
    for state in report.states:
        table.add_row(*map(cell, _row(state)))
    page.table(table)


def _row(state: RekeyedState) -> tuple[str, ...]:
    return (
        state.state,
        _change(", ".join(state.key_before), ", ".join(state.key)),
        _change(str(state.max_parallelism_before), str(state.max_parallelism)),
        _change(state.hash_scheme_before, state.hash_scheme),
        count(state.rows),
        "" if state.files is None else count(state.files),
        "" if state.size_bytes is None else size(state.size_bytes),
        "" if state.digest is None else digest_text(state.digest),
    )


def _change(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"
