"""Keyed state by key group, including its changes: the digests of a group, and its rows.

Without changes, the manifest has the digest of a key group. With changes, it has the digests of
the group's parts. The same parts in the same order have the same rows. Different parts can only
be compared after they are merged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import DamagedFileError
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState
from statestore.layers.aligned_streams import paired_tables, sorted_tables
from statestore.layers.intact_key_groups import (
    Groups,
    group_digests,
    stored_key_groups,
    stored_undamaged_groups,
    undamaged_groups,
)
from statestore.layers.merge import merged_batches
from statestore.parquet.reader import add_key_group, restored_schema
from statestore.rows.column_types import arrow_schema
from statestore.rows.key_group_runs import RUN_BYTES
from statestore.storage import Storage

Parts = tuple[tuple[int, int], ...]
"""Rows and digest of a key group in the base, then in each layer that changes it, oldest first.

With one item, the group has no changes: the item has the group's rows and digest.
"""


def live_parts(entry: KeyedEntry) -> Iterator[tuple[KeyedEntry, Collection[int]]]:
    """Yield the base and each layer of a state, with the key groups that are live in it."""
    base, *_ = entry.parts
    yield base, range(entry.state.max_parallelism)
    for layer in entry.layers:
        yield layer.entry, frozenset(group for span in layer.live for group in span)


def group_parts(entry: KeyedEntry) -> dict[int, Parts]:
    """Return the parts of each key group that has rows or changes, without reading files."""
    parts_by_group: dict[int, Parts] = {}
    for number, (part, live) in enumerate(live_parts(entry)):
        none = ((0, 0),) if number else ()
        for handle in part.handles:
            for group, rows, digest in group_digests(handle):
                if group in live:
                    parts_by_group[group] = (*parts_by_group.get(group, none), (rows, digest))
    return parts_by_group


def group_rows(entry: KeyedEntry) -> dict[int, int]:
    """Return the number of live stored rows per key group, in the base and all changes.

    The state may have fewer rows.
    """
    return {group: sum(rows for rows, _ in parts) for group, parts in group_parts(entry).items()}


def read_groups(
    storage: Storage,
    entry: KeyedEntry,
    wanted: Container[int],
    *,
    damaged: Literal["raise", "skip"] = "raise",
    unread: Container[str] = (),
) -> Groups:
    """Yield the rows of each wanted key group that has rows or changes, in ascending order.

    The rows are stored columns with the changes applied. If no rows are left, a batch without rows
    is yielded. A batch has rows of one key group; a large key group is yielded in several batches.
    Base and layer files without a wanted key group are not opened. Raises MissingFileError or
    DamagedFileError.

    With ``skip``, wanted key groups are read twice. First all digests are checked, and a key group
    is skipped if its base or a layer is damaged: without one of the layers, its rows would be older
    than the checkpoint. Files named in ``unread`` count as damaged. StorageError is raised for a
    file that could not be read.
    """
    read = stored_key_groups
    if damaged == "skip":
        read, wanted = stored_undamaged_groups, intact_groups(storage, entry, wanted, unread)
    if not entry.layers:
        yield from read(storage, entry, wanted)
        return
    yield from _merged_groups(storage, entry, wanted, read)


def intact_groups(
    storage: Storage, entry: KeyedEntry, wanted: Container[int], unread: Container[str] = ()
) -> frozenset[int]:
    """Return the wanted key groups with rows or changes whose base and layers are all intact."""
    intact = {group for group in group_parts(entry) if group in wanted}
    for part, live in live_parts(entry):
        own = frozenset(
            group
            for handle in part.handles
            for group, _, _ in group_digests(handle)
            if group in live and group in intact
        )
        intact -= own - undamaged_groups(storage, part, own, unread)
    return frozenset(intact)


def _merged_groups(
    storage: Storage,
    entry: KeyedEntry,
    wanted: Container[int],
    read: Callable[[Storage, KeyedEntry, Container[int]], Groups],
) -> Groups:
    names = entry.state.schema.names
    waiting = deque(group for group in sorted(group_parts(entry)) if group in wanted)
    nothing = pa.RecordBatch.from_pylist([], arrow_schema(entry.state.schema))
    with ExitStack() as stack:
        streams = []
        for part, live in live_parts(entry):
            groups = read(storage, part, frozenset(group for group in live if group in wanted))
            streams.append(_with_groups(part.state, stack.enter_context(closing(groups))))
        base, *layers = streams
        for rows in merged_batches(base, layers, entry):
            group_column = np.asarray(rows.column(KEY_GROUP))
            begins = np.flatnonzero(np.diff(group_column, prepend=-1))
            for begin, end in pairwise([*begins.tolist(), len(group_column)]):
                group = int(group_column[begin])
                while waiting and waiting[0] < group:
                    yield waiting.popleft(), nothing
                if waiting and waiting[0] == group:
                    waiting.popleft()
                yield group, rows.slice(begin, end - begin).select(names)
    for group in waiting:
        yield group, nothing


def _with_groups(
    state: KeyedState, groups: Iterable[tuple[int, pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of key groups with their key group as the first column."""
    schema = restored_schema(state.schema)
    for group, rows in groups:
        yield add_key_group(rows, group, schema)


def exact_groups(storage: Storage, entry: KeyedEntry, wanted: Collection[int]) -> Groups:
    """Yield the wanted key groups as :func:`read_groups` does, skipping damaged ones.

    Raises DamagedFileError after all intact key groups if one is damaged, or StorageError.
    """
    left = group_parts(entry).keys() & set(wanted)
    for group, rows in read_groups(storage, entry, wanted, damaged="skip"):
        left.discard(group)
        yield group, rows
    if left:
        raise DamagedFileError(
            f"key group {min(left)} of {entry.state} in {storage.url} was readable a moment "
            "ago and no longer is; run salvage again"
        )


def aligned_groups(
    a: tuple[KeyedState, Groups], b: tuple[KeyedState, Groups]
) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """Yield the rows of each key group in two states with the same key groups.

    A large key group is yielded in several pieces; rows of one identity are in one piece.
    ``key_group`` is the first column of the tables.
    """
    first, second = (
        (state, sorted_tables(_with_groups(state, groups), state, RUN_BYTES))
        for state, groups in (a, b)
    )
    for old, new in paired_tables(first, second):
        groups_a, groups_b = (np.asarray(rows.column(KEY_GROUP)) for rows in (old, new))
        for group in np.union1d(groups_a, groups_b).tolist():
            yield group, _rows_of_group(old, groups_a, group), _rows_of_group(new, groups_b, group)


def _rows_of_group(rows: pa.Table, groups: npt.NDArray[np.int32], group: int) -> pa.Table:
    begin, end = np.searchsorted(groups, (group, group + 1)).tolist()
    return rows.slice(begin, end - begin)
