"""Collect garbage: delete the data files that nothing kept needs, whoever left them (I4, I9, I10).

The mark, below, says which files are live. Every other data file is dead, whether its checkpoint
expired, or a crashed writer left it; it is deleted when it is older than the minimum age. Then
go manifests of checkpoints that expired, and pins whose lease is over, and what broken-off
writes left: hidden files, and in a bucket the parts of uploads; and tombstones of more than 30 days
whose manifests are gone; and what lies in the log of a Delta table behind all that kept checkpoints
name. Claims, and the greatest id's tombstone, stay.

**Why it is safe beside others.** Tombstones are seen first, then the holds, then nothing is asked
any more and deleting begins.

* *A savepoint or a pin*: its document is put, then its checkpoint is looked for. If it has no
  tombstone then, it had none when tombstones were seen here, or the document was there when holds
  were: kept either way. If it has one, the hold is taken back, and its maker told.
* *An expiry*: what gets its tombstone after tombstones were seen is visible here, and kept.
* *A snapshot*: files of one that commits after manifests were seen are named by no manifest here.
  They are younger than the minimum age if the snapshot took less than that from its first file to
  its commit. What one names again of an older checkpoint is marked while that is visible, held, or
  expired less than the minimum age ago. Besides, a writer asks before it commits whether the
  checkpoint before is visible still, and for the size of every file that this does not name: what
  was deleted until then fails that snapshot, and breaks no checkpoint.
* *A copy, a fork, a rekey*: what they find that was there before gets a name of its own, and is
  young under that (``derive.py``); the old name may go at any time.
* *Another collection*: both delete the same; a file that is gone is no error.

**The limit.** A snapshot, or a reader without a pin of a checkpoint that expires under it, that
takes longer than the minimum age must not run beside a collection, and neither may any with a
minimum age of 0. A background compaction counts as part of the snapshot that adopts its result:
its files may be six hours old by then (``background.py``). The same holds for a command that makes
a new checkpoint of one that only a savepoint keeps, while this savepoint is deleted. Ages
are by two clocks, this machine's and the file system's: the minimum age must be far above what they
differ by.

**Why a crash anywhere leaves every checkpoint that is kept readable.** Nothing that is deleted is
named by one. A manifest goes after the last of its own files, so that files never lie there
without a word of whose they were. Its number is never used again, since a greater one is there.

**Why a tombstone may go, and a claim not.** Once its manifest is gone a tombstone has one reader
left: a writer that was to put a manifest of this number, and was passed by another one. It began
before the other's put, which is more than 30 days ago; till then it still finds out. The manifest
goes at least one collection before, so that no listing shows it without its tombstone. A claim is
looked for by the writer of the generation before it, each time that this one begins a checkpoint,
and there is no day from which on a job that stood still will not go on.

**Why the numbers of slow writers are not buried first.** A tombstone before the put of a manifest
and one right behind the writer's look for it cannot be told apart by who puts the tombstone: the
second would take away what was reported as committed. So the limit above is one.

**For readers of Delta tables.** The newest version of a table stays readable: its files are kept,
also if no kept checkpoint names them any more. While a state has layers of changes its table gets
no version, and the newest one has the base that the layers began with. This holds for states
of kept checkpoints; the table of a state that no kept checkpoint has goes. Older versions whose
files were collected can no longer be travelled to. What goes of a log lies behind one of its
checkpoints that readers have been sent to for the minimum age, and behind each version that a kept
checkpoint names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from statestore.catalog.catalog import Catalog
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
from statestore.files.delta import shown_files
from statestore.files.delta_log import needless
from statestore.format.documents import Held
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
    "Amount",
    "CollectedGarbage",
    "Marks",
    "collect_garbage",
    "files_of",
    "is_old",
    "mark",
]


# Mark: which data files of a store are live, told from its checkpoints and holds (I9).
#
# Live is what the manifests of visible checkpoints name, of those that a savepoint holds, and of
# those that a pin holds whose lease is not over. Files of a checkpoint that expired less than
# the minimum age ago are marked too: somebody may read it still, or make a new checkpoint of it.
#
# What the listing of the store lacks is taken seriously: whoever believed a listing that is not
# complete would take live files for dead ones, or their manifests for gone. So a name that any of
# several listings has counts, what a data file's name tells of is asked for, and when a live file
# or manifest does not show up where it must, everything is refused, with its name. Where
# checkpoints have come or gone meanwhile, that may be all there is to it, and everything is looked
# at anew: who collects beside a busy job is not alarmed, and no look is believed that does not hold
# by itself.


_NOTHING = "nothing was collected"
_LOOKS = 5
_TOMBSTONE_AGE_MS = 30 * 24 * 3_600_000


@dataclass(kw_only=True)
class Marks:
    """What a store holds, and what of it stays.

    ``listing`` are all its files, in order of name. ``live`` and ``lately`` are names of data
    files: of checkpoints that are kept, and of those that expired lately. ``expired_ids`` are
    the ids of the other checkpoints that have a manifest, ``holds`` what keeps the held ones.
    ``bare`` are ids of old tombstones whose manifests no listing shows. ``versions`` has by folder
    the oldest version of a Delta table that one of these checkpoints names. ``delta`` are the
    folders of all their Delta tables. ``unknown`` are folders of tables of which a checkpoint that
    expired lately has files that nobody can tell any more, and the lists that told.
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
        """The data files, and their lists."""
        return tuple(item for item in self.listing if is_data_file(item.name))

    def note(self, manifest: Manifest) -> None:
        """Take down the Delta tables of a checkpoint, and the versions that it names."""
        for entry in manifest.parts:
            if entry.table.format == "delta":
                self.delta.add(entry.table.path)
            if entry.table.version is not None:
                folder, version = entry.table.path, entry.table.version
                self.versions[folder] = min(version, self.versions.get(folder, version))


def mark(catalog: Catalog, *, minimum_age_ms: int, now_ms: int) -> Marks:
    """Return what is live. The order of the questions matters; ``gc.py`` says why.

    Raises CorruptionError, FormatVersionError or StorageError when it cannot be known.
    """
    storage = catalog.storage
    for look in range(1, _LOOKS + 1):
        # Before the listing: the files of these must be in it.
        before = _Checkpoints().add(storage.listed(CHECKPOINTS))
        listing = storage.listed("")
        found = _Checkpoints().add(listing).add(before.items).add(storage.listed(CHECKPOINTS))
        try:
            return _marks(catalog, listing, before, found, minimum_age_ms, now_ms)
        except (CorruptionError, FormatVersionError, StorageError):
            if look == _LOOKS or not found.changed(storage.listed(CHECKPOINTS)):
                raise
    raise AssertionError("the last look returned or raised")


def _marks(
    catalog: Catalog,
    listing: tuple[Listed, ...],
    before: _Checkpoints,
    found: _Checkpoints,
    minimum_age_ms: int,
    now_ms: int,
) -> Marks:
    """Return what is live, as three listings one after another have it."""
    marks = Marks(listing=listing, holds={})
    _refuse_lost_manifests(catalog, marks.files, found)
    try:
        # After the tombstones: what is held and has none yet is visible, and so is kept anyway.
        holds = marks.holds = catalog.holds.held(now_ms, (item.name for item in listing))
    except (CorruptionError, FormatVersionError) as error:
        raise _refused(error, "bring it back from a copy, or delete this hold") from error
    names = {item.name for item in listing}
    for checkpoint_id in sorted({*found.visible, *holds}):
        manifest, files = _named(catalog, checkpoint_id, holds, marks.live)
        marks.note(manifest)
        if checkpoint_id in before.manifests and not files <= names:
            _refuse_missing(catalog, checkpoint_id, min(files - names))
        marks.live |= files
    hidden = sorted(found.manifests - found.visible - set(holds))
    for checkpoint_id in hidden:
        if not is_old(found.tombstones[checkpoint_id], minimum_age_ms, now_ms):
            _mark_lately(catalog, checkpoint_id, marks)
    ages = ((one, found.manifest_ms[one], found.tombstones[one]) for one in hidden)
    marks.expired_ids = tuple(
        one
        for one, manifest_ms, tombstone_ms in ages
        if is_old(max(manifest_ms, tombstone_ms), minimum_age_ms, now_ms) and one != found.newest
    )
    marks.bare = tuple(
        one
        for one, tombstone_ms in sorted(found.tombstones.items())
        if one not in found.manifests | {found.newest}
        and is_old(tombstone_ms, max(minimum_age_ms, _TOMBSTONE_AGE_MS), now_ms)
    )
    return marks


def is_old(modified_ms: int, minimum_age_ms: int, now_ms: int) -> bool:
    """Return whether a file has the minimum age; with an age of 0 each has it, whatever the clock
    of the file system says.
    """
    return minimum_age_ms == 0 or now_ms - modified_ms >= minimum_age_ms


def files_of(manifest: Manifest, known: Collection[str] = frozenset()) -> Iterator[str]:
    """Yield the names in the store of the data files of a checkpoint, and of their lists, but for
    lists that are ``known`` and what they name: other checkpoints have them too.

    Raises MalformedManifestError for a list that cannot be read. One list is in memory at a time.
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
    """Manifests and tombstones that were seen, each with its time."""

    manifest_ms: dict[int, int] = field(default_factory=dict)
    tombstones: dict[int, int] = field(default_factory=dict)
    items: list[Listed] = field(default_factory=list)

    def add(self, items: Iterable[Listed]) -> _Checkpoints:
        """Add what a listing shows; a tombstone that was seen once is there for ever."""
        for item in items:
            identity = checkpoint_id_of(item.name)
            if identity is not None:
                number, is_tombstone = identity
                (self.tombstones if is_tombstone else self.manifest_ms)[number] = item.modified_ms
                self.items.append(item)
        return self

    def changed(self, items: Iterable[Listed]) -> bool:
        """Return whether a listing shows other ones."""
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


def _refuse_lost_manifests(catalog: Catalog, files: Iterable[Listed], found: _Checkpoints) -> None:
    """Ask for the manifest of each checkpoint that has data files, and that no listing shows."""
    numbers = {data_file_id(item.name) for item in files}
    for number in sorted(filter(None, numbers - found.manifests - set(found.tombstones))):
        try:
            catalog.storage.read(manifest_path(number))
        except FileNotFoundError:
            continue
        raise StorageError(
            f"{_NOTHING}: {catalog.storage.url}/{manifest_path(number)} is there, and the listing "
            "of the file system does not show it. It may have been committed a moment ago: run it "
            "again, and if it stays so, do not trust this file system's listings"
        )


def _named(
    catalog: Catalog, checkpoint_id: int, holds: dict[int, str], known: Collection[str]
) -> tuple[Manifest, set[str]]:
    """Return a manifest with the files that it names, as :func:`files_of` does."""
    who = holds.get(checkpoint_id)
    try:
        manifest = catalog.outline(checkpoint_id)
        if manifest.store_id != catalog.store_id:
            raise MalformedManifestError(
                f"{catalog.storage.url}/{manifest_path(checkpoint_id)} is the manifest of another "
                f"store, {manifest.store_id}"
            )
        return manifest, set(files_of(manifest, known))
    except CheckpointNotFoundError as error:
        lost = MissingFileError(f"{error}, but {who or 'nothing'} holds it")
        raise _refused(lost, _repair(checkpoint_id, who)) from error
    except (CorruptionError, FormatVersionError) as error:
        # Salvaging goes by the manifest and its lists: without one there is nothing to go by.
        held = f"; or let go of it: {who}" if who else ", or let it expire behind new ones"
        raise _refused(error, f"bring it back from a copy{held}") from error


def _mark_lately(catalog: Catalog, checkpoint_id: int, marks: Marks) -> None:
    """Mark the files of a checkpoint that expired lately; of a broken one nobody can read any. Of
    one that only lacks a list the other states can be read, and named again.
    """
    try:
        manifest = catalog.outline(checkpoint_id)
    except (CorruptionError, FormatVersionError, CheckpointNotFoundError):
        return
    marks.note(manifest)
    for part in manifest.parts:
        try:
            marks.lately |= {*_files_of(part, marks.live, marks.lately)}
        except (MalformedManifestError, FormatVersionError):
            marks.unknown |= {f"{part.table.path}/", *filter(None, [list_of(part.handles)])}


def _named_if_known(
    catalog: Catalog, checkpoint_id: int, known: Collection[str]
) -> set[str] | None:
    """Return what a checkpoint that expired names, but for known lists; None of a broken one."""
    try:
        return set(files_of(catalog.outline(checkpoint_id), known))
    except (CorruptionError, FormatVersionError, CheckpointNotFoundError):
        return None


def _refuse_missing(catalog: Catalog, checkpoint_id: int, name: str) -> None:
    where = f"{catalog.storage.url}/{name}, a file of checkpoint {checkpoint_id},"
    try:
        catalog.storage.size(name)
    except FileNotFoundError:
        who = catalog.holds.held(0).get(checkpoint_id)
        lost = MissingFileError(f"{where} is missing")
        raise _refused(lost, _repair(checkpoint_id, who)) from None
    raise StorageError(
        f"{_NOTHING}: {where} is there, and the listing of the file system does not show it: run "
        "it again, and if it stays so, do not trust this file system's listings"
    )


def _repair(checkpoint_id: int, held_by: str | None) -> str:
    verify = f"'statestore verify {checkpoint_id}' names all that is broken"
    if held_by is not None:
        return f"{verify}; bring it back from a copy, or let go of it: {held_by}"
    return (
        f"{verify}; bring it back from a copy, or make a new checkpoint of what is left with "
        f"'statestore salvage {checkpoint_id}', and let this one expire"
    )


def _refused(error: StateStoreError, advice: str) -> StateStoreError:
    return type(error)(f"{_NOTHING}: {error}; {advice}")


DEFAULT_MINIMUM_AGE_S = 24 * 3600
_DELETERS = 8
_BATCH = 256  # what is still asked for after a file could not be deleted


@dataclass(frozen=True)
class Amount:
    """Some files, and their bytes together."""

    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class CollectedGarbage:
    """What was, or with ``dry_run`` would be, removed, and why the rest of the data files stays.

    ``live`` ones are of checkpoints that are kept, or of the newest version of a Delta table;
    ``young`` ones are not, and were written, or their checkpoint expired, less than the minimum age
    ago. ``manifests`` and ``tombstones`` are
    ids of checkpoints, ``pins`` tokens, ``leftovers`` the number of writes that were broken off,
    ``log_files`` what went of the logs of Delta tables, and ``held`` the checkpoints that a
    savepoint or a pin holds.
    """

    store: str
    dry_run: bool
    minimum_age_ms: int
    removed: Amount
    live: Amount
    young: Amount
    manifests: tuple[int, ...]
    tombstones: tuple[int, ...]
    pins: tuple[str, ...]
    leftovers: int
    log_files: Amount
    held: tuple[Held, ...]


def collect_garbage(
    catalog: Catalog,
    *,
    minimum_age_ms: int,
    now_ms: int,
    dry_run: bool,
    progress: Callable[[int, int], None],
) -> CollectedGarbage:
    """Delete what is dead, and say what it was; interrupted, it can be run again.

    ``progress`` hears of the files deleted, and of how many. Raises, before anything is deleted,
    InvalidArgumentError for a negative age, CorruptionError or FormatVersionError naming what of a
    kept checkpoint or a hold cannot be read, and StorageError when a listing lacks a live file; and
    StorageError when a file cannot be deleted.
    """
    if minimum_age_ms < 0:
        raise InvalidArgumentError(f"an age is 0 or more milliseconds, not {minimum_age_ms}")
    marks = mark(catalog, minimum_age_ms=minimum_age_ms, now_ms=now_ms)
    unused = [item for item in marks.files if item.name not in marks.live]
    old = [item for item in unused if is_old(item.modified_ms, minimum_age_ms, now_ms)]
    unknown = tuple(marks.unknown)
    unnamed = [i for i in old if i.name not in marks.lately and not i.name.startswith(unknown)]
    shown = _shown(catalog.storage, {item.name for item in unnamed}, marks.delta)
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


def _shown(storage: Storage, names: set[str], tables: Collection[str]) -> set[str]:
    """Return which data files the newest versions of Delta tables need.

    Of a table whose log cannot be read all files stay: ``repair`` may mend it.
    """
    found: set[str] = set()
    for folder in sorted({folder_of(name) for name in names}.intersection(tables)):
        own = {name for name in names if folder_of(name) == folder}
        files = shown_files(storage, folder)
        found |= own if files is None else own & files
    return found


def _without_files(catalog: Catalog, marks: Marks, young: set[str]) -> tuple[int, ...]:
    """Return the checkpoints that expired of which no file stays but what others need."""
    found = []
    for checkpoint_id in marks.expired_ids:
        named = _named_if_known(catalog, checkpoint_id, marks.live)
        if named is not None:
            files = named
        else:
            prefix = f"{checkpoint_id:010}-"  # what it names nobody knows, but for its own
            files = {name for name in young if name.rpartition("/")[2].startswith(prefix)}
        if not files & young:
            found.append(checkpoint_id)
    return tuple(found)


def _without_manifest(storage: Storage, numbers: Sequence[int]) -> tuple[int, ...]:
    """Return the checkpoints that have none; asked for, whatever a listing showed."""

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


def _amount(items: Iterable[Listed]) -> Amount:
    sizes = [item.size_bytes for item in items]
    return Amount(len(sizes), sum(sizes))
