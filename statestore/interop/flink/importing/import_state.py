"""``statestore flink import``: import a savepoint of a Flink job as a checkpoint of a store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from statestore.durations import Duration, milliseconds_of
from statestore.engines.grouped_rows import GroupedRows, RowRange
from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    InvalidArgumentError,
    StateNotFoundError,
    StoreNotFoundError,
    UnsupportedTypeError,
)
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry
from statestore.format.state import StateKind, TimeDomain
from statestore.interop.flink.columns.state_columns import EntryForm, StateColumns
from statestore.interop.flink.importing.import_operators import operator_states
from statestore.interop.flink.importing.import_plan import (
    Candidates,
    PlannedOperator,
    plan_import,
)
from statestore.interop.flink.importing.import_record import RECORD, ImportedState, SavepointRecord
from statestore.interop.flink.importing.probes import find_value_class
from statestore.interop.flink.importing.stored_import import (
    COMMAND,
    NOT_ASKED_FOR,
    StoredImport,
    checkpoint_left_out,
    imported_operator,
    left_out_of,
    time_to_live,
)
from statestore.interop.flink.metadata.versions import find_kryo_version
from statestore.interop.flink.options import ACCESS, HINTS, SavepointAccess, SavepointHints
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.plausibility import (
    ImplausibleState,
    access_bounds,
    find_implausible_classes,
    find_implausible_times,
    lost_timers,
)
from statestore.interop.flink.read.refusals import refused_kinds
from statestore.interop.flink.read.savepoint import (
    FlinkOperator,
    FlinkSavepoint,
    describe_operator_state,
    parse_unopened,
    read_location,
)
from statestore.interop.flink.types.kryo import KryoType, find_kryo_part
from statestore.jobgraph.graph import JobGraph, Node
from statestore.jobgraph.operators import operator_id
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange, is_int
from statestore.restore.restored import RestoredCheckpoint
from statestore.rows.column_types import arrow_schema
from statestore.snapshot.writer import CheckpointWriter
from statestore.store import StateStore

_ROW_BYTES = 32  # an estimate; it decides whether a key group gets its own file
_DECODED_BYTES = 8 * 2**20  # bytes of entries that are decoded at a time
_MOST_THREADS = 64
_THREADS_UNASKED = 4
_BYTES_WORTH_A_THREAD = 8 * 2**20  # an estimate; for less data, starting a thread does not pay off
_OnProgress: TypeAlias = Callable[[float, float, str], None]
_Groups: TypeAlias = Iterator[tuple[int, pa.Table]]
_EVENT = "event"


@dataclass(frozen=True)
class ImportedSavepoint:
    """A checkpoint that was imported from a savepoint.

    ``found`` is true if the store already had this savepoint. ``is_incremental`` is true if only
    the changes since the previous savepoint were written. ``warnings`` describe, by operator, state
    that the savepoint may have lost. ``left_out`` is the state of the savepoint that the checkpoint
    does not have. If there is any, an export refuses to run unless it is told to leave it out too
    (I16). ``implausible`` are the newly imported states with a sign of damage that is no error.
    """

    place: str
    store: str
    checkpoint_id: int
    found: bool
    is_incremental: bool
    record: SavepointRecord
    warnings: tuple[str, ...]
    left_out: tuple[LeftOutState, ...] = ()
    implausible: tuple[ImplausibleState, ...] = ()

    @property
    def not_read(self) -> tuple[LeftOutState, ...]:
        """The operators that were left out only because they cannot be read."""
        return tuple(
            record
            for record in self.left_out
            if record.state is None and record.reason != NOT_ASKED_FOR
        )


@dataclass(frozen=True)
class _Import:
    """The values that all states of an import share.

    ``stored`` is what the store has of earlier imports. ``kryo`` is the version of Kryo that wrote
    the states, None if it is unknown. ``implausible`` collects signs of damage.
    """

    checkpoint: CheckpointWriter
    stored: StoredImport
    ttl: Mapping[str, Duration]
    is_strict: bool
    threads: int | None
    kryo: int | None
    implausible: list[ImplausibleState] = field(default_factory=list)


def import_savepoint(
    place: str,
    store: StateStore,
    *,
    operators: Collection[str] = (),
    hints: SavepointHints = HINTS,
    strict: bool = False,
    access: SavepointAccess = ACCESS,
    drop: Collection[str] = (),
    like: SavepointRecord | None = None,
    threads: int | None = None,
    on_progress: _OnProgress | None = None,
) -> ImportedSavepoint:
    """Import the state in a savepoint or checkpoint of a Flink job as the store's next checkpoint.

    Each keyed state becomes a keyed state of the store with the same key groups. Operator state is
    stored by subtask. State without a column type is stored as bytes. A later savepoint of the same
    job becomes an incremental checkpoint. The same savepoint, read with the same options, is
    recognized by the content of its files. With other options, what is missing is added. The
    savepoint is only read.

    Each thread writes a range of a state's key groups. It reads and decodes some megabytes at a
    time, or a whole key group of a native savepoint. It sorts rows in its share of
    ``ParquetOptions(memory_bytes=…)``. If the keys of a state have no columns, one thread sorts the
    whole state.

    Args:
        place: the savepoint's folder or its ``_metadata`` file, as a path or URL.
        store: a new store, or a store with an earlier savepoint of this job.
        operators: the operators to import, by uid, name or id; by default all readable ones.
        hints: what the savepoint does not contain: uids, column names and TTLs.
        strict: refuses state that would be stored as bytes, and operators that cannot be read.
        access: how the savepoint's files are found and read.
        drop: the kinds of unsupported state to leave out instead of an error, as the names of
            :class:`Refused`.
        like: the record of another import of the job, from which a new store takes uids, columns
            and hashes of keys.
        threads: the maximum number of threads. The default is the number of the process's cores, at
            most four, and fewer for a small state. It affects the number of files, but not the
            stored rows.
        on_progress: a callback that receives the number of finished states, the total, and the next
            state. A partly imported state counts by its key groups. Calls never overlap.

    Returns:
        The imported state, and the checkpoint.

    Raises:
        InvalidArgumentError: if the savepoint does not exist, names do not fit or differ from those
            in the store, ``threads`` is not in 1..64, or the store has something else. Also if the
            import would revert a state that was changed since.
        StateNotFoundError: for an operator or state that does not exist.
        UnsupportedTypeError: for a selected operator that cannot be read. With ``strict``, also for
            state that would be stored as bytes or left out.
        SchemaMismatchError: for a state that has other types in the store.
        LeftOutStateError: for an operator of the store that the import would leave out.
        DamagedFileError or MissingFileError: if a file of the savepoint is damaged or missing.
        StateStoreError: as ``store.snapshot`` and ``checkpoint.write_keyed``.
    """
    dropped = refused_kinds(drop)
    _check_threads(threads)
    metadata, places = read_location(place, access)
    digest = hashlib.sha256(metadata).hexdigest()
    savepoint = parse_unopened(metadata, places)
    number = savepoint.metadata.checkpoint_id
    restored = _newest_checkpoint(store)
    before = None if restored is None else SavepointRecord.of(restored)
    if before is not None:
        _refuse_other_job(
            before, {operator.metadata.id for operator in savepoint.operators}, number, store
        )
    savepoint, planned = plan_import(
        savepoint, operators=operators, hints=hints, before=before or like, drop=dropped
    )
    urls, warnings = (savepoint.url, store.url), tuple(_warnings(savepoint))
    _check_ttl(hints.ttl or {}, planned)
    left_out = tuple(left_out_of(savepoint, planned))
    ttl = hints.ttl or {}
    stored = StoredImport(restored, before).compare(digest, planned, left_out, ttl)
    if strict:
        _refuse_bytes(planned, stored, savepoint.url)
    if restored is not None and before is not None:
        if stored.same == {operator.name for operator in planned}:
            missing = checkpoint_left_out(restored.manifest, before)
            newest = restored.checkpoint_id
            return ImportedSavepoint(*urls, newest, True, False, before, warnings, missing)
        stored.refuse_undoing(digest, planned)
    graph = JobGraph(tuple(_nodes(planned)))
    with store.snapshot(graph=graph) as checkpoint:
        checkpoint.collected.record(command=COMMAND)
        kryo = find_kryo_version(savepoint.metadata.version)
        run = _Import(checkpoint, stored, ttl, strict, threads, kryo)
        record = SavepointRecord(
            savepoint.url,
            number,
            savepoint.metadata.version,
            digest,
            tuple(map(imported_operator, planned)),
            tuple(_import_states(run, planned, on_progress)),
        )
        record.write(checkpoint)
        checkpoint.collected.record(left_out=left_out, inherits_left_out=False)
        for uid, name in checkpoint.left_out():
            checkpoint.drop(uid, name)
    implausible = tuple(run.implausible)
    is_incremental = before is not None
    return ImportedSavepoint(
        *urls, checkpoint.id, False, is_incremental, record, warnings, left_out, implausible
    )


def _warnings(savepoint: FlinkSavepoint) -> Iterator[str]:
    """Yield warnings about state that the savepoint itself may have lost, by operator."""
    for operator in savepoint.operators:
        warning = lost_timers(savepoint, operator)
        if warning is not None:
            yield f"{operator.title}: {warning}"


def _newest_checkpoint(store: StateStore) -> RestoredCheckpoint | None:
    """Return the newest checkpoint of a store; None if the store or a checkpoint is missing."""
    try:
        return store.restore()
    except (StoreNotFoundError, CheckpointNotFoundError):
        return None


def _refuse_other_job(
    before: SavepointRecord, operators: Collection[str], number: int, store: StateStore
) -> None:
    """Refuse a store whose newest checkpoint is from another job or from a later savepoint."""
    if not {operator.id for operator in before.operators} & set(operators):
        raise InvalidArgumentError(
            f"{store.url} was imported from the savepoint {before.place}, which has no "
            "operator in common with this savepoint; import another job into a separate store"
        )
    if before.checkpoint > number:
        raise InvalidArgumentError(
            f"{store.url} already has checkpoint {before.checkpoint} of the job, which is "
            f"later than {number}; import an earlier checkpoint into a separate store"
        )


def _check_threads(threads: int | None) -> None:
    if threads is not None and not (is_int(threads) and 1 <= threads <= _MOST_THREADS):
        raise InvalidArgumentError(f"threads must be in 1..{_MOST_THREADS}, not {threads!r}")


def _check_ttl(ttl: Mapping[str, Duration], planned: tuple[PlannedOperator, ...]) -> None:
    known = {
        name
        for operator in planned
        for candidates in operator.states
        if any(columns.last_access for columns in candidates)
        for name in (candidates[0].state.name, f"{operator.name}/{candidates[0].state.name}")
    }
    for name, duration in ttl.items():
        milliseconds_of(duration)  # refuses an invalid one before anything is written
        if name not in known:
            raise StateNotFoundError(
                f"no state {name!r} has last-access times, which a TTL requires; the states "
                f"with last-access times are {', '.join(sorted(known)) or 'none'}"
            )


def _refuse_bytes(planned: tuple[PlannedOperator, ...], stored: StoredImport, url: str) -> None:
    problems = [
        f"operator {operator.operator.title}: {operator.problem}"
        for operator in planned
        if operator.is_wanted and operator.problem is not None
    ]
    problems += [
        f"state {columns.state.name!r} of operator {operator.name}: {reason}"
        for operator in planned
        for *_, columns in operator.states
        if (reason := columns.why or find_kryo_part((columns.state.key, columns.state.value)))
    ]
    problems += [
        f"state {state.name!r} of operator {state.operator}: {state.why}"
        for state in (() if stored.record is None else stored.record.states)
        if state.operator in stored.same and not state.is_keyed and state.why is not None
    ]
    if problems:
        raise UnsupportedTypeError(
            f"{url} has state without a column form, which --strict (strict=True) refuses: "
            f"{'; '.join(problems)}"
        )


def _nodes(planned: tuple[PlannedOperator, ...]) -> Iterator[Node]:
    """Yield the job graph's operators, with which a restore finds their state."""
    for operator in planned:
        data = operator.operator.metadata
        number = None if operator_id(operator.name) == data.id else data.id
        yield Node(
            operator.name,
            uid=operator.name,
            uid_hash=number,
            parallelism=data.parallelism,
            max_parallelism=data.max_parallelism,
        )
    yield Node(RECORD, uid=RECORD)


def _import_states(
    run: _Import,
    planned: tuple[PlannedOperator, ...],
    on_progress: _OnProgress | None,
) -> Iterator[ImportedState]:
    wanted = [operator for operator in planned if operator.is_wanted and operator.problem is None]
    total = sum(len(operator.states) for operator in wanted)
    done = 0
    for operator in wanted:
        if operator.name in run.stored.same:
            yield from run.stored.carry(run.checkpoint, operator.name)
            done += len(operator.states)
            continue
        described = describe_operator_state(operator.operator, operator.dropped)
        run.implausible.extend(find_implausible_classes(operator.operator, described))
        taken = [columns.state.name for columns, *_ in operator.states]
        for name, candidates in zip(taken, operator.states, strict=True):
            what = f"{name} of {operator.name}"
            most = operator.operator.metadata.max_parallelism
            progress = _Progress(on_progress, done, total, what, most)
            yield _import_keyed(run, operator, candidates, progress)
            done += 1
        yield from operator_states(
            run.checkpoint,
            operator.name,
            operator.operator,
            taken,
            operator.dropped,
            kryo=run.kryo,
            is_strict=run.is_strict,
        )


class _Progress:
    """The progress of the next state, after ``done`` of ``total`` states.

    The share of this state follows from the key groups that the threads report.
    """

    def __init__(
        self, listener: _OnProgress | None, done: int, total: int, what: str, key_groups: int
    ) -> None:
        self._listener, self._done, self._total, self._what = listener, done, total, what
        self._key_groups, self._read = key_groups, 0
        self._lock = Lock()

    def begin(self) -> None:
        """Report that the state is at its beginning."""
        self._read = 0
        self._add(0)

    def through(self, groups: _Groups, key_groups: KeyGroupRange) -> _Groups:
        """Yield the rows of some key groups, and report each key group when it is finished.

        Key groups without rows are reported together with the next one that has rows.
        """
        last = key_groups.first - 1
        for group, table in groups:
            yield group, table
            self._add(group - last)
            last = group
        self._add(key_groups.last - last)

    def _add(self, key_groups: int) -> None:
        if self._listener is not None:
            with self._lock:
                self._read += key_groups
                share = self._read / self._key_groups
                self._listener(self._done + share, self._total, self._what)


def _import_keyed(
    run: _Import, planned: PlannedOperator, candidates: Candidates, progress: _Progress
) -> ImportedState:
    """Write a keyed state in the first form that can represent all of its rows."""
    why = candidates[0].why
    name = candidates[0].state.name
    stored = run.stored.keyed(planned.name, name)
    for candidate in candidates:
        columns, is_last = candidate, candidate is candidates[-1]
        if stored is not None:
            columns = candidate.with_stored_zones(arrow_schema(stored.state.schema))
        accesses = list[tuple[int, int]]()
        try:
            entry = _write_entry(run, planned, columns, progress, accesses)
        except UnsupportedTypeError as error:
            if run.is_strict or is_last:
                error.add_note(f"state {name!r} of operator {planned.name}")
                if stored is not None:
                    error.add_note(
                        "the values before had columns that this one does not fit: import the "
                        "savepoint into a separate store"
                    )
                raise
            why = why or str(error)
            continue
        except DamagedFileError as error:
            if not is_last and find_value_class(columns.state) is not None:
                why = why or str(error)  # the job may have another serializer for such a class
                continue
            if columns.python:
                raise InvalidArgumentError(
                    f"state {name!r} of operator {planned.name} is not of the declared type "
                    f"{columns.python}; declare the type that the job uses, or none to import "
                    f"bytes ({error})"
                ) from error
            raise
        run.implausible.extend(find_implausible_times(planned.name, name, accesses))
        return _record_state(planned, columns, entry, why)
    raise AssertionError("a state must have a form")


def _record_state(
    planned: PlannedOperator, columns: StateColumns, entry: KeyedEntry, why: str | None
) -> ImportedState:
    """Return the record of a state that was written in ``columns``."""
    contents, state = entry.contents, columns.state
    assert contents is not None, "all rows of the state must be passed"
    assert planned.header is not None, "an operator with states must have a header"
    info = planned.info(state.name)
    raw = {name: snapshot.raw for name, snapshot in info.serializers.items()}
    return ImportedState(
        operator=planned.name,
        state=state.name,
        name=state.name,
        sort="keyed",
        kind=columns.kind.value,
        form=columns.form,
        why=None if columns.form is EntryForm.COLUMNS else why,
        names=columns.names,
        options=dict(info.options),
        key_serializer=planned.header.key.raw,
        namespace_serializer=raw.get("NAMESPACE_SERIALIZER"),
        value_serializer=raw["VALUE_SERIALIZER"],
        rows=contents.rows,
        digest=contents.digest,
        python=columns.python,
        key_hash=state.recipe,
        key_class=state.key.text if isinstance(state.key, KryoType) and state.key.simple else None,
        value_class=find_value_class(state),
    )


def _write_entry(
    run: _Import,
    planned: PlannedOperator,
    columns: StateColumns,
    progress: _Progress,
    accesses: list[tuple[int, int]],
) -> KeyedEntry:
    """Write a state in ``columns``; ``accesses`` gets the bounds of its last accesses."""
    name, operator = columns.state.name, planned.operator
    most = operator.metadata.max_parallelism
    # The store's key groups of bytes differ from Flink's, as does the order: one range, to sort.
    is_sorted = not columns.form.has_flink_groups
    threads = min(_thread_count(run, planned), most) if is_sorted else 1
    share = KeyGroupAssignment(max_parallelism=most, parallelism=threads)
    progress.begin()
    ranges = [
        RowRange(own, progress.through(_decode_tables(operator, columns, own, accesses), own))
        for own in map(share.range_of, range(threads))
    ]
    if is_sorted:
        rows: Any = GroupedRows(
            columns.schema, tuple(ranges), _bytes_per_state(planned) // _ROW_BYTES
        )
    else:
        # Not a RecordBatchReader, which would replace the type of an error. An empty batch gives
        # the columns of a state without rows.
        rows = chain([pa.RecordBatch.from_pylist([], columns.schema)], _split_batches(ranges[0]))
    ttl = time_to_live(run.ttl, planned.name, columns)
    stored = run.stored.keyed(planned.name, name)
    if stored is not None and (ttl is None or stored.state.ttl is not None):
        return run.checkpoint.write_changes_against(planned.name, name, rows, ttl=ttl)
    return run.checkpoint.write_keyed(
        planned.name,
        name,
        rows,
        key=columns.key.names,
        namespace=columns.namespace.names,
        max_parallelism=operator.metadata.max_parallelism,
        ttl=ttl,
        entry=columns.entry_columns,
        kind=columns.kind,
        time_domain=_time_domain(name) if columns.kind is StateKind.TIMERS else None,
        hash_scheme=columns.hash_scheme,
        key_types=columns.key_types,
    )


def _split_batches(rows: RowRange) -> Iterator[pa.RecordBatch]:
    for _, table in rows.groups:
        yield from table.to_batches()


def _time_domain(name: str) -> TimeDomain:
    """Return the time domain of a timer queue, according to Flink's name of it."""
    is_event = name.rpartition("/")[2].startswith(_EVENT)
    return TimeDomain.EVENT if is_event else TimeDomain.PROCESSING


def _thread_count(run: _Import, planned: PlannedOperator) -> int:
    """Return the number of threads that write a state."""
    if run.threads is not None:
        return run.threads
    worth = max(_bytes_per_state(planned) // _BYTES_WORTH_A_THREAD, 1)
    return min(worth, _cores(), _THREADS_UNASKED)


def _cores() -> int:
    """Return the number of cores on which the process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # a system without CPU affinity
        return os.cpu_count() or 1


def _bytes_per_state(planned: PlannedOperator) -> int:
    """Return the average size of the operator's states in bytes."""
    return planned.operator.size_bytes // len(planned.states)


def _decode_tables(
    operator: FlinkOperator,
    columns: StateColumns,
    key_groups: KeyGroupRange,
    accesses: list[tuple[int, int]],
) -> _Groups:
    """Yield the rows of a state in some key groups; a large key group comes in several parts."""
    ordered = replace(
        operator, parts=tuple(sorted(operator.parts, key=lambda part: part.handle.first))
    )
    name = columns.state.name
    if columns.form is EntryForm.BYTES:
        prefix = prefix_bytes(operator.metadata.max_parallelism)
        for entries in ordered.entries(name, key_groups=key_groups):
            for part in entries.parts(_DECODED_BYTES):
                groups = np.full(len(part.keys), part.key_group, np.int32)
                yield part.key_group, columns.table_of_bytes(part, prefix, groups)
        return
    as_bytes = [name] if columns.form.has_value_bytes else []
    # The store checks the key groups of keys with columns.
    for rows in ordered.rows(
        name,
        as_bytes=as_bytes,
        declared=columns.state,
        key_groups=key_groups,
        is_checked=columns.form.has_flink_groups,
        most_bytes=_DECODED_BYTES,
    ):
        if columns.state.has_ttl and not as_bytes:
            accesses.extend(access_bounds(columns.state, rows.value))
        table, _ = columns.table(rows, np.full(len(rows), rows.key_group, np.int32))
        yield rows.key_group, table
