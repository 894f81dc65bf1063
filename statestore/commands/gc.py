"""Collect garbage: delete the data files that nothing kept needs, whoever left them (I4, I9, I10).

``mark.py`` says which files are live. Every other data file is dead, whether its checkpoint was
given up, or a crashed writer left it; it is deleted when it is older than the minimum age. Then go
manifests of checkpoints that were given up, and pins whose lease is over, and what broken-off
writes left: hidden files, and in a bucket the parts of uploads; and tombstones of more than 30 days
whose manifests are gone. Claims, the greatest id's tombstone, and the logs of Delta tables stay.

**Why it is safe beside others.** Tombstones are seen first, then the holds, then nothing is asked
any more and deleting begins.

* *A savepoint or a pin*: its document is put, then its checkpoint is looked for. If it has no
  tombstone then, it had none when tombstones were seen here, or the document was there when holds
  were: kept either way. If it has one, the hold is taken back, and its maker told.
* *An expiry*: what gets its tombstone after tombstones were seen is visible here, and kept.
* *A snapshot*: files of one that commits after manifests were seen are named by no manifest here.
  They are younger than the minimum age if the snapshot took less than that from its first file to
  its commit. What one names again of an older checkpoint is marked while that is visible, held, or
  was given up less than the minimum age ago. Besides, a writer asks for the size of every file
  before it commits: what was deleted until then fails that snapshot, and breaks no checkpoint.
* *A copy, a fork, a rekey*: what they find that was there before gets a name of its own, and is
  young under that (``new_names.py``); the old name may go at any time.
* *Another collection*: both delete the same; a file that is gone is no error.

**The limit.** A snapshot, or a reader without a pin of a checkpoint that expires under it, that
takes longer than the minimum age must not run beside a collection, and neither may any with a
minimum age of 0. The same holds for a command that makes a new checkpoint of one that only a
savepoint keeps, while this savepoint is deleted. Ages are by two clocks, this machine's and the
file system's: the minimum age must be far above what they differ by.

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

**For readers of Delta tables.** Table versions whose files were collected can no longer be
travelled to, and if the newest version is of a snapshot that was never committed, or of a
checkpoint that was given up for one that was made without Spark, it cannot be read until the next
snapshot with Spark. While a state has layers of changes its table gets no version: the newest one
is that of the base that the layers began with, and cannot be read once that was folded and no kept
checkpoint has it. What somebody else has written into a table is of no checkpoint, and dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from statestore.catalog.catalog import Catalog
from statestore.commands.mark import Marks, files_of, is_old, mark
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
)
from statestore.format.documents import Held
from statestore.format.names import (
    is_data_file,
    is_leftover,
    manifest_path,
    pin_path,
    tombstone_path,
)
from statestore.storage import Listed, Storage

__all__ = ["DEFAULT_MINIMUM_AGE_S", "Amount", "CollectedGarbage", "collect_garbage"]

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

    ``live`` ones are of checkpoints that are kept; ``young`` ones are not, and were written, or
    their checkpoint given up, less than the minimum age ago. ``manifests`` and ``tombstones`` are
    ids of checkpoints, ``pins`` tokens, ``leftovers`` the number of writes that were broken off,
    and ``held`` the checkpoints that a savepoint or a pin holds.
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
    files = [item for item in marks.listing if is_data_file(item.name)]
    live = [item for item in files if item.name in marks.live]
    unused = [item for item in files if item.name not in marks.live]
    old = [item for item in unused if is_old(item.modified_ms, minimum_age_ms, now_ms)]
    dead = [item for item in old if item.name not in marks.lately]
    gone = {item.name for item in dead}
    young = [item for item in unused if item.name not in gone]
    manifests = _without_files(catalog, marks, {item.name for item in young})
    tombstones = _without_manifest(catalog.storage, marks.bare)
    pins = tuple(pin.token for pin in catalog.holds.pins() if pin.until_ms <= now_ms)
    leftovers = [
        item
        for item in marks.listing
        if is_leftover(item.name) and is_old(item.modified_ms, minimum_age_ms, now_ms)
    ]
    if not dry_run:
        _delete(catalog.storage, [item.name for item in dead], progress)
        for names in (
            map(manifest_path, manifests),  # after their files
            map(pin_path, pins),
            (item.name for item in leftovers),
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
        held=tuple(Held(number, by) for number, by in marks.holds.items()),
    )


def _without_files(catalog: Catalog, marks: Marks, young: set[str]) -> tuple[int, ...]:
    """Return the checkpoints that were given up of which no file stays but what others need."""
    found = []
    for checkpoint_id in marks.given_up:
        try:
            files = set(files_of(catalog.manifest(checkpoint_id)))
        except (CorruptionError, FormatVersionError, CheckpointNotFoundError):
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
