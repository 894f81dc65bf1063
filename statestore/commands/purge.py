"""Purge: no kept checkpoint holds a key any more, and what held it is given up (I4, I6, I10).

Nothing is changed in place. Of each checkpoint that holds the key a new one is made, in which the
files of the key's key group are written anew without it and all others are named again. In layers
of changes the key's rows and its deletes go, also those that count no more: no file may have the
key. A file that several checkpoints name is written anew once, for all of them. Checkpoints
that are newer are made anew as well, key or no key, so that their order stays. The old ones get
tombstones, their savepoints move to the new ones, and ``gc`` then deletes the old files. Each new
manifest's ``origin`` says which one it replaces and how many rows of which key group are gone; the
key itself is nowhere in it.

**Interrupted anywhere**, it can be run again. All files are written before the first commit. The
newest checkpoint is committed first, and then the older ones, in ids below it that this writer has
claimed: whoever looks for the newest one finds the newest state at every moment. A run begins by
finishing what an earlier one left: where a checkpoint and its replacement are both there,
savepoints are moved, and the tombstone is put.

**Delta logs** hold the least and greatest keys of each file, so those of the rewritten tables go,
newest entry first: what is left at any moment is a log that ends earlier. The manifest is what
counts; the next snapshot with Spark, or this command with Spark, begins a new log. A state with
layers of changes has none until a checkpoint has it without: so no log names a file that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from statestore.catalog import Catalog
from statestore.commands.derive import Deriver
from statestore.commands.expire import tombstone
from statestore.commands.purge_files import Hit, KeyFinder, KeyRewriter
from statestore.commands.snapshot import CheckpointWriter
from statestore.errors import (
    CorruptionError,
    InvalidArgumentError,
    MalformedManifestError,
    StateNotFoundError,
)
from statestore.model.hold import Savepoint
from statestore.model.manifest import Entry, KeyedEntry, Manifest
from statestore.model.state import KeyedState
from statestore.storage import Storage
from statestore.table.reading import check_sizes

__all__ = ["PurgeRequest", "PurgedKey", "PurgedState", "ReplacedCheckpoint", "purge"]

_DELTA_LOG = "_delta_log"
E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, kw_only=True)
class PurgeRequest:
    """Which key of which operator goes: of its state ``name`` or of all its keyed states, from one
    checkpoint or, None, from all that are kept. ``key_of`` returns the key for a state.
    """

    uid: str
    key_of: Callable[[KeyedState], Any]
    name: str | None = None
    checkpoint: int | str | None = None


@dataclass(frozen=True)
class PurgedState:
    """What goes of one state: how many rows of its files, of which key group, deletes of the key in
    changes among them; and the files that are written anew, each once for all that name it.
    """

    name: str
    key_group: int
    rows: int
    files: int
    size_bytes: int


@dataclass(frozen=True)
class ReplacedCheckpoint:
    """A checkpoint and the one that takes its place, None in a dry run, with what goes of it."""

    old_id: int
    new_id: int | None
    savepoints: tuple[str, ...]
    states: tuple[PurgedState, ...]


@dataclass(frozen=True, kw_only=True)
class PurgedKey:
    """What was, or with ``dry_run`` would be, done; checkpoints oldest first.

    ``finished`` are replacements of an earlier run that was interrupted. ``logs`` are the tables
    whose Delta log was deleted, ``pins`` what holds replaced checkpoints all the same.
    """

    store: str
    dry_run: bool
    uid: str
    replaced: tuple[ReplacedCheckpoint, ...]
    finished: tuple[ReplacedCheckpoint, ...]
    logs: tuple[str, ...]
    pins: tuple[str, ...]


def purge(
    deriver: Deriver, wanted: PurgeRequest, *, ignore_pins: bool, dry_run: bool, now_ms: int
) -> PurgedKey:
    """Remove a key; return what was done.

    Raises StateNotFoundError, CheckpointNotFoundError, InvalidArgumentError for a key that does not
    fit, or for a checkpoint to be replaced that somebody has pinned, unless ``ignore_pins``;
    MalformedManifestError for a kept checkpoint that cannot be read, CorruptionError for a file of
    the key group that is not what was written, CommitConflictError, or StorageError.
    """
    catalog = deriver.catalog
    seen = _look(catalog, wanted)
    if not dry_run:
        for old, new in seen.pending.items():
            _replace(catalog, old, new, deriver.release, now_ms)
        if seen.again:
            # First of all: from here on nobody else commits, and what did until now is seen.
            deriver.fence.enter()
            finished = seen.pending
            seen = replace(_look(catalog, wanted), pending=finished)
    pins = _pins(catalog, seen.again, now_ms)
    if pins and not ignore_pins:
        raise InvalidArgumentError(
            f"checkpoints that would be replaced are pinned: {'; '.join(pins)}. Wait for the end "
            "of the leases, unpin them, or go on with ignore_pins (--ignore-pins): their readers "
            "keep their files, and the key in them, until the leases end"
        )
    logs: tuple[str, ...] = ()
    made: dict[int, Manifest] = {}
    if seen.again and not dry_run:
        _refuse_broken(catalog.storage, seen)
        tables = {hit.entry.table.path for hits in seen.hits.values() for hit in hits}
        logs = tuple(table for table in sorted(tables) if _drop_log(catalog.storage, table))
        made = _make_again(deriver, seen, wanted, logs)
        for old, new in made.items():
            _replace(catalog, old, new, deriver.release, now_ms)
    return PurgedKey(
        store=catalog.storage.url,
        dry_run=dry_run,
        uid=wanted.uid,
        replaced=tuple(_report(seen, number, made.get(number)) for number in seen.again),
        finished=tuple(_report(seen, old, new) for old, new in seen.pending.items()),
        logs=logs,
        pins=pins,
    )


@dataclass(frozen=True)
class _Seen:
    """The kept checkpoints, what of them holds the key, and which are to be made again.

    ``pending`` are those that have their replacement, and no tombstone yet.
    """

    kept: Mapping[int, Manifest]
    visible: frozenset[int]
    savepoints: tuple[Savepoint, ...]
    pending: Mapping[int, Manifest]
    hits: Mapping[int, tuple[Hit, ...]]

    @property
    def again(self) -> tuple[int, ...]:
        """From the first that holds the key on: all that are visible, so that order stays, and
        of those that a savepoint alone keeps the ones that hold it.
        """
        first = min(self.hits, default=None)
        if first is None:
            return ()
        later = (number for number in sorted(self.kept) if number >= first)
        return tuple(n for n in later if n in self.visible or n in self.hits)

    def savepoints_of(self, number: int) -> tuple[Savepoint, ...]:
        """Return the savepoints that are a checkpoint."""
        return tuple(one for one in self.savepoints if one.checkpoint_id == number)


def _look(catalog: Catalog, wanted: PurgeRequest) -> _Seen:
    """Read every kept checkpoint, and look the key up in those that are wanted."""
    savepoints = catalog.holds.savepoints()
    visible = frozenset(catalog.checkpoint_ids())
    one = None if wanted.checkpoint is None else catalog.resolve(wanted.checkpoint)
    kept = {}
    for number in sorted({*visible, *(each.checkpoint_id for each in savepoints)}):
        try:
            kept[number] = catalog.manifest(number)
        except MalformedManifestError as error:
            newer = sum(one > number for one in visible)
            way = (
                f"give it up: statestore --store {catalog.storage.url} expire --retain {newer}"
                if newer
                else "bring its manifest back from a copy"
            )
            error.add_note(
                f"checkpoint {number} stops the purge, which looks into every kept one: {way}"
            )
            raise
    pending = _pending(kept, visible, savepoints)
    others = {number: kept[number] for number in kept if number not in pending}
    among = others if one is None else {one: others[one]} if one in others else {}
    finder = KeyFinder(catalog.storage)
    hits = {
        number: finder.hits(_entries(manifest, wanted), wanted.key_of)
        for number, manifest in among.items()
    }
    _refuse_unknown(others, wanted)
    held = {number: states for number, states in hits.items() if states}
    return _Seen(others, visible, savepoints, pending, held)


def _pending(
    kept: Mapping[int, Manifest], visible: frozenset[int], savepoints: tuple[Savepoint, ...]
) -> dict[int, Manifest]:
    """Return the replacements that an earlier run committed, and did not finish."""
    found = {}
    for number, manifest in kept.items():
        origin = manifest.origin or {}
        if origin.get("command") != "purge" or number not in visible:
            continue
        old = int(origin["checkpoint"])
        moved = all(one.checkpoint_id != old for one in savepoints)
        if old in visible or not moved or origin.get("expired"):
            found[old] = manifest
    return found


def _refuse_unknown(kept: Mapping[int, Manifest], wanted: PurgeRequest) -> None:
    """Raise StateNotFoundError when no kept checkpoint has such a state."""
    entries = [entry for manifest in kept.values() for entry in _entries(manifest, wanted)]
    if entries or not kept:
        return
    newest = kept[max(kept)]
    if wanted.name is not None or wanted.uid not in newest.uids:
        newest.keyed_entry(wanted.uid, wanted.name or "")
    raise StateNotFoundError(
        f"operator {wanted.uid!r} has no keyed state in any checkpoint; a key is of keyed state"
    )


def _entries(manifest: Manifest, wanted: PurgeRequest) -> tuple[KeyedEntry, ...]:
    return tuple(
        entry
        for entry in manifest.keyed
        if entry.state.uid == wanted.uid and wanted.name in (None, entry.state.name)
    )


def _pins(catalog: Catalog, again: tuple[int, ...], now_ms: int) -> tuple[str, ...]:
    """Return what pins the checkpoints that would be replaced, in words."""
    found = [p for p in catalog.holds.pins() if p.until_ms > now_ms and p.checkpoint_id in again]
    found.sort(key=lambda pin: (pin.checkpoint_id, pin.token))
    return tuple(f"checkpoint {p.checkpoint_id} by {p.holder} (pin {p.token})" for p in found)


def _drop_log(storage: Storage, table: str) -> bool:
    """Delete a table's Delta log, newest entry first; return whether there was one.

    What points into it goes before it, and with each entry its hidden companion.
    """
    names = [item.name for item in storage.listed(f"{table}/{_DELTA_LOG}")]
    bases = {name: name.rpartition("/")[2].lstrip(".") for name in names}
    for name in sorted(names, key=lambda name: bases[name], reverse=True):
        storage.delete(name)
    return bool(names)


def _refuse_broken(storage: Storage, seen: _Seen) -> None:
    """Raise MissingFileError or DamagedFileError when a file that would be named again is not as it
    was written; nothing has been written or deleted then.
    """
    for number in seen.again:
        try:
            check_sizes(storage, seen.kept[number].entries)
        except CorruptionError as error:
            error.add_note(
                f"it is a file of checkpoint {number}, which would be made again: 'statestore "
                f"--store {storage.url} salvage {number}' first, and let this one expire"
            )
            raise


def _make_again(
    deriver: Deriver, seen: _Seen, wanted: PurgeRequest, logs: tuple[str, ...]
) -> dict[int, Manifest]:
    """Return the replacements by the ids of what they replace; all are committed."""
    writers: dict[int, CheckpointWriter] = {}
    with ExitStack() as stack:  # leaves the last one first
        again = [seen.kept[number] for number in seen.again]
        for manifest, writer in zip(again, deriver.begin_in_order(again), strict=True):
            writers[manifest.checkpoint_id] = stack.enter_context(writer)
        rewriter = KeyRewriter(deriver.catalog.storage, deriver.parquet)
        # The last one first here too: it is committed first, and so is the one that owns the files
        # which others name as well. Were they another's, its failure would take them from it.
        for manifest in reversed(again):
            number = manifest.checkpoint_id
            writer = writers[number]
            hits = {hit.entry.state.name: hit for hit in seen.hits.get(number, ())}
            for entry in manifest.entries:
                hit = hits.get(entry.state.name) if entry.state.uid == wanted.uid else None
                if hit is None or not isinstance(entry, KeyedEntry):
                    writer.carry_entry(_without_log(entry, logs))
                else:
                    checkpoint_id, _ = writer.planned
                    done, new = rewriter.without_key(hit, checkpoint_id)
                    writer.carry_written([_without_log(done, logs)], new)
            writer.say_origin(_origin(seen, manifest, wanted))
    return {number: writer.manifest for number, writer in writers.items()}


def _without_log(entry: E, logs: tuple[str, ...]) -> E:
    """Return a state whose table has no version any more, if its log was deleted."""
    if entry.table.path not in logs:
        return entry
    return replace(entry, table=replace(entry.table, version=None))


def _origin(seen: _Seen, manifest: Manifest, wanted: PurgeRequest) -> dict[str, Any]:
    """Return what the new manifest says: what it replaces, what is gone of it, what must follow."""
    number = manifest.checkpoint_id
    states = [
        {"state": hit.entry.state.name, "key_group": hit.key_group, "rows": hit.rows}
        for hit in seen.hits.get(number, ())
    ]
    savepoints = [
        {"name": one.name, "created_at_ms": one.created_at_ms} for one in seen.savepoints_of(number)
    ]
    origin: dict[str, Any] = {
        "command": "purge",
        "checkpoint": number,
        "operator": wanted.uid,
        "states": states,
        "savepoints": savepoints,
        "expired": number not in seen.visible,
        "created_at_ms": manifest.created_at_ms,
    }
    return origin | ({"before": dict(manifest.origin)} if manifest.origin else {})


def _replace(catalog: Catalog, old: int, new: Manifest, release: str, now_ms: int) -> None:
    """Move the savepoints of a checkpoint to its replacement, and give it up; may be repeated.

    A savepoint is a file that is put once, so it is deleted and put again; the replacement's origin
    has its name, and what has not been finished is finished by the next run.
    """
    origin, there = new.origin or {}, {one.name: one for one in catalog.holds.savepoints()}
    told = [Savepoint(each["name"], old, each["created_at_ms"]) for each in origin["savepoints"]]
    for one in [*told, *there.values()]:
        current = there.get(one.name, one)
        if current.checkpoint_id != old:
            continue
        if one.name in there:
            catalog.holds.delete_savepoint(one.name)
        moved = replace(current, checkpoint_id=new.checkpoint_id)
        catalog.holds.put_savepoint(moved, visible=lambda: catalog.check_visible(new.checkpoint_id))
        there[one.name] = moved
    if old in catalog.checkpoint_ids():
        catalog.expire(old, tombstone(old, release, now_ms))
    if origin["expired"]:  # it was kept by its savepoints alone, and still is
        catalog.expire(new.checkpoint_id, tombstone(new.checkpoint_id, release, now_ms))


def _report(seen: _Seen, old: int, new: Manifest | None) -> ReplacedCheckpoint:
    return ReplacedCheckpoint(
        old,
        None if new is None else new.checkpoint_id,
        tuple(one.name for one in seen.savepoints_of(old)),
        tuple(_purged(hit) for hit in seen.hits.get(old, ())),
    )


def _purged(hit: Hit) -> PurgedState:
    size = sum(handle.size_bytes for _, handle in hit.files)
    return PurgedState(hit.entry.state.name, hit.key_group, hit.rows, len(hit.files), size)
