"""The files of an Iceberg table's metadata, which are deleted with the last snapshot that has them.

Iceberg's own expiry of snapshots deletes these files together with data files. A published table
does not allow it, because its data files belong to a store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["delete_metadata", "metadata_files"]


def metadata_files(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the manifest lists and manifests of some snapshots."""
    files: set[str] = set()
    for snapshot in snapshots:
        files.add(snapshot.manifest_list)
        files |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    return files


def delete_metadata(io: FileIO, files: Iterable[str]) -> int:
    """Delete files of a table's metadata; return how many could not be deleted."""
    left = 0
    for file in sorted(files):
        try:
            io.delete(file)
        except FileNotFoundError:
            continue
        except OSError:  # it is garbage, which takes space and does no harm
            left += 1
    return left
