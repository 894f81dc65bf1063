"""The verbs of actors, one function each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import statestore
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    InvalidArgumentError,
    MalformedManifestError,
    StateStoreError,
    StorageError,
    StoreNotFoundError,
)
from statestore.format.manifest import Manifest
from statestore.format.names import STORE_FILE, WRITERS, pin_path, savepoint_path
from statestore.snapshot.writer import CheckpointWriter
from statestore.store import StateStore
from tests.simulate.actors import NAME, UID, Actor, Run, label_of, put, row, take
from tests.simulate.check import Seen
from tests.simulate.documents import COUNT, KEY, OFFSETS, TOTALS, Checkpoint, Rows
from tests.simulate.live import query

__all__ = ["VERBS", "restore"]

ATTEMPTS = 3  # errors of a job that was replaced or does not know whether it has committed
# what holds or removes checkpoints, so that an expiry next to it is not determined
HOLDING = (
    *("expire", "purge", "forget", "savepoint", "unsave", "reader", "copy", "query", "restored"),
)


def job(run: Run, actor: Actor) -> None:
    """Take some checkpoints, each with one more row; start again when another job took over."""
    pause = actor.option("pause", 0.0)
    how, ids = actor.option("how", "full"), actor.option("ids", 0)
    label = actor.option("label", UID)
    if actor.option("empty", False) is False and not run.world.checker.seen(actor.store).known:
        return
    store = run.world.store(actor.store)
    for number in range(actor.option("count", 2)):
        for attempt in range(ATTEMPTS):
            try:
                take(
                    run,
                    store,
                    actor.store,
                    (f"{actor.name}-{number}",),
                    how=how,
                    checkpoint_id=ids or None,
                    label=label,
                    several=actor.option("several", False),
                )
                break
            except (CommitConflictError, StorageError):
                if attempt == ATTEMPTS - 1:
                    raise
                store = run.world.store(actor.store)
        if pause:
            run.world.scheduler.wait(60 * pause)


def batches(run: Run, actor: Actor) -> None:
    """Write the batches of a job from the last one on; several attempts may run concurrently."""
    store, last = run.world.store(actor.store), run.world.checker.latest(actor.store)
    record = last.batches.get("job") if last else None
    first = record["number"] if record else 0
    for number in range(first, first + actor.option("count", 2)):
        for attempt in range(ATTEMPTS):
            try:
                key, how = f"batch-{number}", actor.option("how", "full")
                take(run, store, actor.store, (key,), how=how, batch=("job", number))
                break
            except (CommitConflictError, StorageError):
                if attempt == ATTEMPTS - 1:
                    raise
                store = run.world.store(actor.store)


def twice(run: Run, actor: Actor) -> None:
    """Open two snapshots of one store at a time: the second carries the first one's states."""
    store, latest = run.world.store(actor.store), run.world.checker.latest
    how, rest = actor.option("how", "full"), actor.option("rest", True)
    before = latest(actor.store)
    ids = (None, before.number + actor.option("apart", 1) if before else None)
    begun: dict[int, tuple[CheckpointWriter, Checkpoint | None]] = {}
    run.world.writing += 1
    try:
        for place, number in enumerate(ids):
            made = store.snapshot(parallelism=1, checkpoint_id=number)
            begun[place] = made, latest(actor.store)
        for place in actor.option("order", (0, 1)):
            made, newest = begun.pop(place)
            with suppress(CommitConflictError):
                key = f"{actor.name}-{place}"
                put(run, made, actor.store, (key,), newest, how=how, rest=rest)
    finally:
        run.world.writing -= 1
        for made, _ in begun.values():
            made.abandon()


def restored(run: Run, actor: Actor) -> None:
    """Make a backup, and later replace the store with it, while jobs have the store open."""
    backup = run.world.copy_of(actor.store)
    run.world.scheduler.wait(60 * actor.option("pause", 2))
    while run.world.writing:  # a writer cannot be stopped between its last check and its put
        run.world.scheduler.wait(60)
    run.world.bring_back(actor.store, backup)


def gc(run: Run, actor: Actor) -> None:
    """Collect garbage, at the default age."""
    run.world.store(actor.store).maintenance.gc()


def upgrade(run: Run, actor: Actor) -> None:
    """Raise the writer version, or undo that."""
    run.world.store(actor.store).maintenance.upgrade(back=actor.option("back", False))


def expire(run: Run, actor: Actor) -> None:
    """Expire all checkpoints except the newest, or those of them that are old enough."""
    retain, hours = actor.option("retain", 1), actor.option("hours", None)
    age = None if hours is None else timedelta(hours=hours)
    seen, called = run.world.checker.seen(actor.store), run.world.log.now()
    held = {number for number, _ in seen.holds.values()}
    due = _due(run, seen, seen.visible, retain, age) - held
    done = run.world.store(actor.store).maintenance.expire(retain=retain, older_than=age)
    run.world.log.expired(actor.store, called, done.expired)
    if not seen.lost and not _others(run, actor, *HOLDING):
        expired = set(done.expired)
        could = _due(run, seen, seen.visible | expired, retain, age)
        if not due <= expired <= could:
            rule = f"at least {sorted(due)}, and only {sorted(could)}"
            text = f"{sorted(expired)} of {actor.store} expired, not {rule}"
            run.world.checker.wrong("rule", text)


def _due(run: Run, seen: Seen, visible: set[int], retain: int, age: timedelta | None) -> set[int]:
    """Return the checkpoints that an expiry may remove now."""
    surplus = sorted(visible)[:-retain]
    newest_ms = run.world.scheduler.host_ms() - (age or timedelta()) // timedelta(milliseconds=1)
    return {n for n in surplus if age is None or seen.known[n].created_at_ms <= newest_ms}


def savepoint(run: Run, actor: Actor) -> None:
    """Keep the newest checkpoint, or an earlier one, under a name."""
    name = actor.option("name", "keep")
    checker = run.world.checker
    seen = checker.seen(actor.store)
    path = savepoint_path(name)
    there = path in seen.holds
    run.makers[path] += 1
    called = run.world.log.now()

    def is_left() -> bool:
        others = run.makers[path] > 1 or _others(run, actor, "purge", "forget")
        return not there and path in seen.holds and not others

    try:
        found = run.world.store(actor.store).maintenance.savepoint(name, _which(run, actor))
    except (CheckpointNotFoundError, InvalidArgumentError) as error:
        is_free = isinstance(error, InvalidArgumentError) and not there and run.makers[path] == 1
        if is_free and not _others(run, actor, "expire", "query", "purge", "forget"):
            checker.wrong("refused", f"no other {path} of {actor.store} was there: {error}")
        if is_left():
            checker.wrong("left hold", f"{path} was refused, and is there")
        raise
    except StateStoreError:
        faults = any(task.met & {"fail", "lost"} for task in run.world.scheduler.tasks)
        if not faults and is_left():
            checker.wrong("left hold", f"{path} was not made, and is there")
        raise
    run.world.log.held(actor.store, called, name, found.checkpoint_id)
    if not _others(run, actor, "unsave"):
        checker.holding(actor.store, path, found.checkpoint_id)


def unsave(run: Run, actor: Actor) -> None:
    """Delete a savepoint."""
    name, checker = actor.option("name", "keep"), run.world.checker
    path, seen = savepoint_path(name), checker.seen(actor.store)
    seen.held.pop(path, None)
    there = path in seen.holds
    try:
        run.world.store(actor.store).maintenance.delete_savepoint(name)
    except CheckpointNotFoundError as error:
        if there and not _others(run, actor, "unsave", "purge", "forget"):
            checker.wrong("refused", f"{path} of {actor.store} was there: {error}")
        raise
    if path in seen.holds and not _others(run, actor, "savepoint", "purge", "forget"):
        checker.wrong("hold stays", f"{path} of {actor.store} was reported as deleted")


def reader(run: Run, actor: Actor) -> None:
    """Pin a checkpoint, wait, and read all of it; the rows must not have changed."""
    store, checker = run.world.store(actor.store), run.world.checker
    pinned = store.maintenance.pin(_which(run, actor), lease="100h")
    path = pin_path(pinned.token)
    checker.holding(actor.store, path, pinned.checkpoint_id)
    run.world.scheduler.wait(60 * actor.option("pause", 30))
    known = checker.seen(actor.store).known[pinned.checkpoint_id]
    if pinned.checkpoint_id in store.checkpoints():
        restore(run, store, pinned.checkpoint_id, known)
    checker.seen(actor.store).held.pop(path, None)
    store.maintenance.unpin(pinned.token)
    if path in checker.seen(actor.store).holds:
        checker.wrong("hold stays", f"{path} of {actor.store} was reported as deleted")


def restore(run: Run, store: StateStore, checkpoint: int | str, known: Checkpoint) -> None:
    """Restore all states of a checkpoint, and compare their contents (I7)."""
    for parallelism in (1, 2) if known.others else (1,):
        restored = store.restore(checkpoint=checkpoint, parallelism=parallelism)
        subtasks = range(parallelism)
        for name, rows in {NAME: known.rows or {}, TOTALS: known.others.get(TOTALS)}.items():
            if rows is None:
                continue
            state = restored.keyed(label_of(known), name)
            found = [one for subtask in subtasks for one in state.to_arrow(subtask).to_pylist()]
            read = {one[KEY]: {KEY: one[KEY], COUNT: one[COUNT]} for one in found}
            if len(found) != len(rows) or read != rows:
                run.world.checker.wrong("reader", f"{name} of checkpoint {checkpoint}: {found}")
        if OFFSETS in known.others:
            offsets = restored.operator_state("source", OFFSETS)
            elements = [one["offset"] for subtask in subtasks for one in offsets.subtask(subtask)]
            if sorted(elements) != known.others[OFFSETS]:
                run.world.checker.wrong("reader", f"checkpoint {checkpoint} has {elements}")


def watch(run: Run, actor: Actor) -> None:
    """List the checkpoints repeatedly, and read the listed ones, the newest and a savepoint."""
    known: set[int] = set()
    for number in range(actor.option("count", 1)):
        if number:
            run.world.scheduler.wait(60 * actor.option("pause", 1.0))
        try:
            _look(run, actor, known)
        except (StoreNotFoundError, MalformedManifestError) as error:
            # There is no store yet, or another actor has damaged a document and repairs it.
            stores = run.world.checker.stores
            if run.world.checker.seen(actor.store).known and not any(
                seen.lost for seen in stores.values()
            ):
                run.world.checker.wrong("reader", f"{actor.store} cannot be read: {error}")


def _look(run: Run, actor: Actor, known: set[int]) -> None:
    """Read once; ``known`` are all checkpoints that the actor has seen."""
    log, where = run.world.log, actor.store
    store, name = run.world.store(where), actor.option("name", "keep")
    called = log.now()
    ids = store.checkpoints()
    log.listed(where, called, ids)
    known |= set(ids)
    for checkpoint_id in sorted(known)[-actor.option("reads", 4) :]:
        called = log.now()
        log.has_read(where, called, checkpoint_id, _token(store, checkpoint_id))
    called = log.now()
    if (newest := _checkpoint_of(store, "latest")) is not None:
        log.got_newest(where, called, newest)
    called = log.now()
    if (kept := _checkpoint_of(store, name)) is not None:
        log.looked_up(where, called, name, kept)


def _manifest(store: Any, reference: int | str) -> Manifest:
    """Return the manifest of a checkpoint; a store of an older release has a method for it."""
    if hasattr(store, "checkpoint"):
        found: Manifest = store.checkpoint(reference).manifest
    else:
        found = store.manifest(reference)
    return found


def _token(store: StateStore, checkpoint_id: int) -> str:
    try:
        return _manifest(store, checkpoint_id).writer.token
    except CheckpointNotFoundError:
        return ""


def _checkpoint_of(store: StateStore, reference: str) -> int | None:
    """Return the id, 0 if there is none, or None if its files were collected during the read."""
    try:
        return _manifest(store, reference).checkpoint_id
    except CheckpointNotFoundError as error:
        return None if "garbage-collected" in str(error) else 0


def compact(run: Run, actor: Actor) -> None:
    """Fold all layers of changes."""
    run.world.store(actor.store).maintenance.compact(everything=True)


def edit(run: Run, actor: Actor) -> None:
    """Put one row into the newest checkpoint."""
    key, label = f"{actor.name}-edit", label_of(run.world.checker.latest(actor.store))
    run.world.writing += 1
    try:
        done = run.world.store(actor.store).maintenance.edit(label, NAME, put=[row(key)])
    finally:
        run.world.writing -= 1
    assert done.new_checkpoint_id is not None
    _derived(run, actor.store, done.new_checkpoint_id, key)


def purge(run: Run, actor: Actor) -> None:
    """Purge the key of this run, by the operator's newest label or its oldest."""
    known = run.world.checker.seen(actor.store).known
    number = (min if actor.option("by", "newest") == "oldest" else max)(known, default=0)
    store = run.world.store(actor.store)
    label = label_of(known.get(number))
    maintenance: Any = store.maintenance
    if hasattr(maintenance, "purge"):  # an older release
        maintenance.purge(label, "purged", ignore_pins=True)
    else:
        subject = statestore.OperatorKey(label, "purged")
        maintenance.forget(subject, search=False, ignore_pins=True)
    run.world.checker.is_purged(actor.store, "purged")


def forget(run: Run, actor: Actor) -> None:
    """Forget the key of this run in all operators."""
    maintenance = run.world.store(actor.store).maintenance
    maintenance.forget({KEY: "purged"}, ignore_pins=True, gc=actor.option("gc", False))
    run.world.checker.is_purged(actor.store, "purged")


def rekey(run: Run, actor: Actor) -> None:
    """Rekey the state to three key groups, with a working folder that all runs share."""
    work = Path(run.world.folder, f"work-{actor.store}") if actor.option("work", True) else None
    label = label_of(run.world.checker.latest(actor.store))
    run.world.store(actor.store).maintenance.rekey(label, max_parallelism=3, work=work)


def copy(run: Run, actor: Actor) -> None:
    """Copy the newest checkpoint to another store and compare its rows."""
    target = actor.option("to", "b")
    checkpoint = actor.option("which", "latest")
    source = run.world.store(actor.store)
    latest = run.world.checker.latest(actor.store)
    if latest is None:
        return
    wanted = _rows(run, actor.store, checkpoint if isinstance(checkpoint, int) else latest.number)
    done = source.maintenance.copy(
        latest.number if checkpoint == "latest" else checkpoint,
        run.world.store(target),
        as_savepoint=actor.option("name", None),
    )
    _brought(run, actor, target, done.new_checkpoint_id, wanted)


def fork(run: Run, actor: Actor) -> None:
    """Create another store that shares the newest checkpoint's files."""
    latest = run.world.checker.latest(actor.store)
    if latest is None:
        return
    wanted, target = _rows(run, actor.store, latest.number), actor.option("to", "b")
    source, other = run.world.store(actor.store), run.world.store(target)
    maintenance: Any = source.maintenance
    if hasattr(maintenance, "fork"):  # an older release
        done = maintenance.fork(other, latest.number)
    else:
        done = maintenance.copy(latest.number, other, linked=True)
    _brought(run, actor, target, done.new_checkpoint_id, wanted)


def clone(run: Run, actor: Actor) -> None:
    """Copy the files of a store, as ``cp -r`` does."""
    target = actor.option("to", "b")
    run.world.clone(actor.store, target)
    seen = run.world.checker.seen(target)
    run.world.log.begin(target, seen.tokens, seen.savepoints)


def damage(run: Run, actor: Actor) -> None:
    """Change a byte of a file of the newest checkpoint; its rows may then be lost."""
    world, state = run.world, actor.option("state", f"keyed/{NAME}")
    latest = world.checker.latest(actor.store)
    files = [name for name in (latest.files if latest else ()) if f"/{state}/" in name]
    if not files or latest is None:
        return
    name = sorted(files)[0]
    seen = world.checker.seen(actor.store)
    seen.lost.add(name)
    if state.startswith("keyed/"):
        seen.lost |= set(latest.rows or ())
    world.flip(f"{actor.store}/{name}")


def salvage(run: Run, actor: Actor) -> None:
    """Salvage the newest checkpoint into a new one."""
    run.world.store(actor.store).maintenance.salvage("latest")


def blot(run: Run, actor: Actor) -> None:
    """Change a byte of a savepoint's document, of the store's document, or of the newest claim."""
    name = savepoint_path(actor.option("name", "keep"))
    if actor.option("file", "savepoint") == "store":
        name = STORE_FILE
    elif actor.option("file", "savepoint") == "claim":
        name = max(run.world.storage(actor.store).list(WRITERS), default=name)
    path = f"{actor.store}/{name}"
    seen = run.world.checker.seen(actor.store)
    seen.held.pop(path.partition("/")[2], None)
    seen.lost.add(path)
    run.world.flip(path)


def repair(run: Run, actor: Actor) -> None:
    """Repair the documents that block writers."""
    run.world.store(actor.store).maintenance.repair()


def person(run: Run, actor: Actor) -> None:
    """Write a user's file into a folder in which an export was begun."""
    folder = run.world.folder / "export"
    (folder / UID).mkdir(parents=True, exist_ok=True)
    (folder / UID / "mine.txt").write_text("mine")
    (folder / "notes.txt").write_text("mine")


def export(run: Run, actor: Actor) -> None:
    """Export the newest checkpoint into a folder; a user's files there are kept."""
    folder = run.world.folder / "export"
    mine = folder / UID / "mine.txt"
    there = mine.exists()
    try:
        run.world.store(actor.store).restore(parallelism=1).export(folder)
    finally:
        if there and not mine.exists():
            run.world.checker.wrong("foreign", "restore --to deleted a file that is not its own")


def _which(run: Run, actor: Actor) -> int | str:
    """Return the newest checkpoint, or an earlier one."""
    back = actor.option("back", 0)
    visible = sorted(run.world.checker.seen(actor.store).visible)
    return visible[max(len(visible) - 1 - back, 0)] if back and visible else "latest"


def _others(run: Run, actor: Actor, *verbs: str) -> bool:
    """Return True if another actor has one of these verbs."""
    doings = [task.doing for task in run.world.scheduler.tasks if task.name != actor.name]
    return any(doing.startswith(f"{verb} ") for doing in doings for verb in verbs)


def _rows(run: Run, store: str, number: int) -> Rows | None:
    found = run.world.checker.seen(store).known.get(number)
    return found.rows if found else None


def _derived(run: Run, store: str, number: int, key: str) -> None:
    found = run.world.checker.seen(store).known[number]
    run.world.checker.committed(store, number, found.token, key)


def _brought(run: Run, actor: Actor, target: str, number: int | None, wanted: Rows | None) -> None:
    """Check that a checkpoint reported as copied is visible and has the same rows."""
    checker = run.world.checker
    seen = checker.seen(target)
    assert number is not None
    if not (number in seen.visible or any(held == number for held, _ in seen.holds.values())):
        if not _others(run, actor, "expire", "purge", "forget"):
            checker.wrong("not there", f"copy reported checkpoint {number} of {target}")
        return
    if wanted is not None and (rows := _rows(run, target, number)) is not None and rows != wanted:
        checker.wrong("other", f"{actor.verb} reported checkpoint {number} of {target}: other rows")


VERBS: dict[str, Callable[[Run, Actor], None]] = {
    verb.__name__: verb
    for verb in (
        *(
            job,
            batches,
            twice,
            restored,
            gc,
            upgrade,
            expire,
            savepoint,
            unsave,
            reader,
            watch,
            compact,
            edit,
            purge,
            forget,
            rekey,
            copy,
            fork,
        ),
        *(clone, damage, salvage, blot, repair, person, export, query),
    )
}
