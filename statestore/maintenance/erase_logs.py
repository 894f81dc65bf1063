"""Remove an erased subject from the Delta logs of changed tables, and from old log entries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from statestore.delta.backend import cut_log, shown_files
from statestore.format.manifest import Manifest
from statestore.format.names import OPERATORS, is_data_file
from statestore.maintenance.derive import Deriver
from statestore.maintenance.erase_files import count_selected
from statestore.maintenance.erase_search import DELTA_LOG, LogReader
from statestore.maintenance.erase_subject import Subject
from statestore.storage import Storage


def drop_log(storage: Storage, table: str, newest_kept: int = -1) -> bool:
    """Delete the newest entries of a table's Delta log, back to version ``newest_kept``.

    Return whether there were any. By default the whole log is deleted. Files that point to an entry
    are deleted before it, and its hidden companion is deleted with it.
    """
    names = [item.name for item in storage.listed(f"{table}{DELTA_LOG}".rstrip("/"))]
    bases = {name: name.rpartition("/")[2].lstrip(".") for name in names}
    gone = [name for name in names if not bases[name] < f"{newest_kept + 1:020}"]
    for name in sorted(gone, key=lambda name: bases[name], reverse=True):
        storage.delete(name)
    return bool(gone)


def _drop_shown(
    deriver: Deriver, subject: Subject, kept: Collection[Manifest], exclude: Collection[str]
) -> list[str]:
    """Delete the newest entries of Delta logs that name files with the subject.

    This applies to files that no kept checkpoint names. While a state has layers of changes, its
    table shows an older checkpoint, which may have expired; ``gc`` keeps the files of that
    checkpoint. Returns the tables whose entries were deleted. Tables in ``exclude`` are skipped.
    """
    storage = deriver.catalog.storage
    entries = [
        entry
        for manifest in kept
        for entry in manifest.keyed
        if subject.includes(manifest, entry.state)
    ]
    names = {entry.table.name_of(handle) for entry in entries for handle in entry.handles}
    versions: dict[str, int] = {}
    for entry in entries:
        if entry.table.format == "delta" and entry.table.path not in exclude:
            table, version = entry.table.path, entry.table.version
            versions[table] = max(versions.get(table, -1), -1 if version is None else version)
    dropped = []
    clean = _CleanFiles(storage, subject)
    for table, newest in versions.items():
        shown = shown_files(storage, table)
        files = filter(is_data_file, storage.list(table)) if shown is None else shown
        if all(clean.has_no_rows(table, name) for name in sorted({*files} - names)):
            continue
        deriver.fence.claim(
            announce=True
        )  # a job that publishes at the same time would leave a gap
        if drop_log(storage, table, newest):
            dropped.append(table)
    return dropped


def clean_logs(
    deriver: Deriver,
    subject: Subject,
    kept: Mapping[int, Manifest],
    manifests: Sequence[Manifest],
    exclude: Collection[str],
    *,
    dry_run: bool,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove a subject from Delta logs that still show it.

    Args:
        deriver: The store.
        subject: The subject to remove.
        kept: The checkpoints that are kept.
        manifests: All readable checkpoints, including expired ones.
        exclude: Tables whose log is already clean.
        dry_run: Whether to report the logs without changing them.

    Returns:
        The tables whose log was deleted or lost its newest entries because these show an expired
        checkpoint. Also the tables whose log lost its old entries. Old entries are older than the
        oldest version that a kept checkpoint names, or if necessary, older than the newest version.

    Raises:
        CommitConflictError: Another writer is active.
        StorageError: The store cannot be read or written.
    """
    if all(entry.table.format != "delta" for manifest in manifests for entry in manifest.entries):
        return (), ()
    storage = deriver.catalog.storage
    dropped = [] if dry_run else _drop_shown(deriver, subject, kept.values(), exclude)
    reader = LogReader(storage, subject, manifests)
    logs: dict[str, list[str]] = {}
    for name in storage.list(OPERATORS):
        folder, is_log, _ = name.partition(DELTA_LOG)
        if is_log and folder not in exclude and reader.search_of(folder) is not None:
            logs.setdefault(folder, []).append(name)
    clean = _CleanFiles(storage, subject)
    oldest = _oldest_versions(kept.values())
    cut = []

    def shows(folder: str, names: Collection[str]) -> bool:
        is_clean = partial(clean.is_clean, folder)
        return any(reader.shows_if_whole(name, is_clean) for name in names)

    for folder, names in logs.items():
        if not shows(folder, names):
            continue
        if folder in oldest:
            done = dry_run or cut_log(storage, folder, oldest[folder])
            if not dry_run and shows(folder, storage.list(f"{folder}{DELTA_LOG}".rstrip("/"))):
                done |= cut_log(storage, folder)
            if done:
                cut.append(folder)
            continue
        if not dry_run:
            # a job that publishes at the same time would leave a gap
            deriver.fence.claim(announce=True)
            drop_log(storage, folder)
        dropped.append(folder)
    return tuple(dropped), tuple(cut)


def _oldest_versions(kept: Collection[Manifest]) -> dict[str, int | None]:
    """Return the oldest version of each table that a kept checkpoint names, or None."""
    oldest: dict[str, int | None] = {}
    for manifest in kept:
        for entry in manifest.entries:
            known, version = oldest.get(entry.table.path), entry.table.version
            named = [candidate for candidate in (known, version) if candidate is not None]
            oldest[entry.table.path] = min(named, default=None)
    return oldest


class _CleanFiles:
    """Finds data files that exist and have no row of a subject; reads each file once."""

    def __init__(self, storage: Storage, subject: Subject) -> None:
        self._storage, self._subject = storage, subject
        self._rows: dict[str, int | None] = {}

    def is_clean(self, folder: str, path: str) -> bool:
        """Return whether a file of a table exists and has no row."""
        try:
            return self._count(folder, f"{folder}/{path}") == 0
        except FileNotFoundError:
            return False

    def has_no_rows(self, folder: str, name: str) -> bool:
        """Return whether a file has no row, or does not exist."""
        try:
            return self._count(folder, name) == 0
        except FileNotFoundError:
            return True

    def _count(self, folder: str, name: str) -> int | None:
        if name not in self._rows:
            selections = partial(self._subject.selections_of_file, folder)
            self._rows[name] = count_selected(self._storage, name, None, selections).rows
        return self._rows[name]
