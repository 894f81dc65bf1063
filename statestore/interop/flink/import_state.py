"""``statestore flink import``: a savepoint of a Flink job as a checkpoint of a store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeAlias

import pyarrow as pa

from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    InvalidArgumentError,
    StateNotFoundError,
    StoreNotFoundError,
    UnsupportedTypeError,
)
from statestore.files.grouped import GroupedRows
from statestore.flink.graph import JobGraph, Node
from statestore.flink.operators import operator_id
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry
from statestore.format.state import StateKind, TimeDomain, TimeToLive
from statestore.interop.flink.canonical import prefix_bytes
from statestore.interop.flink.import_operators import operator_states
from statestore.interop.flink.import_plan import PlannedOperator, PlannedState, plan_import
from statestore.interop.flink.left_out import (
    NOT_ASKED_FOR,
    checkpoint_left_out,
    has_state,
    left_out_of,
)
from statestore.interop.flink.losses import lost_timers
from statestore.interop.flink.named_columns import Form, StateColumns
from statestore.interop.flink.record import (
    RECORD,
    ImportedOperator,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink.refusals import refused_kinds
from statestore.interop.flink.savepoint import FlinkOperator, Savepoint, open_savepoint
from statestore.keys.groups import KeyGroupRange, is_int
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter
from statestore.storage import open_storage
from statestore.store import StateStore

__all__ = ["ImportedSavepoint", "import_savepoint"]

_METADATA = "_metadata"
_ROW_BYTES = 32  # about; it decides whether a key group gets a file of its own
_DECODED_BYTES = 8 * 2**20  # of entries at a time
_MOST_THREADS = 64
_THREADS_UNASKED = 4
_BYTES_WORTH_A_THREAD = 8 * 2**20  # about; with fewer, to begin one costs more than it saves
_OnProgress: TypeAlias = Callable[[float, float, str], None]
_Groups: TypeAlias = Iterator[tuple[int, pa.Table]]
_EVENT, _PROCESSING = "event", "processing"


@dataclass(frozen=True)
class ImportedSavepoint:
    """A checkpoint that was made of a savepoint.

    ``found`` says that the store had this savepoint already; ``is_incremental``, that only what
    changed since the one before was written. ``warnings`` say of operators what the savepoint may
    have lost before. ``left_out`` is the state of the savepoint that the checkpoint does not have;
    if there is any, an export refuses to run unless it is told to leave it out too (I16).
    """

    place: str
    store: str
    checkpoint_id: int
    found: bool
    is_incremental: bool
    record: SavepointRecord
    warnings: tuple[str, ...]
    left_out: tuple[LeftOutState, ...] = ()

    @property
    def not_read(self) -> tuple[LeftOutState, ...]:
        """The operators that were left out because they cannot be read, and not by name."""
        return tuple(
            one for one in self.left_out if one.state is None and one.reason != NOT_ASKED_FOR
        )


@dataclass(frozen=True)
class _Import:
    """What is the same of all states of an import."""

    checkpoint: CheckpointWriter
    restored: RestoredCheckpoint | None
    ttl: Mapping[str, int]
    is_strict: bool
    threads: int | None

    def knows(self, uid: str, state: str) -> bool:
        """Return whether the newest checkpoint has a keyed state."""
        if self.restored is None:
            return False
        keyed = self.restored.manifest.keyed
        return any((one.state.uid, one.state.name) == (uid, state) for one in keyed)


def import_savepoint(
    place: str,
    store: StateStore,
    *,
    operators: Collection[str] = (),
    uids: Mapping[str, str] | None = None,
    columns: Mapping[str, Any] | None = None,
    ttl: Mapping[str, int] | None = None,
    strict: bool = False,
    moved: Mapping[str, str] | None = None,
    allow: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
    drop: Collection[str] = (),
    threads: int | None = None,
    on_progress: _OnProgress | None = None,
) -> ImportedSavepoint:
    """Write the state in a savepoint, or checkpoint, of a Flink job as the next one of a store.

    Each keyed state becomes one of the store, with the same key groups; operator state is kept by
    subtask. What has no column form comes along as bytes. A later savepoint of the same job is an
    incremental checkpoint. The savepoint is only read. Threads write a range of a state's key
    groups each. Each thread reads and decodes some megabytes at a time, or a key group of a native
    savepoint, and sorts rows in its share of ``ParquetOptions(memory_bytes=…)``. A state whose keys
    have no columns is sorted as a whole, by one thread.

    Args:
        place: the savepoint's folder or its ``_metadata``, as a path or URL.
        store: a new store, or one that has an earlier savepoint of this job.
        operators: which operators, by uid, name or id; by default all that can be read.
        uids: uids by operator id, of operators of which the savepoint does not have them.
        columns: names of columns by operator: ``key`` and ``namespace``, and under ``states`` by
            state also ``map_key`` and ``value``, each a name or a list of them; and as ``type``
            what a state of PyFlink is, ``ValueState<LONG>``. States that the store has keep theirs.
        ttl: times to live in milliseconds, by state or ``operator/state``: the savepoint has when
            rows were used last, and not how long they live.
        strict: refuses what would come along as bytes, and operators that cannot be read.
        moved: where folders lie now that the savepoint names by absolute paths.
        allow: folders and files elsewhere that the savepoint may name, as paths or URLs.
        options: options for fsspec, with which the savepoint is reached.
        drop: what is left out, and is refused else, by its name in :class:`Refused`.
        threads: how many at most; by default as many as the process has cores, up to four, and
            fewer for a small state. What is stored does not depend on it, but for how many files.
        on_progress: is called with the number of states that are done, of how many, and the next;
            a part of one counts by its key groups. Threads call it one at a time.

    Returns:
        What was imported, and the checkpoint.

    Raises:
        InvalidArgumentError: for no savepoint, names that do not fit, a number of threads that is
            not in 1..64, or a store that has something else.
        StateNotFoundError: for an operator or state that is not there.
        UnsupportedTypeError: for an operator that is asked for and cannot be read; with ``strict``,
            for all that would be bytes, or left out.
        SchemaMismatchError: for a state whose types are not those that the store has.
        LeftOutStateError: for an operator that the store has and the import would leave out.
        DamagedFileError or MissingFileError: when a file of the savepoint is not as Flink wrote it.
        StateStoreError: as ``store.snapshot`` and ``checkpoint.keyed``.
    """
    told = refused_kinds(drop)
    _check_threads(threads)
    savepoint = open_savepoint(place, moved=moved, allow=allow, options=options, drop=told)
    digest = hashlib.sha256(open_storage(savepoint.url, options).read(_METADATA)).hexdigest()
    number = savepoint.metadata.checkpoint_id
    places = savepoint.url, store.url
    warnings = tuple(_warnings(savepoint))
    restored = _stored(store)
    before = None if restored is None else SavepointRecord.of(restored)
    if restored is not None and before is not None:
        if before.digest == digest:
            left_out = checkpoint_left_out(restored.manifest, before)
            newest = restored.checkpoint_id
            return ImportedSavepoint(*places, newest, True, False, before, warnings, left_out)
        _refuse_other(before, {one.metadata.id for one in savepoint.operators}, number, store)
    planned = plan_import(
        savepoint,
        operators=operators,
        uids=uids or {},
        columns=columns or {},
        before=before,
        drop=told,
    )
    _check_ttl(ttl or {}, planned)
    if strict:
        _refuse_bytes(planned, savepoint.url)
    graph = JobGraph(tuple(_nodes(planned)))
    left_out = tuple(left_out_of(savepoint, planned))
    with store.snapshot(graph=graph) as checkpoint:
        run = _Import(checkpoint, restored, ttl or {}, strict, threads)
        states = tuple(_states(run, planned, on_progress))
        record = SavepointRecord(
            savepoint.url,
            number,
            savepoint.metadata.version,
            digest,
            tuple(map(_operator, planned)),
            states,
        )
        record.write(checkpoint)
        checkpoint.record_left_out(left_out, inherit=False)
        for uid, name in checkpoint.left_out():
            checkpoint.drop(uid, name)
    is_incremental = before is not None
    return ImportedSavepoint(
        *places, checkpoint.id, False, is_incremental, record, warnings, left_out
    )


def _warnings(savepoint: Savepoint) -> Iterator[str]:
    """Yield what the savepoint itself may have lost, by operator."""
    for one in savepoint.operators:
        said = lost_timers(savepoint, one)
        if said is not None:
            yield f"{one.title}: {said}"


def _stored(store: StateStore) -> RestoredCheckpoint | None:
    """Return the newest checkpoint of a store; None for no store."""
    try:
        return store.restore()
    except (StoreNotFoundError, CheckpointNotFoundError):
        return None


def _refuse_other(
    before: SavepointRecord, operators: Collection[str], number: int, store: StateStore
) -> None:
    """Refuse a store whose newest checkpoint is of another job, or of a later savepoint."""
    if not {one.id for one in before.operators} & set(operators):
        raise InvalidArgumentError(
            f"{store.url} has the savepoint {before.place}, of which no operator is in this one: "
            "import another job into a store of its own"
        )
    if before.checkpoint > number:
        raise InvalidArgumentError(
            f"{store.url} has checkpoint {before.checkpoint} of the job, which is later than "
            f"{number}: import an earlier one into a store of its own"
        )


def _check_threads(threads: int | None) -> None:
    if threads is not None and not (is_int(threads) and 1 <= threads <= _MOST_THREADS):
        raise InvalidArgumentError(f"threads lies in 1..{_MOST_THREADS}, not {threads!r}")


def _check_ttl(ttl: Mapping[str, int], planned: tuple[PlannedOperator, ...]) -> None:
    known = {
        name
        for operator in planned
        for one in operator.states
        if any(form.last_access for form in one.forms)
        for name in (one.info.name, f"{operator.name}/{one.info.name}")
    }
    for name in ttl:
        if name not in known:
            raise StateNotFoundError(
                f"no state {name!r} has times of last access, for a time to live; those that have "
                f"are {', '.join(sorted(known)) or 'none'}"
            )


def _refuse_bytes(planned: tuple[PlannedOperator, ...], url: str) -> None:
    found = [
        f"operator {one.operator.title}: {one.problem}"
        for one in planned
        if one.is_wanted and one.problem is not None
    ]
    found += [
        f"state {one.info.name!r} of operator {operator.name}: {one.why}"
        for operator in planned
        for one in operator.states
        if one.forms[0].form is not Form.COLUMNS
    ]
    if found:
        raise UnsupportedTypeError(
            f"{url} has state without a column form, which is refused: {'; '.join(found)}"
        )


def _nodes(planned: tuple[PlannedOperator, ...]) -> Iterator[Node]:
    """Yield the operators, by which a restore with a job graph finds their state."""
    for one in planned:
        data = one.operator.metadata
        number = None if operator_id(one.name) == data.id else data.id
        yield Node(
            one.name,
            uid=one.name,
            uid_hash=number,
            parallelism=data.parallelism,
            max_parallelism=data.max_parallelism,
        )
    yield Node(RECORD, uid=RECORD)


def _states(
    run: _Import,
    planned: tuple[PlannedOperator, ...],
    on_progress: _OnProgress | None,
) -> Iterator[ImportedState]:
    wanted = [one for one in planned if one.is_wanted and one.problem is None]
    total = sum(len(one.states) for one in wanted)
    done = 0
    for one in wanted:
        for state in one.states:
            what = f"{state.info.name} of {one.name}"
            most = one.operator.metadata.max_parallelism
            yield _keyed(run, one, state, _Progress(on_progress, done, total, what, most))
            done += 1
        taken = [state.info.name for state in one.states]
        yield from operator_states(
            run.checkpoint, one.name, one.operator, taken, one.dropped, run.is_strict
        )


class _Progress:
    """How much of one more state is done, which is ``done`` of ``total``: by its key groups, as
    threads tell of them.
    """

    def __init__(
        self, listener: _OnProgress | None, done: int, total: int, what: str, key_groups: int
    ) -> None:
        self._listener, self._done, self._total, self._what = listener, done, total, what
        self._key_groups, self._read = key_groups, 0
        self._lock = Lock()

    def begin(self) -> None:
        """Say that nothing of the state is done yet."""
        self._read = 0
        self._add(0)

    def through(self, groups: _Groups, key_groups: KeyGroupRange) -> _Groups:
        """Yield the rows in some key groups, and say after each that it is done, and those before
        it.
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


def _keyed(
    run: _Import, planned: PlannedOperator, one: PlannedState, progress: _Progress
) -> ImportedState:
    """Write a keyed state in the first form that takes all of its rows."""
    why = one.why
    for columns in one.forms:
        try:
            entry = _written(run, planned, one, columns, progress)
        except UnsupportedTypeError as error:
            if run.is_strict or columns is one.forms[-1]:
                error.add_note(f"state {one.info.name!r} of operator {planned.name}")
                raise
            why = why or str(error)
            continue
        except DamagedFileError as error:
            if one.python:
                raise InvalidArgumentError(
                    f"state {one.info.name!r} of operator {planned.name} is not what is declared "
                    f"of it, {one.python}: say what the job has, or nothing for bytes ({error})"
                ) from error
            raise
        contents = entry.contents
        assert contents is not None, "all rows of the state were given"
        assert planned.header is not None, "an operator with states has a header"
        raw = {name: snapshot.raw for name, snapshot in one.info.serializers.items()}
        return ImportedState(
            operator=planned.name,
            state=one.info.name,
            name=one.info.name,
            sort="keyed",
            kind=columns.kind.value,
            form=columns.form,
            why=None if columns.form is Form.COLUMNS else why,
            names=columns.names,
            options=dict(one.info.options),
            key_serializer=planned.header.key.raw,
            namespace_serializer=raw.get("NAMESPACE_SERIALIZER"),
            value_serializer=raw["VALUE_SERIALIZER"],
            rows=contents.rows,
            digest=contents.digest,
            python=one.python,
        )
    raise AssertionError("a state has a form")


def _written(
    run: _Import,
    planned: PlannedOperator,
    one: PlannedState,
    columns: StateColumns,
    progress: _Progress,
) -> KeyedEntry:
    name, operator = one.info.name, planned.operator

    def tables(key_groups: KeyGroupRange) -> _Groups:
        return progress.through(_tables(operator, columns, key_groups), key_groups)

    progress.begin()
    estimated = _bytes(planned) // _ROW_BYTES
    rows: Any = GroupedRows(columns.schema, tables, _threads(run, planned), estimated)
    if columns.form is Form.BYTES:  # whose key groups are others than Flink's, in another order
        every = KeyGroupRange.every(operator.metadata.max_parallelism)
        batches = (batch for _, table in tables(every) for batch in table.to_batches())
        rows = pa.RecordBatchReader.from_batches(columns.schema, batches)
    lives = run.ttl.get(f"{planned.name}/{name}", run.ttl.get(name))
    ttl = None
    if lives is not None and columns.last_access is not None:
        ttl = TimeToLive(lives, columns.last_access)
    if run.knows(planned.name, name):
        return run.checkpoint.changes_against(planned.name, name, rows, ttl=ttl)
    return run.checkpoint.keyed(
        planned.name,
        name,
        rows,
        key=columns.key.names,
        namespace=columns.namespace.names,
        entry=columns.entry_columns,
        kind=columns.kind,
        time_domain=_time_domain(name) if columns.kind is StateKind.TIMERS else None,
        hash_scheme=columns.hash_scheme,
        key_types=columns.key_types,
        max_parallelism=operator.metadata.max_parallelism,
        ttl=ttl,
    )


def _time_domain(name: str) -> TimeDomain:
    """Return by which time the timers of a queue fire, as Flink names it."""
    is_event = name.rpartition("/")[2].startswith(_EVENT)
    return TimeDomain.EVENT if is_event else TimeDomain.PROCESSING


def _threads(run: _Import, planned: PlannedOperator) -> int:
    """Return how many threads write a state."""
    if run.threads is not None:
        return run.threads
    worth = max(_bytes(planned) // _BYTES_WORTH_A_THREAD, 1)
    return min(worth, _cores(), _THREADS_UNASKED)


def _cores() -> int:
    """Return on how many cores the process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # a system that does not say it
        return os.cpu_count() or 1


def _bytes(planned: PlannedOperator) -> int:
    """Return about how many bytes one of its states has."""
    return planned.operator.size_bytes // len(planned.states)


def _tables(operator: FlinkOperator, columns: StateColumns, key_groups: KeyGroupRange) -> _Groups:
    """Yield the rows of a state in some key groups, a part of a large key group at a time."""
    ordered = replace(
        operator, parts=tuple(sorted(operator.parts, key=lambda one: one.handle.first))
    )
    name = columns.state.name
    if columns.form is Form.BYTES:
        prefix = prefix_bytes(operator.metadata.max_parallelism)
        for entries in ordered.entries(name, key_groups=key_groups):
            for part in entries.parts(_DECODED_BYTES):
                yield part.key_group, columns.table_of_bytes(part, prefix)
        return
    as_bytes = [name] if columns.form is Form.VALUE_BYTES else []
    # The store checks key groups.
    for rows in ordered.rows(
        name,
        as_bytes=as_bytes,
        declared=columns.state,
        key_groups=key_groups,
        is_checked=False,
        most_bytes=_DECODED_BYTES,
    ):
        yield rows.key_group, columns.table(rows)


def _operator(planned: PlannedOperator) -> ImportedOperator:
    data = planned.operator.metadata
    header = planned.header
    return ImportedOperator(
        operator=planned.name,
        id=data.id,
        uid=data.uid,
        name=data.name,
        parallelism=data.parallelism,
        max_parallelism=data.max_parallelism,
        is_finished=data.is_finished,
        is_compressed=header is not None and header.is_compressed,
        is_imported=planned.problem is None and (planned.is_wanted or not has_state(data)),
        finished_subtasks=tuple(one.index for one in data.subtasks if one.is_finished),
        coordinator_name=None if data.coordinator is None else data.coordinator.name,
        coordinator=None if data.coordinator is None else data.coordinator.data,
        problem=planned.problem,
    )
