"""Purge: no kept checkpoint holds a subject any more, and what held it expires (I4, I6, I10).

The subject is a key of one operator, or values of columns in all of them (``subject.py``).

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
checkpoint, and only this has the key, the newest entries of its log go as well. If only entries of
expired checkpoints show the key, the oldest version that is kept gets a checkpoint, and older
entries go; if that is not enough, the newest version does.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from statestore.files.reader import check_sizes
from statestore.files.table import refuse_tables
from statestore.format.documents import Pin, Savepoint
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.maintenance.derive import Deriver
from statestore.maintenance.expire import tombstone
from statestore.maintenance.purge_files import Hit, RowFinder, RowRemover
from statestore.maintenance.purge_logs import clean_logs, drop_log
from statestore.maintenance.search import readable_manifests
from statestore.maintenance.subject import KeySubject, OtherState, Subject
from statestore.snapshot.writer import CheckpointWriter

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


E = TypeVar("E", bound=Entry)


SubjectOf = Callable[[Sequence[Manifest]], Subject]
"""Returns the subject by all checkpoints that can be read, oldest first."""


@dataclass(frozen=True, kw_only=True)
class PurgeRequest:
    """What is removed: the subject, from one checkpoint or, None, from all that are kept."""

    subject_of: SubjectOf
    checkpoint: int | str | None = None


@dataclass(frozen=True)
class PurgedState:
    """What is removed from one state: rows of its files, deletes of the key in changes among them,
    and the files that are written anew, each once for all checkpoints that name it.

    ``key_group`` is None if the rows may be in several. ``keys`` are the lists of columns that were
    compared with the subject. There are several if the state once had other key columns.
    """

    operator: str
    name: str
    key_group: int | None
    rows: int
    files: int
    size_bytes: int
    keys: tuple[tuple[str, ...], ...]


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

    ``uid`` is the operator, None if the subject is not of one. ``finished`` are replacements of an
    earlier run that was interrupted. ``logs`` are the tables whose Delta log was deleted, and
    ``cut_logs`` those whose log lost its old entries. ``pins`` hold replaced checkpoints all the
    same. ``others`` are states that have a column of the subject and are left alone.
    """

    store: str
    dry_run: bool
    uid: str | None
    replaced: tuple[ReplacedCheckpoint, ...]
    finished: tuple[ReplacedCheckpoint, ...]
    logs: tuple[str, ...]
    cut_logs: tuple[str, ...]
    pins: tuple[str, ...]
    others: tuple[OtherState, ...] = ()


def purge(
    deriver: Deriver, wanted: PurgeRequest, *, ignore_pins: bool, dry_run: bool, now_ms: int
) -> PurgedKey:
    """Remove a subject; return what was done.

    Raises StateNotFoundError, CheckpointNotFoundError, InvalidArgumentError for a key that does not
    fit, for a checkpoint to be replaced that somebody has pinned, unless ``ignore_pins``, or where
    its tables cannot be written;
    MalformedManifestError for a kept checkpoint that cannot be read, CorruptionError for a file of
    the key group that is not what was written, CommitConflictError, or StorageError.
    """
    catalog, finder = deriver.catalog, RowFinder(deriver.catalog.storage)
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
    tables = {hit.entry.table.path for hits in seen.hits.values() for hit in hits}
    logs: tuple[str, ...] = ()
    made: dict[int, Manifest] = {}
    if seen.again and not dry_run:
        _refuse_broken(catalog, seen)
        logs = tuple(table for table in sorted(tables) if drop_log(catalog.storage, table))
        made, twice = _make_again(deriver, seen, logs)
        _finish(deriver, made, twice, now_ms)
    cut: tuple[str, ...] = ()
    if wanted.checkpoint is None:
        dropped, cut = clean_logs(
            deriver, seen.subject, seen.kept, seen.manifests, but=tables, dry_run=dry_run
        )
        logs += dropped
    return PurgedKey(
        store=catalog.storage.url,
        dry_run=dry_run,
        uid=seen.subject.operator,
        replaced=tuple(_report(seen, number, made.get(number)) for number in seen.again),
        finished=tuple(_report(seen, old, new) for old, new in (finished or seen.pending).items()),
        logs=logs,
        cut_logs=cut,
        pins=pins,
        others=seen.subject.others,
    )


@dataclass(frozen=True)
class _Seen:
    """The kept checkpoints, what of them holds the subject, and which are to be made again.

    ``manifests`` are all that can be read, expired ones too, oldest first.

    ``newest`` is the newest id that there was before anything was looked at. ``pending`` are those
    that have their replacement, and no tombstone yet, and ``twice`` first replacements of such as
    have a second.
    """

    subject: Subject
    manifests: tuple[Manifest, ...]
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


def _look(catalog: Catalog, wanted: PurgeRequest, one: int | None, finder: RowFinder) -> _Seen:
    """Read every kept checkpoint, and look the subject up in those that are wanted."""
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
    manifests = readable_manifests(catalog, known=kept)
    subject = wanted.subject_of(manifests)
    hits = {}
    for number, manifest in among.items():
        with _advised(catalog, number, visible, savepoints):
            found = (
                finder.hit(entry, subject.selections(manifest, entry.state))
                for entry in manifest.keyed
            )
            hits[number] = tuple(hit for hit in found if hit is not None)
    if isinstance(subject, KeySubject):
        _refuse_unknown(others, subject)
    held = {number: states for number, states in hits.items() if states}
    return _Seen(subject, manifests, newest, others, visible, savepoints, pending, twice, held)


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
        if origin.get("command") not in ("purge", "forget") or number not in visible:
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


def _refuse_unknown(kept: Mapping[int, Manifest], subject: KeySubject) -> None:
    """Raise StateNotFoundError when no kept checkpoint has such a state."""
    included = any(
        subject.includes(manifest, entry.state)
        for manifest in kept.values()
        for entry in manifest.keyed
    )
    if included or not kept:
        return
    newest = kept[max(kept)]
    if subject.name is not None or subject.operator not in newest.uids:
        newest.keyed_entry(subject.operator, subject.name or "")
    raise StateNotFoundError(
        f"operator {subject.operator!r} has no keyed state in any checkpoint; a key is of keyed "
        "state"
    )


def _pins(catalog: Catalog, again: tuple[int, ...], now_ms: int) -> tuple[str, ...]:
    """Return what pins the checkpoints that would be replaced, in words."""
    found = [p for p in catalog.holds.pins() if p.until_ms > now_ms and p.checkpoint_id in again]
    found.sort(key=lambda pin: (pin.checkpoint_id, pin.token))
    return tuple(f"checkpoint {p.checkpoint_id} by {p.holder} (pin {p.token})" for p in found)


def _refuse_broken(catalog: Catalog, seen: _Seen) -> None:
    """Raise MissingFileError or DamagedFileError when a file that would be named again is not as it
    was written; nothing has been written or deleted then.
    """
    for number in seen.again:
        with _advised(catalog, number, seen.visible, seen.savepoints):
            check_sizes(catalog.storage, seen.kept[number].entries)


def _make_again(
    deriver: Deriver, seen: _Seen, logs: tuple[str, ...]
) -> tuple[dict[int, Manifest], tuple[int, ...]]:
    """Return the replacements by the ids of what they replace; all are committed. And the ids of
    those of the newest that came before its last.
    """
    again = [seen.kept[number] for number in seen.again]
    begun = deriver.begin_in_order(again, seen=seen.newest)
    remover = RowRemover(deriver.catalog.storage, deriver.parquet)
    with ExitStack() as stack:
        for writer, _ in reversed(begun):  # it leaves the last one first
            stack.enter_context(writer)
        # In the order of their commits. The first one owns the files which others name as well:
        # were they another's, its failure would take them from it.
        for writer, manifest in begun:
            with _advised(deriver.catalog, manifest.checkpoint_id, seen.visible, seen.savepoints):
                _write_again(writer, manifest, remover, seen, logs)
    twice = tuple(writer.id for writer, _ in begun[: len(begun) - len(again)])
    return {old.checkpoint_id: writer.manifest for writer, old in begun}, twice


def _write_again(
    writer: CheckpointWriter,
    manifest: Manifest,
    remover: RowRemover,
    seen: _Seen,
    logs: tuple[str, ...],
) -> None:
    """Give a checkpoint every state of another one, those with the subject without it."""
    found = seen.hits.get(manifest.checkpoint_id, ())
    hits = {(hit.entry.state.uid, hit.entry.state.name): hit for hit in found}
    for entry in manifest.entries:
        hit = hits.get((entry.state.uid, entry.state.name))
        if hit is None or not isinstance(entry, KeyedEntry):
            writer.collected.carry_entry(_without_log(entry, logs))
        else:
            checkpoint_id, _ = writer.planned
            done, new = remover.without_rows(hit, checkpoint_id)
            writer.collected.carry_written([_without_log(done, logs)], new)
    writer.say_origin(_origin(seen, manifest))
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


def _origin(seen: _Seen, manifest: Manifest) -> dict[str, Any]:
    """Return what the new manifest says: what it replaces, what is gone of it, what must follow."""
    number = manifest.checkpoint_id
    states = [
        {
            "operator": hit.entry.state.uid,
            "state": hit.entry.state.name,
            "key_group": hit.key_group,
            "rows": hit.rows,
        }
        for hit in seen.hits.get(number, ())
    ]
    savepoints = [
        {"name": one.name, "created_at_ms": one.created_at_ms} for one in seen.savepoints_of(number)
    ]
    operator = seen.subject.operator
    origin: dict[str, Any] = {
        "command": seen.subject.command,
        "checkpoint": number,
        **({} if operator is None else {"operator": operator}),
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
    state = hit.entry.state
    keys = tuple(tuple(selection.schema.names) for selection in hit.selections)
    return PurgedState(state.uid, state.name, hit.key_group, hit.rows, len(hit.files), size, keys)
