"""Forget: remove one subject from all operators, and search the store for its traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from statestore.errors import StateStoreError
from statestore.format.manifest import Manifest
from statestore.maintenance.derive import Deriver
from statestore.maintenance.gc import CollectedGarbage, collect_garbage
from statestore.maintenance.purge import PurgedKey, PurgeRequest, purge
from statestore.maintenance.search import KeySearch, search_store
from statestore.maintenance.subject import ColumnSubject, ValueOf

__all__ = ["ForgottenSubject", "forget"]


@dataclass(frozen=True, kw_only=True)
class ForgottenSubject:
    """The rows that were, or in a dry run would be, removed, and the search afterwards.

    ``collected`` is None if no garbage was collected, ``search`` is None in a dry run.
    """

    columns: tuple[str, ...]
    purged: PurgedKey
    collected: CollectedGarbage | None
    search: KeySearch | None

    @property
    def problem(self) -> StateStoreError | None:
        """The error if the subject is not gone; None if it is gone, or in a dry run."""
        return None if self.search is None else self.search.problem


def forget(
    deriver: Deriver,
    values: Mapping[str, ValueOf],
    *,
    ignore_pins: bool,
    dry_run: bool,
    collect: bool,
    now_ms: int,
    progress: Callable[[int, int], None],
) -> ForgottenSubject:
    """Remove the rows with some values from every kept checkpoint, and search the store.

    Args:
        deriver: The store.
        values: The value of each column.
        ignore_pins: Whether pinned checkpoints are replaced too.
        dry_run: Whether to say only what would be removed.
        collect: Whether to delete all files that nothing needs, of any age, before the search.
        now_ms: The time, in milliseconds since 1970.
        progress: Called with the number of searched bytes and the total.

    Returns:
        The removed rows, and the result of the search.

    Raises:
        StateNotFoundError: No state has such columns.
        InvalidArgumentError: A checkpoint is pinned, or no column is given.
        CorruptionError: A file is not what was written.
        CommitConflictError: Another writer committed first.
        StorageError: The store cannot be read or written.
    """

    def subject_of(manifests: Sequence[Manifest]) -> ColumnSubject:
        return ColumnSubject(values, manifests)

    wanted = PurgeRequest(subject_of=subject_of)
    purged = purge(deriver, wanted, ignore_pins=ignore_pins, dry_run=dry_run, now_ms=now_ms)
    if dry_run:
        return ForgottenSubject(columns=tuple(values), purged=purged, collected=None, search=None)
    collected = None
    if collect:
        collected = collect_garbage(
            deriver.catalog,
            minimum_age_ms=0,
            now_ms=now_ms,
            dry_run=False,
            progress=lambda done, total: None,
        )
    search = search_store(deriver.catalog, subject_of, progress)
    return ForgottenSubject(
        columns=tuple(values), purged=purged, collected=collected, search=search
    )
