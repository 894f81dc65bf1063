"""As of: a state at one checkpoint beside another, and one key over all kept checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statestore.catalog import Catalog
from statestore.errors import CheckpointNotFoundError, StateNotFoundError
from statestore.table.joined import joined
from statestore.table.lookup import rows_of_key

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeyAt", "as_of", "key_history"]


@dataclass(frozen=True)
class KeyAt:
    """What a key had at a checkpoint: its rows, None when the checkpoint lacks the state.

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

    Raises CheckpointNotFoundError, StateNotFoundError, or InvalidArgumentError when the two cannot
    be joined.
    """
    old, new = (catalog.load(one).keyed_entry(uid, name) for one in (a, b))
    return joined(catalog.storage, old, new, now_ms=now_ms)


def key_history(
    catalog: Catalog, key: Any, uid: str, name: str, *, now_ms: int | None
) -> Iterator[KeyAt]:
    """Yield what a key had at each kept checkpoint, oldest first; at most one file of each base is
    read, and none where the checkpoint before had the same files.

    Raises StateNotFoundError when no kept checkpoint has the state, and what a lookup raises.
    """
    before: tuple[dict[str, Any], ...] | None = None
    known, seen = False, None
    for checkpoint_id in catalog.checkpoint_ids():
        try:
            manifest = catalog.load(checkpoint_id)
        except CheckpointNotFoundError:
            continue  # given up since it was listed
        try:
            entry = manifest.keyed_entry(uid, name)
        except StateNotFoundError:
            rows = None
        else:
            if not known or entry != seen:
                found = rows_of_key(catalog.storage, entry, key, now_ms=now_ms)
                rows = tuple(found)
            known, seen = True, entry
        yield KeyAt(checkpoint_id, manifest.created_at_ms, rows, rows != before)
        before = rows
    if not known:
        raise StateNotFoundError(
            f"no kept checkpoint has a keyed state {name!r} of operator {uid!r}; 'statestore show' "
            "lists those that there are"
        )
