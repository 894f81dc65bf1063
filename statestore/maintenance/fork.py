"""Fork: create a store that starts with a checkpoint of another store, and shares its files.

On one file system, files are hard-linked, so nothing is copied, and a collection in either store
removes only its own name. Files are never changed in place, so neither store sees the other's
writes. But if the bytes of a file are damaged, they are damaged in both stores. Files are copied
if they cannot be linked, as in a bucket or on another disk.
"""

from __future__ import annotations

from collections.abc import Callable

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    InvalidArgumentError,
    StoreNotFoundError,
)
from statestore.maintenance.copy import CopiedCheckpoint, copy
from statestore.maintenance.copy_files import Progress
from statestore.maintenance.derive import Deriver
from statestore.storage import Storage

__all__ = ["fork"]


def fork(
    source: Catalog,
    checkpoint: int | str,
    target: Storage,
    deriver: Callable[[Catalog], Deriver],
    *,
    dry_run: bool,
    progress: Progress,
) -> CopiedCheckpoint:
    """Create a store at ``target`` whose first checkpoint is the given one; return what was done.

    ``copied_files`` counts the files that could not be linked. An interrupted fork continues where
    it stopped. Raises InvalidArgumentError if ``target`` already has a store with checkpoints, or a
    folder with other files, and the errors of :func:`copy`.
    """
    _refuse_taken(target)
    return copy(
        source,
        checkpoint,
        target,
        deriver,
        as_savepoint=None,
        dry_run=dry_run,
        progress=progress,
        linked=True,
    )


def _refuse_taken(target: Storage) -> None:
    """Refuse a target that is in use.

    A store without a checkpoint is an interrupted fork, and is allowed.
    """
    if target.is_empty():
        return
    advice = "choose a path that does not exist yet for the fork"
    try:
        numbers = Catalog.open(target, create=False).checkpoint_ids()
    except StoreNotFoundError as error:
        raise InvalidArgumentError(
            f"{target.url} is not a store but contains files; {advice}"
        ) from error
    if numbers:
        raise InvalidArgumentError(
            f"{target.url} is already a store, with checkpoints "
            f"{', '.join(map(str, numbers))}; {advice}, or use 'statestore copy'"
        )
