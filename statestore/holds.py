"""Savepoints and pins of a store: what keeps checkpoints that nothing else keeps (I9).

**Why a look after the put is enough.** Whoever holds a checkpoint puts the document first and then
sees whether the checkpoint is visible still. A tombstone never goes away; so if there is none now,
there was none before, and who collected garbage before the put found the checkpoint alive, while
who collects after it finds the hold.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import TypeVar

from statestore.errors import CheckpointNotFoundError, InvalidArgumentError
from statestore.model.hold import (
    Pin,
    Savepoint,
    check_savepoint_name,
    pin_from_json,
    pin_to_json,
    savepoint_from_json,
    savepoint_to_json,
)
from statestore.model.paths import PINS, SAVEPOINTS, pin_path, savepoint_of, savepoint_path
from statestore.storage import Storage, put_once

__all__ = ["Holds"]

T = TypeVar("T")


class Holds:
    """The documents of savepoints and pins in one store."""

    def __init__(self, storage: Storage) -> None:
        """Read nothing yet."""
        self._storage = storage

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints in order of name; MalformedManifestError for a damaged one."""
        names = [name for name in self._storage.list(SAVEPOINTS) if savepoint_of(name)]
        found = [self._read(name, savepoint_from_json) for name in names]
        return tuple(one for one in found if one is not None)

    def savepoint(self, name: str) -> Savepoint:
        """Return a savepoint; CheckpointNotFoundError names those that there are."""
        found = self._read(savepoint_path(name), savepoint_from_json)
        if found is None:
            raise self._not_found(name)
        return found

    def put_savepoint(self, savepoint: Savepoint, *, visible: Callable[[], object]) -> None:
        """Keep a checkpoint under a name; ``visible`` raises when it is visible no more.

        Then the savepoint is taken back. Raises InvalidArgumentError for a name that is taken by
        another checkpoint, or is none; for the same checkpoint nothing happens.
        """
        path = savepoint_path(check_savepoint_name(savepoint.name))
        if not put_once(self._storage, path, savepoint_to_json(savepoint)):
            taken = self.savepoint(savepoint.name)
            if taken.checkpoint_id == savepoint.checkpoint_id:
                return
            raise InvalidArgumentError(
                f"savepoint {savepoint.name!r} is checkpoint {taken.checkpoint_id} already; give "
                "another name, or delete that one first"
            )
        self._seen(path, visible)

    def delete_savepoint(self, name: str) -> Savepoint:
        """Let go of a savepoint; CheckpointNotFoundError names those that there are."""
        found = self.savepoint(name)
        self._storage.delete(savepoint_path(name))
        return found

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins, those whose lease is over as well; MalformedManifestError for a damaged
        one.
        """
        found = [self._read(name, pin_from_json) for name in self._storage.list(PINS)]
        return tuple(one for one in found if one is not None)

    def put_pin(self, pin: Pin, *, visible: Callable[[], object]) -> None:
        """Keep a checkpoint until the lease ends; ``visible`` raises when it is visible no more.

        Then the pin is taken back.
        """
        path = pin_path(pin.token)
        if not put_once(self._storage, path, pin_to_json(pin)):
            raise InvalidArgumentError(f"there is a pin {pin.token!r} already; take another token")
        self._seen(path, visible)

    def delete_pin(self, token: str) -> None:
        """Let go of a pin; nothing happens when it is gone."""
        self._storage.delete(pin_path(token))

    def held(self, now_ms: int) -> dict[int, str]:
        """Return the ids of checkpoints that are kept at this moment, each with what keeps it."""
        pins = [pin for pin in self.pins() if pin.until_ms > now_ms]
        held = {pin.checkpoint_id: f"the pin of {pin.holder}" for pin in pins}
        return held | {one.checkpoint_id: f"savepoint {one.name!r}" for one in self.savepoints()}

    def _seen(self, path: str, visible: Callable[[], object]) -> None:
        try:
            visible()
        except CheckpointNotFoundError:
            self._storage.delete(path)
            raise

    def _read(self, path: str, parse: Callable[..., T]) -> T | None:
        try:
            raw = self._storage.read(path)
        except FileNotFoundError:  # deleted since it was listed
            return None
        return parse(raw, name=f"{self._storage.url}/{path}")

    def _not_found(self, name: str) -> CheckpointNotFoundError:
        names = [one.name for one in self.savepoints()]
        near = get_close_matches(name, names, 1) or names
        listed = ", ".join(map(repr, near[:10])) if names else "none"
        return CheckpointNotFoundError(
            f"no savepoint {name!r} in {self._storage.url}; there is {listed}"
        )
