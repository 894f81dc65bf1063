"""Key: what all states of all operators hold of one key; one file at most is read of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.errors import InvalidArgumentError, StateNotFoundError, StateStoreError
from statestore.files.lookup import rows_of_key
from statestore.files.merge import clock_ms
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.schema import Schema
from statestore.format.state import KeyedState

__all__ = ["KeyStates", "KeyedRows", "SkippedState", "key_states"]

_MOST_NAMED = 10


@dataclass(frozen=True)
class KeyedRows:
    """The rows of a key in one state, in stored order; none when the state lacks the key."""

    entry: KeyedEntry
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class SkippedState:
    """A state whose key is of another type, and why the key is none of its."""

    entry: KeyedEntry
    reason: str

    @property
    def key(self) -> Schema:
        """Its key columns."""
        return self.entry.state.schema.select(self.entry.state.key)


@dataclass(frozen=True)
class KeyStates:
    """What a checkpoint knows of a key: the states in order of operator, then as stored."""

    checkpoint_id: int
    states: tuple[KeyedRows, ...]
    skipped: tuple[SkippedState, ...]

    @property
    def rows(self) -> int:
        """Rows of all states."""
        return sum(len(found.rows) for found in self.states)


def key_states(
    catalog: Catalog,
    key_of: Callable[[KeyedState], Any],
    *,
    checkpoint: int | str,
    uid: str | None = None,
    name: str | None = None,
    now_ms: int | None = None,
) -> KeyStates:
    """Return a key's rows in every keyed state, of operator ``uid``, or with the name ``name``.

    Rows that have expired by ``now_ms``, by default by this machine's clock, are left out.
    ``key_of`` returns the key as a state takes it; InvalidArgumentError, from it or because the
    value does not fit, skips the state. Raises CheckpointNotFoundError, StateNotFoundError when no
    such state is keyed, InvalidArgumentError when the key fits none of them, MissingFileError or
    DamagedFileError.
    """
    manifest, now_ms = catalog.load(checkpoint), clock_ms(now_ms)
    states, skipped = [], []
    for entry in _chosen(manifest, uid, name):
        try:
            rows = rows_of_key(catalog.storage, entry, key_of(entry.state), now_ms=now_ms)
        except InvalidArgumentError as error:
            skipped.append(SkippedState(entry, str(error)))
        except StateStoreError as error:
            error.add_note(f"while looking the key up in {entry.state}")
            raise
        else:
            states.append(KeyedRows(entry, tuple(rows)))
    if skipped and not states:
        raise InvalidArgumentError(
            f"no state of checkpoint {manifest.checkpoint_id} has such a key: "
            f"{'; '.join(one.reason for one in skipped[:_MOST_NAMED])}"
        )
    return KeyStates(manifest.checkpoint_id, tuple(states), tuple(skipped))


def _chosen(manifest: Manifest, uid: str | None, name: str | None) -> tuple[KeyedEntry, ...]:
    if uid is not None and name is not None:
        return (manifest.keyed_entry(uid, name),)
    found = tuple(
        entry
        for entry in manifest.keyed
        if uid in (None, entry.state.uid) and name in (None, entry.state.name)
    )
    if found or (uid is None and name is None):
        return found
    known = ", ".join(sorted({e.state.uid if uid else e.state.name for e in manifest.keyed}))
    what = f"operator {uid!r} has no keyed state" if uid else f"no keyed state {name!r}"
    raise StateNotFoundError(
        f"{what} in checkpoint {manifest.checkpoint_id}; there is {known or 'none'}"
    )
