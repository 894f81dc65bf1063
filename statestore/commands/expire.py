"""Expire: give up all but the last checkpoints, as Flink's retention does (I4, I6).

A tombstone beside its manifest makes a checkpoint invisible, for ever; its number is never used
again, and the newest checkpoint always stays. No data file is deleted: whoever reads an expired
checkpoint at this moment reads on. What only expired checkpoints used is counted, by the rule of
Flink's registry of shared files: the last checkpoint that uses a file decides.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

from statestore.catalog import Catalog
from statestore.errors import CheckpointNotFoundError, MalformedManifestError
from statestore.model.document import document_bytes
from statestore.model.manifest import Manifest
from statestore.model.retention import Retention, Snapshot
from statestore.model.shared_files import SharedFiles

__all__ = ["ExpiredCheckpoints", "expire"]

FORMAT = "statestore-tombstone"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ExpiredCheckpoints:
    """What was, or with ``dry_run`` would be, given up, oldest first, and what stays.

    ``files`` and ``size_bytes`` are those that no kept checkpoint uses any more; of ``damaged``
    ones, whose manifest cannot be read, they are not known.
    """

    store: str
    dry_run: bool
    expired: tuple[int, ...]
    kept: tuple[int, ...]
    damaged: tuple[int, ...]
    files: int
    size_bytes: int


def expire(catalog: Catalog, *, retain: int, release: str, dry_run: bool) -> ExpiredCheckpoints:
    """Keep the newest ``retain`` checkpoints that can be read, and put a tombstone for each that is
    older. Interrupted, it can be run again. Raises InvalidArgumentError for fewer than one, or
    StorageError.
    """
    retention = Retention(retain)
    ids = catalog.checkpoint_ids()
    known = _manifests(catalog, ids) if len(ids) > retain else {}
    for checkpoint_id in known:
        retention, _ = retention.add(Snapshot(checkpoint_id))
    # One that cannot be read is no reason to give up one that can.
    lowest = retention.lowest or 0
    expired = [one for one in ids if one < lowest]
    kept = tuple(one for one in ids if one >= lowest)
    released = _released(known, lowest)
    if not dry_run:
        for checkpoint_id in expired:  # the oldest first, so that what is left has no gap
            catalog.expire(checkpoint_id, _tombstone(checkpoint_id, release))
    return ExpiredCheckpoints(
        store=catalog.storage.url,
        dry_run=dry_run,
        expired=tuple(expired),
        kept=kept,
        damaged=tuple(one for one in ids if known and one not in known),
        files=len(released),
        size_bytes=sum(released.values()),
    )


def _manifests(catalog: Catalog, ids: tuple[int, ...]) -> dict[int, Manifest]:
    """Return the manifests that can be read."""
    found = {}
    for checkpoint_id in ids:
        try:
            found[checkpoint_id] = catalog.load(checkpoint_id)
        except (MalformedManifestError, CheckpointNotFoundError):
            continue  # damaged: the caller is told; or another process expires as well
    return found


def _released(manifests: dict[int, Manifest], lowest: int) -> dict[str, int]:
    """Return the bytes of each file whose last user is older than the oldest that is kept."""
    sizes: dict[str, int] = {}
    registry = SharedFiles()
    for checkpoint_id, manifest in sorted(manifests.items()):
        files = {
            f"{entry.table.path}/{handle.path}": handle.size_bytes
            for entry in manifest.entries
            for handle in entry.handles
        }
        sizes |= files
        registry = registry.use(checkpoint_id, {name: name for name in files}).registry
    return {name: sizes[name] for name in registry.release(lowest).deleted}


def _tombstone(checkpoint_id: int, release: str) -> bytes:
    return document_bytes(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "checkpoint_id": checkpoint_id,
            "expired_at_ms": time.time_ns() // 1_000_000,
            "name": f"{socket.gethostname()}:{os.getpid()}",
            "release": release,
        }
    )
