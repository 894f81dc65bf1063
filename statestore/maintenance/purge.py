"""Purge: no kept checkpoint holds a key any more, and what held it expires (I4, I6, I10).

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
claimed: whoever looks for the newest one finds the newest state at every moment. Before them all
the newest is committed under each id that a writer which stalled before its put could take: what
that has would be buried, and may have the key; when all are there, these expire. A run begins
by finishing what an earlier one left: where a checkpoint and its replacement are both there,
savepoints are moved, and the tombstone is put (below).

**Delta logs** hold the least and greatest keys of each file, so those of the rewritten tables go,
newest entry first: what is left at any moment is a log that ends earlier. The manifest is what
counts; the last of the new checkpoints begins a new log. A state with layers of changes has none
until a checkpoint has it without: so no log names a file that is gone. If a table shows an expired
checkpoint, and only this has the key, the newest entries of its log go as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    CorruptionError,
    InvalidArgumentError,
    MalformedManifestError,
    StateNotFoundError,
)
from statestore.files.delta import shown_files
from statestore.files.lookup import key_batch
from statestore.files.reader import check_sizes
from statestore.files.table import refuse_tables
from statestore.format.documents import Pin, Savepoint
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.names import is_data_file
from statestore.format.state import KeyedState
from statestore.maintenance.derive import Deriver
from statestore.maintenance.expire import tombstone
from statestore.maintenance.purge_files import Hit, KeyFinder, KeyRewriter, in_rows
from statestore.snapshot.writer import CheckpointWriter
from statestore.storage import Storage

__all__ = [
    "PurgeRequest",
    "PurgedKey",
    "PurgedState",
    "ReplacedCheckpoint",
    "purge",
    "replace_checkpoints",
    "unfinished",
]


# Replace: a new checkpoint takes the place of an old one, and of all that holds it (I9, I10).
#
# What replaces is held before the old one is let go: a pin keeps the new checkpoint, then the
# savepoints move, then the old one gets its tombstone, and the pin goes last. So an expiry beside
# it finds one of the two held at every moment. The pin's token tells which checkpoint it is for:
# where it is there still, somebody has not finished, and whoever finds it can.
#
# **Why a savepoint may move on the word of a pin.** The new checkpoint may get a tombstone while
# the pin holds it, so that it is visible no more when the savepoint is put. Whoever collects
# garbage lists pins before savepoints: who finds the pin gone finds the savepoint, which was put
# before.


_LEASE_MS = 30 * 24 * 3_600_000
"""A long standstill, and time to run a command again."""
_REPLACES = "replaces-"


def replace_checkpoints(
    catalog: Catalog, replacements: Mapping[int, Manifest], release: str, now_ms: int
) -> None:
    """Move the savepoints of checkpoints to their replacements, by the id of the old one, and give
    the old ones up; may be repeated, and finishes what was begun.

    A replacement's origin says which savepoints the old one had, and whether it had ``expired``.
    Raises CommitConflictError when a replacement expired before it could be held; the
    savepoint stays where it is.
    """
    held = [_hold(catalog, old, new, now_ms) for old, new in replacements.items()]
    for (old, new), pin in zip(replacements.items(), held, strict=True):
        if pin is not None:
            _move(catalog, old, new)
        if old in catalog.checkpoint_ids():
            catalog.expire(old, tombstone(old, release, now_ms))
        if (new.origin or {})["expired"]:  # it was kept by its savepoints alone, and still is
            number = new.checkpoint_id
            catalog.expire(number, tombstone(number, release, now_ms))
        if pin is not None:
            catalog.holds.delete_pin(pin.token)


def unfinished(catalog: Catalog) -> frozenset[int]:
    """Return the checkpoints that somebody began to let take another one's place, and did not
    end.
    """
    pins = catalog.holds.pins()
    return frozenset(pin.checkpoint_id for pin in pins if pin.token.startswith(_REPLACES))


def _token(new: Manifest) -> str:
    return _REPLACES + new.writer.token


def _hold(catalog: Catalog, old: int, new: Manifest, now_ms: int) -> Pin | None:
    """Return what holds the replacement from here on; None where nothing must."""
    there = {pin.token: pin for pin in catalog.holds.pins()}
    pin = there.get(_token(new))
    to_move = _savepoints(catalog, old, new)
    if not to_move or (pin is not None and pin.until_ms > now_ms):
        return pin
    if pin is not None:
        catalog.holds.delete_pin(pin.token)
    number = new.checkpoint_id
    holder = f"the move of savepoints from checkpoint {old}"
    pin = Pin(_token(new), number, holder, until_ms=now_ms + _LEASE_MS)
    try:
        catalog.holds.put_pin(pin, visible=lambda: catalog.check_visible(number))
    except CheckpointNotFoundError as error:
        raise CommitConflictError(
            f"checkpoint {number} of {catalog.storage.url}, which was to take the place of {old}, "
            "expired in the same moment; the savepoints stay with the old one. "
            "Run it again"
        ) from error
    return pin


def _savepoints(catalog: Catalog, old: int, new: Manifest) -> list[Savepoint]:
    """Return the savepoints to move, as they are to be; one that is not there is between two
    places.
    """
    there = {one.name: one for one in catalog.holds.savepoints()}
    told = [
        Savepoint(each["name"], old, each["created_at_ms"])
        for each in (new.origin or {})["savepoints"]
    ]
    found = {one.name: there.get(one.name, one) for one in [*told, *there.values()]}
    of_old = [one for one in found.values() if one.checkpoint_id == old]
    return [replace(one, checkpoint_id=new.checkpoint_id) for one in of_old]


def _move(catalog: Catalog, old: int, new: Manifest) -> None:
    """A savepoint is a file that is put once: so it is deleted, and put again."""

    def kept() -> None:
        try:
            catalog.check_visible(new.checkpoint_id)
        except CheckpointNotFoundError:
            if new.checkpoint_id not in unfinished(catalog):
                raise

    for moved in _savepoints(catalog, old, new):
        there = {one.name: one.checkpoint_id for one in catalog.holds.savepoints()}
        if there.get(moved.name) == old:
            catalog.holds.delete_savepoint(moved.name)
        if there.get(moved.name, old) == old:  # else somebody has moved it in this moment
            catalog.holds.put_savepoint(moved, visible=kept)


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
    """A checkpoint and the one that takes its place, None in a dry run, with what goes of it.

    ``left_out`` is what both lack of their source.
    """

    old_id: int
    new_id: int | None
    savepoints: tuple[str, ...]
    states: tuple[PurgedState, ...]
    left_out: tuple[LeftOutState, ...] = ()


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
    fit, for a checkpoint to be replaced that somebody has pinned, unless ``ignore_pins``, or where
    its tables cannot be written;
    MalformedManifestError for a kept checkpoint that cannot be read, CorruptionError for a file of
    the key group that is not what was written, CommitConflictError, or StorageError.
    """
    catalog, finder = deriver.catalog, KeyFinder(deriver.catalog.storage)
    one = _resolved(catalog, wanted)
    seen = _look(catalog, wanted, one, finder)
    finished: dict[int, Manifest] = {}
    if not dry_run and (seen.again or seen.pending):
        for manifest in seen.kept.values():
            refuse_tables(catalog.storage, manifest)
        # First of all: from here on nobody else commits, and what did until now is seen.
        deriver.fence.enter(aloud=True)
        one = _resolved(catalog, wanted)
        seen = _look(catalog, wanted, one, finder)
        while seen.pending:
            finished |= seen.pending
            _finish(deriver, seen.pending, seen.twice, now_ms)
            moved = None if one is None else seen.pending.get(one)
            one = one if moved is None else moved.checkpoint_id
            seen = _look(catalog, wanted, one, finder)
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
        _refuse_broken(catalog, seen)
        tables = {hit.entry.table.path for hits in seen.hits.values() for hit in hits}
        logs = tuple(table for table in sorted(tables) if _drop_log(catalog.storage, table))
        made, twice = _make_again(deriver, seen, wanted, logs)
        _finish(deriver, made, twice, now_ms)
    if wanted.checkpoint is None and not dry_run:
        logs += _drop_shown(deriver, seen.kept.values(), wanted, but=logs)
    return PurgedKey(
        store=catalog.storage.url,
        dry_run=dry_run,
        uid=wanted.uid,
        replaced=tuple(_report(seen, number, made.get(number)) for number in seen.again),
        finished=tuple(_report(seen, old, new) for old, new in (finished or seen.pending).items()),
        logs=logs,
        pins=pins,
    )


@dataclass(frozen=True)
class _Seen:
    """The kept checkpoints, what of them holds the key, and which are to be made again.

    ``newest`` is the newest id that there was before anything was looked at. ``pending`` are those
    that have their replacement, and no tombstone yet, and ``twice`` first replacements of such as
    have a second.
    """

    newest: int
    kept: Mapping[int, Manifest]
    visible: frozenset[int]
    savepoints: tuple[Savepoint, ...]
    pending: Mapping[int, Manifest]
    twice: tuple[int, ...]
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


def _resolved(catalog: Catalog, wanted: PurgeRequest) -> int | None:
    return None if wanted.checkpoint is None else catalog.resolve(wanted.checkpoint)


def _look(catalog: Catalog, wanted: PurgeRequest, one: int | None, finder: KeyFinder) -> _Seen:
    """Read every kept checkpoint, and look the key up in those that are wanted."""
    newest = catalog.next_id() - 1
    savepoints = catalog.holds.savepoints()
    visible = frozenset(catalog.checkpoint_ids())
    kept = {}
    for number in sorted({*visible, *(each.checkpoint_id for each in savepoints)}):
        with _advised(catalog, number, visible, savepoints):
            kept[number] = catalog.manifest(number)
    pending, twice = _pending(catalog, kept, visible, savepoints)
    others = {n: kept[n] for n in kept if n not in pending and n not in twice}
    among = others if one is None else {one: others[one]} if one in others else {}
    hits = {}
    for number, manifest in among.items():
        with _advised(catalog, number, visible, savepoints):
            hits[number] = finder.hits(_entries(manifest, wanted), wanted.key_of)
    _refuse_unknown(others, wanted)
    held = {number: states for number, states in hits.items() if states}
    return _Seen(newest, others, visible, savepoints, pending, twice, held)


def _pending(
    catalog: Catalog,
    kept: Mapping[int, Manifest],
    visible: frozenset[int],
    savepoints: tuple[Savepoint, ...],
) -> tuple[dict[int, Manifest], tuple[int, ...]]:
    """Return the replacements that an earlier run committed, and did not finish; and those of them
    that have a second.
    """
    found: dict[int, Manifest] = {}
    twice, moving = [], unfinished(catalog)
    for number, manifest in sorted(kept.items()):
        origin = manifest.origin or {}
        if origin.get("command") != "purge" or number not in visible:
            continue
        old = int(origin["checkpoint"])
        moved = all(one.checkpoint_id != old for one in savepoints)
        if old in visible or not moved or origin.get("expired") or number in moving:
            if old in found:
                twice.append(found[old].checkpoint_id)
            found[old] = manifest
    return found, tuple(twice)


@contextmanager
def _advised(
    catalog: Catalog,
    number: int,
    visible: frozenset[int],
    savepoints: tuple[Savepoint, ...],
) -> Iterator[None]:
    """Note on an error what of which checkpoint stops the purge, and the command that helps."""
    try:
        yield
    except CorruptionError as error:
        store = f"--store {catalog.storage.url}"
        newer = sum(one > number for one in visible)
        names = [one.name for one in savepoints if one.checkpoint_id == number]
        ways = [f"statestore {store} savepoint --delete {shlex.quote(name)}" for name in names]
        older = "which expires all older ones too"
        if number in visible and newer:
            ways.append(f"statestore {store} expire --retain {newer}, {older}")
        elif number in visible and isinstance(error, MalformedManifestError):
            ways = ["bring its manifest back from a copy"]
        elif number in visible:
            ways = [f"statestore {store} salvage {number}", *ways]
            ways.append(f"statestore {store} expire --retain 1, {older}")
        error.add_note(
            f"checkpoint {number}{f', savepoint {names[0]!r},' if names else ''} stops the purge, "
            f"which looks into every kept one: {', then '.join(ways)}"
        )
        raise


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


def _drop_log(storage: Storage, table: str, after: int = -1) -> bool:
    """Delete the entries of a table's Delta log after a version, newest first; return whether there
    were any. By default all of the log goes.

    What points into it goes before it, and with each entry its hidden companion.
    """
    names = [item.name for item in storage.listed(f"{table}/{_DELTA_LOG}")]
    bases = {name: name.rpartition("/")[2].lstrip(".") for name in names}
    gone = [name for name in names if not bases[name] < f"{after + 1:020}"]
    for name in sorted(gone, key=lambda name: bases[name], reverse=True):
        storage.delete(name)
    return bool(gone)


def _drop_shown(
    deriver: Deriver, kept: Collection[Manifest], wanted: PurgeRequest, but: Collection[str]
) -> tuple[str, ...]:
    """Delete the newest entries of Delta logs if they name files that have the key, and that no
    kept checkpoint names; return the tables, without ``but``.

    While a state has layers of changes, its table shows an older checkpoint, which may have
    expired. ``gc`` keeps the files of that.
    """
    storage = deriver.catalog.storage
    entries = [entry for manifest in kept for entry in _entries(manifest, wanted)]
    names = {entry.table.name_of(handle) for entry in entries for handle in entry.handles}
    versions: dict[str, int] = {}
    states: dict[str, KeyedState] = {}
    for entry in entries:
        if entry.table.format == "delta" and entry.table.path not in but:
            table, version = entry.table.path, entry.table.version
            states[table] = entry.state
            versions[table] = max(versions.get(table, -1), -1 if version is None else version)
    dropped = []
    for table, state in states.items():
        shown = shown_files(storage, table)
        files = filter(is_data_file, storage.list(table)) if shown is None else shown
        key = key_batch(state, wanted.key_of(state))
        if all(in_rows(storage, name, state, key, None) == 0 for name in {*files} - names):
            continue
        deriver.fence.enter(aloud=True)  # a job that publishes meanwhile would leave a gap
        if _drop_log(storage, table, versions[table]):
            dropped.append(table)
    return tuple(dropped)


def _refuse_broken(catalog: Catalog, seen: _Seen) -> None:
    """Raise MissingFileError or DamagedFileError when a file that would be named again is not as it
    was written; nothing has been written or deleted then.
    """
    for number in seen.again:
        with _advised(catalog, number, seen.visible, seen.savepoints):
            check_sizes(catalog.storage, seen.kept[number].entries)


def _make_again(
    deriver: Deriver, seen: _Seen, wanted: PurgeRequest, logs: tuple[str, ...]
) -> tuple[dict[int, Manifest], tuple[int, ...]]:
    """Return the replacements by the ids of what they replace; all are committed. And the ids of
    those of the newest that came before its last.
    """
    again = [seen.kept[number] for number in seen.again]
    begun = deriver.begin_in_order(again, seen=seen.newest)
    rewriter = KeyRewriter(deriver.catalog.storage, deriver.parquet)
    with ExitStack() as stack:
        for writer, _ in reversed(begun):  # it leaves the last one first
            stack.enter_context(writer)
        # In the order of their commits. The first one owns the files which others name as well:
        # were they another's, its failure would take them from it.
        for writer, manifest in begun:
            with _advised(deriver.catalog, manifest.checkpoint_id, seen.visible, seen.savepoints):
                _write_again(writer, manifest, rewriter, seen, wanted, logs)
    twice = tuple(writer.id for writer, _ in begun[: len(begun) - len(again)])
    return {old.checkpoint_id: writer.manifest for writer, old in begun}, twice


def _write_again(
    writer: CheckpointWriter,
    manifest: Manifest,
    rewriter: KeyRewriter,
    seen: _Seen,
    wanted: PurgeRequest,
    logs: tuple[str, ...],
) -> None:
    """Give a checkpoint every state of another one, those with the key without it."""
    hits = {hit.entry.state.name: hit for hit in seen.hits.get(manifest.checkpoint_id, ())}
    for entry in manifest.entries:
        hit = hits.get(entry.state.name) if entry.state.uid == wanted.uid else None
        if hit is None or not isinstance(entry, KeyedEntry):
            writer.collected.carry_entry(_without_log(entry, logs))
        else:
            checkpoint_id, _ = writer.planned
            done, new = rewriter.without_key(hit, checkpoint_id)
            writer.collected.carry_written([_without_log(done, logs)], new)
    writer.say_origin(_origin(seen, manifest, wanted))
    writer.keep_times(manifest)


def _finish(
    deriver: Deriver, made: Mapping[int, Manifest], twice: tuple[int, ...], now_ms: int
) -> None:
    """Let replacements take the place of what they replace."""
    for number in twice:  # while the old one is there: that tells what it is
        deriver.catalog.expire(number, tombstone(number, deriver.release, now_ms))
    replace_checkpoints(deriver.catalog, made, deriver.release, now_ms)


def _without_log(entry: E, logs: tuple[str, ...]) -> E:
    """Return a state whose table has no version any more, if its log was deleted."""
    if entry.table.path not in logs:
        return entry
    return replace(entry, table=entry.table.without_version())


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


def _report(seen: _Seen, old: int, new: Manifest | None) -> ReplacedCheckpoint:
    return ReplacedCheckpoint(
        old,
        None if new is None else new.checkpoint_id,
        tuple(one.name for one in seen.savepoints_of(old)),
        tuple(_purged(hit) for hit in seen.hits.get(old, ())),
        (seen.kept[old] if new is None else new).left_out,
    )


def _purged(hit: Hit) -> PurgedState:
    size = sum(handle.size_bytes for _, handle in hit.files)
    return PurgedState(hit.entry.state.name, hit.key_group, hit.rows, len(hit.files), size)
