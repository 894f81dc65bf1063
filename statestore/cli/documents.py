"""What ``--output json`` prints: a stable contract, to which fields are only ever added.

docs/JSON.md lists them all.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import singledispatch
from typing import Any

from statestore.cli.figures import metrics_document
from statestore.cli.graph_documents import choices_document, graph_document, matching_document
from statestore.cli.keeping_documents import (
    collected_document,
    expired_document,
    holds_document,
    pinned_document,
    repaired_document,
    saved_document,
    unpinned_document,
)
from statestore.cli.layers import (
    amplification_document,
    changed_rows_document,
    layers_document,
)
from statestore.cli.skew_documents import skew_document
from statestore.cli.values import (
    CheckpointList,
    CheckpointRow,
    Configuration,
    Decided,
    FoundRows,
    PlannedRestore,
    Restored,
    Result,
    ShownCheckpoint,
    ShownGraph,
    Verified,
)
from statestore.format.digest import RowSet, digest_text
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.schema import type_text
from statestore.maintenance.verify import BrokenFile
from statestore.restore.export import ExportedState, json_value
from statestore.restore.plan import OperatorPlan, SubtaskPlan

__all__ = ["document_of", "max_parallelism_of"]

Document = dict[str, Any]


@singledispatch
def document_of(result: Result) -> Document:
    """Return a verb's result as the JSON document that the module describes."""
    raise NotImplementedError(type(result).__name__)


@document_of.register
def _(result: CheckpointList) -> Document:
    rows = [_checkpoint(row, result.now_ms) for row in result.rows]
    return {"store": result.store, "checkpoints": rows} | holds_document(result)


def _checkpoint(row: CheckpointRow, now_ms: int) -> Document:
    manifest, error = row.manifest, row.error
    document: Document = {"id": row.checkpoint_id}
    if manifest is None:
        unknown = "created_at_ms age_ms parallelism operators states rows size_bytes files origin"
        document |= dict.fromkeys(unknown.split())
    else:
        document |= {
            "created_at_ms": manifest.created_at_ms,
            "age_ms": now_ms - manifest.created_at_ms,
            "parallelism": manifest.parallelism,
            "operators": len(manifest.uids),
            "states": len(manifest.entries),
            "rows": manifest.rows,
            "size_bytes": manifest.size_bytes,
            "files": manifest.files,
            "origin": manifest.origin and dict(manifest.origin),
        } | changed_rows_document(manifest)
    message = None if error is None else {"kind": error.kind, "message": str(error)}
    return document | {"error": message}


@document_of.register
def _(result: ShownCheckpoint) -> Document:
    manifest = result.manifest
    return (
        {
            "store": result.store,
            "id": manifest.checkpoint_id,
            "store_id": manifest.store_id,
            "parallelism": manifest.parallelism,
            "started_at_ms": manifest.started_at_ms,
            "created_at_ms": manifest.created_at_ms,
            "age_ms": result.now_ms - manifest.created_at_ms,
            "writer": asdict(manifest.writer),
            "rows": manifest.rows,
            "size_bytes": manifest.size_bytes,
            "files": manifest.files,
            "operators": [
                {
                    "uid": uid,
                    "operator_id": manifest.operators.id_of(uid),
                    "max_parallelism": max_parallelism_of(manifest, uid),
                    "states": [_state(e) for e in manifest.entries if e.state.uid == uid],
                }
                for uid in manifest.uids
            ],
        }
        | changed_rows_document(manifest)
        | metrics_document(manifest)
    )


def max_parallelism_of(manifest: Manifest, uid: str) -> int | None:
    """Return the max parallelism of an operator, None when it has no keyed state."""
    found = (e.state.max_parallelism for e in manifest.keyed if e.state.uid == uid)
    return next(found, None)


def _state(entry: Entry) -> Document:
    state, base = entry.state, entry.parts[0]
    document: Document = {
        "name": state.name,
        "sort": "keyed" if isinstance(entry, KeyedEntry) else "operator",
        "columns": [{"name": f.name, "type": type_text(f.type)} for f in state.schema.fields],
        "rows": base.rows,
        "size_bytes": base.size_bytes,
        "files": base.files,
        "digest": digest_text(base.digest),
        "table": asdict(entry.table),
    }
    if not isinstance(entry, KeyedEntry):
        return document | {
            "mode": entry.state.mode.value,
            "elements_per_subtask": list(entry.counts),
        }
    keyed = entry.state
    return (
        document
        | {
            "kind": keyed.kind.value,
            "key": list(keyed.key),
            "key_types": list(keyed.key_types),
            "namespace": list(keyed.namespace),
            "entry": list(keyed.entry),
            "time_domain": keyed.time_domain and keyed.time_domain.value,
            "hash_scheme": keyed.hash_scheme,
            "layout": keyed.layout.value,
        }
        | ({"ttl": asdict(keyed.ttl)} if keyed.ttl else {})
        | layers_document(entry)
    )


@document_of.register
def _(result: ShownGraph) -> Document:
    manifest = result.manifest
    assert manifest.graph is not None
    document = {"store": result.store, "id": manifest.checkpoint_id}
    return document | graph_document(manifest, manifest.graph)


@document_of.register
def _(result: PlannedRestore) -> Document:
    plan = result.plan
    return {
        "store": result.store,
        "id": plan.checkpoint_id,
        "old_parallelism": plan.old_parallelism,
        "parallelism": plan.parallelism,
        "size_bytes": plan.size_bytes,
        "local_bytes": plan.local_bytes,
        "files": plan.files,
        "operators": [_operator(operator) for operator in plan.operators],
        "choices": choices_document(plan.choices),
        "matching": matching_document(plan.matching),
        "placements": [asdict(placement) for placement in result.placements],
        "skew": [skew_document(skew) for skew in result.skews],
    } | amplification_document(plan)


def _operator(plan: OperatorPlan) -> Document:
    return {
        "uid": plan.uid,
        "max_parallelism": plan.max_parallelism,
        "states": list(plan.states),
        "largest_subtask": plan.largest.subtask,
        "subtasks": [_subtask(subtask) for subtask in plan.subtasks],
    } | amplification_document(plan)


def _subtask(plan: SubtaskPlan) -> Document:
    groups = plan.key_groups
    changed = {"changed_rows": plan.changed_rows} if plan.changed_rows else {}
    return {
        "subtask": plan.subtask,
        "key_groups": groups and {"first": groups.first, "last": groups.last},
        "rows": plan.rows,
        "size_bytes": plan.size_bytes,
        "local_bytes": plan.local_bytes,
        "files": plan.files,
        "requests": plan.requests,
        "elements": plan.elements,
    } | changed


@document_of.register
def _(result: Restored) -> Document:
    done = result.exported
    return {
        "store": result.store,
        "id": done.checkpoint_id,
        "parallelism": done.parallelism,
        "directory": str(done.directory),
        "format": done.form,
        "rows": sum(state.rows for state in done.states),
        "size_bytes": sum(state.size_bytes for state in done.states),
        "files": sum(state.files for state in done.states),
        "states": [_exported(state) for state in done.states],
    }


def _exported(state: ExportedState) -> Document:
    proof = state.proof
    return {
        "uid": state.uid,
        "name": state.name,
        "rows": state.rows,
        "size_bytes": state.size_bytes,
        "files": state.files,
        "proof": {
            "stored": _row_set(proof.stored),
            "subtasks": [_row_set(found) for found in proof.subtasks],
            "copies": proof.copies,
        },
    }


def _row_set(found: RowSet) -> Document:
    return {"rows": found.rows, "digest": digest_text(found.digest)}


@document_of.register
def _(result: Verified) -> Document:
    report = result.report
    return {
        "store": report.store,
        "checkpoints": list(report.checkpoints),
        "deep": report.deep,
        "sound": report.is_sound,
        "files": report.files,
        "rows": report.rows,
        "size_bytes": report.size_bytes,
        "broken": [_broken(file) for file in report.broken],
        "strays": list(report.strays),
    }


def _broken(file: BrokenFile) -> Document:
    groups = file.key_groups
    return {
        "file": file.file,
        "kind": file.kind,
        "what": list(file.what),
        "id": file.checkpoint_id,
        "operator": file.uid,
        "state": file.state,
        "key_groups": groups and {"first": groups.first, "last": groups.last},
    }


@document_of.register
def _(result: FoundRows) -> Document:
    state = result.entry.state
    return {
        "store": result.store,
        "id": result.checkpoint_id,
        "operator": state.uid,
        "state": state.name,
        "key": json_value(dict(zip(state.key, result.key, strict=True))),
        "rows": [json_value(row) for row in result.rows],
    }


document_of.register(expired_document)
document_of.register(repaired_document)
document_of.register(collected_document)
document_of.register(saved_document)
document_of.register(pinned_document)
document_of.register(unpinned_document)


@document_of.register
def _(result: Decided) -> Document:
    document = asdict(result.decided)
    inputs = [
        {
            "url": one.url,
            "broadcast": one.broadcast,
            "size_bytes": one.size_bytes,
            "files": len(one.sizes),
        }
        for one in result.decided.inputs
    ]
    return document | {"inputs": inputs}


@document_of.register
def _(result: Configuration) -> Document:
    return {"settings": [asdict(setting) for setting in result.settings]}
