"""Fork: a new store that begins with a checkpoint of another one, and shares its files.

On one file system a file gets a second name, so nothing is copied, and a collection in either store
takes away its own name alone. Where names cannot be shared (a bucket, another disk) files are
copied. From then on the two stores know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable

from statestore.catalog import Catalog
from statestore.commands.copy import CopiedCheckpoint, Progress, copy
from statestore.commands.derive import Deriver
from statestore.errors import InvalidArgumentError
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

    Raises InvalidArgumentError when there is a store already, and what a copy raises.
    """
    if not target.is_empty():
        number = Catalog.open(target, create=False).checkpoint_ids()
        raise InvalidArgumentError(
            f"{target.url} is a store already, with checkpoints {number}; a fork is a new store: "
            "give a path where nothing is yet, or use 'statestore copy'"
        )
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
