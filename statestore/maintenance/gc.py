"""Collect garbage: delete the data files that no kept checkpoint needs (I4, I9, I10).

The mark phase (``gc_mark.py``) finds the live files. Every other data file is dead, whether its
checkpoint expired or a crashed writer left it, and is deleted once it has the minimum age. After
that, the following are deleted:

* manifests of expired checkpoints, and pins whose lease has ended;
* the remains of interrupted writes: hidden files, and in a bucket the parts of uploads;
* tombstones older than 30 days whose manifests are gone;
* claims of writers that were replaced long ago;
* entries in the log of a Delta table that are older than all versions that kept checkpoints name;
* old records of deletions (``catalog/deletions.py``).

The tombstone of the greatest id stays.

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

**Why a power failure does not bring holds back.** What a collection read is made durable before
the first deletion: tombstones, and the absence of holds. Its deletions are durable when it returns.

**The limit.** With a minimum age of 0, no snapshot and no reader without a pin may run during a
collection. With a greater one, this holds for a snapshot that takes longer than the minimum age,
and for a reader without a pin that takes longer and whose checkpoint expires meanwhile. A
background compaction counts as part of the snapshot that adopts its result: its files may be six
hours old by then (``snapshot/background_compaction.py``). The same limit holds for a command that
derives a checkpoint from one that only a savepoint keeps, if this savepoint is deleted meanwhile.
Ages compare two clocks, this machine's and the file system's, so the minimum age must be far above
their difference.

**Why a crash leaves every kept checkpoint readable.** No kept checkpoint names a deleted file. A
manifest is deleted after the last of its own files, so that the owner of a file can always be
found. Its number is not used again, because a greater one exists.

**Why tombstones can be deleted.** Once its manifest is gone, a tombstone has one possible reader
left: a writer that was about to put a manifest with this number, and was overtaken by another
writer. That writer began before the other's put, so it finds the tombstone for at least 30 days.
The manifest is deleted at least one collection earlier, so no listing can show it without its
tombstone.

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

**Why old claims can be deleted (I4, I6).** A writer reads two claims before it commits: its own,
and the one after it (``catalog/fence.py``). It has been replaced if the next one exists, or if its
own one does not. So a deletion must never leave a claim whose successor is gone:

* Claims are deleted in ascending order. Each deletion is durable before the next one begins.
* A claim stays if its predecessor exists although the listing lacks it, or if the listing has a gap
  below it.

The two newest claims stay. So a claim that is missing proves that the one after it was followed by
another, and a writer that finds the predecessor of its new claim missing knows that it was
replaced.

**The announced ids.** A command may read the claims from the newest one back to the first one with
an announced id that is above all used ids (``Fence.announced_ids``). While such a claim exists, all
claims stay. Announced ids never decrease from one claim to the next, so otherwise no reader needs a
claim before the newest one.

**The age.** A writer of release 0.1.0 does not read the predecessor of its new claim. If it pauses
between its look for the newest claim and the put of its own, and that name was deleted meanwhile,
it takes itself for the newest writer. For this reason a claim that such a release could follow
stays until its successor is 30 days old. A claim of a newer writer version stays until its
successor has the minimum age of the collection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from statestore.catalog.catalog import Catalog
from statestore.catalog.deletions import recorded, surplus_records
from statestore.catalog.fence import claim_from_json
from statestore.catalog.holds import Held
from statestore.delta.backend import shown_files
from statestore.delta.log_cleanup import unneeded_files
from statestore.durations import Duration, duration_text, milliseconds_of
from statestore.errors import FormatVersionError, MalformedManifestError
from statestore.format.names import (
    CHECKPOINTS,
    PINS,
    SAVEPOINTS,
    WRITERS,
    data_file_id,
    folder_of,
    generation_of,
    is_file_list,
    is_leftover,
    manifest_path,
    pin_path,
    tombstone_path,
    writer_path,
)
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.gc_mark import (
    LONGEST_PAUSE_MS,
    Marks,
    is_old,
    mark,
    named_files_if_readable,
)
from statestore.maintenance.store_context import HasContext
from statestore.storage import Listed, Storage

_KEPT = 2  # newest claims


def replaced_claims(
    storage: Storage,
    listing: Iterable[Listed],
    newest_id: int,
    minimum_age_ms: int,
    now_ms: int,
) -> tuple[int, ...]:
    """Return the generations of the claims to delete, ascending.

    ``newest_id`` is the greatest checkpoint id that was ever used. If the newest claim cannot be
    read, no claim is deleted, because ``repair`` may need the earlier ones. Raises StorageError.
    """
    times = {
        generation: item.modified_ms
        for item in listing
        if (generation := generation_of(item.name)) is not None
    }
    generations = sorted(times)
    if len(generations) <= _KEPT or _exists(storage, generations[0] - 1):
        return ()
    newest = generations[-1]
    try:
        raw = storage.read(writer_path(newest))
        claim = claim_from_json(raw, name=writer_path(newest), generation=newest)
    except (MalformedManifestError, FormatVersionError, FileNotFoundError):
        return ()
    if claim.announced_id > newest_id:
        return ()
    first_new = newest if claim.upgrade is None else claim.upgrade.generation
    replaced: list[int] = []
    for generation, successor in pairwise(generations[: 1 - _KEPT]):
        pause_ms = LONGEST_PAUSE_MS if generation < first_new else 0
        age_ms = max(minimum_age_ms, pause_ms)
        has_gap = bool(replaced) and generation != replaced[-1] + 1
        if has_gap or not is_old(max(times[generation], times[successor]), age_ms, now_ms):
            break
        replaced.append(generation)
    return tuple(replaced)


def delete_claims(storage: Storage, generations: Sequence[int]) -> None:
    """Delete these claims, which must be ascending, one after another. Raises StorageError."""
    for generation in generations:
        storage.delete(writer_path(generation))
        storage.sync([f"{WRITERS}/"])


def _exists(storage: Storage, generation: int) -> bool:
    if generation < 1:
        return False
    try:
        return storage.size(writer_path(generation)) >= 0
    except FileNotFoundError:
        return False


DEFAULT_MINIMUM_AGE = "24h"
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

    ``live`` files belong to the ``kept`` checkpoints, or to the newest version of a Delta table;
    ``live_lists`` are the lists of files among them, which ``list`` does not count.
    ``young`` files do not, but they were written, or their checkpoint expired, less than the
    minimum age ago. The ``removed`` files belonged to the ``expired`` checkpoints, or no manifest
    named them. The latter are stray files, as ``verify`` lists them: ``stray`` counts them, and
    ``strays`` has their names. ``young_stray`` counts the stray files among ``young``.
    ``manifests`` and ``tombstones`` are checkpoint ids, ``claims`` are generations of replaced
    writers, and ``pins`` are tokens. ``leftovers`` is the number of interrupted writes, and
    ``log_files`` counts the files removed from Delta logs.
    ``held`` are the checkpoints that a savepoint or a pin holds.
    """

    store: str
    dry_run: bool
    minimum_age_ms: int
    removed: FileAmount
    live: FileAmount
    live_lists: FileAmount
    young: FileAmount
    kept: tuple[int, ...]
    expired: tuple[int, ...]
    stray: FileAmount
    strays: tuple[str, ...]
    young_stray: FileAmount
    manifests: tuple[int, ...]
    tombstones: tuple[int, ...]
    claims: tuple[int, ...]
    pins: tuple[str, ...]
    leftovers: int
    log_files: FileAmount
    held: tuple[Held, ...]


def collect_garbage(
    store: HasContext,
    *,
    minimum_age: Duration = DEFAULT_MINIMUM_AGE,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> CollectedGarbage:
    """Delete the data files that no visible checkpoint, savepoint or pin needs.

    Files that crashed writers left are deleted too.

    Args:
        minimum_age: only files above this age are deleted; by default 24 hours. Files of
            checkpoints that expired more recently stay as well. No snapshot that takes longer
            than this may run at the same time. With 0, no snapshot may run at all.
        dry_run: reports what would be deleted, and changes nothing.
        on_progress: called with the number of deleted files and the total.

    Returns:
        The deleted files.

    Raises:
        StoreNotFoundError: if the store does not exist.
        CorruptionError, FormatVersionError or StorageError: before anything is deleted, if the
            needed files cannot be determined. The message says what to do.
    """
    minimum_age_ms = milliseconds_of(minimum_age)
    catalog, now_ms = store.parts.catalog(), store.parts.now_ms()
    marks = mark(catalog, minimum_age_ms=minimum_age_ms, now_ms=now_ms)
    dead, live, young = _divide(catalog.storage, marks, minimum_age_ms, now_ms)
    staying = {item.name for item in (*young, *live)} - marks.live
    expired = _ExpiredFiles.of(catalog, marks, {item.name for item in dead}, staying)
    strays = [item for item in dead if expired.is_stray(item)]
    tombstones = _without_manifest(catalog.storage, marks.bare)
    claims = replaced_claims(
        catalog.storage, marks.listing, marks.newest_id, minimum_age_ms, now_ms
    )
    pins = tuple(pin.token for pin in catalog.holds.pins() if pin.until_ms <= now_ms)
    leftovers, log_files = _remains(catalog.storage, marks, minimum_age_ms, now_ms)
    if not dry_run:
        _sync_what_was_read(catalog.storage)
        why = f"unused for {duration_text(minimum_age_ms)}" if minimum_age_ms else "unused"
        sizes = (item.size_bytes for item in (*dead, *log_files))
        with recorded(catalog.storage, "gc", why, expired.deleted_ids, sizes, now_ms):
            names = [item.name for item in dead]
            delete_files(catalog.storage, names, on_progress or ignore_progress)
            _delete_documents(
                catalog.storage,
                map(manifest_path, expired.without_files),  # after their files
                map(pin_path, pins),
                (item.name for item in (*leftovers, *log_files)),
                map(tombstone_path, tombstones),
                surplus_records(item.name for item in marks.listing),
            )
            delete_claims(catalog.storage, claims)
    return CollectedGarbage(
        store=catalog.storage.url,
        dry_run=dry_run,
        minimum_age_ms=minimum_age_ms,
        removed=amount_of_files(dead),
        live=amount_of_files(live),
        live_lists=amount_of_files(item for item in live if is_file_list(item.name)),
        young=amount_of_files(young),
        kept=marks.kept,
        expired=expired.owners,
        stray=amount_of_files(strays),
        strays=tuple(item.name for item in strays),
        young_stray=amount_of_files(filter(expired.is_stray, young)),
        manifests=expired.without_files,
        tombstones=tombstones,
        claims=claims,
        pins=pins,
        leftovers=len(leftovers),
        log_files=amount_of_files(log_files),
        held=tuple(Held(number, holder) for number, holder in marks.holds.items()),
    )


def _divide(
    storage: Storage, marks: Marks, minimum_age_ms: int, now_ms: int
) -> tuple[list[Listed], list[Listed], list[Listed]]:
    """Return the dead data files, the live ones, and the unused ones that are too young."""
    unused = [item for item in marks.files if item.name not in marks.live]
    old = [item for item in unused if is_old(item.modified_ms, minimum_age_ms, now_ms)]
    unknown = tuple(marks.unknown)
    unnamed = [i for i in old if i.name not in marks.lately and not i.name.startswith(unknown)]
    shown = _needed_by_delta(storage, {item.name for item in unnamed}, marks.delta)
    dead = [item for item in unnamed if item.name not in shown]
    gone = {item.name for item in dead}
    live = [item for item in marks.files if item.name in marks.live or item.name in shown]
    young = [item for item in unused if item.name not in gone and item.name not in shown]
    return dead, live, young


def _remains(
    storage: Storage, marks: Marks, minimum_age_ms: int, now_ms: int
) -> tuple[list[Listed], tuple[Listed, ...]]:
    """Return the old remains of interrupted writes, and the unneeded files of Delta logs."""
    old = [item for item in marks.listing if is_old(item.modified_ms, minimum_age_ms, now_ms)]
    known = {item.name for item in marks.files}
    others = (item for item in old if item.name not in known)
    log_files = tuple(unneeded_files(storage, others, marks.versions))
    return [item for item in old if is_leftover(item.name)], log_files


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


@dataclass(frozen=True)
class _ExpiredFiles:
    """The unused files that expired checkpoints name.

    ``owners`` are the checkpoints with dead files. ``without_files`` are the ones that have no
    files left, apart from files that others need.
    """

    marks: Marks
    names: set[str]
    owners: tuple[int, ...]
    without_files: tuple[int, ...]

    @classmethod
    def of(cls, catalog: Catalog, marks: Marks, dead: set[str], staying: set[str]) -> _ExpiredFiles:
        """Read the manifests of expired checkpoints; dead and staying files are all unused ones."""
        every, names = dead | staying, set[str]()
        owners, without_files = [], []
        for checkpoint_id in marks.expired_ids:
            named = named_files_if_readable(catalog, checkpoint_id, marks.live)
            if named is None:  # its other files are unknown
                named = {name for name in every if data_file_id(name) == checkpoint_id}
            if named & dead:
                owners.append(checkpoint_id)
            if not named & staying:
                without_files.append(checkpoint_id)
            names |= named & every
        return cls(marks, names, tuple(owners), tuple(without_files))

    @property
    def deleted_ids(self) -> set[int]:
        """The checkpoints that lose files or their manifest."""
        return {*self.owners, *self.without_files}

    def is_stray(self, item: Listed) -> bool:
        """Return whether no manifest names an unused file, as far as manifests were readable."""
        return not (
            item.name in self.names
            or item.name in self.marks.lately
            or item.name.startswith(tuple(self.marks.unknown))
            or data_file_id(item.name) in self.marks.unread
        )


def _without_manifest(storage: Storage, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the checkpoints without a manifest, by a lookup instead of a listing."""

    def has_one(number: int) -> bool:
        try:
            return storage.size(manifest_path(number)) >= 0
        except FileNotFoundError:
            return False

    with ThreadPoolExecutor(max_workers=_DELETERS) as pool:
        looked_up = zip(numbers, pool.map(has_one, numbers), strict=True)
        return tuple(number for number, is_there in looked_up if not is_there)


def _sync_what_was_read(storage: Storage) -> None:
    """Make tombstones durable, and the absence of deleted holds.

    Another process may not have synced them yet. After a power failure the checkpoint would be
    visible or held again, without its files.
    """
    storage.sync([f"{folder}/" for folder in (CHECKPOINTS, PINS, SAVEPOINTS)])


def delete_files(storage: Storage, names: Sequence[str], progress: Progress) -> None:
    """Delete files with several threads; the deletions are durable when it returns.

    Raises StorageError.
    """
    progress(0, len(names))
    with ThreadPoolExecutor(max_workers=_DELETERS) as pool:
        for start in range(0, len(names), _BATCH):
            for done, _ in enumerate(pool.map(storage.delete, names[start : start + _BATCH]), 1):
                progress(start + done, len(names))
    storage.sync(sorted({name[: name.rindex("/") + 1] for name in names if "/" in name}))


def _delete_documents(storage: Storage, *parts: Iterable[str]) -> None:
    """Delete several kinds of files, one after another."""
    for names in parts:
        delete_files(storage, list(names), ignore_progress)


def amount_of_files(items: Iterable[Listed]) -> FileAmount:
    """Return the number of listed files, and their total bytes."""
    sizes = [item.size_bytes for item in items]
    return FileAmount(len(sizes), sum(sizes))
