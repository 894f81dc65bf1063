"""Replace: a new checkpoint takes the place of an old one, and of all that holds it (I9, I10).

What replaces is held before the old one is let go: a pin keeps the new checkpoint, then the
savepoints move, then the old one gets its tombstone, and the pin goes last. So an expiry beside it
finds one of the two held at every moment. The pin's token tells which checkpoint it is for: where
it is there still, somebody has not finished, and whoever finds it can.

**Why a savepoint may move on the word of a pin.** The new checkpoint may get a tombstone while the
pin holds it, so that it is visible no more when the savepoint is put. Whoever collects garbage
lists pins before savepoints: who finds the pin gone finds the savepoint, which was put before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from statestore.catalog.catalog import Catalog
from statestore.commands.expire import tombstone
from statestore.errors import CheckpointNotFoundError, CommitConflictError
from statestore.format.documents import Pin, Savepoint
from statestore.format.manifest import Manifest

__all__ = ["replace_checkpoints", "unfinished"]

_LEASE_MS = 30 * 24 * 3_600_000
"""A day's standstill, and time to run a command again."""
_REPLACES = "replaces-"


def replace_checkpoints(
    catalog: Catalog, replacements: Mapping[int, Manifest], release: str, now_ms: int
) -> None:
    """Move the savepoints of checkpoints to their replacements, by the id of the old one, and give
    the old ones up; may be repeated, and finishes what was begun.

    A replacement's origin says which savepoints the old one had, and whether it had ``expired``.
    Raises CommitConflictError when a replacement was given up before it could be held; the
    savepoint stays where it is.
    """
    held = [_hold(catalog, old, new, now_ms) for old, new in replacements.items()]
    for (old, new), pin in zip(replacements.items(), held, strict=True):
        if pin is not None:
            _move(catalog, old, new, pin)
        if old in catalog.checkpoint_ids():
            catalog.expire(old, tombstone(old, release, now_ms))
        if (new.origin or {})["expired"]:  # it was kept by its savepoints alone, and still is
            number = new.checkpoint_id
            catalog.expire(number, tombstone(number, release, now_ms))
        if pin is not None:
            catalog.holds.delete_pin(pin.token)


def unfinished(catalog: Catalog) -> frozenset[int]:
    """Return the checkpoints that somebody began to let take another one's place, and did not
    end.
    """
    pins = catalog.holds.pins()
    return frozenset(pin.checkpoint_id for pin in pins if pin.token.startswith(_REPLACES))


def _token(new: Manifest) -> str:
    return _REPLACES + new.writer.token


def _hold(catalog: Catalog, old: int, new: Manifest, now_ms: int) -> Pin | None:
    """Return what holds the replacement from here on; None where nothing must."""
    there = {pin.token: pin for pin in catalog.holds.pins()}
    pin = there.get(_token(new))
    to_move = _savepoints(catalog, old, new)
    if not to_move or (pin is not None and pin.until_ms > now_ms):
        return pin
    if pin is not None:
        catalog.holds.delete_pin(pin.token)
    number = new.checkpoint_id
    holder = f"the move of savepoints from checkpoint {old}"
    pin = Pin(_token(new), number, holder, until_ms=now_ms + _LEASE_MS)
    try:
        catalog.holds.put_pin(pin, visible=lambda: catalog.check_visible(number))
    except CheckpointNotFoundError as error:
        raise CommitConflictError(
            f"checkpoint {number} of {catalog.storage.url}, which was to take the place of {old}, "
            "was given up by an expiry in the same moment; the savepoints stay with the old one. "
            "Run it again"
        ) from error
    return pin


def _savepoints(catalog: Catalog, old: int, new: Manifest) -> list[Savepoint]:
    """Return the savepoints to move, as they are to be; one that is not there is between two
    places.
    """
    there = {one.name: one for one in catalog.holds.savepoints()}
    told = [
        Savepoint(each["name"], old, each["created_at_ms"])
        for each in (new.origin or {})["savepoints"]
    ]
    found = {one.name: there.get(one.name, one) for one in [*told, *there.values()]}
    of_old = [one for one in found.values() if one.checkpoint_id == old]
    return [replace(one, checkpoint_id=new.checkpoint_id) for one in of_old]


def _move(catalog: Catalog, old: int, new: Manifest, pin: Pin) -> None:
    """A savepoint is a file that is put once: so it is deleted, and put again."""

    def kept() -> None:
        try:
            catalog.check_visible(new.checkpoint_id)
        except CheckpointNotFoundError:
            if new.checkpoint_id not in unfinished(catalog):
                raise

    for moved in _savepoints(catalog, old, new):
        there = {one.name: one.checkpoint_id for one in catalog.holds.savepoints()}
        if there.get(moved.name) == old:
            catalog.holds.delete_savepoint(moved.name)
        if there.get(moved.name, old) == old:  # else somebody has moved it in this moment
            catalog.holds.put_savepoint(moved, visible=kept)
