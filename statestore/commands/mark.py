"""Mark: which data files of a store are live, told from its checkpoints and holds (I9).

Live is what the manifests of visible checkpoints name, of those that a savepoint holds, and of
those that a pin holds whose lease is not over. Files of a checkpoint that was given up less than
the minimum age ago are marked too: somebody may read it still, or make a new checkpoint of it.

What the listing of the store lacks is taken seriously: whoever believed a listing that is not
complete would take live files for dead ones, or their manifests for gone. So a name that any of
several listings has counts, what a data file's name tells of is asked for, and when a live file or
manifest does not show up where it must, everything is refused, with its name. Where checkpoints
have come or gone meanwhile, that may be all there is to it, and everything is looked at anew: who
collects beside a busy job is not alarmed, and no look is believed that does not hold by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
from statestore.format.manifest import Manifest
from statestore.format.names import (
    CHECKPOINTS,
    checkpoint_id_of,
    data_file_id,
    is_data_file,
    manifest_path,
)
from statestore.storage import Listed

__all__ = ["Marks", "files_of", "is_old", "mark"]

_NOTHING = "nothing was collected"
_LOOKS = 5
_TOMBSTONE_AGE_MS = 30 * 24 * 3_600_000


@dataclass(kw_only=True)
class Marks:
    """What a store holds, and what of it stays.

    ``listing`` are all its files, in order of name. ``live`` and ``lately`` are names of data
    files: of checkpoints that are kept, and of those that were given up lately. ``given_up`` are
    the ids of the other checkpoints that have a manifest, ``holds`` what keeps the held ones.
    ``bare`` are ids of old tombstones whose manifests no listing shows.
    """

    listing: tuple[Listed, ...]
    holds: dict[int, str]
    live: set[str] = field(default_factory=set)
    lately: set[str] = field(default_factory=set)
    given_up: tuple[int, ...] = ()
    bare: tuple[int, ...] = ()


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
    _refuse_lost_manifests(catalog, listing, found)
    try:
        # After the tombstones: what is held and has none yet is visible, and so is kept anyway.
        holds = catalog.holds.held(now_ms, (item.name for item in listing))
    except (CorruptionError, FormatVersionError) as error:
        raise _refused(error, "bring it back from a copy, or delete this hold") from error
    marks = Marks(listing=listing, holds=holds)
    names = {item.name for item in listing}
    for checkpoint_id in sorted({*found.visible, *holds}):
        files = set(files_of(_manifest(catalog, checkpoint_id, holds)))
        if checkpoint_id in before.manifests and not files <= names:
            _refuse_missing(catalog, checkpoint_id, min(files - names))
        marks.live |= files
    hidden = sorted(found.manifests - found.visible - set(holds))
    for checkpoint_id in hidden:
        if not is_old(found.tombstones[checkpoint_id], minimum_age_ms, now_ms):
            marks.lately |= set(_files_if_known(catalog, checkpoint_id))
    ages = ((one, found.manifest_ms[one], found.tombstones[one]) for one in hidden)
    marks.given_up = tuple(
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


def files_of(manifest: Manifest) -> Iterable[str]:
    """Return the names in the store of the data files of a checkpoint."""
    return (f"{e.table.path}/{handle.path}" for e in manifest.parts for handle in e.handles)


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


def _refuse_lost_manifests(
    catalog: Catalog, listing: Iterable[Listed], found: _Checkpoints
) -> None:
    """Ask for the manifest of each checkpoint that has data files, and that no listing shows."""
    numbers = {data_file_id(item.name) for item in listing if is_data_file(item.name)}
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


def _manifest(catalog: Catalog, checkpoint_id: int, holds: dict[int, str]) -> Manifest:
    who = holds.get(checkpoint_id)
    try:
        manifest = catalog.manifest(checkpoint_id)
        if manifest.store_id != catalog.store_id:
            raise MalformedManifestError(
                f"{catalog.storage.url}/{manifest_path(checkpoint_id)} is the manifest of another "
                f"store, {manifest.store_id}"
            )
    except CheckpointNotFoundError as error:
        lost = MissingFileError(f"{error}, but {who or 'nothing'} holds it")
        raise _refused(lost, _repair(checkpoint_id, who)) from error
    except (CorruptionError, FormatVersionError) as error:
        raise _refused(error, _repair(checkpoint_id, who)) from error
    return manifest


def _files_if_known(catalog: Catalog, checkpoint_id: int) -> Iterable[str]:
    """Return the files of a checkpoint that was given up; of a broken one nobody can read any."""
    try:
        return files_of(catalog.manifest(checkpoint_id))
    except (CorruptionError, FormatVersionError, CheckpointNotFoundError):
        return ()


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
