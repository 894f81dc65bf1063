"""Take a snapshot: begin a checkpoint, write its states, then commit one manifest.

Tables are published first, and the manifest is put last (I5). :class:`CheckpointWriter` is what
``with store.snapshot(…) as checkpoint`` yields. Each call writes one state's files immediately;
leaving the block publishes the tables and commits the manifest. An exception in the block deletes
what was written and commits nothing.

If the store already has the batch, each call that writes returns the stored state instead, and
raises StateNotFoundError if that checkpoint lacks the state. Rows are ignored, so a DataFrame is
not even computed. All other calls work, and have no effect.

A writer first claims the store (``fence.py``), then looks for the newest id. In this order it
either sees the last checkpoint that a previous writer could commit, or takes an id that blocks that
writer (I6).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, Unpack

from statestore.arguments import checked_methods
from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Claim, Fence, actor_name
from statestore.delta.state_table import StateTable
from statestore.engines.given_rows import is_schema
from statestore.errors import CommitConflictError, InvalidArgumentError
from statestore.format.layers import CompactionRule
from statestore.format.manifest import (
    Batch,
    BatchRecord,
    Entry,
    KeyedEntry,
    Manifest,
    OperatorEntry,
    Writer,
    batch_of,
)
from statestore.format.manifest_json import manifest_to_json
from statestore.format.metrics import CheckpointMetrics
from statestore.format.names import GREATEST_GIVEN_ID, manifest_path
from statestore.format.state import clock_ms
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.operators import Operators
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import RangeAssignment, check_parallelism
from statestore.parquet.writer import ParquetOptions
from statestore.restore.plan import owners_of
from statestore.snapshot.background_compaction import BackgroundCompaction
from statestore.snapshot.carry import carry, left_out
from statestore.snapshot.commit import abandon, commit
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.pending_checkpoint import (
    LATEST,
    NOT_ENTERED,
    USED,
    PendingCheckpoint,
    PriorCheckpoints,
)
from statestore.snapshot.state_spec import Changes, StateOptions, StateSpec
from statestore.snapshot.state_writer import (
    declare,
    write_against,
    write_changes,
    write_full,
    write_operator,
)
from statestore.snapshot.subtask_writer import Acknowledgement, KeyedWriter


@checked_methods
class CheckpointWriter:
    """Collects the states of one checkpoint, and commits them together when its block ends."""

    def __init__(self, pending: PendingCheckpoint, stored: Manifest | None = None) -> None:
        """Start with no states; see ``StateStore.snapshot``.

        Args:
            pending: the checkpoint to take.
            stored: the checkpoint that already contains the batch; None if there is none.
        """
        self._pending, self._stored = pending, stored
        pending.manifest = stored

    @property
    def already_committed(self) -> bool:
        """Whether the store already contains this batch; then nothing is written."""
        return self._stored is not None

    @property
    def id(self) -> int:
        """The checkpoint's number, known once it is committed.

        Raises:
            InvalidArgumentError: before the block has ended.
        """
        return self.manifest.checkpoint_id

    @property
    def planned(self) -> tuple[int, Writer]:
        """The number that the checkpoint will get, and its writer; known before the commit.

        A caller that never receives the answer to a commit can look up this number. The checkpoint
        is this one if its manifest names the same writer.
        """
        return self._pending.checkpoint_id, self._pending.writer

    @property
    def manifest(self) -> Manifest:
        """The committed manifest.

        Raises:
            InvalidArgumentError: before the block has ended.
        """
        if self._pending.manifest is None:
            raise InvalidArgumentError(
                "the checkpoint is committed when its 'with' block ends, not earlier"
            )
        return self._pending.manifest

    @property
    def metrics(self) -> CheckpointMetrics | None:
        """The checkpoint's metrics, including the put of its manifest.

        If the checkpoint was committed earlier, these are the metrics in its manifest.

        Raises:
            InvalidArgumentError: before the block has ended.
        """
        return self._pending.metrics or self.manifest.metrics

    @property
    def collected(self) -> PendingCheckpoint:
        """The states written or carried so far, for commands that derive a checkpoint."""
        return self._pending

    def write_keyed(
        self,
        operator: str,
        state: str,
        rows: Any,
        **options: Unpack[StateOptions],
    ) -> KeyedEntry:
        """Write all rows of a keyed state.

        There is one row per key and namespace, unless ``kind`` says otherwise. Rows that
        were restored from this store are written back without ``key``, whatever their kind.

        Args:
            operator: the operator's uid.
            state: the state's name.
            rows: a Spark DataFrame, an Arrow table or stream, a frame with Arrow's C interface, or
                dictionaries. An iterator is read to its end. The column ``key_group`` of restored
                rows is checked, and not stored again. Dictionaries and untyped columns of pandas
                keep the stored types if their values fit. A timestamp with a time zone is stored as
                an instant and read in UTC, without the name of its zone.
            **options: what describes the state; see :class:`StateOptions`.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            NullKeyError, DuplicateKeyError or UnsupportedTypeError: for the rows.
            SchemaMismatchError, ParallelismError or InvalidArgumentError: for a conflict with the
                stored state, or between arguments. Nothing is visible in that case either.
        """
        return self._write_full(StateSpec.of(operator, state, options), rows)

    def declare_keyed(
        self,
        operator: str,
        state: str,
        schema: Any,
        **options: Unpack[StateOptions],
    ) -> KeyedWriter:
        """Declare a keyed state that subtasks write in any process; nothing is written here.

        Raises the errors of :meth:`write_keyed`.

        Args:
            operator: the operator's uid.
            state: the state's name.
            schema: the columns of the rows, a ``pyarrow.Schema``.
            **options: as in :meth:`write_keyed`.

        Returns:
            A writer to send to the subtasks. ``writer.subtask(i).write(table)`` writes the rows of
            subtask i. Each answer goes to :meth:`acknowledge`.
        """
        return self._declare(StateSpec.of(operator, state, options), schema)

    def write_changes(
        self,
        operator: str,
        state: str,
        changes: Any,
        *,
        base: int | str = LATEST,
        **options: Unpack[StateOptions],
    ) -> KeyedEntry:
        """Write the changes of a keyed state since the newest checkpoint, or since ``base``.

        A value of another type than the column's is accepted if the conversion is lossless. If it
        is not, the error names its column and row. In a state with a TTL, upserts without its
        column get the checkpoint's clock, because a write counts as a use. If reads count too, the
        rows that were read must also be upserts. If the newest checkpoint lacks the state, the
        upserts are written in full, and a warning is logged.

        Args:
            operator: the operator's uid.
            state: the state's name.
            changes: ``Changes(upserts, deletes, cleared)``, or rows, which are upserts.
            base: the checkpoint that the changes build on. A job that was restored from an older
                checkpoint passes its number.
            **options: as in :meth:`write_keyed`.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            DuplicateKeyError: for an entry that is given twice, or is both upserted and deleted.
            NullKeyError: for a null in a key.
            SchemaMismatchError or ParallelismError: if columns, hash scheme or max parallelism
                differ from the base.
            CheckpointNotFoundError: if the base has expired.
        """
        changes = changes if isinstance(changes, Changes) else Changes(changes)
        return self._write_changes(StateSpec.of(operator, state, options), changes, base)

    def write_changes_against(
        self,
        operator: str,
        state: str,
        rows: Any,
        *,
        base: int | str = LATEST,
        **options: Unpack[StateOptions],
    ) -> KeyedEntry:
        """Compare all rows of a keyed state with a checkpoint, and write the differences.

        Use it if the changes are not known.

        Key groups whose stored digest equals the digest of the rows are not read. The others are
        merged and compared one after another, in Spark by the tasks that write. If nothing changed,
        no file is written. If the newest checkpoint lacks the state, the rows are written in full,
        and a warning is logged.

        Args:
            operator: the operator's uid.
            state: the state's name.
            rows: all rows of the state.
            base: the checkpoint to compare with: its number, ``latest``, or a savepoint's name. The
                new checkpoint builds on it, even if there are later ones.
            **options: as in :meth:`write_keyed`.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            MissingFileError or DamagedFileError: if a file of ``base`` is missing or damaged.
            StateStoreError: the errors of :meth:`write_changes`.
        """
        return self._write_against(StateSpec.of(operator, state, options), rows, base)

    def _write_full(self, spec: StateSpec, rows: Any) -> KeyedEntry:
        if self._stored is not None:
            return self._stored.keyed_entry(spec.operator, spec.state)
        if rows is None or is_schema(rows):
            raise InvalidArgumentError(
                f"{spec} has no rows; write changes with checkpoint.write_changes(…), and rows "
                "of subtasks with checkpoint.declare_keyed(…)"
            )
        self._pending.refuse_twice(spec.operator, spec.state)
        with self._pending.measuring.writing(spec.operator, spec.state):
            entry = write_full(self._pending, spec, rows)
        self._pending.rewritten.add((spec.operator, spec.state))
        return entry

    def _declare(self, spec: StateSpec, schema: Any) -> KeyedWriter:
        if self._stored is not None:  # its subtasks write nothing
            entry = self._stored.keyed_entry(spec.operator, spec.state)
            owners = owners_of(self._stored, spec.operator)
            return KeyedWriter(self._pending.id, replace(entry, handles=()), owners, target=None)
        if not is_schema(schema):
            raise InvalidArgumentError(
                f"{spec} must be declared with a pyarrow.Schema, not "
                f"{type(schema).__name__}; write rows with checkpoint.write_keyed(…)"
            )
        self._pending.refuse_twice(spec.operator, spec.state)
        with self._pending.measuring.writing(spec.operator, spec.state):
            writer = declare(self._pending, spec, schema)
        self._pending.rewritten.add((spec.operator, spec.state))
        return writer

    def _write_changes(self, spec: StateSpec, changes: Changes, base: int | str) -> KeyedEntry:
        if self._stored is not None:
            return self._stored.keyed_entry(spec.operator, spec.state)
        self._pending.refuse_twice(spec.operator, spec.state)
        with self._pending.measuring.writing(spec.operator, spec.state):
            entry = write_changes(self._pending, spec, changes, base)
        if base != LATEST:
            manifest = self._pending.history.load(base)
            self._pending.bases[manifest.checkpoint_id] = manifest
        return entry

    def _write_against(self, spec: StateSpec, rows: Any, base: int | str) -> KeyedEntry:
        if self._stored is not None:
            return self._stored.keyed_entry(spec.operator, spec.state)
        self._pending.refuse_twice(spec.operator, spec.state)
        with self._pending.measuring.writing(spec.operator, spec.state):
            entry = write_against(self._pending, spec, rows, base)
        self._pending.rewritten.add((spec.operator, spec.state))
        return entry

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        """Add a subtask's answer, so that the checkpoint has its files. This method is thread-safe.

        The first answer of a subtask counts, and its repetition changes nothing. If a subtask was
        run twice, the files of its other answer are deleted.

        Args:
            acknowledgement: what ``writer.subtask(i).write(…)`` returned.

        Returns:
            Whether the checkpoint has the files of this answer.

        Raises:
            InvalidArgumentError: for an answer to another checkpoint or attempt, or for a state
                that was not declared; its files are not touched.
        """
        if self._stored is not None:
            return False
        if self._pending.left:
            raise InvalidArgumentError(USED)
        state, attempted = acknowledgement.entry.state, self._pending.id
        if acknowledgement.attempt != attempted:
            raise InvalidArgumentError(
                f"the acknowledgement of subtask {acknowledgement.subtask} of {state} is for "
                f"{acknowledgement.attempt}, but this is {attempted}; write again with the "
                "writer that declare_keyed(…) of this checkpoint returned"
            )
        awaited = self._pending.awaited.get((state.uid, state.name))
        if awaited is None:
            raise InvalidArgumentError(
                f"{state} was not declared in this checkpoint; declare it with "
                "checkpoint.declare_keyed(…)"
            )
        is_new = awaited.add(acknowledgement)
        if is_new:
            self._pending.measuring.answered(state.uid, state.name)
        return is_new

    def write_split(self, operator: str, state: str, elements: Any) -> OperatorEntry:
        """Write list state of an operator: on a rescale, each element goes to one subtask.

        Args:
            operator: the operator's uid.
            state: the state's name.
            elements: a list of elements per subtask, or a DataFrame or table of elements with or
                without the columns ``subtask`` and ``position``.

        Returns:
            The state as the checkpoint will name it.
        """
        return self._operator(operator, state, elements, RedistributionMode.SPLIT)

    def write_union(self, operator: str, state: str, elements: Any) -> OperatorEntry:
        """Write union state: on a restore, every subtask gets every element.

        Args:
            operator: the operator's uid.
            state: the state's name.
            elements: as in :meth:`write_split`.

        Returns:
            The state as the checkpoint will name it.
        """
        return self._operator(operator, state, elements, RedistributionMode.UNION)

    def write_broadcast(self, operator: str, state: str, elements: Any) -> OperatorEntry:
        """Write broadcast state, which is the same in every subtask.

        Args:
            operator: the operator's uid.
            state: the state's name.
            elements: one list of elements.

        Returns:
            The state as the checkpoint will name it.
        """
        return self._operator(operator, state, elements, RedistributionMode.BROADCAST)

    def _operator(
        self, operator: str, state: str, elements: Any, mode: RedistributionMode
    ) -> OperatorEntry:
        if self._stored is not None:
            return self._stored.operator_entry(operator, state)
        entry = write_operator(self._pending, operator, state, elements, mode)
        self._pending.rewritten.add((operator, state))
        return entry

    def carry(self, operator: str, state: str, *, base: int | str = LATEST) -> Entry:
        """Carry a state from the newest checkpoint, or from ``base``, into this one.

        Its files are named again, and no row is read. Elements of an operator are redistributed if
        its parallelism has changed.

        Args:
            operator: the operator's uid.
            state: the state's name.
            base: the checkpoint that has the state.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            InvalidArgumentError: for a state that this checkpoint already has.
            StateNotFoundError or CheckpointNotFoundError: if the base or its state does not exist.
            MalformedManifestError or ParallelismError: if the state cannot be carried.
        """
        if self._stored is not None:
            return self._stored.find(operator, state)
        return carry(self._pending, operator, state, base)

    def carry_rest(self, *, base: int | str = LATEST) -> None:
        """Carry all remaining states of the newest checkpoint, or of ``base``, when the block ends.

        A state remains if this checkpoint has not written, carried or dropped it by then. It is
        carried as :meth:`carry` does.

        Raises:
            InvalidArgumentError: after the block has ended.
        """
        if self._pending.left:
            raise InvalidArgumentError(
                "carry_rest() was called outside of the 'with' block; call it inside"
            )
        self._pending.rest_of = base

    def drop(self, operator: str, state: str) -> None:
        """Leave a state of the newest checkpoint out of this one and all later ones.

        If the state does not exist, this does nothing.

        Args:
            operator: the operator's uid.
            state: the state's name.

        Raises:
            InvalidArgumentError: after the block has ended.
        """
        if self._pending.left:
            raise InvalidArgumentError("drop(…) must be called inside the 'with' block")
        self._pending.dropped.add((operator, state))

    def left_out(self, naming: Iterable[tuple[str, str]] = ()) -> tuple[tuple[str, str], ...]:
        """Return the states that would be lost if the block ended now.

        These are the states of the newest checkpoint that this one does not have.

        Args:
            naming: operator uid and name of states that count as already written.

        Returns:
            Operator uid and name of each state.
        """
        return () if self._stored is not None else left_out(self._pending, naming)

    def abandon(self) -> None:
        """Abandon the checkpoint before anything was written.

        Raises:
            InvalidArgumentError: if it is called inside the block.
        """
        if self._pending.entered and not self._pending.left:
            raise InvalidArgumentError(
                "abandon() was called inside the 'with' block; raise an exception there instead"
            )
        self._pending.entered = self._pending.left = True

    def __reduce__(self) -> NoReturn:
        """Refuse to pickle the writer: only this process commits the checkpoint."""
        raise InvalidArgumentError(
            "a checkpoint that is being taken cannot be pickled; send subtasks the result of "
            "checkpoint.declare_keyed(…), which can"
        )

    def __del__(self) -> None:
        """Warn about a checkpoint whose block was never entered, because nothing was committed."""
        pending = getattr(self, "_pending", None)
        if pending is None or pending.entered or pending.left or self.already_committed:
            return
        warnings.warn(
            (
                f"checkpoint {pending.checkpoint_id} of {pending.catalog.storage.url} "
                f"was begun but never taken: {NOT_ENTERED}"
            ),
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __enter__(self) -> Self:
        """Return the writer. Raises InvalidArgumentError if it was used before."""
        if self._pending.entered:
            raise InvalidArgumentError(USED)
        self._pending.entered = True
        if self._pending.background is not None:
            self._pending.background.snapshot_began()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Carry the rest if requested, refuse to lose a state, and commit.

        After an exception, the written files are deleted instead. A checkpoint that already exists
        stays, even after an exception.
        """
        pending = self._pending
        try:
            if self._stored is not None:
                pending.left = True
            elif error is None:
                commit(pending)
            else:
                abandon(pending, error)
        finally:
            if pending.background is not None:
                pending.background.snapshot_ended(pending.manifest, pending.now_ms)


def begin(
    catalog: Catalog,
    fence: Fence,
    table: StateTable,
    parallelism: int | None,
    *,
    graph: JobGraph | None,
    checkpoint_id: int | None,
    batch: tuple[str, int] | None = None,
    parquet: ParquetOptions,
    layout: str | None = None,
    release: str,
    token: str,
    measuring: Measuring,
    compaction: CompactionRule | None = None,
    background: BackgroundCompaction | None = None,
    ranges: Mapping[str, RangeAssignment] | None = None,
    now_ms: int | None = None,
    made_of: Manifest | None = None,
    observed_newest_id: int | None = None,
) -> CheckpointWriter:
    """Return the writer of the next checkpoint, or of ``checkpoint_id``.

    If ``parallelism`` is None, the largest one in the graph is used. If ``now_ms`` is None, the
    current time is used. ``measuring`` is a stopwatch that the caller has started. The checkpoint
    must have or drop each state of ``made_of``, or of the newest checkpoint if that is None. If the
    store already contains the batch, nothing is claimed or written; see
    :class:`CheckpointWriter`. The default batch is the one of ``checkpoint_id``, except for a
    checkpoint that is derived from another one. ``observed_newest_id`` is the newest id at the time
    when ``made_of`` was read.

    Raises ParallelismError, or InvalidArgumentError for an id that was skipped or has expired.
    Raises CommitConflictError if another writer has taken over, has committed a checkpoint after
    ``observed_newest_id``, has the id, or has a later batch of the job.
    """
    operators, actor = Operators(_parallelism(parallelism, graph), graph), actor_name()
    now_ms = clock_ms(now_ms)
    if checkpoint_id is not None:
        _check_number(checkpoint_id)
    own = None if made_of is not None else batch_of(batch, checkpoint_id)
    if graph is not None or ranges:
        _refuse_unreadable(catalog, operators, ranges or {})

    history = PriorCheckpoints(catalog, operators)
    attempt = partial(
        PendingCheckpoint,
        *(catalog, fence, table, parquet, operators),
        history=history,
        started_at_ms=now_ms,
        now_ms=now_ms,
        measuring=measuring,
        layout=layout,
        compaction=compaction,
        ranges=ranges or {},
        made_of=made_of,
        batch=own,
    )
    if own is not None:
        # Before the claim: neither a committed batch nor an impossible id is a reason to fence an
        # active writer.
        done = _find_committed(catalog, own, fence.current_token())
        if done is not None:
            return _committed(attempt, done)
    if checkpoint_id is not None and made_of is None:
        _refuse_id(catalog, checkpoint_id, catalog.next_id())
    with measuring.telling(checkpoint_id):
        if observed_newest_id is not None:  # before the claim too, for the same reason
            catalog.refuse_taken(observed_newest_id + 1, observed_newest_id)
        claimed = _claim_id(
            history, catalog, fence, checkpoint_id, own, made_of, observed_newest_id
        )
        if isinstance(claimed, Manifest):
            return _committed(attempt, claimed)
        claim, number = claimed
        newest_id = history.newest_id
    return CheckpointWriter(
        attempt(
            checkpoint_id=number,
            writer=Writer(release, claim.name, token, claim.generation, actor=actor),
            started_at_ms=clock_ms(None),
            background=background,
            observed_newest_id=newest_id if made_of is None else observed_newest_id,
        )
    )


def _committed(attempt: Callable[..., PendingCheckpoint], manifest: Manifest) -> CheckpointWriter:
    pending = attempt(checkpoint_id=manifest.checkpoint_id, writer=manifest.writer)
    return CheckpointWriter(pending, stored=manifest)


def _refuse_unreadable(
    catalog: Catalog, operators: Operators, ranges: Mapping[str, RangeAssignment]
) -> None:
    """Refuse a graph and ranges that no manifest can contain, before anything is written (I19)."""
    manifest_to_json(
        Manifest(
            store_id=catalog.store_id,
            checkpoint_id=1,
            parallelism=operators.parallelism,
            started_at_ms=0,
            created_at_ms=0,
            writer=Writer("", "", ""),
            keyed=(),
            operator=(),
            graph=operators.graph,
            ranges=ranges,
        )
    )


def _claim_id(
    history: PriorCheckpoints,
    catalog: Catalog,
    fence: Fence,
    checkpoint_id: int | None,
    batch: Batch | None,
    made_of: Manifest | None,
    observed_newest_id: int | None,
) -> Manifest | tuple[Claim, int]:
    """Return the claim and the checkpoint's number, or the checkpoint that contains the batch."""
    claim = fence.claim(announce=made_of is not None)
    # The one look for the newest: later checkpoints of other writers are conflicts.
    history.begin(claim.token)
    free = max(history.newest_id + 1, claim.announced_id)
    if made_of is not None:
        catalog.refuse_taken(free if checkpoint_id is None else checkpoint_id, observed_newest_id)
    # Search again: the fenced writer may have committed the batch before the claim.
    done = None if batch is None else _find_committed(catalog, batch, claim.token)
    if done is not None:
        return done
    if checkpoint_id is None:
        return claim, free
    if made_of is None:
        _refuse_id(catalog, checkpoint_id, free)
    if checkpoint_id > free:
        claim = fence.announce(checkpoint_id)
    return claim, checkpoint_id


def _parallelism(parallelism: int | None, graph: JobGraph | None) -> int:
    if parallelism is not None:
        return check_parallelism(parallelism)
    if graph is None or not graph.nodes:
        raise InvalidArgumentError("parallelism must be passed, or a job graph with operators")
    return max(node.parallelism for node in graph.nodes)


def _find_committed(catalog: Catalog, batch: Batch, token: str) -> Manifest | None:
    """Return a checkpoint that contains the batch, or None.

    ``token`` is of this writer's claim, if that is the store's newest one. Raises
    CommitConflictError if the batch number belongs to a different checkpoint.
    """
    own = catalog.newest_own(token)
    if own is not None and batch.job:
        record = (catalog.load_header(own).batches or {}).get(batch.job)
        if record is None or record.number < batch.number:
            return None
    visible, _ = catalog.visible_and_newest()
    manifest = (_find_by_record if batch.job else _find_by_id)(catalog, batch, visible)
    if manifest is None:
        return None
    # Its writer may have died before the manifest's name was durable, and the job now depends on
    # it.
    catalog.storage.sync([manifest_path(manifest.checkpoint_id)])
    return manifest


def _find_by_record(catalog: Catalog, batch: Batch, visible: Sequence[int]) -> Manifest | None:
    """Return the checkpoint of a batch.

    If it has expired, return the newest one, which builds on it.
    """
    newest = catalog.load_header(visible[-1]) if visible else None
    record = ((newest and newest.batches) or {}).get(batch.job)
    if newest is None or record is None or record.number < batch.number:
        return None
    if record.number > batch.number:
        raise CommitConflictError(
            f"{catalog.storage.url} already has batch {record.number} of job {batch.job!r}, in "
            f"checkpoint {record.checkpoint_id}, but {batch} is an earlier batch. Nothing is "
            "written. If the job was reset intentionally, create a separate store with "
            "'statestore copy --linked' at the checkpoint before that batch, or give the job "
            "another name"
        )
    return catalog.load_header(record.checkpoint_id) if record.checkpoint_id in visible else newest


def _find_by_id(catalog: Catalog, batch: Batch, visible: Sequence[int]) -> Manifest | None:
    """Return the checkpoint with the batch's id if the job itself chose that id."""
    if batch.number not in visible:
        return None
    manifest = catalog.load_header(batch.number)
    if manifest.batches is None:  # an older release, which recorded only the command
        is_done = manifest.origin is None
    else:
        is_done = manifest.batches.get("") == BatchRecord(batch.number, batch.number)
    if is_done:
        return manifest
    command, writer = (manifest.origin or {}).get("command"), manifest.writer
    source = f"the command {command!r}" if command else "a snapshot that did not request this id"
    raise CommitConflictError(
        f"checkpoint {batch.number} of {catalog.storage.url} was committed by {writer}, by "
        f"{source}: it does not contain the data of this snapshot. Nothing is written. Let the "
        "store number the checkpoints and name your batches: snapshot(…, batch=('name of the "
        f"job', number)); or pass a free id: {visible[-1] + 1} or greater"
    )


def _refuse_id(catalog: Catalog, checkpoint_id: int, free: int) -> None:
    """Raise InvalidArgumentError for an id that was used, or leaves no room for others."""
    if checkpoint_id < free:
        raise InvalidArgumentError(
            f"checkpoint {checkpoint_id} of {catalog.storage.url} is not visible, and its id "
            "cannot be used again: it has expired or was skipped. Ids only increase, and the "
            f"next one is {free}; pass that id or a greater one"
        )
    _refuse_too_great(checkpoint_id, free)


def _check_number(checkpoint_id: int) -> None:
    if isinstance(checkpoint_id, bool) or not isinstance(checkpoint_id, int):
        raise InvalidArgumentError(f"a checkpoint id must be a number, not {checkpoint_id!r}")
    manifest_path(checkpoint_id)  # refuses an id that is out of bounds


def _refuse_too_great(checkpoint_id: int, free: int) -> None:
    """Refuse an id that is too large: ids only grow, and later checkpoints need larger ones."""
    if checkpoint_id > max(free, GREATEST_GIVEN_ID):
        raise InvalidArgumentError(
            f"a checkpoint id must be at most {GREATEST_GIVEN_ID:,}, or the next one, "
            f"{free:,}, not {checkpoint_id:,}: greater ids are reserved for the checkpoints "
            "that follow. Use a counter, or seconds since 1970"
        )
