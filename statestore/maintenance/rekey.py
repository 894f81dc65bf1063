"""Rekey: redistribute an operator's keyed states over other key groups, as a new checkpoint.

This sets any other max parallelism, another hash scheme, or for a single state another key, made of
its columns. Each row is read once. The digest of all rows is the same before and after, because it
does not depend on which columns are the key. If there is a working folder, an interrupted run
resumes: the files that it has written get new names for the next run, and are never deleted by a
failure.

The plan has the new form of the operator's keyed states, and of the job graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statestore.catalog.catalog import CheckpointRef
from statestore.errors import (
    CorruptionError,
    InvalidArgumentError,
    ParallelismError,
    UnsupportedTypeError,
)
from statestore.format.documents import convert_json
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.manifest_json import keyed_from_json, keyed_to_json
from statestore.format.state import KeyedState
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.operators import job_vertices, label_of, operator_ids
from statestore.keys.arrow_types import check_key_types
from statestore.keys.groups import effective_max_parallelism
from statestore.keys.key_types import check_hash_scheme
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.copy import new_name
from statestore.maintenance.derive import DerivedReport, Deriver, Draft
from statestore.maintenance.rekey_spill import (
    Spread,
    WorkingFolder,
    spill_rows,
    working_folder,
    write_range,
)
from statestore.maintenance.store_context import HasContext
from statestore.restore.target import keyed_entries
from statestore.rows.column_types import arrow_schema

_SPREAD, _WRITTEN = "spread.json", "written.json"


@dataclass(frozen=True, kw_only=True)
class RekeyedState:
    """A state before and after the rekey.

    ``digest`` is the digest of its rows, which did not change. In a dry run ``digest``, ``files``
    and ``size_bytes`` are None, and ``rows`` counts the rows in the files, including changes.
    """

    state: str
    rows: int
    digest: int | None
    key_before: tuple[str, ...]
    key: tuple[str, ...]
    max_parallelism_before: int
    max_parallelism: int
    hash_scheme_before: str
    hash_scheme: str
    files: int | None
    size_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class RekeyReport(DerivedReport):
    """The result of a rekey, or of a dry run; ``read_bytes`` is the size of the read files."""

    operator: str
    read_bytes: int
    states: tuple[RekeyedState, ...]


def rekey(
    store: HasContext,
    operator: str,
    state: str | None = None,
    *,
    max_parallelism: int | None = None,
    key: str | Sequence[str] | None = None,
    hash_scheme: str | None = None,
    checkpoint: CheckpointRef = "latest",
    from_older: bool = False,
    work: str | Path | None = None,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> RekeyReport:
    """Give an operator's keyed states, or one of them, other key groups, as a new checkpoint.

    Rows do not change, as their digest proves. A running job can no longer commit.

    Args:
        operator: the operator.
        state: the state; by default all keyed states of the operator.
        max_parallelism: the new number of key groups; any is possible.
        key: the new key columns of the state ``state``, chosen from its columns. Former key
            columns become value columns.
        hash_scheme: the new hash scheme.
        checkpoint: as in :meth:`savepoint`.
        from_older: as in :meth:`compact`.
        work: a local folder, used by one run at a time, from which an interrupted run resumes.
            Without it, a failed run leaves nothing behind.
        dry_run: reports what would be written, and changes nothing.
        on_progress: called with the number of rows done and the total.

    Returns:
        The written states.

    Raises:
        StateNotFoundError: if the state does not exist.
        InvalidArgumentError, UnsupportedTypeError or ParallelismError: for impossible options.
        NullKeyError or DuplicateKeyError: if the rows do not fit the new key.
        CorruptionError: if a file is damaged.
        CommitConflictError: if another writer commits first.
        StorageError: if the store cannot be read or written.
    """
    columns = (key,) if isinstance(key, str) else None if key is None else tuple(key)
    check_request(operator, state, columns, hash_scheme, max_parallelism)
    deriver = store.parts.deriver()
    source = deriver.load_source(checkpoint, from_older=from_older or dry_run)
    manifest = source.manifest
    entries = keyed_entries(manifest, operator, state)
    states = [
        requested_state(manifest, entry, columns, hash_scheme, max_parallelism) for entry in entries
    ]
    refuse_mixed(manifest, entries, states)
    like = replace(source, manifest=_regrouped(manifest, operator, states[0]))
    done = [KeyedEntry(state, entries[0].table, ()) for state in states]
    with ExitStack() as stack:
        # The folder stays locked until the checkpoint is committed or abandoned.
        folder = None
        if not dry_run:
            wanted = [operator, state, max_parallelism, columns and list(columns), hash_scheme]
            path = None if work is None else Path(work)
            folder = stack.enter_context(working_folder(path, _job(manifest, wanted, entries)))
        draft = stack.enter_context(deriver.derive(like, "rekey", dry_run=dry_run))
        if folder is not None:
            counter = _Counter(
                2 * sum(entry.rows for entry in entries), on_progress or ignore_progress
            )
            for place, (entry, new) in enumerate(zip(entries, states, strict=True)):
                own = folder.subfolder(str(place))
                done[place] = _Run(deriver, draft, entry, new, own, counter).finish()
                draft.put(done[place], _file_names(done[place]))
            draft.record(operator=operator, states=[*map(_new_grouping, done)])
    return RekeyReport(
        **draft.facts,
        operator=operator,
        read_bytes=sum(entry.size_bytes for entry in entries),
        states=tuple(_state_report(a, b, dry_run) for a, b in zip(entries, done, strict=True)),
    )


def _regrouped(manifest: Manifest, uid: str, state: KeyedState) -> Manifest:
    """Return the checkpoint with the operator's new max parallelism, without its own ranges."""
    # The rows of a missing key group belong to several new ones.
    left_out = tuple(
        replace(part, first=0, last=state.max_parallelism - 1)
        if part.operator == uid and part.first is not None
        else part
        for part in manifest.left_out
    )
    return replace(
        manifest,
        graph=requested_graph(manifest, state),
        ranges={other: ranges for other, ranges in manifest.ranges.items() if other != uid},
        left_out=left_out,
    )


@dataclass
class _Counter:
    total: int
    progress: Progress
    done: int = 0

    def add(self, rows: int) -> None:
        self.done += rows
        self.progress(min(self.done, self.total), self.total)


@dataclass(frozen=True)
class _Run:
    """The rekey of one state; parts that are already in the working folder are not repeated."""

    deriver: Deriver
    draft: Draft
    entry: KeyedEntry
    state: KeyedState
    work: WorkingFolder
    counter: _Counter

    def finish(self) -> KeyedEntry:
        """Return the state with its new files.

        Raises CorruptionError unless its rows are the same.
        """
        spilled = self._spill_rows()
        known = self._load_written()
        for place in range(len(known), spilled.ranges):
            target = self.draft.files.target(self._empty_entry())
            handles = write_range(self.work.path, place, target)
            known.append(replace(self._empty_entry(), handles=handles))
            if not self.work.kept:
                # This run cannot be resumed, so an error deletes the written files.
                self.draft.files.add(target.folder, handles)
            self._record_written(known)
            self.counter.add(known[-1].rows)
        handles = tuple(handle for entry in known for handle in entry.handles)
        done = replace(self._empty_entry(), handles=handles)
        self._check_same_rows(spilled, done)
        return done

    def _check_same_rows(self, spilled: Spread, done: KeyedEntry) -> None:
        """Raise an error if the new rows differ from the stored ones.

        With changes, the expected rows are known only from reading them.
        """
        sets = [(spilled.rows, spilled.digest), (done.rows, done.digest)]
        if not self.entry.layers:
            sets.insert(0, (self.entry.rows, self.entry.digest))
        if len(set(sets)) > 1:
            descriptions = ", then ".join(
                f"{rows} rows with digest {digest:016x}" for rows, digest in sets
            )
            raise CorruptionError(
                f"the stored, read and written rows of {self.state} are not the same: "
                f"{descriptions}; "
                "nothing was committed. Verify the checkpoint, and choose an empty working folder"
            )

    def _empty_entry(self) -> KeyedEntry:
        return KeyedEntry(self.state, self.entry.table.without_version(), ())

    def _spill_rows(self) -> Spread:
        known = self.work.read(_SPREAD)
        if known is not None:
            self.counter.add(self.entry.rows)
            return Spread(**known)
        storage = self.deriver.catalog.storage
        most_bytes = self.deriver.parquet.rekey_bytes
        spilled = spill_rows(
            storage, self.entry, self.state, self.work.path, self.counter.add, most_bytes
        )
        self.work.put(_SPREAD, vars(spilled))
        return spilled

    def _load_written(self) -> list[KeyedEntry]:
        """Return the ranges written earlier whose files still exist, under names of this run."""
        written = self.work.read(_WRITTEN)
        if written is None:
            return []
        known: list[KeyedEntry] = []
        name = str(self.work.path / _WRITTEN)
        for position, item in enumerate(convert_json(written, list[Any], name)):
            entry = self._adopt_range(keyed_from_json(item, self.state.uid, name, f"[{position}]"))
            if entry is None:
                break
            known.append(entry)
            self.counter.add(entry.rows)
        self.deriver.catalog.storage.sync([name for entry in known for name in _file_names(entry)])
        self._record_written(known)
        return known

    def _adopt_range(self, entry: KeyedEntry) -> KeyedEntry | None:
        """Return a range with new names for its files, or None if one is missing."""
        storage, folder = self.deriver.catalog.storage, entry.table.path
        handles = []
        for handle in entry.handles:
            new = new_name(handle, self.draft.files.checkpoint_id)
            old, adopted = f"{folder}/{handle.path}", f"{folder}/{new}"
            try:
                whole = storage.size(old) == handle.size_bytes
                if not (whole and storage.renew(old, adopted)):
                    return None
            except FileNotFoundError:
                return None
            handles.append(replace(handle, path=new, host=""))
        return replace(entry, handles=tuple(handles))

    def _record_written(self, known: Sequence[KeyedEntry]) -> None:
        self.work.put(_WRITTEN, [keyed_to_json(entry) for entry in known])


def _job(
    manifest: Manifest, wanted: Sequence[Any], entries: Sequence[KeyedEntry]
) -> dict[str, Any]:
    files = [[handle.sha256 for part in e.parts for handle in part.handles] for e in entries]
    return {
        "store_id": manifest.store_id,
        "checkpoint": manifest.checkpoint_id,
        "wanted": wanted,
        "files": files,
    }


def _new_grouping(entry: KeyedEntry) -> dict[str, Any]:
    """Return what the ``origin`` of the new manifest records of a state."""
    return {
        "state": entry.state.name,
        "key": list(entry.state.key),
        "max_parallelism": entry.state.max_parallelism,
        "hash_scheme": entry.state.hash_scheme,
    }


def _file_names(entry: KeyedEntry) -> list[str]:
    return [entry.table.name_of(handle) for handle in entry.handles]


def _state_report(before: KeyedEntry, after: KeyedEntry, dry_run: bool) -> RekeyedState:
    old, new = before.state, after.state
    return RekeyedState(
        state=new.name,
        rows=before.rows if dry_run else after.rows,
        digest=None if dry_run else after.digest,
        key_before=old.key,
        key=new.key,
        max_parallelism_before=old.max_parallelism,
        max_parallelism=new.max_parallelism,
        hash_scheme_before=old.hash_scheme,
        hash_scheme=new.hash_scheme,
        files=None if dry_run else len(after.handles),
        size_bytes=None if dry_run else after.size_bytes,
    )


def check_request(
    uid: str,
    name: str | None,
    key: Sequence[str] | None,
    hash_scheme: str | None,
    max_parallelism: int | None,
) -> None:
    """Refuse an empty request, an unknown hash scheme, and a key without the name of its state."""
    if (max_parallelism, key, hash_scheme) == (None, None, None):
        raise InvalidArgumentError("pass what to change: max_parallelism, key or hash_scheme")
    if key is not None and name is None:
        raise InvalidArgumentError(
            f"a new key applies to only one state: pass the name of the state of operator {uid!r}"
        )
    if hash_scheme is not None:
        check_hash_scheme(hash_scheme)


def requested_state(
    manifest: Manifest,
    entry: KeyedEntry,
    new_key: tuple[str, ...] | None,
    hash_scheme: str | None,
    max_parallelism: int | None,
) -> KeyedState:
    """Return the state in its new form: the new key first; former key columns become values.

    None leaves a property unchanged.

    Raises InvalidArgumentError, UnsupportedTypeError or ParallelismError if this is impossible.
    """
    old = entry.state
    key = old.key if new_key is None else new_key
    for name in key:
        if name not in old.schema.names:
            raise InvalidArgumentError(
                f"{old} has no column {name!r} for its key; it has ({old.schema})"
            )
    first = (*key, *old.namespace, *old.entry)
    rest = [name for name in old.schema.names if name not in first]
    scheme = old.hash_scheme if hash_scheme is None else hash_scheme
    return replace(
        old,
        schema=old.schema.select((*dict.fromkeys(first), *rest)),
        key=key,
        key_types=_key_types(old, key, scheme),
        hash_scheme=scheme,
        max_parallelism=_max_parallelism(manifest, old, max_parallelism),
    )


def _key_types(old: KeyedState, key: tuple[str, ...], scheme: str) -> tuple[str, ...]:
    """Return the types of the key columns for hashing.

    A column that was key in the same hash scheme keeps its stored type, which may differ from the
    column's type.
    """
    known = dict(zip(old.key, old.key_types, strict=True)) if scheme == old.hash_scheme else {}
    columns = arrow_schema(old.schema)
    try:
        fields = [columns.field(name) for name in key]
        return check_key_types(fields, scheme, [known.get(name) for name in key])
    except UnsupportedTypeError as error:
        error.add_note(f"while rekeying {old} by ({', '.join(key)})")
        raise


def _max_parallelism(manifest: Manifest, old: KeyedState, wanted: int | None) -> int:
    if wanted is None:
        return old.max_parallelism
    try:
        parallelism = manifest.operators.parallelism_of(old.uid)
        return effective_max_parallelism(None, parallelism, wanted)
    except (InvalidArgumentError, ParallelismError) as error:
        error.add_note(
            f"operator {old.uid!r} has parallelism {manifest.operators.parallelism_of(old.uid)} in "
            f"checkpoint {manifest.checkpoint_id}, and a rekey keeps the parallelism"
        )
        raise


def refuse_mixed(
    manifest: Manifest, entries: Sequence[KeyedEntry], states: Sequence[KeyedState]
) -> None:
    """Raise InvalidArgumentError if another state of the operator keeps another max parallelism."""
    chosen = {entry.state.name for entry in entries}
    for entry in manifest.keyed:
        other = entry.state
        if other.uid != states[0].uid or other.name in chosen:
            continue
        if other.max_parallelism != states[0].max_parallelism:
            raise InvalidArgumentError(
                f"{other} has max parallelism {other.max_parallelism}, and all states of an "
                "operator must have the same: omit the name to rekey all of them"
            )


def requested_graph(manifest: Manifest, state: KeyedState) -> JobGraph | None:
    """Return the job graph with the state's max parallelism, if the operator had another one.

    The operators of a chain share one max parallelism, so the whole chain gets it. Raises
    InvalidArgumentError if another operator of the chain has keyed state, which would not be
    rekeyed.
    """
    graph, most = manifest.graph, state.max_parallelism
    if graph is None or manifest.operators.max_parallelism_of(state.uid) in (None, most):
        return graph
    own = next(node.name for node in graph.nodes if label_of(node) == state.uid)
    vertices = job_vertices(graph, operator_ids(graph))
    chain = next(vertex.nodes for vertex in vertices if own in vertex.nodes)
    stateful = {entry.state.uid for entry in manifest.keyed}
    for node in graph.nodes:
        if node.name in chain and node.name != own and label_of(node) in stateful:
            raise InvalidArgumentError(
                f"operators {state.uid!r} and {label_of(node)!r} are in one chain and both "
                "have keyed state, but a chain has only one max parallelism; break the chain "
                "in the job's graph and take a snapshot first"
            )
    return replace(
        graph,
        nodes=tuple(
            replace(node, max_parallelism=most)
            if node.name in chain and node.max_parallelism is not None
            else node
            for node in graph.nodes
        ),
    )
