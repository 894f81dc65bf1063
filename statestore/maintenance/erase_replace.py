"""Replace a checkpoint, and move its holds to the new one (I9, I10).

The replacement is held before the old checkpoint is released. A pin holds the new checkpoint,
then the savepoints move, then the old one gets its tombstone, and the pin is deleted last. So a
concurrent expiry finds one of the two held at every moment. The pin's token contains the id of
its checkpoint. If a pin still exists, its run has not finished, and any other run can finish it.

**Why a savepoint may move to a checkpoint that only a pin holds.** The new checkpoint may get a
tombstone while the pin holds it, and be invisible when the savepoint is put. A collection lists
pins before savepoints. If it no longer finds the pin, it finds the savepoint, which was put
earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from statestore.catalog.catalog import Catalog
from statestore.catalog.holds import Pin, Savepoint
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
)
from statestore.format.manifest import Manifest
from statestore.maintenance.retention import tombstone

_LEASE_MS = 30 * 24 * 3_600_000
"""A long standstill, and time to run a command again."""
_REPLACES = "replaces-"


def replace_checkpoints(
    catalog: Catalog, replacements: Mapping[int, Manifest], release: str, now_ms: int
) -> None:
    """Replace checkpoints: move their savepoints to the replacements, and expire the old ones.

    ``replacements`` are by the id of the old one. The call can be repeated, and finishes an
    interrupted one. A replacement's ``origin`` lists the savepoints of the old checkpoint, and
    whether it had ``expired``. Raises CommitConflictError if a replacement expired before it could
    be held; in that case the savepoint stays.
    """
    held = [_pin_replacement(catalog, old, new, now_ms) for old, new in replacements.items()]
    for (old, new), pin in zip(replacements.items(), held, strict=True):
        if pin is not None:
            _move_savepoints(catalog, old, new)
        if old in catalog.checkpoint_ids():
            catalog.expire(old, tombstone(old, release, now_ms))
        if (new.origin or {})["expired"]:  # only its savepoints kept it, and they still do
            number = new.checkpoint_id
            catalog.expire(number, tombstone(number, release, now_ms))
        if pin is not None:
            catalog.holds.delete_pin(pin.token)


def unfinished_replacements(catalog: Catalog) -> frozenset[int]:
    """Return the checkpoints that an unfinished run was putting in the place of others."""
    pins = catalog.holds.pins()
    return frozenset(pin.checkpoint_id for pin in pins if pin.token.startswith(_REPLACES))


def _token(new: Manifest) -> str:
    return _REPLACES + new.writer.token


def _pin_replacement(catalog: Catalog, old: int, new: Manifest, now_ms: int) -> Pin | None:
    """Return the pin that holds the replacement from now on; None if it needs none."""
    pins = {pin.token: pin for pin in catalog.holds.pins()}
    pin = pins.get(_token(new))
    to_move = _savepoints_to_move(catalog, old, new)
    if not to_move or (pin is not None and pin.until_ms > now_ms):
        return pin
    if pin is not None:
        catalog.holds.delete_pin(pin.token)
    number = new.checkpoint_id
    holder = f"moving the savepoints of checkpoint {old}"
    pin = Pin(_token(new), number, holder, until_ms=now_ms + _LEASE_MS)
    try:
        catalog.holds.put_pin(pin, visible=lambda: catalog.check_visible(number))
    except CheckpointNotFoundError as error:
        raise CommitConflictError(
            f"checkpoint {number} of {catalog.storage.url}, the replacement of {old}, expired at "
            "the same time; the savepoints stay with the old checkpoint. Run the purge again"
        ) from error
    return pin


def _savepoints_to_move(catalog: Catalog, old: int, new: Manifest) -> list[Savepoint]:
    """Return the savepoints to move, in their new form; an interrupted move has deleted some."""
    existing = {savepoint.name: savepoint for savepoint in catalog.holds.savepoints()}
    recorded = [
        Savepoint(each["name"], old, each["created_at_ms"])
        for each in (new.origin or {})["savepoints"]
    ]
    savepoints = {
        savepoint.name: existing.get(savepoint.name, savepoint)
        for savepoint in [*recorded, *existing.values()]
    }
    of_old = [savepoint for savepoint in savepoints.values() if savepoint.checkpoint_id == old]
    return [replace(savepoint, checkpoint_id=new.checkpoint_id) for savepoint in of_old]


def _move_savepoints(catalog: Catalog, old: int, new: Manifest) -> None:
    """Move a savepoint: delete it and put it again, because such a file is never overwritten."""

    def kept() -> None:
        try:
            catalog.check_visible(new.checkpoint_id)
        except CheckpointNotFoundError:
            if new.checkpoint_id not in unfinished_replacements(catalog):
                raise

    for moved in _savepoints_to_move(catalog, old, new):
        existing = {
            savepoint.name: savepoint.checkpoint_id for savepoint in catalog.holds.savepoints()
        }
        if existing.get(moved.name) == old:
            catalog.holds.delete_savepoint(moved.name)
        if existing.get(moved.name, old) == old:  # another process may have moved it at this moment
            catalog.holds.put_savepoint(moved, visible=kept)
