"""Hold checkpoints by savepoints and pins, and expire the ones that nothing keeps (I4, I6, I9).

A savepoint is a small document stored next to the checkpoints. Its checkpoint is neither expired
nor collected. If it expired at the same moment, it still exists under the savepoint's name.

A reader that dies leaves its pin behind. When the lease has ended, the pin no longer holds the
checkpoint, and the next collection removes it. A pin cannot be extended: a reader that needs more
time must take another pin first.

**Expiry.** A tombstone next to its manifest makes a checkpoint invisible, permanently. Its number
is never used again. The newest readable checkpoint always stays, as in Flink's retention, and so do
checkpoints that a savepoint or a pin holds. No data file is deleted, so a reader of an expired
checkpoint can continue. The files that only expired checkpoints used are counted, and ``gc``
removes them.

A savepoint that is made at the same moment may still find its checkpoint visible before the
tombstone appears. That checkpoint has expired, but is kept under the savepoint's name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

from statestore._version import __version__
from statestore.catalog.catalog import Catalog, Checkpoint, CheckpointRef
from statestore.catalog.deletions import recorded
from statestore.catalog.fence import process_name
from statestore.catalog.holds import Held, Holds, Pin, Savepoint, check_savepoint_name
from statestore.durations import Duration, duration_text, milliseconds_of
from statestore.errors import (
    CheckpointNotFoundError,
    FormatVersionError,
    InvalidArgumentError,
    MalformedManifestError,
    StorageError,
)
from statestore.format.documents import document_bytes
from statestore.format.handles import Handle, ListedFiles, list_of
from statestore.format.manifest import Entry
from statestore.format.names import CHECKPOINTS, folder_of, manifest_path
from statestore.jobgraph.parallelism import check_positive
from statestore.maintenance.store_context import HasContext


def make_savepoint(store: HasContext, name: str, checkpoint: CheckpointRef = "latest") -> Savepoint:
    """Keep a checkpoint under a name, until :meth:`delete_savepoint`.

    All methods that take a checkpoint also take this name. If the checkpoint already has that
    savepoint, nothing changes.

    Args:
        name: the name of the savepoint.
        checkpoint: the id, ``latest``, or another savepoint's name.

    Returns:
        The savepoint.

    Raises:
        CheckpointNotFoundError: if the checkpoint does not exist.
        MalformedManifestError: for an unreadable checkpoint.
        InvalidArgumentError: for a name that is taken or invalid.
    """
    check_savepoint_name(name)
    catalog = store.parts.catalog()
    found = catalog.checkpoint(checkpoint, read_lists=True)
    if found.name == name:
        return catalog.holds.savepoint(name)
    check_holdable(catalog, found)
    wanted = Savepoint(name, found.checkpoint_id, store.parts.now_ms())
    catalog.holds.put_savepoint(wanted, visible=lambda: catalog.check_visible(found.checkpoint_id))
    return catalog.holds.savepoint(name)


def check_holdable(catalog: Catalog, checkpoint: Checkpoint) -> None:
    """Raise an error if a checkpoint cannot be held.

    Raises InvalidArgumentError for a checkpoint that only a savepoint keeps (``holds.py`` gives the
    reason), or CheckpointNotFoundError for one that has expired since it was found.
    """
    try:
        catalog.check_visible(checkpoint.checkpoint_id)
    except CheckpointNotFoundError as error:
        if checkpoint.name is None:
            raise
        raise InvalidArgumentError(
            f"checkpoint {checkpoint.checkpoint_id} has expired and is kept only by savepoint "
            f"{checkpoint.name!r}, so no other hold can be added; it stays until that savepoint is "
            "deleted"
        ) from error


_LONGEST_MS = 1000 * 3_000_000_000


class PinnedCheckpoint:
    """A pin; as a context manager, it is released at the end of the ``with`` block.

    ``token`` is its name, and ``checkpoint_id`` the held checkpoint. ``until_ms`` is the end of the
    lease, in milliseconds since 1970 by the clock of the process that made the pin.
    """

    def __init__(self, holds: Holds, held: Pin) -> None:
        """Create pins with ``StateStore.maintenance.pin``."""
        self._holds = holds
        self.token, self.checkpoint_id = held.token, held.checkpoint_id
        self.holder, self.until_ms = held.holder, held.until_ms

    def __enter__(self) -> PinnedCheckpoint:
        """Return the pin, which holds its checkpoint since it was created."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the pin.

        If the block raised an error, a failed release is added to that error as a note.
        """
        try:
            self._holds.delete_pin(self.token)
        except StorageError as failure:
            if error is None:
                raise
            error.add_note(
                f"pin {self.token} could not be deleted and stays until its lease ends: {failure}"
            )


def pin(
    store: HasContext,
    checkpoint: CheckpointRef = "latest",
    *,
    lease: Duration,
    holder: str | None = None,
) -> PinnedCheckpoint:
    """Keep a checkpoint while it is being read, at most for ``lease``::

        with store.maintenance.pin(lease="1h") as pinned:
            restored = store.restore(checkpoint=pinned.checkpoint_id, parallelism=4)

    The pin is released at the end of the block, by :meth:`unpin` with its ``token``, or when
    the lease ends.

    Args:
        checkpoint: as in :meth:`savepoint`.
        lease: the longest time for which it is kept, such as ``1h`` or a ``timedelta``.
        holder: the reader; by default host and process.

    Returns:
        The pinned checkpoint.

    Raises:
        CheckpointNotFoundError: if the checkpoint does not exist.
        MalformedManifestError: for an unreadable checkpoint.
        InvalidArgumentError: for an invalid lease or holder.
    """
    lease_ms = milliseconds_of(lease)
    if not 1 <= lease_ms <= _LONGEST_MS:
        raise InvalidArgumentError(
            f"a lease must last between 1ms and {duration_text(_LONGEST_MS)}, not "
            f"{duration_text(lease_ms)}; to keep a checkpoint longer, use a savepoint"
        )
    catalog = store.parts.catalog()
    found = catalog.checkpoint(checkpoint, read_lists=True)
    check_holdable(catalog, found)
    wanted = Pin(
        token=uuid.uuid4().hex,
        checkpoint_id=found.checkpoint_id,
        holder=process_name() if holder is None else holder,
        until_ms=store.parts.now_ms() + lease_ms,
    )
    catalog.holds.put_pin(wanted, visible=lambda: catalog.check_visible(found.checkpoint_id))
    return PinnedCheckpoint(catalog.holds, wanted)


def unpin(store: HasContext, token: str) -> None:
    """Release a pin.

    Args:
        token: the token of the pin.

    Raises:
        CheckpointNotFoundError: with the names of the existing pins.
    """
    holds = store.parts.catalog().holds
    holds.refuse_unknown_pin(token)
    holds.delete_pin(token)


FORMAT = "statestore-tombstone"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ExpiredCheckpoints:
    """The checkpoints that were expired, or in a dry run would be, oldest first, and the kept ones.

    ``held`` are the checkpoints that stay only because a savepoint or a pin holds them; they are
    among ``kept``. ``files`` and ``size_bytes`` count the files that no kept checkpoint uses any
    more. The files of ``damaged`` checkpoints, whose manifest is unreadable, are unknown and not
    counted.
    """

    store: str
    dry_run: bool
    expired: tuple[int, ...]
    kept: tuple[int, ...]
    held: tuple[Held, ...]
    damaged: tuple[int, ...]
    files: int
    size_bytes: int


def expire(
    store: HasContext,
    *,
    retain: int | None = None,
    older_than: Duration | None = None,
    dry_run: bool = False,
) -> ExpiredCheckpoints:
    """Expire checkpoints, which makes them invisible.

    The newest one always stays, and so do checkpoints that a savepoint or a pin holds; ``held``
    lists these. No data file is deleted; see :meth:`gc`.

    Args:
        retain: how many of the newest checkpoints stay. With both options, a checkpoint expires
            if it is neither among the newest nor young.
        older_than: the age above which checkpoints expire, such as ``7d``.
        dry_run: reports what would expire, and changes nothing.

    Returns:
        The expired checkpoints.

    Raises:
        InvalidArgumentError: for a ``retain`` below one, or if neither option is given.
        StoreNotFoundError: if the store does not exist.
        MalformedManifestError: for a damaged savepoint or pin.
        StorageError: if the store cannot be read or written.
    """
    if retain is None and older_than is None:
        raise InvalidArgumentError("pass the number of checkpoints to retain, or their maximum age")
    retained = check_positive("retain", 1 if retain is None else retain)
    oldest_ms = None if older_than is None else milliseconds_of(older_than)
    catalog, now_ms = store.parts.catalog(), store.parts.now_ms()
    ids = catalog.checkpoint_ids()
    # Only this is kept of each manifest, because manifests may be large and numerous.
    known = _creation_times(catalog, ids) if len(ids) > retained else {}
    # An unreadable checkpoint does not count as one of the retained ones.
    lowest = min(sorted(known)[-retained:], default=0)
    surplus = [number for number in ids if number < lowest]
    if surplus and oldest_ms is not None:
        creation_times = known | _manifest_times(catalog, {*ids} - {*known})
        surplus = [
            number for number in surplus if now_ms - creation_times.get(number, now_ms) >= oldest_ms
        ]
    holds = catalog.holds.held(now_ms) if surplus else {}
    expired = tuple(number for number in surplus if number not in holds)
    kept = tuple(number for number in ids if number not in expired)
    released = _released_bytes(catalog, expired, {*kept, *holds})
    if not dry_run:
        age = "" if oldest_ms is None else f", older than {duration_text(oldest_ms)}"
        why, sizes = f"retain {retained}{age}", released.values()
        with recorded(catalog.storage, "expire", why, expired, sizes, now_ms):
            for checkpoint_id in expired:  # oldest first
                catalog.expire(checkpoint_id, tombstone(checkpoint_id, __version__, now_ms))
    return ExpiredCheckpoints(
        store=catalog.storage.url,
        dry_run=dry_run,
        expired=expired,
        kept=kept,
        held=tuple(Held(number, holds[number]) for number in surplus if number in holds),
        damaged=tuple(number for number in ids if known and number not in known),
        files=len(released),
        size_bytes=sum(released.values()),
    )


def _creation_times(catalog: Catalog, ids: tuple[int, ...]) -> dict[int, int]:
    """Return the creation time of each checkpoint with a readable manifest."""
    created = {}
    for checkpoint_id in ids:
        try:
            created[checkpoint_id] = catalog.load_header(checkpoint_id).created_at_ms
        except (MalformedManifestError, CheckpointNotFoundError):
            continue  # damaged: reported to the caller
    visible = catalog.checkpoint_ids()  # another process may be expiring checkpoints too
    return {number: created_at_ms for number, created_at_ms in created.items() if number in visible}


def _manifest_times(catalog: Catalog, damaged: set[int]) -> dict[int, int]:
    """Return when the manifests of these checkpoints were written."""
    times = {item.name: item.modified_ms for item in catalog.storage.listed(CHECKPOINTS)}
    return {
        number: times[manifest_path(number)] for number in damaged if manifest_path(number) in times
    }


def _released_bytes(
    catalog: Catalog, expired: Iterable[int], staying: Iterable[int]
) -> dict[str, int]:
    """Return the bytes of each file that only the expired checkpoints use."""
    gone, kept = _NamedFiles(catalog), _NamedFiles(catalog)
    for checkpoint_id in expired:
        gone.add(checkpoint_id)
    for checkpoint_id in staying if gone.sizes or gone.lists else ():
        kept.add(checkpoint_id)
    lists = {path: part for path, part in gone.lists.items() if path not in kept.lists}
    for path, part in lists.items():
        gone.add_list(path, part)
    tables = {part.table.path for part in lists.values()} | {*map(folder_of, gone.sizes)}
    for path, part in kept.lists.items():
        if part.table.path in tables:
            kept.add_list(path, part)
    return {name: size for name, size in gone.sizes.items() if name not in kept.sizes}


class _NamedFiles:
    """The files that some checkpoints name, with their bytes.

    ``lists`` has the parts whose files are in a list of files, by the name of the list. Unreadable
    documents are skipped, because only a reported count depends on them.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.sizes: dict[str, int] = {}
        self.lists: dict[str, Entry] = {}

    def add(self, checkpoint_id: int) -> None:
        try:
            manifest = self._catalog.load_header(checkpoint_id)
        except (MalformedManifestError, FormatVersionError, CheckpointNotFoundError):
            return
        for part in manifest.parts:
            path = list_of(part.handles)
            if path is not None:
                self.lists[path] = part
            else:
                self._add(part, part.handles)

    def add_list(self, path: str, part: Entry) -> None:
        assert isinstance(part.handles, ListedFiles)
        try:
            self._add(part, part.handles.read())
        except (MalformedManifestError, FormatVersionError):
            return
        self.sizes[path] = part.handles.file_list.size_bytes

    def _add(self, part: Entry, handles: Sequence[Handle]) -> None:
        self.sizes |= {part.table.name_of(handle): handle.size_bytes for handle in handles}


def tombstone(checkpoint_id: int, release: str, now_ms: int) -> bytes:
    """Return the document whose existence hides a checkpoint permanently."""
    return document_bytes(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "checkpoint_id": checkpoint_id,
            "expired_at_ms": now_ms,
            "name": process_name(),
            "release": release,
        }
    )
