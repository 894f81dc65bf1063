"""Commit a checkpoint: its files become visible as a whole, or are deleted (I5).

Tables are published first, and the manifest is put last. An error before the put deletes the
written files. After the manifest PUT is issued, no file is deleted, even if the PUT seemed to fail:
a reader may have seen the checkpoint, and a writer may have named its files again. ``gc`` deletes
the files if they turn out to be dead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from statestore.errors import (
    CommitConflictError,
    InvalidArgumentError,
    MalformedManifestError,
    ParallelismError,
    StorageError,
)
from statestore.format.handles import ListedFiles, list_of, listed_bytes, read_all
from statestore.format.layers import CompactionRule, is_overdue
from statestore.format.left_out import LeftOutState, still_left_out
from statestore.format.manifest import (
    BatchRecord,
    Entry,
    KeyedEntry,
    Manifest,
    OperatorEntry,
    TableRef,
    name_of,
    with_batch,
)
from statestore.format.names import data_file_id, folder_of
from statestore.format.state import KeyedState
from statestore.keys.groups import RangeAssignment
from statestore.layers.compaction import Compactor
from statestore.parquet.file_checks import check_sizes
from statestore.parquet.writer import UncommittedFiles
from statestore.snapshot.carry import carry_missing
from statestore.snapshot.pending_checkpoint import PendingCheckpoint

_log = logging.getLogger(__name__)

_PUBLISHERS = 4
_PUBLISH_TRIES = 8


def commit(pending: PendingCheckpoint) -> None:
    """Commit all states at the end of the block, or delete the written files and raise.

    A fenced writer is stopped before it publishes tables, and again right before it puts the
    manifest. The docstring of ``fence.py`` explains why that is enough.
    """
    try:
        try:
            carry_missing(pending)
        finally:
            pending.left = True
        _settle(pending)
        _check_fence(pending)
        manifest = _manifest(pending)
    except BaseException as failure:
        abandon(pending, failure)
        raise
    # Two snapshots of one process share one claim. So the second one must look for the newest
    # checkpoint after the first one was put. Compactions that do not match the first one are
    # deleted before a later one is put, because they may match that one.
    with pending.fence.one_commit:
        pending.manifest = manifest = _put(pending, manifest)
        if pending.background is not None:
            pending.background.committed(manifest)
    _delete_merged(pending, manifest)
    pending.metrics = pending.measuring.committed(manifest)


def abandon(pending: PendingCheckpoint, reason: BaseException) -> None:
    """End the attempt: delete the written files, and notify the listeners.

    Failed deletions are added as notes to ``reason``. The logs of the published tables may name
    their files already. These files stay, so that the tables remain readable.
    """
    pending.left = True
    pending.new_lists.delete(reason)
    for awaited in pending.awaited.values():
        pending.new_files.add(awaited.entry.table.path, awaited.entry.handles)
    names = pending.new_files.names
    own = [name for name in names if folder_of(name) not in pending.published]
    if len(own) < len(names):
        reason.add_note("its files were kept because the newest table versions may reference them")
    UncommittedFiles(pending.catalog.storage, own).delete(reason)
    pending.measuring.failed(pending.checkpoint_id, reason)


def _check_fence(pending: PendingCheckpoint) -> None:
    """Raise CommitConflictError if this checkpoint may no longer be committed."""
    with pending.measuring.phase("check"):
        pending.fence.check()
        pending.catalog.refuse_taken(
            pending.checkpoint_id, pending.observed_newest_id, pending.fence.token
        )


def _settle(pending: PendingCheckpoint) -> None:
    """Finish the states: check them, sync all files, and adopt compactions.

    If the backlog of changes of a state is too large, it is reduced. Raises InvalidArgumentError if
    a subtask has not answered, ParallelismError for an operator whose states have different max
    parallelisms, StorageError, and the errors of compaction.
    """
    for awaited in pending.awaited.values():
        awaited.refuse_missing()
        pending.measuring.wrote(awaited.entry)
    _refuse_mixed(pending.entries)
    with pending.measuring.phase("publish"):
        pending.catalog.storage.sync(pending.unsynced)
    with pending.measuring.phase("wait"):
        latest = time.monotonic() + pending.measuring.write_seconds(pending.changed)
        pending.carried = [_compacted(pending, entry, latest) for entry in pending.carried]


def _refuse_mixed(entries: Iterable[Entry]) -> None:
    """Refuse different max parallelisms among the states of one operator."""
    known: dict[str, KeyedState] = {}
    for entry in entries:
        if not isinstance(entry, KeyedEntry):
            continue
        other = known.setdefault(entry.state.uid, entry.state)
        if other.max_parallelism != entry.state.max_parallelism:
            raise ParallelismError(
                f"{other} has max parallelism {other.max_parallelism}, but {entry.state} "
                f"has {entry.state.max_parallelism}, and all states of an operator must "
                "have the same: write all of its keyed states with "
                "regroup=True and the new max parallelism"
            )


def _compacted(pending: PendingCheckpoint, entry: Entry, latest: float) -> Entry:
    """Return a state with the result of its background compaction.

    If too many changes wait, a compaction under way is awaited until the monotonic time ``latest``,
    or a part of them is folded.
    """
    background, policy = pending.background, pending.compaction
    if not isinstance(entry, KeyedEntry) or not entry.layers or background is None:
        return entry
    is_changed = policy is not None and name_of(entry) in pending.changed
    if policy is not None and is_changed and is_overdue(entry, policy):
        background.wait_for(entry, latest)
    adoption = background.adopt(entry)
    if adoption is not None:
        entry, names = adoption
        pending.adopted[entry.table.path] = names
        pending.measuring.compacted(entry, names)
    if policy is None or not is_changed:
        return entry
    # After an adoption the next compaction starts at the commit, with all layers.
    layers = background.compacting_layers(entry) if adoption is None else len(entry.layers)
    return _with_less_backlog(pending, entry, policy, layers)


def _with_less_backlog(
    pending: PendingCheckpoint, entry: KeyedEntry, policy: CompactionRule, compacting: int | None
) -> KeyedEntry:
    own = (layer for layer in entry.layers if layer.checkpoint_id == pending.checkpoint_id)
    new, changed_rows = pending.new_files, sum(layer.entry.rows for layer in own)
    known = len(new.names)
    compactor = Compactor(new, pending.now_ms)
    entry = compactor.reduce_backlog(entry, policy, changed_rows, compacting)
    if new.names[known:]:
        pending.measuring.compacted(entry, new.names[known:])
    return entry


def _manifest(pending: PendingCheckpoint) -> Manifest:
    """Check the files and publish the tables; return the manifest without its metrics."""
    entries, replaced = pending.entries, pending.replaced
    with pending.measuring.phase("check"):
        # A log needs every file, so an unreadable list must fail before the first table is
        # published.
        logged = [entry for entry in entries if entry.table.format == "delta"]
        read_all([entry.handles for entry in logged if len(entry.parts) == 1])
        check_sizes(pending.catalog.storage, entries, exclude=_kept_files(pending, entries))
    with pending.measuring.phase("publish"):
        left_out = _left_out(pending)
        published = _with_lists(pending, _publish(pending, entries, left_out))
    return replace(
        pending.outline(),
        started_at_ms=replaced.started_at_ms if replaced else pending.started_at_ms,
        created_at_ms=replaced.created_at_ms if replaced else time.time_ns() // 1_000_000,
        keyed=tuple(entry for entry in published if isinstance(entry, KeyedEntry)),
        operator=tuple(entry for entry in published if isinstance(entry, OperatorEntry)),
        ranges=_ranges(pending, entries),
        left_out=left_out,
        batches=with_batch(_inherited_batches(pending), pending.batch, pending.checkpoint_id),
    )


def _kept_files(pending: PendingCheckpoint, entries: Sequence[Entry]) -> frozenset[str]:
    """Return the names of the previous checkpoint's files, relative to the store.

    None of these has been collected. The result is empty if that checkpoint has expired. If a state
    has the same list of files as before, only the list is returned.
    """
    before = pending.before
    if before is None or pending.catalog.is_expired(before.checkpoint_id):
        return frozenset()
    known = {name for part in before.parts if (name := list_of(part.handles))}
    parts = [part for entry in entries for part in entry.parts]
    tables = {
        part.table.path
        for part in parts
        if list_of(part.handles) not in known
        # The previous checkpoint cannot have files that this one has written.
        and any(data_file_id(handle.path) != pending.checkpoint_id for handle in part.handles)
    }
    for part in before.parts:
        if part.table.path in tables:
            # If a list cannot be read, its files are checked one by one.
            with suppress(MalformedManifestError):
                known.update(part.table.name_of(handle) for handle in part.handles)
    return frozenset(known)


def _inherited_batches(pending: PendingCheckpoint) -> Mapping[str, BatchRecord]:
    """Return the batch records of the checkpoint that this one is derived from or follows."""
    parent = pending.parent
    batches = (None if parent is None else parent.batches) or {}
    if parent is None or parent.store_id == pending.catalog.store_id:
        return batches
    return {
        job: replace(record, checkpoint_id=pending.checkpoint_id) for job, record in batches.items()
    }


def _left_out(pending: PendingCheckpoint) -> tuple[LeftOutState, ...]:
    """Return the records of the source's state that this checkpoint lacks (I16).

    Inherited records that this checkpoint does not resolve come first, then its own records.
    """
    bases = [pending.parent, *pending.bases.values()] if pending.inherits_left_out else []
    inherited = (
        record
        for base in bases
        if base is not None and base.left_out
        for record in _inherited(pending, base)
    )
    return tuple(dict.fromkeys((*inherited, *pending.left_out)))


def _inherited(pending: PendingCheckpoint, base: Manifest) -> tuple[LeftOutState, ...]:
    """Return the records of a checkpoint that still apply to this one, with this job's labels.

    An operator's label may have changed since, but its operator id has not.
    """

    def label(uid: str) -> str:
        return pending.operators.label_of_id(base.operators.id_of(uid), uid) or uid

    return still_left_out(
        [replace(record, operator=label(record.operator)) for record in base.left_out],
        stored={(label(entry.state.uid), entry.state.name) for entry in base.entries},
        present=pending.names,
        rewritten=pending.rewritten,
    )


def _ranges(pending: PendingCheckpoint, entries: Sequence[Entry]) -> Mapping[str, RangeAssignment]:
    """Return the ranges that differ from Flink's.

    Raises ParallelismError unless they fit their states.
    """
    for entry in entries:
        own = pending.ranges.get(entry.state.uid)
        if own is None or not isinstance(entry, KeyedEntry):
            continue
        parallelism = pending.operators.parallelism_of(entry.state.uid)
        if (own.max_parallelism, own.parallelism) != (entry.state.max_parallelism, parallelism):
            raise ParallelismError(
                f"the ranges of operator {entry.state.uid!r} are for parallelism "
                f"{own.parallelism} and max parallelism {own.max_parallelism}, but the "
                f"operator has parallelism {parallelism} and max parallelism "
                f"{entry.state.max_parallelism}; pass ranges that fit, or none"
            )
    return pending.ranges


def _publish(
    pending: PendingCheckpoint, entries: Sequence[Entry], left_out: Sequence[LeftOutState]
) -> list[Entry]:
    """Publish the tables of all states without changes; return all states with their tables.

    A Delta log has no entries for changes. Publishing is mostly waiting, so it runs in threads.
    """

    def is_logged(entry: Entry) -> bool:
        return not (isinstance(entry, KeyedEntry) and entry.layers)

    pending.published = frozenset(
        entry.table.path for entry in entries if entry.table.format == "delta" and is_logged(entry)
    )
    return _each(
        entries,
        is_logged,
        lambda entry: replace(entry, table=_publish_one(pending, entry, left_out)),
    )


def _publish_one(
    pending: PendingCheckpoint, entry: Entry, left_out: Sequence[LeftOutState]
) -> TableRef:
    table, number = pending.table, pending.checkpoint_id
    for _ in range(_PUBLISH_TRIES - 1):
        try:
            return table.publish(entry, number, left_out)
        except CommitConflictError:
            # A writer that passed its check just before it was fenced may still add one version. It
            # will not commit, and must not prevent the newest writer from publishing.
            pending.fence.check()
    return table.publish(entry, number, left_out)


def _with_lists(pending: PendingCheckpoint, entries: Sequence[Entry]) -> list[Entry]:
    """Put each new, long list of files into a document of its own, in parallel."""

    def is_long(entry: KeyedEntry) -> bool:
        """Return whether a list of files is long, and not yet a document of its own."""
        is_known = list_of(entry.handles) is not None
        return not is_known and listed_bytes(entry.handles) > pending.parquet.list_bytes

    def listed(entry: KeyedEntry, packed: bool) -> KeyedEntry:
        if not is_long(entry):
            return entry
        return pending.catalog.put_list(pending.name_list(), entry, packed=packed)

    def has_long_list(entry: Entry) -> bool:
        return isinstance(entry, KeyedEntry) and any(map(is_long, entry.parts))

    def with_list(entry: Entry) -> Entry:
        assert isinstance(entry, KeyedEntry)
        layers = (replace(layer, entry=listed(layer.entry, True)) for layer in entry.layers)
        return replace(listed(entry, False), layers=tuple(layers))

    return _each(entries, has_long_list, with_list)


def _each(
    entries: Sequence[Entry],
    is_selected: Callable[[Entry], bool],
    change: Callable[[Entry], Entry],
) -> list[Entry]:
    """Change the selected states in threads, and return all states in their order.

    If no state is selected, no thread starts, because a thread costs more than a small state.
    """
    selected = [entry for entry in entries if is_selected(entry)]
    with ThreadPoolExecutor(max_workers=_PUBLISHERS) as pool:
        changed = pool.map(change, selected)
        return [next(changed) if is_selected(entry) else entry for entry in entries]


def _put(pending: PendingCheckpoint, manifest: Manifest) -> Manifest:
    """Check again that this checkpoint may be committed, and put its manifest.

    Returns the manifest with its metrics.
    """
    measuring = pending.measuring
    try:
        _check_fence(pending)
        manifest = replace(manifest, metrics=measuring.metrics(manifest))
    except BaseException as failure:
        abandon(pending, failure)
        raise
    # Before the put: after it, a snapshot in another thread may already build on the manifest.
    if pending.background is not None:
        pending.background.give_away(pending.adopted)
    try:
        with measuring.phase("put"):
            seen, number = pending.catalog.seen, manifest.checkpoint_id
            seen.own = None
            pending.catalog.commit(manifest)
            pending.fence.check_after_put(number)
            seen.own = pending.fence.token, number
    except InvalidArgumentError as refused:  # nothing was put
        abandon(pending, refused)
        raise
    except BaseException as unknown:
        measuring.failed(pending.checkpoint_id, unknown)
        raise
    return manifest


def _delete_merged(pending: PendingCheckpoint, manifest: Manifest) -> None:
    """Delete files that were written or adopted here, but compacted before the commit.

    Files that cannot be deleted are left to ``gc``.
    """
    written = {*pending.new_files.names, *chain.from_iterable(pending.adopted.values())}
    tables = set(map(folder_of, written))  # tables without such files are skipped
    named = {
        part.table.name_of(handle)
        for part in manifest.parts
        if part.table.path in tables
        # A list that was not even read has no files of this checkpoint.
        and not (isinstance(part.handles, ListedFiles) and not part.handles.is_known)
        for handle in part.handles
    }
    for name in sorted(written - named):
        try:
            pending.catalog.storage.delete(name)
        except StorageError as error:
            _log.warning(
                "a merged file could not be deleted; 'statestore gc' deletes it later: %s", error
            )
