"""Fork: a new store that begins with a checkpoint of another one, and shares its files.

On one file system a file gets a second name, so nothing is copied, and a collection in either store
takes away its own name alone. Files are never changed in place, so neither store sees what the
other one does; but damage to the bytes of a file is damage in both. Where names cannot be shared (a
bucket, another disk) files are copied.
"""

from __future__ import annotations

from collections.abc import Callable

from statestore.catalog.catalog import Catalog
from statestore.commands.copy import CopiedCheckpoint, copy
from statestore.commands.copy_files import Progress
from statestore.commands.derive import Deriver
from statestore.errors import InvalidArgumentError, StoreNotFoundError
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
    """Make a store at ``target`` whose first checkpoint is the given one; return what was done:
    ``copied_files`` are those that could not be shared.

    A fork that was ended goes on where it was. Raises InvalidArgumentError when there is a store
    with checkpoints at ``target`` already, or a folder with anything else, and what a copy raises.
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
    """Refuse a place that is not free; a store without a checkpoint is a fork that was ended."""
    if target.is_empty():
        return
    advice = "a fork is a new store: give a path where nothing is yet"
    try:
        numbers = Catalog.open(target, create=False).checkpoint_ids()
    except StoreNotFoundError as error:
        raise InvalidArgumentError(
            f"{target.url} is no store, and there are other files in it; {advice}"
        ) from error
    if numbers:
        raise InvalidArgumentError(
            f"{target.url} is a store already, with checkpoints {', '.join(map(str, numbers))}; "
            f"{advice}, or use 'statestore copy'"
        )
