"""Collect garbage: delete the data files that no kept checkpoint needs (I4, I9, I10).

The mark phase below finds the live files. Every other data file is dead, whether its checkpoint
expired or a crashed writer left it, and is deleted once it has the minimum age. After that, the
following are deleted:

* manifests of expired checkpoints, and pins whose lease has ended;
* the remains of interrupted writes: hidden files, and in a bucket the parts of uploads;
* tombstones older than 30 days whose manifests are gone;
* entries in the log of a Delta table that are older than all versions that kept checkpoints name.

Claims stay, and so does the tombstone of the greatest id.

**Why it is safe next to other processes.** A collection reads the tombstones, then the holds. After
that it reads nothing more, and starts to delete.

* *A savepoint or a pin* first puts its document, then checks that its checkpoint has no tombstone.
  If there is no tombstone yet, then either the collection saw none either, or the document was
  there when the collection read the holds. The checkpoint is kept in both cases. If there is a
  tombstone, the hold is withdrawn and its creator gets an error.
* *An expiry*: a checkpoint that gets its tombstone after the collection read the tombstones is
  visible to the collection, and kept.
* *A snapshot* that commits after the collection read the manifests has files that no manifest names
  yet. They are younger than the minimum age if the snapshot took less than that from its first file
  to its commit. The files that it names again from an older checkpoint are marked while that is
  visible, held, or expired less than the minimum age ago. In addition, before its commit a writer
  checks that the previous checkpoint is still visible, and asks for the size of every file that
  this one does not name. So a deletion before that check fails the snapshot, and damages no
  checkpoint.
* *A copy, a fork, a rekey* gives existing files that it uses a new, young name of its own
  (``derive.py``). The old name may be deleted at any time.
* *Another collection* deletes the same files. A file that is already gone is not an error.

**The limit.** With a minimum age of 0, no snapshot and no reader without a pin may run during a
collection. With a greater one, this holds for a snapshot that takes longer than the minimum age,
and for a reader without a pin that takes longer and whose checkpoint expires meanwhile. A
background compaction counts as part of the snapshot that adopts its result: its files may be six
hours old by then (``background.py``). The same limit holds for a command that derives a checkpoint
from one that only a savepoint keeps, if this savepoint is deleted meanwhile. Ages compare two
clocks, this machine's and the file system's, so the minimum age must be far above their difference.

**Why a crash leaves every kept checkpoint readable.** No kept checkpoint names a deleted file. A
manifest is deleted after the last of its own files, so that the owner of a file can always be
found. Its number is not used again, because a greater one exists.

**Why tombstones can be deleted, but claims cannot.** Once its manifest is gone, a tombstone has one
possible reader left: a writer that was about to put a manifest with this number, and was overtaken
by another writer. That writer began before the other's put, so it finds the tombstone for at least
30 days. The manifest is deleted at least one collection earlier, so no listing can show it without
its tombstone. A claim is read by the writer of the previous generation, each time when it begins a
checkpoint. There is no time limit after which a stalled job can no longer resume.

**Why tombstones do not block the numbers of slow writers first.** Such a tombstone could come
before the put of a manifest, or after the writer has checked for one, and its creator cannot know
which. In the second case it would remove a checkpoint that was already reported as committed. For
this reason the limit above exists.

**For readers of Delta tables.** The newest version of a table stays readable: its files are kept
even if no kept checkpoint names them any more. While a state has layers of changes its table gets
no new version, and the newest one has the base that the layers started from. This holds for states
of kept checkpoints. The table of a state that no kept checkpoint has is deleted. Time travel to
older versions fails once their files were collected. A log entry is deleted if it is older than a
log checkpoint that readers have used for the minimum age, and older than each version that a kept
checkpoint names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from statestore.catalog.catalog import Catalog
from statestore.delta.backend import shown_files
from statestore.delta.log_cleanup import needless
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    MalformedManifestError,
    MissingFileError,
    StateStoreError,
    StorageError,
)
from statestore.format.hold_documents import Held
from statestore.format.listed import ListedFiles, list_of
from statestore.format.manifest import Entry, Manifest
from statestore.format.names import (
    CHECKPOINTS,
    checkpoint_id_of,
    data_file_id,
    folder_of,
    is_data_file,
    is_leftover,
    manifest_path,
    pin_path,
    tombstone_path,
)
from statestore.storage import Listed, Storage

__all__ = [
    "DEFAULT_MINIMUM_AGE_S",
    "CollectedGarbage",
    "FileAmount",
    "Marks",
    "collect_garbage",
    "files_of",
    "is_old",
    "mark",
]


# Mark: find the live data files of a store from its checkpoints and holds (I9).
#
# A file is live if the manifest of a visible checkpoint names it, or of one that is held by a
# savepoint or by a pin whose lease has not ended. Files of a checkpoint that expired less than the
# minimum age ago are marked too, because a process may still read it or derive a checkpoint from
# it.
#
# A listing may be incomplete. Trusting such a listing would delete live files, or treat manifests
# as gone. So a name counts if any of several listings has it. The checkpoints that data file names
# mention are looked up. If a live file or manifest is not listed where it must be, the collection
# is refused, with that name. If checkpoints came or went meanwhile, that may be the whole reason,
# and everything is read again. So a collection next to a busy job raises no false alarm, and each
# accepted reading is consistent in itself.


_NOTHING = "nothing was collected"
_LOOKS = 5
_TOMBSTONE_AGE_MS = 30 * 24 * 3_600_000


@dataclass(kw_only=True)
class Marks:
    """The files of a store, and which of them stay.

    ``listing`` has all files, ordered by name. ``live`` and ``lately`` are names of data files of
    kept checkpoints, and of recently expired ones. ``expired_ids`` are the ids of the other
    checkpoints that have a manifest, and ``holds`` describes the holder of each held checkpoint.
    ``bare`` are ids of old tombstones whose manifests are in no listing. ``versions`` has, by
    folder, the oldest version of a Delta table that one of these checkpoints names. ``delta`` has
    the folders of all their Delta tables. ``unknown`` has the folders of tables for which a
    recently expired checkpoint has an unreadable list of files, and these lists.
    """

    listing: tuple[Listed, ...]
    holds: dict[int, str]
    live: set[str] = field(default_factory=set)
    lately: set[str] = field(default_factory=set)
    expired_ids: tuple[int, ...] = ()
    bare: tuple[int, ...] = ()
    versions: dict[str, int] = field(default_factory=dict)
    delta: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    @cached_property
    def files(self) -> tuple[Listed, ...]:
        """The data files and the lists of files."""
        return tuple(item for item in self.listing if is_data_file(item.name))

    def note(self, manifest: Manifest) -> None:
        """Record a checkpoint's Delta tables and their versions."""
        for entry in manifest.parts:
            if entry.table.format == "delta":
                self.delta.add(entry.table.path)
            if entry.table.version is not None:
                folder, version = entry.table.path, entry.table.version
                self.versions[folder] = min(version, self.versions.get(folder, version))


def mark(catalog: Catalog, *, minimum_age_ms: int, now_ms: int) -> Marks:
    """Return the live files.

    The order of the reads matters; the docstring of ``gc.py`` gives the reasons.

    Raises CorruptionError, FormatVersionError or StorageError if they cannot be determined.
    """
    storage = catalog.storage
    for look in range(1, _LOOKS + 1):
        # Before the listing, which must contain the files of these checkpoints.
        before = _Checkpoints().add(storage.listed(CHECKPOINTS))
        listing = storage.listed("")
        checkpoints = _Checkpoints().add(listing).add(before.items).add(storage.listed(CHECKPOINTS))
        try:
            return _mark_files(catalog, listing, before, checkpoints, minimum_age_ms, now_ms)
        except (CorruptionError, FormatVersionError, StorageError):
            if look == _LOOKS or not checkpoints.changed(storage.listed(CHECKPOINTS)):
                raise
    raise AssertionError("the last attempt must return or raise")


def _mark_files(
    catalog: Catalog,
    listing: tuple[Listed, ...],
    before: _Checkpoints,
    checkpoints: _Checkpoints,
    minimum_age_ms: int,
    now_ms: int,
) -> Marks:
    """Return the live files according to three listings taken one after another."""
    marks = Marks(listing=listing, holds={})
    _refuse_lost_manifests(catalog, marks.files, checkpoints)
    try:
        # After the tombstones: a held checkpoint without a tombstone is visible, and kept anyway.
        holds = marks.holds = catalog.holds.held(now_ms, (item.name for item in listing))
    except (CorruptionError, FormatVersionError) as error:
        raise _refusal(error, "recover it from a backup, or delete this hold") from error
    names = {item.name for item in listing}
    for checkpoint_id in sorted({*checkpoints.visible, *holds}):
        manifest, files = _load_named_files(catalog, checkpoint_id, holds, marks.live)
        marks.note(manifest)
        if checkpoint_id in before.manifests and not files <= names:
            _refuse_missing(catalog, checkpoint_id, min(files - names))
        marks.live |= files
    hidden = sorted(checkpoints.manifests - checkpoints.visible - set(holds))
    for checkpoint_id in hidden:
        if not is_old(checkpoints.tombstones[checkpoint_id], minimum_age_ms, now_ms):
            _mark_recently_expired(catalog, checkpoint_id, marks)
    ages = (
        (number, checkpoints.manifest_ms[number], checkpoints.tombstones[number])
        for number in hidden
    )
    marks.expired_ids = tuple(
        number
        for number, manifest_ms, tombstone_ms in ages
        if is_old(max(manifest_ms, tombstone_ms), minimum_age_ms, now_ms)
        and number != checkpoints.newest
    )
    marks.bare = tuple(
        number
        for number, tombstone_ms in sorted(checkpoints.tombstones.items())
        if number not in checkpoints.manifests | {checkpoints.newest}
        and is_old(tombstone_ms, max(minimum_age_ms, _TOMBSTONE_AGE_MS), now_ms)
    )
    return marks


def is_old(modified_ms: int, minimum_age_ms: int, now_ms: int) -> bool:
    """Return whether a file has the minimum age.

    If the age is 0, every file has it, whatever the file system's clock says.
    """
    return minimum_age_ms == 0 or now_ms - modified_ms >= minimum_age_ms


def files_of(manifest: Manifest, known: Collection[str] = frozenset()) -> Iterator[str]:
    """Yield the names of a checkpoint's data files and lists of files.

    Lists in ``known`` and their files are skipped, because other checkpoints have them too. One
    list is in memory at a time. Raises MalformedManifestError for an unreadable list.
    """
    for part in manifest.parts:
        yield from _files_of(part, known)


def _files_of(part: Entry, *known: Collection[str]) -> Iterator[str]:
    handles = part.handles
    if isinstance(handles, ListedFiles):
        if any(handles.file_list.path in names for names in known):
            return
        yield handles.file_list.path
        handles = handles.read()
    for handle in handles:
        yield part.table.name_of(handle)


@dataclass
class _Checkpoints:
    """The manifests and tombstones that were listed, each with its time."""

    manifest_ms: dict[int, int] = field(default_factory=dict)
    tombstones: dict[int, int] = field(default_factory=dict)
    items: list[Listed] = field(default_factory=list)

    def add(self, items: Iterable[Listed]) -> _Checkpoints:
        """Add a listing; a tombstone that was seen once exists forever."""
        for item in items:
            identity = checkpoint_id_of(item.name)
            if identity is not None:
                number, is_tombstone = identity
                (self.tombstones if is_tombstone else self.manifest_ms)[number] = item.modified_ms
                self.items.append(item)
        return self

    def changed(self, items: Iterable[Listed]) -> bool:
        """Return whether a listing shows other manifests or tombstones."""
        now = _Checkpoints().add(items)
        return (now.manifests, set(now.tombstones)) != (self.manifests, set(self.tombstones))

    @property
    def manifests(self) -> set[int]:
        return set(self.manifest_ms)

    @property
    def visible(self) -> set[int]:
        return set(self.manifest_ms) - set(self.tombstones)

    @property
    def newest(self) -> int:
        return max({*self.manifest_ms, *self.tombstones}, default=0)


def _refuse_lost_manifests(
    catalog: Catalog, files: Iterable[Listed], checkpoints: _Checkpoints
) -> None:
    """Refuse to collect if a checkpoint with data files has a manifest that no listing shows."""
    numbers = {data_file_id(item.name) for item in files}
    for number in sorted(
        filter(None, numbers - checkpoints.manifests - set(checkpoints.tombstones))
    ):
        try:
            catalog.storage.read(manifest_path(number))
        except FileNotFoundError:
            continue
        raise StorageError(
            f"{_NOTHING}: {catalog.storage.url}/{manifest_path(number)} exists, but the file "
            "system's listing lacks it. It may have been committed a moment ago: run the "
            "command again. If the error remains, this file system's listings are unreliable"
        )


def _load_named_files(
    catalog: Catalog, checkpoint_id: int, holds: dict[int, str], known: Collection[str]
) -> tuple[Manifest, set[str]]:
    """Return a manifest and the files that it names, as :func:`files_of` does."""
    who = holds.get(checkpoint_id)
    try:
        manifest = catalog.load_header(checkpoint_id)
        if manifest.store_id != catalog.store_id:
            raise MalformedManifestError(
                f"{catalog.storage.url}/{manifest_path(checkpoint_id)} is the manifest of another "
                f"store, {manifest.store_id}"
            )
        return manifest, set(files_of(manifest, known))
    except CheckpointNotFoundError as error:
        lost = MissingFileError(f"{error}, although {who or 'nothing'} holds it")
        raise _refusal(lost, _repair_hint(checkpoint_id, who)) from error
    except (CorruptionError, FormatVersionError) as error:
        # Salvage is not suggested, because it needs the manifest and its lists.
        held = f"; or release it: {who}" if who else ", or let it expire after new checkpoints"
        raise _refusal(error, f"recover it from a backup{held}") from error


def _mark_recently_expired(catalog: Catalog, checkpoint_id: int, marks: Marks) -> None:
    """Mark the files of a recently expired checkpoint; ignore it if its manifest is unreadable.

    If only one list is unreadable, the other states can still be read and named again.
    """
    try:
        manifest = catalog.load_header(checkpoint_id)
    except (CorruptionError, FormatVersionError, CheckpointNotFoundError):
        return
    marks.note(manifest)
    for part in manifest.parts:
        try:
            marks.lately |= {*_files_of(part, marks.live, marks.lately)}
        except (MalformedManifestError, FormatVersionError):
            marks.unknown |= {f"{part.table.path}/", *filter(None, [list_of(part.handles)])}


def _named_files_if_readable(
    catalog: Catalog, checkpoint_id: int, known: Collection[str]
) -> set[str] | None:
    """Return the files that an expired checkpoint names, except known lists; None if unreadable."""
    try:
        return set(files_of(catalog.load_header(checkpoint_id), known))
    except (CorruptionError, FormatVersionError, CheckpointNotFoundError):
        return None


def _refuse_missing(catalog: Catalog, checkpoint_id: int, name: str) -> None:
    where = f"{catalog.storage.url}/{name}, a file of checkpoint {checkpoint_id},"
    try:
        catalog.storage.size(name)
    except FileNotFoundError:
        who = catalog.holds.held(0).get(checkpoint_id)
        lost = MissingFileError(f"{where} is missing")
        raise _refusal(lost, _repair_hint(checkpoint_id, who)) from None
    raise StorageError(
        f"{_NOTHING}: {where} exists, but the file system's listing lacks it: run the command "
        "again. If the error remains, this file system's listings are unreliable"
    )


def _repair_hint(checkpoint_id: int, held_by: str | None) -> str:
    verify = f"'statestore verify {checkpoint_id}' lists all broken files"
    if held_by is not None:
        return f"{verify}; recover the file from a backup, or release the checkpoint: {held_by}"
    return (
        f"{verify}; recover the file from a backup, or make a new checkpoint of the readable "
        f"part with 'statestore salvage {checkpoint_id}', and let the damaged one expire"
    )


def _refusal(error: StateStoreError, advice: str) -> StateStoreError:
    return type(error)(f"{_NOTHING}: {error}; {advice}")


DEFAULT_MINIMUM_AGE_S = 24 * 3600
_DELETERS = 8
_BATCH = 256  # how many deletions are still attempted after one has failed


@dataclass(frozen=True)
class FileAmount:
    """A number of files, and their total bytes."""

    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class CollectedGarbage:
    """The removed files, or in a dry run the files to remove, and why the other data files stay.

    ``live`` files belong to kept checkpoints, or to the newest version of a Delta table. ``young``
    files do not, but they were written, or their checkpoint expired, less than the minimum age ago.
    ``manifests`` and ``tombstones`` are checkpoint ids, and ``pins`` are tokens. ``leftovers`` is
    the number of interrupted writes, and ``log_files`` counts the files removed from Delta logs.
    ``held`` are the checkpoints that a savepoint or a pin holds.
    """

    store: str
    dry_run: bool
    minimum_age_ms: int
    removed: FileAmount
    live: FileAmount
    young: FileAmount
    manifests: tuple[int, ...]
    tombstones: tuple[int, ...]
    pins: tuple[str, ...]
    leftovers: int
    log_files: FileAmount
    held: tuple[Held, ...]


def collect_garbage(
    catalog: Catalog,
    *,
    minimum_age_ms: int,
    now_ms: int,
    dry_run: bool,
    progress: Callable[[int, int], None],
) -> CollectedGarbage:
    """Delete the dead files, and report them; an interrupted run can be repeated.

    ``progress`` is called with the number of deleted files and the total. Before anything is
    deleted, it raises:

    * InvalidArgumentError for a negative age;
    * CorruptionError or FormatVersionError for an unreadable document of a kept checkpoint or hold;
    * StorageError if a listing lacks a live file.

    StorageError is also raised if a file cannot be deleted.
    """
    if minimum_age_ms < 0:
        raise InvalidArgumentError(f"an age must be 0 or more milliseconds, not {minimum_age_ms}")
    marks = mark(catalog, minimum_age_ms=minimum_age_ms, now_ms=now_ms)
    unused = [item for item in marks.files if item.name not in marks.live]
    old = [item for item in unused if is_old(item.modified_ms, minimum_age_ms, now_ms)]
    unknown = tuple(marks.unknown)
    unnamed = [i for i in old if i.name not in marks.lately and not i.name.startswith(unknown)]
    shown = _needed_by_delta(catalog.storage, {item.name for item in unnamed}, marks.delta)
    dead = [item for item in unnamed if item.name not in shown]
    gone = {item.name for item in dead}
    live = [item for item in marks.files if item.name in marks.live or item.name in shown]
    young = [item for item in unused if item.name not in gone and item.name not in shown]
    manifests = _without_files(catalog, marks, {item.name for item in young} | shown)
    tombstones = _without_manifest(catalog.storage, marks.bare)
    pins = tuple(pin.token for pin in catalog.holds.pins() if pin.until_ms <= now_ms)
    leftovers = [
        item
        for item in marks.listing
        if is_leftover(item.name) and is_old(item.modified_ms, minimum_age_ms, now_ms)
    ]
    known = {item.name for item in marks.files}
    others = (item for item in marks.listing if item.name not in known)
    aged = (item for item in others if is_old(item.modified_ms, minimum_age_ms, now_ms))
    log_files = needless(catalog.storage, aged, marks.versions)
    if not dry_run:
        _delete(catalog.storage, [item.name for item in dead], progress)
        for names in (
            map(manifest_path, manifests),  # after their files
            map(pin_path, pins),
            (item.name for item in leftovers),
            (item.name for item in log_files),
            map(tombstone_path, tombstones),
        ):
            _delete(catalog.storage, list(names), lambda done, total: None)
    return CollectedGarbage(
        store=catalog.storage.url,
        dry_run=dry_run,
        minimum_age_ms=minimum_age_ms,
        removed=_amount(dead),
        live=_amount(live),
        young=_amount(young),
        manifests=manifests,
        tombstones=tombstones,
        pins=pins,
        leftovers=len(leftovers),
        log_files=_amount(log_files),
        held=tuple(Held(number, by) for number, by in marks.holds.items()),
    )


def _needed_by_delta(storage: Storage, names: set[str], tables: Collection[str]) -> set[str]:
    """Return which data files the newest versions of Delta tables need.

    If the log of a table is unreadable, all of its files stay, because ``repair`` may restore it.
    """
    shown: set[str] = set()
    for folder in sorted({folder_of(name) for name in names}.intersection(tables)):
        own = {name for name in names if folder_of(name) == folder}
        files = shown_files(storage, folder)
        shown |= own if files is None else own & files
    return shown


def _without_files(catalog: Catalog, marks: Marks, young: set[str]) -> tuple[int, ...]:
    """Return the expired checkpoints that have no files left, apart from files that others need."""
    numbers = []
    for checkpoint_id in marks.expired_ids:
        named = _named_files_if_readable(catalog, checkpoint_id, marks.live)
        if named is not None:
            files = named
        else:
            prefix = f"{checkpoint_id:010}-"  # its other files are unknown
            files = {name for name in young if name.rpartition("/")[2].startswith(prefix)}
        if not files & young:
            numbers.append(checkpoint_id)
    return tuple(numbers)


def _without_manifest(storage: Storage, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the checkpoints without a manifest, by a lookup instead of a listing."""

    def has_one(number: int) -> bool:
        try:
            return storage.size(manifest_path(number)) >= 0
        except FileNotFoundError:
            return False

    with ThreadPoolExecutor(max_workers=_DELETERS) as pool:
        asked = zip(numbers, pool.map(has_one, numbers), strict=True)
        return tuple(number for number, is_there in asked if not is_there)


def _delete(storage: Storage, names: Sequence[str], progress: Callable[[int, int], None]) -> None:
    progress(0, len(names))
    with ThreadPoolExecutor(max_workers=_DELETERS) as pool:
        for start in range(0, len(names), _BATCH):
            for done, _ in enumerate(pool.map(storage.delete, names[start : start + _BATCH]), 1):
                progress(start + done, len(names))


def _amount(items: Iterable[Listed]) -> FileAmount:
    sizes = [item.size_bytes for item in items]
    return FileAmount(len(sizes), sum(sizes))
