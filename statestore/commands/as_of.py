"""As of: a state at one checkpoint beside another, and one key over all kept checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statestore.catalog.catalog import Catalog
from statestore.errors import CheckpointNotFoundError, StateNotFoundError
from statestore.files.equality import same_rows
from statestore.files.lookup import table_of_key
from statestore.files.merge import clock_ms
from statestore.files.types import arrow_schema
from statestore.files.values import dictionaries
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.schema import type_text
from statestore.format.state import KeyedState
from statestore.table.joined import joined

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeyAt", "as_of", "key_history"]


@dataclass(frozen=True)
class KeyAt:
    """What a key had at a checkpoint: its rows, None when the checkpoint lacks the state or has it
    under another key.

    ``is_changed`` tells whether they are others than at the checkpoint before.
    """

    checkpoint_id: int
    created_at_ms: int
    rows: tuple[dict[str, Any], ...] | None
    is_changed: bool


def as_of(
    catalog: Catalog,
    a: int | str,
    b: int | str,
    uid: str,
    name: str,
    *,
    now_ms: int | None,
) -> pa.RecordBatchReader:
    """Return a keyed state at checkpoint ``a`` joined with that at ``b``; see ``table/joined.py``.

    Rows that have expired by ``now_ms``, by default by this machine's clock, are on neither side.
    Raises CheckpointNotFoundError, StateNotFoundError, or InvalidArgumentError when the two cannot
    be joined.
    """
    old, new = (catalog.load(one).keyed_entry(uid, name) for one in (a, b))
    return joined(catalog.storage, old, new, now_ms=clock_ms(now_ms))


def key_history(
    catalog: Catalog,
    key_of: Callable[[KeyedState], Any],
    uid: str,
    name: str,
    *,
    now_ms: int | None,
) -> Iterator[KeyAt]:
    """Yield what a key had at each kept checkpoint, oldest first; at most one file of each base is
    read, and none where the checkpoint before had the same files.

    The key is one of the state as the newest checkpoint has it. Rows that have expired by
    ``now_ms``, by default by this machine's clock, are left out. Raises StateNotFoundError when no
    kept checkpoint has the state, and what a lookup raises.
    """
    held = {savepoint.checkpoint_id for savepoint in catalog.holds.savepoints()}
    numbers = sorted({*catalog.checkpoint_ids(), *held})
    newest = _newest(catalog, reversed(numbers), uid, name)
    key, kind, now_ms = key_of(newest), _key_of(newest), clock_ms(now_ms)
    before = after = none = _Found(newest, arrow_schema(newest.schema).empty_table())
    seen: KeyedEntry | None = None
    for number in numbers:
        manifest = _load(catalog, number)
        if manifest is None:
            continue
        entry = _entry(manifest, uid, name)
        if entry is None or _key_of(entry.state) != kind:
            entry, after = None, none
        elif entry != seen:
            after = _Found(entry.state, table_of_key(catalog.storage, entry, key, now_ms=now_ms))
        seen = entry
        rows = None if entry is None else tuple(dictionaries(after.rows, str(entry.state)))
        yield KeyAt(number, manifest.created_at_ms, rows, after.differs(before))
        before = after


@dataclass(frozen=True)
class _Found:
    """The rows of a key in a state at a checkpoint."""

    state: KeyedState
    rows: pa.Table

    def differs(self, before: _Found) -> bool:
        """Return whether these rows are others than those before, by the columns that both have."""
        if self is before or not (self.rows.num_rows or before.rows.num_rows):
            return False
        known = sorted(self.state.identity) == sorted(before.state.identity)
        return not known or not same_rows(
            (self.rows, self.state.schema), (before.rows, before.state.schema)
        )


def _newest(catalog: Catalog, numbers: Iterable[int], uid: str, name: str) -> KeyedState:
    for number in numbers:
        manifest = _load(catalog, number)
        entry = None if manifest is None else _entry(manifest, uid, name)
        if entry is not None:
            return entry.state
    raise StateNotFoundError(
        f"no kept checkpoint has a keyed state {name!r} of operator {uid!r}; 'statestore show' "
        "lists those that there are"
    )


def _load(catalog: Catalog, number: int) -> Manifest | None:
    """Return a manifest, None when it was given up since it was listed."""
    try:
        return catalog.manifest(number)
    except CheckpointNotFoundError:
        return None


def _entry(manifest: Manifest, uid: str, name: str) -> KeyedEntry | None:
    try:
        return manifest.keyed_entry(uid, name)
    except StateNotFoundError:
        return None


def _key_of(state: KeyedState) -> tuple[tuple[str, str], ...]:
    return tuple((name, type_text(state.schema.type_of(name))) for name in state.key)
