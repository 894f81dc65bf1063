"""Begin a checkpoint: choose its writer and id, or find that its batch is already committed (I6).

A writer first claims the store (``fence.py``), then looks for the newest id. In this order it
either sees the last checkpoint that a previous writer could commit, or takes an id that blocks that
writer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Claim, Fence
from statestore.delta.state_table import StateTable
from statestore.errors import CommitConflictError, InvalidArgumentError
from statestore.format.layers import CompactionRule
from statestore.format.manifest import Batch, BatchRecord, Manifest, Writer, batch_of
from statestore.format.manifest_json import manifest_to_json
from statestore.format.names import GREATEST_GIVEN_ID, manifest_path
from statestore.format.state import clock_ms
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.operators import Operators
from statestore.keys.groups import check_parallelism
from statestore.keys.ranges import RangeAssignment
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.background_compaction import BackgroundCompaction
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.pending_checkpoint import PendingCheckpoint, PriorCheckpoints
from statestore.snapshot.writer import CheckpointWriter


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
    operators = Operators(_parallelism(parallelism, graph), graph)
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
        done = _find_committed(catalog, own)
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
            writer=Writer(release, claim.name, token, claim.generation),
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
    # The one listing of this snapshot: later checkpoints of other writers are conflicts.
    free = max(history.newest_id + 1, claim.announced_id)
    if made_of is not None:
        catalog.refuse_taken(free if checkpoint_id is None else checkpoint_id, observed_newest_id)
    # Search again: the fenced writer may have committed the batch before the claim.
    done = None if batch is None else _find_committed(catalog, batch)
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


def _find_committed(catalog: Catalog, batch: Batch) -> Manifest | None:
    """Return a checkpoint that contains the batch, or None.

    Raises CommitConflictError if the batch number belongs to a different checkpoint.
    """
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
