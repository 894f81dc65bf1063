"""Repair damage that blocks all writers although no checkpoint is damaged, from proven facts.

* **The store's file.** One changed byte is restored if the document's own SHA-256 proves it.
  If that fails, the file is made again from the visible checkpoints, which have the id of the store
  and the table format. It is deleted and put if absent. A run that is killed in between leaves a
  store that any other run can repair.
* **The newest claim.** It stays as it is, because claims never change, and the next generation is
  claimed. Of several simultaneous repairs only one succeeds, and the active writer is fenced, as
  after any claim. The announced id is carried over. If it is unknown, the next id is above all ids
  that can have been announced.
* **An entry of a Delta log**, if a manifest and the neighboring entries determine its content
  (``delta/log_repair.py``).

Damage that cannot be repaired from proof is left unchanged and reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from statestore.catalog.catalog import Catalog, refuse_plain_file, store_document
from statestore.catalog.fence import Claim, Fence, claim_from_json
from statestore.delta.log_repair import DeltaLog, lost_entries
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    MalformedManifestError,
    StoreNotFoundError,
)
from statestore.format.documents import repair_byte
from statestore.format.manifest import TABLE_FORMATS, Entry, Manifest
from statestore.format.names import (
    GREATEST_GIVEN_ID,
    GREATEST_ID,
    STORE_FILE,
    WRITERS,
    generation_of,
    writer_path,
)
from statestore.format.state import LAYOUT_CHOICES
from statestore.maintenance.store_context import HasContext
from statestore.storage import Storage, put_once

# The most consecutive ids that one writer can have announced, as in a purge of many checkpoints.
_MOST_AT_ONCE = 10**6


@dataclass(frozen=True)
class RepairFinding:
    """A damaged or missing file, and the repair that was made, would be made or is needed."""

    file: str
    what: str


@dataclass(frozen=True, kw_only=True)
class RepairedStore:
    """The repairs, made or in a dry run planned; ``left`` is the damage that cannot be repaired."""

    store: str
    dry_run: bool
    repaired: tuple[RepairFinding, ...]
    left: tuple[RepairFinding, ...]


def repair(store: HasContext, *, dry_run: bool = False) -> RepairedStore:
    """Repair damage that blocks all writing although no checkpoint is damaged.

    This covers ``statestore.json``, the newest writer's claim, and a missing entry of a Delta
    log. Before a document is rebuilt, its content is proven by its SHA-256 or by the
    checkpoints. If the newest claim is damaged, this object takes over the store, and a running
    job can no longer commit.

    Args:
        dry_run: reports what would be done, and changes nothing.

    Returns:
        The repairs; ``left`` lists the damage that cannot be repaired, and what to do.

    Raises:
        StoreNotFoundError, FormatVersionError or StorageError: the repair can be run again.
    """
    storage = store.parts.storage
    work = _Repair(storage, store.parts.fence, dry_run)
    with refuse_plain_file(storage):
        work.run()
    return RepairedStore(
        store=storage.url, dry_run=dry_run, repaired=tuple(work.repaired), left=tuple(work.left)
    )


class _Repair:
    """One repair run, and its findings so far."""

    def __init__(self, storage: Storage, fence: Fence, dry_run: bool) -> None:
        self._storage, self._fence, self._dry_run = storage, fence, dry_run
        self.repaired: list[RepairFinding] = []
        self.left: list[RepairFinding] = []

    def run(self) -> None:
        catalog = self._repair_store_file()
        if catalog is not None:
            manifests = _readable_manifests(catalog)  # refuses a newer format before the claim
            self._repair_claim(catalog)
            self._repair_logs(manifests)

    def _repair_store_file(self) -> Catalog | None:
        """Return the store, after repairing its file if necessary; None if that is impossible."""
        raw = _read_if_there(self._storage, STORE_FILE)
        catalog = None if raw is None else _open_catalog(self._storage, raw)
        if catalog is not None:
            return catalog
        whole = repair_byte(raw or b"")
        action = "one changed byte was restored; the SHA-256 proves the content"
        if whole is None or _open_catalog(self._storage, whole) is None:
            manifests = _readable_manifests(Catalog(self._storage, ""))
            ids = {manifest.store_id for manifest in manifests}
            if raw is None and not manifests:
                raise StoreNotFoundError(f"no store at {self._storage.url}; check the URL")
            if len(ids) != 1:
                problem = (
                    f"the checkpoints belong to {len(ids)} stores"
                    if ids
                    else "no checkpoint can be read"
                )
                why = f"{problem}, so the id of this store is unknown; copy the file from a backup"
                self.left.append(RepairFinding(STORE_FILE, why))
                return None
            layout = _recover_member(raw or b"", "layout", LAYOUT_CHOICES)
            whole = store_document(ids.pop(), _format_of(raw or b"", manifests), layout)
            action = f"rebuilt from {len(manifests)} checkpoints"
        self.repaired.append(RepairFinding(STORE_FILE, action))
        if self._dry_run:
            return _open_catalog(self._storage, whole)
        if raw is not None and _read_if_there(self._storage, STORE_FILE) == raw:
            self._storage.delete(STORE_FILE)
        # If the name is taken, another repair was faster.
        put_once(self._storage, STORE_FILE, whole)
        return Catalog.from_document(self._storage, self._storage.read(STORE_FILE))

    def _repair_claim(self, catalog: Catalog) -> None:
        generation, raw = self._fence.newest()
        if not generation or _claim_of(raw, generation) is not None:
            return
        whole = repair_byte(raw)
        known = None if whole is None else _claim_of(whole, generation)
        explanation = "its announced checkpoint id was recovered; the SHA-256 proves the content"
        if known is None:
            first = max(GREATEST_GIVEN_ID + 1, catalog.next_id() + _MOST_AT_ONCE)
            known = Claim(
                generation=generation,
                name="",
                token="",
                release="",
                claimed_at_ms=0,
                announced_id=first,
            )
            before = self._readable_claim_before(generation)
            if before is not None:
                known = replace(known, writer_version=before.writer_version, upgrade=before.upgrade)
            explanation = (
                f"its announced checkpoint id is unknown; the next checkpoint is {first:,}"
            )
        name = writer_path(generation)
        if known.announced_id > GREATEST_ID:
            why = "no id is left above all ids that it can have announced; copy to another store"
            self.left.append(RepairFinding(name, why))
            return
        if not self._dry_run:
            self._fence.follow(known, raw)  # if it is taken, another process was faster
        action = (
            f"the next generation was claimed, so a running job can no longer commit; {explanation}"
        )
        self.repaired.append(RepairFinding(name, action))

    def _readable_claim_before(self, generation: int) -> Claim | None:
        """Return the newest readable claim before a generation, for the store's writer version."""
        listed = filter(None, map(generation_of, self._storage.list(WRITERS)))
        for earlier in sorted((other for other in listed if other < generation), reverse=True):
            with suppress(MalformedManifestError, FileNotFoundError):
                return self._fence.read(earlier)
        return None

    def _repair_logs(self, manifests: list[Manifest]) -> None:
        tables: dict[str, dict[int, tuple[Manifest, Entry]]] = {}
        for manifest in manifests:
            for entry in manifest.entries:
                if entry.table.format == "delta":
                    versions = tables.setdefault(entry.table.path, {})
                    if entry.table.version is not None:
                        # The first checkpoint that names the version has published it.
                        versions.setdefault(entry.table.version, (manifest, entry))
        for path, entries in sorted(tables.items()):
            try:
                self._repair_log(DeltaLog(self._storage, path), entries)
            except CorruptionError as error:
                self.left.append(RepairFinding(f"{path}/_delta_log", str(error)))

    def _repair_log(self, log: DeltaLog, entries: dict[int, tuple[Manifest, Entry]]) -> None:
        for lost in lost_entries(log, entries):
            if lost.data is None:
                self.left.append(RepairFinding(lost.file, lost.what))
                return
            if not self._dry_run:
                log.put(lost.file, lost.data)
            self.repaired.append(RepairFinding(lost.file, lost.what))


def _readable_manifests(catalog: Catalog) -> list[Manifest]:
    """Return the manifests of the visible checkpoints that can be read, oldest first."""
    manifests = []
    for number in catalog.checkpoint_ids():
        try:
            manifests.append(catalog.manifest(number))
        except (CheckpointNotFoundError, MalformedManifestError):
            continue
    return manifests


def _format_of(raw: bytes, manifests: list[Manifest]) -> str | None:
    """Return the store's table format.

    Use the readable rest of its file, or ``delta`` if there is such a table. If it is None, a
    writer decides by the existing tables.
    """
    formats = {entry.table.format for manifest in manifests for entry in manifest.entries}
    return _recover_member(raw, "table_format", TABLE_FORMATS) or (
        "delta" if "delta" in formats else None
    )


def _recover_member(raw: bytes, name: str, choices: Sequence[str]) -> str | None:
    """Return a member from a damaged document if it is one of the choices, or None."""
    matching = [choice for choice in choices if f'"{name}":"{choice}"'.encode() in raw]
    return matching[0] if len(matching) == 1 else None


def _read_if_there(storage: Storage, name: str) -> bytes | None:
    with suppress(FileNotFoundError):
        return storage.read(name)
    return None


def _open_catalog(storage: Storage, raw: bytes) -> Catalog | None:
    with suppress(MalformedManifestError):
        return Catalog.from_document(storage, raw)
    return None


def _claim_of(raw: bytes, generation: int) -> Claim | None:
    with suppress(MalformedManifestError):
        return claim_from_json(raw, name=writer_path(generation), generation=generation)
    return None
