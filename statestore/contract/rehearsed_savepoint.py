"""Compare the savepoints that two versions of a Flink job take after they began with one state.

The user runs Flink. A rehearsal writes the savepoint to begin with, and waits for the savepoints of
the versions. Each is imported into a store of its own, with the columns and uids of the job's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from statestore.catalog.catalog import Checkpoint
from statestore.contract.rehearsal import (
    BASE,
    NEW,
    OLD,
    STORE,
    Rehearsal,
    RehearsalPlan,
    Request,
    begin,
    compare,
    fork,
    prepare_once,
    stored_plan,
)
from statestore.errors import InvalidArgumentError, StateStoreError
from statestore.interop.flink.exporting.export_state import export_savepoint
from statestore.interop.flink.importing.import_record import RECORD, SavepointRecord
from statestore.interop.flink.importing.import_state import import_savepoint
from statestore.interop.flink.options import FlinkTarget
from statestore.store import StateStore

SAVEPOINT, METADATA = "savepoint", "_metadata"


def rehearse_savepoints(
    store: StateStore, request: Request, wait: Callable[[str], None]
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
    if stored is None or request.base is not None:
        manifest = store.checkpoint(request.base or "latest").manifest
        base, made_by = manifest.checkpoint_id, manifest.writer.token
    else:  # the job may have removed the checkpoint since
        base, made_by = stored.base, stored.made_by
    plan = RehearsalPlan(
        engine="flink",
        source=store.url,
        base=base,
        made_by=made_by,
        query="",
        batch=0,
        old=request.old or request.old_label("the job"),
        new=request.new,
    )
    begin(request.folder, plan)
    place = request.folder / BASE
    prepare_once(place, partial(_prepare, store, plan, place, request))
    before = None if request.old else store.checkpoint(request.against or "latest")
    if before is not None and before.checkpoint_id <= base:
        raise InvalidArgumentError(
            f"checkpoint {before.checkpoint_id} of {store.url} is not later than {base}: name an "
            "earlier CHECKPOINT, or pass --old"
        )
    start = request.savepoint or place / SAVEPOINT
    waiting = partial(_imported, request.folder, start, wait)
    before = before or waiting(OLD, Path(request.old or ""))
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


def _prepare(store: StateStore, plan: RehearsalPlan, place: Path, request: Request) -> None:
    fork(store.checkpoint(plan.base), place, store)
    forked = StateStore.open(str(place / STORE))
    if request.old is None:  # the names and columns of the job's own state
        SavepointRecord.of(forked.restore())
    if request.savepoint is not None:
        if _find_savepoint(request.savepoint) is None:
            raise InvalidArgumentError(f"{request.savepoint} has no {METADATA} of a savepoint")
        return
    try:
        target = FlinkTarget(version=request.flink)
        export_savepoint(forked, str(place / SAVEPOINT), target=target)
    except StateStoreError as error:
        error.add_note(
            "a rehearsal has no options of an export: run 'statestore flink export' with them, and "
            "pass the folder that it wrote as --savepoint"
        )
        raise


def _imported(
    folder: Path, start: Path, wait: Callable[[str], None], name: str, place: Path
) -> Checkpoint:
    """Wait for the savepoint of a version, and import it."""
    while (savepoint := _find_savepoint(place)) is None:
        wait(
            f"start the {name} version without its sinks, and let it read the events to rehearse:\n"
            f"  flink run -s {start.resolve().as_uri()} …\n"
            f"  flink stop --type canonical --savepointPath {place.resolve().as_uri()} JOB_ID"
        )
    side = folder / name
    imported = StateStore.open(str(side / STORE))
    base = StateStore.open(str(folder / BASE / STORE)).restore()
    is_imported = any(entry.state.uid == RECORD for entry in base.manifest.operator)
    record = SavepointRecord.of(base) if is_imported else None
    prepare_once(side, lambda: import_savepoint(str(savepoint), imported, like=record))
    return imported.checkpoint()


def _find_savepoint(place: Path) -> Path | None:
    """Return the newest complete savepoint in a folder, or the folder itself if it is one.

    Flink writes ``_metadata`` last (``FsCheckpointMetadataOutputStream``).
    """
    complete = [file.parent for file in (*place.glob(METADATA), *place.glob(f"*/{METADATA}"))]
    return max(complete, key=lambda each: (each / METADATA).stat().st_mtime_ns, default=None)
