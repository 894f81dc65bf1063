"""Compare the savepoints that two versions of a Flink job take after they began with one state.

The user runs Flink. A rehearsal writes the savepoint to begin with, and waits for the savepoints of
the versions. Each is imported into a store of its own, with the columns and uids of the job's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from statestore.catalog.catalog import Checkpoint
from statestore.contract.rehearsal import (
    BASE,
    NEW,
    OLD,
    STORE,
    Comparison,
    Rehearsal,
    RehearsalPlan,
    begin,
    compare,
    fork,
    prepare_once,
    stored_plan,
)
from statestore.interop.flink.exporting.export_state import export_savepoint
from statestore.interop.flink.importing.import_record import RECORD, SavepointRecord
from statestore.interop.flink.importing.import_state import import_savepoint
from statestore.interop.flink.options import FlinkTarget
from statestore.store import StateStore

SAVEPOINT, METADATA = "savepoint", "_metadata"


@dataclass(frozen=True, kw_only=True)
class FlinkRequest:
    """What a user wants to rehearse.

    Attributes:
        folder: The folder of the rehearsal.
        base: The checkpoint to begin with, by default the newest.
        old: Where the old version's savepoint will be; None to compare with a later checkpoint.
        new: Where the new version's savepoint will be.
        against: The job's later checkpoint, by default the newest.
        version: The job's version of Flink.
        comparison: How the results are compared.
    """

    folder: Path
    base: str | None
    old: str | None
    new: str
    against: str | None
    version: str
    comparison: Comparison


def rehearse_savepoints(
    store: StateStore, request: FlinkRequest, wait: Callable[[str], None]
) -> Rehearsal:
    """Write a savepoint, wait for those of the versions that begin with it, and compare them.

    Args:
        store: The job's store, with an imported savepoint.
        request: What to rehearse.
        wait: Called with what the user has to do, again and again until it is done.

    Raises:
        StateStoreError: As an export, an import and a comparison.
    """
    stored = stored_plan(request.folder)
    base = str(stored.base) if stored is not None and request.base is None else request.base
    checkpoint = store.checkpoint(base or "latest")
    plan = RehearsalPlan(
        engine="flink",
        source=store.url,
        base=checkpoint.checkpoint_id,
        made_by=checkpoint.manifest.writer.token,
        query="",
        batch=0,
        old=request.old or f"the job at {request.against or 'latest'}",
        new=request.new,
    )
    begin(request.folder, plan)
    place = request.folder / BASE
    prepare_once(place, partial(_export, store, checkpoint, place, request.version))
    waiting = partial(_imported, store, checkpoint, request.folder, wait)
    before = (
        store.checkpoint(request.against or "latest")
        if request.old is None
        else waiting(OLD, Path(request.old))
    )
    after = waiting(NEW, Path(request.new))
    comparison = replace(request.comparison, left_out=RECORD)
    difference, _ = compare((before, after), comparison, None)
    return Rehearsal(
        plan=plan,
        folder=str(request.folder),
        batches=None,
        difference=difference,
        output_unknown="Flink writes the output to the sinks of the job",
    )


def _export(store: StateStore, checkpoint: Checkpoint, place: Path, version: str) -> None:
    fork(checkpoint, place, store)
    export_savepoint(
        StateStore.open(str(place / STORE)),
        str(place / SAVEPOINT),
        target=FlinkTarget(version=version),
    )


def _imported(
    store: StateStore,
    checkpoint: Checkpoint,
    folder: Path,
    wait: Callable[[str], None],
    name: str,
    place: Path,
) -> Checkpoint:
    """Wait for the savepoint of a version, and import it."""
    while (savepoint := _find_savepoint(place)) is None:
        wait(
            f"start the {name} version without its sinks, and let it read the events to rehearse:\n"
            f"  flink run -s {(folder / BASE / SAVEPOINT).resolve().as_uri()} …\n"
            f"  flink stop --type canonical --savepointPath {place.resolve().as_uri()} JOB_ID"
        )
    side = folder / name
    imported = StateStore.open(str(side / STORE))
    record = SavepointRecord.of(store.restore(checkpoint=checkpoint))
    prepare_once(side, lambda: import_savepoint(str(savepoint), imported, like=record))
    return imported.checkpoint()


def _find_savepoint(place: Path) -> Path | None:
    """Return the newest complete savepoint in a folder, or the folder itself if it is one.

    Flink writes ``_metadata`` last (``FsCheckpointMetadataOutputStream``).
    """
    complete = [file.parent for file in (*place.glob(METADATA), *place.glob(f"*/{METADATA}"))]
    return max(complete, key=lambda each: (each / METADATA).stat().st_mtime_ns, default=None)
