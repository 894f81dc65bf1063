"""Savepoint: keep a checkpoint under a name, until the savepoint is deleted (I9).

A savepoint is a small document beside the checkpoints. What it names is neither expired nor
collected; and if it expired at the same moment, it is still there under its name.
"""

from __future__ import annotations

from statestore.catalog.catalog import Catalog
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError
from statestore.format.documents import Savepoint, check_savepoint_name

__all__ = ["holdable", "make_savepoint"]


def make_savepoint(catalog: Catalog, name: str, checkpoint: int | str, *, now_ms: int) -> Savepoint:
    """Keep a checkpoint under a name; nothing happens when it is kept under that name already.

    Raises CheckpointNotFoundError, MalformedManifestError for a checkpoint that cannot be read, or
    InvalidArgumentError for a name that is taken or is none.
    """
    check_savepoint_name(name)
    checkpoint_id = catalog.resolve(checkpoint)
    if checkpoint == name:
        return catalog.holds.savepoint(name)
    holdable(catalog, checkpoint, checkpoint_id)
    wanted = Savepoint(name, checkpoint_id, now_ms)
    catalog.holds.put_savepoint(wanted, visible=lambda: catalog.check_visible(checkpoint_id))
    return catalog.holds.savepoint(name)


def holdable(catalog: Catalog, checkpoint: int | str, checkpoint_id: int) -> None:
    """Raise when a checkpoint cannot be held any more, or is not worth it: its manifest is read.

    Raises InvalidArgumentError for one that a savepoint alone keeps (``holds.py`` says why),
    CheckpointNotFoundError, or MalformedManifestError.
    """
    try:
        catalog.check_visible(checkpoint_id)
    except CheckpointNotFoundError as error:
        raise InvalidArgumentError(
            f"checkpoint {checkpoint_id} has expired, and savepoint {checkpoint!r} alone keeps it: "
            "nothing else can hold it any more; it stays until that savepoint is deleted"
        ) from error
    catalog.manifest(checkpoint_id)
