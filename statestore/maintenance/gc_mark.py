"""Find the live data files of a store from its checkpoints and holds (I9).

A file is live if the manifest of a visible checkpoint names it, or of one that is held by a
savepoint or by a pin whose lease has not ended. Files of a checkpoint that expired less than the
minimum age ago are marked too, because a process may still read it or derive a checkpoint from
it.

A listing may be incomplete. Trusting such a listing would delete live files, or treat manifests
as gone. So a name counts if any of several listings has it. The checkpoints that data file names
mention are looked up. If a live file or manifest is not listed where it must be, the collection
is refused, with that name. If checkpoints came or went meanwhile, that may be the whole reason,
and everything is read again. So a collection next to a busy job raises no false alarm, and each
accepted reading is consistent in itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    MalformedManifestError,
    MissingFileError,
    StateStoreError,
    StorageError,
)
from statestore.format.handles import ListedFiles, list_of
from statestore.format.manifest import Entry, Manifest
from statestore.format.names import (
    CHECKPOINTS,
    checkpoint_id_of,
    data_file_id,
    is_data_file,
    manifest_path,
)
from statestore.storage import Listed

_NOTHING = "nothing was collected"
_LOOKS = 5

LONGEST_PAUSE_MS = 30 * 24 * 3_600_000
"""How long a writer may pause between two requests if no later check of its own would notice."""


@dataclass(kw_only=True)
class Marks:
    """The files of a store, and which of them stay.

    ``listing`` has all files, ordered by name. ``live`` and ``lately`` are names of data files of
    the ``kept`` checkpoints, and of recently expired ones. ``expired_ids`` are the ids of the other
    checkpoints that have a manifest, and ``holds`` describes the holder of each held checkpoint.
    ``newest_id`` is the greatest id of all checkpoints, also expired ones. ``bare`` are ids of old
    tombstones whose manifests are in no listing. ``versions`` has, by
    folder, the oldest version of a Delta table that one of these checkpoints names. ``delta`` has
    the folders of all their Delta tables. ``unknown`` has the folders of tables for which a
    recently expired checkpoint has an unreadable list of files, and these lists. ``unread`` are
    hidden checkpoints whose manifests were not read, or were not readable.
    """

    listing: tuple[Listed, ...]
    holds: dict[int, str]
    live: set[str] = field(default_factory=set)
    lately: set[str] = field(default_factory=set)
    kept: tuple[int, ...] = ()
    expired_ids: tuple[int, ...] = ()
    newest_id: int = 0
    bare: tuple[int, ...] = ()
    versions: dict[str, int] = field(default_factory=dict)
    delta: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)

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
    marks.kept = tuple(sorted({*checkpoints.visible, *holds}))
    for checkpoint_id in marks.kept:
        manifest, files = _load_named_files(catalog, checkpoint_id, holds, marks.live)
        marks.note(manifest)
        if checkpoint_id in before.manifests and not files <= names:
            _refuse_missing(catalog, checkpoint_id, min(files - names))
        marks.live |= files
    hidden = sorted(checkpoints.manifests - checkpoints.visible - set(holds))
    for checkpoint_id in hidden:
        if not is_old(checkpoints.tombstones[checkpoint_id], minimum_age_ms, now_ms):
            _mark_recently_expired(catalog, checkpoint_id, marks)
        elif checkpoint_id == checkpoints.newest:
            marks.unread.add(checkpoint_id)
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
    marks.newest_id = checkpoints.newest
    marks.bare = tuple(
        number
        for number, tombstone_ms in sorted(checkpoints.tombstones.items())
        if number not in checkpoints.manifests | {checkpoints.newest}
        and is_old(tombstone_ms, max(minimum_age_ms, LONGEST_PAUSE_MS), now_ms)
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
        """Return whether a later listing shows different manifests or tombstones."""
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
    holder = holds.get(checkpoint_id)
    try:
        manifest = catalog.load_header(checkpoint_id)
        if manifest.store_id != catalog.store_id:
            raise MalformedManifestError(
                f"{catalog.storage.url}/{manifest_path(checkpoint_id)} is the manifest of another "
                f"store, {manifest.store_id}"
            )
        return manifest, set(files_of(manifest, known))
    except CheckpointNotFoundError as error:
        lost = MissingFileError(f"{error}, although {holder or 'nothing'} holds it")
        raise _refusal(lost, _repair_hint(checkpoint_id, holder)) from error
    except (CorruptionError, FormatVersionError) as error:
        # Salvage is not suggested, because it needs the manifest and its lists.
        held = (
            f"; or release it: {holder}" if holder else ", or let it expire after new checkpoints"
        )
        raise _refusal(error, f"recover it from a backup{held}") from error


def _mark_recently_expired(catalog: Catalog, checkpoint_id: int, marks: Marks) -> None:
    """Mark the files of a recently expired checkpoint; ignore it if its manifest is unreadable.

    If only one list is unreadable, the other states can still be read and named again.
    """
    try:
        manifest = catalog.load_header(checkpoint_id)
    except (CorruptionError, FormatVersionError, CheckpointNotFoundError):
        marks.unread.add(checkpoint_id)
        return
    marks.note(manifest)
    for part in manifest.parts:
        try:
            marks.lately |= {*_files_of(part, marks.live, marks.lately)}
        except (MalformedManifestError, FormatVersionError):
            marks.unknown |= {f"{part.table.path}/", *filter(None, [list_of(part.handles)])}


def named_files_if_readable(
    catalog: Catalog, checkpoint_id: int, known: Collection[str]
) -> set[str] | None:
    """Return the files that an expired checkpoint references; None if its manifest is unreadable.

    File lists in ``known`` are not read again.
    """
    try:
        return set(files_of(catalog.load_header(checkpoint_id), known))
    except (CorruptionError, FormatVersionError, CheckpointNotFoundError):
        return None


def _refuse_missing(catalog: Catalog, checkpoint_id: int, name: str) -> None:
    where = f"{catalog.storage.url}/{name}, a file of checkpoint {checkpoint_id},"
    try:
        catalog.storage.size(name)
    except FileNotFoundError:
        holder = catalog.holds.held(0).get(checkpoint_id)
        lost = MissingFileError(f"{where} is missing")
        raise _refusal(lost, _repair_hint(checkpoint_id, holder)) from None
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
        f"part with 'statestore repair {checkpoint_id}', and let the damaged one expire"
    )


def _refusal(error: StateStoreError, advice: str) -> StateStoreError:
    return type(error)(f"{_NOTHING}: {error}; {advice}")
