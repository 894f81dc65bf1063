"""What ``--output json`` prints: a stable contract, to which fields are only ever added.

Every document is one object. Ids are numbers, ``*_bytes`` bytes, ``*_ms`` milliseconds (``*_at_ms``
since 1970 UTC), digests 16 hex digits, operator ids 32; a range of key groups is closed.

========  ==========================================================================================
list      store, checkpoints: [id, created_at_ms, age_ms, parallelism, operators, states, rows,
          size_bytes, files, error]; of a damaged one id and error {kind, message} only, rest null;
          savepoints: [name, id, created_at_ms, age_ms, expired], pins: [token, id, holder,
          until_ms, over]; rows are those in files, ``changed_rows`` of them changes, if any
show      store, id, store_id, parallelism, started_at_ms, created_at_ms, age_ms, writer {release,
          name, token, generation}, rows, size_bytes, files, operators: [uid, operator_id,
          max_parallelism, states: [name, sort (keyed or operator), columns [{name, type}], rows,
          size_bytes, files, digest, table {format, path, version}; keyed: kind, key, key_types,
          namespace, entry, time_domain, hash_scheme, layout, if rows expire ttl {duration_ms,
          column, update, visibility}; operator: mode, elements_per_subtask]]; a state
          with changes has besides changes: [checkpoint, depth, rows, size_bytes, files, live
          [[first, last]]], oldest first, and its rows, size_bytes,
          files and digest are those of its base; the checkpoint has ``changed_rows`` as in list;
          with ``--graph``: store, id, vertices: [id, parallelism, max_parallelism, operators:
          [name, uid, uid_hash, operator_id, states (names)]], edges: [from, to, partitioner]
plan      store, id, old_parallelism, parallelism, size_bytes, local_bytes, files, operators: [uid,
          max_parallelism, states, largest_subtask, subtasks: [subtask, key_groups {first, last},
          rows, size_bytes, local_bytes, files, requests, elements]], choices: [uid, total_bytes,
          first_guess, ranges_at_limit, parallelism, largest_subtask_bytes,
          largest_byte_range_bytes], matching (null without a graph): operators: [name, operator_id,
          outcome, found_by, stored], dropped, ignored: [operator_id, uid, name, states, rows,
          size_bytes], hints: [operator, uid, uid_hash, stored, reason]; placements (with
          ``--hosts``): [uid, strategy, subtasks: [subtask, host, local_bytes]]; skew (with
          ``--balance``): [uid, by, even and balanced (a number each subtask), largest_even,
          largest_balanced, times_mean_even, times_mean_balanced, gain]; with changes to
          read, or another max parallelism, plan and operators have read_amplification (rows read
          for each of the bases), and subtasks changed_rows, those of ``rows``; the same for
          ``restore --dry-run``; with ``--compare`` instead: store, id, old_parallelism, hosts,
          bytes_per_second, measured_at_ms, prices (null: not known), options: [parallelism,
          moved_bytes, largest_bytes, size_bytes, files, requests, seconds, money], chosen, why
restore   store, id, parallelism, directory, format, rows, size_bytes, files,
          states: [uid, name, rows, size_bytes, files, proof {stored {rows, digest}, subtasks:
          [rows, digest], copies}]: the subtasks sum to what is stored, or each is a copy of it
verify    store, checkpoints (ids), deep, sound, files, rows, size_bytes, broken: [file, kind, what,
          id, operator, state, key_groups {first, last}], strays: [file]; names are relative
get       store, id, operator, state, key: {column: value}, rows: [{column: value}]; without
          operator or state: store, id, key (text), states: [operator, state, kind, rows], skipped:
          [operator, state, why]
heavy     store, id, by, factor, operators: [uid, states, key_groups, rows, size_bytes, heavy:
          [key_group, rows, size_bytes, share (0 to 1), times (the even share)], hot: [state, rows,
          keys: [key {column: value}, key_group, rows, share], read (key groups), exact]]
query     store, id, columns: [{name, type}], rows: [[value]], cut (whether there are more); with
          ``--tables``: store, id, views: [view, schema, name, operator, state, rows (null: with
          changes, unknown), columns]
diff      a, b {store, id, size_bytes, read_bytes}, differs, others, graph: [what, a, b], states:
          [operator, state, sort, differs, only_in (a, b or null), rows_a, rows_b (null: with
          changes, unknown), added, removed, changed, not_compared (null or why), compared_columns
          (null: all), others, key_groups_differing, key_groups_read (null: not by key group),
          key_groups: [key_group, added, removed, changed], examples: [change, key_group, identity,
          a, b {column: value}]]
salvage   store, id, new_id (null: nothing written), dry_run, sound, files, damaged: [file, kind,
          what, operator, state], states: [operator, state, sort, damaged_files, rows_before,
          rows_after, lost_rows, lost_key_groups, lost: [first, last (null: all elements), rows,
          known_in, keys, filled_from], lost_keys, keys: [{column: value}], why_not_filled]
expire    store, dry_run, expired, kept, damaged (ids), held: [id, by], files, size_bytes
savepoint store, name, id (null: it was damaged), deleted
pin       store, token, id, holder, until_ms
unpin     store, token
gc        store, dry_run, minimum_age_ms, removed, live, young {files, size_bytes}, manifests (ids),
          pins (tokens), leftovers (a number), held: [id, by]
copy      store, id, target, dry_run, new_id, found (an earlier copy), savepoint, files, size_bytes,
          copied_files, copied_bytes, tables_without_log
fork      as copy, without found and tables_without_log; files that are not copied are shared
rekey     store, id, new_id, dry_run, operator, read_bytes, states: [state, rows, digest, key_before,
          key, max_parallelism_before, max_parallelism, hash_scheme_before, hash_scheme, files,
          size_bytes]; new_id, digest, files and size_bytes are null in a dry run
as-of     store, a, b (ids), operator, state, columns: [{name, type}], rows: [[value]], counts {same,
          changed, added, removed} of all rows, cut (whether there are more)
history   store, operator, state, key {column: value}, checkpoints: [id, created_at_ms, changed,
          rows (null: no such state, or another key)]
purge     store, dry_run, operator, replaced and finished: [old_id, new_id, savepoints, states:
          [name, key_group, rows, files, size_bytes]], logs (tables), pins; with ``--check``: store,
          operator, gone, files, size_bytes, searched_bytes, found: [file, what, rows], unreadable
edit      store, id, operator, dry_run, new_id, state, how (keys, rows, sql), rows_before,
          rows_after, deleted, put, key_groups, files, size_bytes
compact   store, id, new_id (null: nothing written), dry_run, everything, compact (nothing to do),
          states: [operator, state, layers_before, layers_after, files_before, files_after (null in
          a dry run), size_bytes_before, size_bytes_after (null so), rows_read, spans: [first,
          last], merged_layers]
decide    parallelism, algorithm, bytes_per_task, min_parallelism, max_parallelism, inputs: [url,
          broadcast, size_bytes, files]
config    settings: [name, value, unit, default, source]
========  ==========================================================================================

Values of columns are as in ``table/export.py``: decimals and times are strings, bytes hex digits.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import singledispatch
from typing import Any

from statestore.cli.graph_documents import choices_document, graph_document, matching_document
from statestore.cli.keeping_documents import (
    collected_document,
    expired_document,
    holds_document,
    pinned_document,
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
from statestore.commands.export import ExportedState
from statestore.commands.verify import BrokenFile
from statestore.model.digest import digest_text
from statestore.model.manifest import Entry, KeyedEntry, Manifest
from statestore.model.plan import OperatorPlan, SubtaskPlan
from statestore.model.proof import RowSet
from statestore.model.schema import type_text
from statestore.table.export import json_value

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
        unknown = "created_at_ms age_ms parallelism operators states rows size_bytes files"
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
        } | changed_rows_document(manifest)
    message = None if error is None else {"kind": error.kind, "message": str(error)}
    return document | {"error": message}


@document_of.register
def _(result: ShownCheckpoint) -> Document:
    manifest = result.manifest
    return {
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
    } | changed_rows_document(manifest)


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
